"""The ratios that workq is held to, each with its goal: met, or not.

A ratio divides medians of one run of the bench. Beside it stand the smallest and the largest ratio of the same figures
run by run: contestants alternate within each run, so a slow minute of the machine hits both. "Best of" several peers
takes the one with the best median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Results, Spread, spread

PGQUEUER = ("pgqueuer-100", "pgqueuer-10")
DRAMATIQ = ("dramatiq-t1", "dramatiq-t4", "dramatiq-noconfirm", "dramatiq-redis")
DRAMATIQ_SAFE = ("dramatiq-t1", "dramatiq-t4", "dramatiq-redis")
ON_RABBITMQ = ("dramatiq-t1", "dramatiq-t4", "celery-solo", "celery-threads", "celery-prefork", "taskiq-rabbitmq")


@dataclass(frozen=True, slots=True)
class Goal:
    """One ratio, or one figure when `others` is empty.

    Attributes:
        text: what is compared.
        ours, figure: the contestant and its figure, the dividend.
        others: contestants to divide by: the best of them.
        other_figure: their figure.
        is_smaller_better: of the figure: of costs and latencies.
        bound: the ratio must be at least this, or at most when smaller is better. Where it is 0.0, the worst run
            counts, not the median.
    """

    text: str
    ours: str
    figure: str
    others: tuple[str, ...]
    other_figure: str
    bound: float
    is_smaller_better: bool = False


GOALS: tuple[Goal, ...] = (
    Goal("drain, full leg / PgQueuer 100", "workq-servers", "drain_rate", ("pgqueuer-100",), "drain_rate", 1.3),
    Goal("drain, full leg / Dramatiq's best", "workq-servers", "drain_rate", DRAMATIQ, "drain_rate", 2.5),
    Goal(
        "drain of one by one, full leg / Dramatiq's best", "workq-servers", "drain1_rate", DRAMATIQ, "drain1_rate", 1.5
    ),
    Goal("sustained, full leg / PgQueuer's best", "workq-servers", "sustained_rate", PGQUEUER, "sustained_rate", 1.0),
    Goal(
        "sustained, full leg / Dramatiq without confirms",
        "workq-servers",
        "sustained_rate",
        ("dramatiq-noconfirm",),
        "sustained_rate",
        3.0,
    ),
    Goal(
        "drain, PostgreSQL alone / PgQueuer 100", "workq-postgres", "drain_rate", ("pgqueuer-100",), "drain_rate", 1.3
    ),
    Goal(
        "drain, SQLite synchronous=FULL / huey SQLite without it",
        "workq-sqlite",
        "drain_rate",
        ("huey-sqlite",),
        "drain_rate",
        1.2,
    ),
    Goal("bulk, full leg / PgQueuer's best", "workq-servers", "bulk_rate", PGQUEUER, "bulk_rate", 1.2),
    Goal(
        "bulk until published, full leg / PgQueuer's best",
        "workq-servers",
        "bulk_published_rate",
        PGQUEUER,
        "bulk_rate",
        1.2,
    ),
    Goal("bulk, PostgreSQL alone / PgQueuer's best", "workq-postgres", "bulk_rate", PGQUEUER, "bulk_rate", 1.2),
    Goal(
        "enqueue one by one, full leg / bare commit by psycopg",
        "workq-servers",
        "enqueue_rate",
        ("bare-psycopg",),
        "enqueue_rate",
        0.85,
    ),
    Goal(
        "enqueue one by one, PostgreSQL alone / bare commit by psycopg",
        "workq-postgres",
        "enqueue_rate",
        ("bare-psycopg",),
        "enqueue_rate",
        0.85,
    ),
    Goal(
        "enqueue, full leg, 8 threads / one thread",
        "workq-servers",
        "threads_rate",
        ("workq-servers",),
        "enqueue_rate",
        4.0,
    ),
    Goal(
        "enqueue, PostgreSQL alone, 8 threads / one thread",
        "workq-postgres",
        "threads_rate",
        ("workq-postgres",),
        "enqueue_rate",
        4.0,
    ),
    Goal("p50, full leg / PgQueuer's best", "workq-servers", "p50_ms", PGQUEUER, "p50_ms", 1.0, is_smaller_better=True),
    Goal("p99 in ms, full leg", "workq-servers", "p99_ms", (), "", 5.0, is_smaller_better=True),
    Goal(
        "p50, SQLite / huey's best on SQLite",
        "workq-sqlite",
        "p50_ms",
        ("huey-sqlite", "huey-sqlite-fsync"),
        "p50_ms",
        1.0,
        is_smaller_better=True,
    ),
    Goal(
        "CPU per 1,000 drained, all together, full leg / best peer on RabbitMQ",
        "workq-servers",
        "drain_total_cpu_s",
        ON_RABBITMQ,
        "drain_total_cpu_s",
        0.6,
        is_smaller_better=True,
    ),
    *(
        Goal(f"p99 late at {name}, {leg}", contestant, f"delay_{name}_p99_ms", (), "", 20.0, is_smaller_better=True)
        for name in ("1s", "5s")
        for leg, contestant in (("full leg", "workq-servers"), ("SQLite", "workq-sqlite"))
    ),
    Goal("missing after the kill, full leg", "workq-servers", "missing", (), "", 0.0, is_smaller_better=True),
    Goal("missing after the kill, PostgreSQL alone", "workq-postgres", "missing", (), "", 0.0, is_smaller_better=True),
    Goal("missing after the kill, SQLite", "workq-sqlite", "missing", (), "", 0.0, is_smaller_better=True),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a goal stands. `ratio` is None when a side was not measured; `rival` is whom it was compared with."""

    goal: Goal
    ratio: float | None
    paired: Spread | None
    rival: str

    @property
    def word(self) -> str:
        """ "met", "not met" or "not measured"."""
        if self.ratio is None:
            return "not measured"
        is_met = self.ratio <= self.goal.bound if self.goal.is_smaller_better else self.ratio >= self.goal.bound
        return "met" if is_met else "not met"

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return {
            "goal": self.goal.text,
            "bound": self.goal.bound,
            "at": "most" if self.goal.is_smaller_better else "least",
            "ratio": self.ratio,
            "paired_min": self.paired.low if self.paired else None,
            "paired_max": self.paired.high if self.paired else None,
            "compared_with": self.rival,
            "verdict": self.word,
        }


def judged(results: Results, goals: Sequence[Goal] = GOALS) -> list[Verdict]:
    """Every goal, in its order."""
    return [_judged(results, goal) for goal in goals]


def _judged(results: Results, goal: Goal) -> Verdict:
    ours = results.spread(goal.ours, goal.figure)
    if not goal.others:
        if ours is None:
            return Verdict(goal, None, None, "")
        return Verdict(goal, ours.high if goal.bound == 0.0 else ours.median, ours, "")
    found = {name: results.spread(name, goal.other_figure) for name in goal.others}
    medians = {name: one.median for name, one in found.items() if one is not None}
    if ours is None or not medians:
        return Verdict(goal, None, None, "")
    rival = (min if goal.is_smaller_better else max)(medians, key=medians.__getitem__)
    theirs = results.of(rival, goal.other_figure)
    mine = results.of(goal.ours, goal.figure)
    paired = spread(mine[run] / theirs[run] for run in mine if theirs.get(run))
    return Verdict(goal, ours.median / medians[rival] if medians[rival] else None, paired, rival)
