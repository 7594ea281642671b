"""How late messages arrive at their destination: workq on each ladder beside RabbitMQ's own hop, Artemis and Celery.

Each way is alone on the machine at its turn, in a fresh place on private servers; the order changes from run to run. It
gets three loads, one after the other, while its workers live:

    1 s, 5 s   messages that are due so long after they are sent, each at its own instant: 200 a second, or as many as
               the sender manages
    moment     many that are all due at one moment, and are recorded before; of the slowest way, a share of them

What counts is the arrival, by the clock of this machine, in a process that reads the destination and does nothing else
(of Celery: in the worker that runs the task). For workq that is the whole way: a row of PostgreSQL, a hint, a claim, a
`workq worker`, AMQP. What each costs is told beside it: seconds until all were recorded, and seconds of processor time
of sender, workers with reader, and servers, until the last has arrived.

    python -m benchmarks.late_peers [--runs 1] [--only NAME,NAME] [--tasks 1000] [--moment 50000] [--output FILE.json]

It ends with 3 when a way of workq's has lost a message or sent one early, with 1 when a turn failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import environments, machine, usage
from benchmarks.arena import OURS, Arena
from benchmarks.arrivals import Arrivals, judged, over_runs
from benchmarks.crew import Crew, Produced, StepFailed
from benchmarks.records import DUE, Tail
from benchmarks.roster import Contestant
from workq.config import BINARY, LEDGER

SERVERS: Final = ("postgres", "rabbitmq", "redis")
LEVELS: Final = "levels:1s,5s,10s,20s,30s,1m,2m,5m"
"""What is due after 1 s and 5 s has its level. What is due at one moment is rounded up, and late by that on purpose."""
_WORKER: Final = "2 processes x 4 threads"


def _messages(name: str, ladder: str) -> Contestant:
    settings = {"LADDER": ladder, "PROCESSES": "2", "THREADS": "4"}
    configuration = f"messages `at=` to an AMQP queue, ladder {ladder}, PostgreSQL + RabbitMQ + Redis; {_WORKER}"
    return Contestant(name, "message", None, SERVERS, configuration, settings, commands=2, workers=1)


WAYS: Final = (
    Contestant(
        "hop",
        "hop",
        None,
        ("rabbitmq",),
        "RabbitMQ's own TTL and dead letter exchange, one queue for each delay, durable, no confirms",
        workers=1,
    ),
    _messages("workq-binary", BINARY),
    _messages("workq-levels", LEVELS),
    _messages("workq-ledger", LEDGER),
    Contestant(
        "artemis",
        "artemis",
        None,
        ("artemis",),
        "AMQ_SCHEDULED_TIME by STOMP, persistent, each with a receipt",
        workers=1,
    ),
    Contestant(
        "celery",
        "celery",
        "celery",
        ("rabbitmq",),
        "eta on RabbitMQ: acks_late, confirms, -P prefork -c 2 (its default pool), prefetch multiplier 4",
        {"POOL": "prefork", "CONCURRENCY": "2", "MULTIPLIER": "4"},
        share=0.2,
    ),
)
RATE: Final = 200.0
DELAYS_S: Final = (1.0, 5.0)
WARM_UP: Final = 1_000
"""So many are sent at that rate before the first load, and counted nowhere: what a process does once, it has done."""
MOMENT: Final = "moment"
PREPARE_LIMIT_S: Final = 60.0
PATIENCE_S: Final = 45.0
"""What has not arrived so long after the last one was due counts as missing: lost, or later still."""
AFTER_S: Final = 0.5
"""How long copies may still come."""
LOOK_S: Final = 0.1
LIMIT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One load of one way in one run.

    `recorded_s`: until the last message was recorded. `is_recorded_late`: that was after the moment.
    `cpu_s`: of the sender, of the workers with the reader, of the servers.
    """

    way: str
    load: str
    arrivals: Arrivals
    recorded_s: float
    is_recorded_late: bool
    cpu_s: Mapping[str, float]
    load_before: float
    calibration_ms: float


@dataclass(slots=True)
class Measured:
    """What was found, and what failed and why."""

    found: list[Turn] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def take(self, turns: Iterator[Turn], way: Contestant) -> None:
        """The turns of one way. When one fails, the other ways have theirs all the same."""
        try:
            for turn in turns:
                self.found.append(turn)
                print(_row([turn], is_moment=True), file=sys.stderr, flush=True)
        except (StepFailed, OSError) as error:
            self.failed.append(f"{way.name}: {error}")


def turns(arena: Arena, way: Contestant, python: Path, *, tasks: int, moment: int) -> Iterator[Turn]:
    """The loads of one way, one after the other."""
    with arena.place(way) as place, Crew(way, python, place) as crew:
        crew.call("prepare", limit_s=PREPARE_LIMIT_S)
        crew.start()
        watch = _Watch(arena, crew)
        watch.steady("warm-up", WARM_UP, DELAYS_S[0], first=0)
        for number, delay_s in enumerate(DELAYS_S):
            if tasks:
                yield watch.steady(f"{delay_s:g} s", tasks, delay_s, first=WARM_UP + number * tasks)
        if moment:
            yield watch.moment(max(1, round(moment * way.share)), first=WARM_UP + len(DELAYS_S) * tasks)


class _Watch:
    """Watches one way while it has its loads."""

    def __init__(self, arena: Arena, crew: Crew) -> None:
        self._arena = arena
        self._crew = crew
        self._tail = Tail(crew.place.records)

    def steady(self, load: str, tasks: int, delay_s: float, *, first: int) -> Turn:
        """Messages that are due one after the other."""
        before = self._before()
        workers = self._crew.contestant.workers
        produced = self._crew.call("instants", tasks, RATE, delay_s, workers, first, limit_s=LIMIT_S)
        return self._turn(load, produced, before)

    def moment(self, tasks: int, *, first: int) -> Turn:
        """Messages that are due at once."""
        before = self._before()
        produced = self._crew.call("moment", tasks, self._crew.contestant.workers, first, limit_s=LIMIT_S)
        return self._turn(MOMENT, produced, before)

    def _before(self) -> tuple[float, float, dict[str, float]]:
        return os.getloadavg()[0], machine.calibration_ms(), self._cpu_s()

    def _turn(self, load: str, produced: Produced, before: tuple[float, float, dict[str, float]]) -> Turn:
        due = {one.index: one.at for one in Tail(self._crew.place.folder / DUE).fresh()}
        arrived = self._arrived(due)
        load_before, calibration_ms, spent = before
        cpu_s = {name: used - spent[name] for name, used in self._cpu_s().items()}
        is_late = load == MOMENT and produced.began + produced.seconds > min(due.values())
        return Turn(
            self._crew.contestant.name,
            load,
            judged(due, arrived),
            produced.seconds,
            is_late,
            {"sender": produced.cpu_s, **cpu_s},
            load_before,
            calibration_ms,
        )

    def _arrived(self, due: Mapping[int, float]) -> list[tuple[int, float]]:
        """What arrives until all has, or nothing does any more."""
        found: list[tuple[int, float]] = []
        left, ends = set(due), max(due.values()) + PATIENCE_S
        while left and time.time() < ends:
            if fresh := self._fresh(due):
                found += fresh
                left -= {index for index, _ in fresh}
            self._crew.check()
            time.sleep(LOOK_S)
        time.sleep(AFTER_S)
        return found + self._fresh(due)

    def _fresh(self, due: Mapping[int, float]) -> list[tuple[int, float]]:
        """Probes, and copies of a load before, are none of this load's."""
        return [(one.index, one.at) for one in self._tail.fresh() if one.index in due]

    def _cpu_s(self) -> dict[str, float]:
        workers = sum(usage.cpu_by_pid(self._crew.processes()).values())
        return {"workers": workers, "servers": sum(self._arena.cpu_s(self._crew.contestant).values())}


def tables(found: Sequence[Turn]) -> list[str]:
    """As Markdown: one table for the loads with instants of their own, one for the moment."""
    lines: list[str] = []
    for is_moment in (False, True):
        chosen = [one for one in found if (one.load == MOMENT) is is_moment]
        if not chosen:
            continue
        heads = [
            "load",
            "way",
            "sent",
            *(["a second"] if is_moment else []),
            "p50 ms",
            "p99",
            "most",
            "earliest",
            "early",
        ]
        heads += ["missing", "copies", "recorded in s", "CPU s: sender, workers, servers"]
        lines += [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
        for key in dict.fromkeys((one.load, one.way) for one in sorted(chosen, key=_place)):
            lines.append(_row([one for one in chosen if (one.load, one.way) == key], is_moment=is_moment))
        lines.append("")
    late = sorted({one.way for one in found if one.is_recorded_late})
    return [
        *lines,
        *(f"{way}: the moment came before all were recorded; what was late for that counts as late." for way in late),
    ]


def _place(turn: Turn) -> tuple[str, int]:
    return turn.load, [one.name for one in WAYS].index(turn.way)


def _row(alike: Sequence[Turn], *, is_moment: bool) -> str:
    one = over_runs([turn.arrivals for turn in alike])
    recorded_s = statistics.median(turn.recorded_s for turn in alike)
    cpu = ", ".join(f"{statistics.median(turn.cpu_s[who] for turn in alike):.1f}" for who in alike[0].cpu_s)
    cells = [alike[0].load, alike[0].way, f"{one.sent:,}", *([f"{one.per_s:,.0f}"] if is_moment else [])]
    cells += [f"{one.p50_ms:,.1f}", f"{one.p99_ms:,.1f}", f"{one.most_ms:,.0f}", f"{one.least_ms:,.1f}"]
    cells += [f"{one.early:,}", f"{one.missing:,}", f"{one.copies:,}", f"{recorded_s:.1f}", cpu]
    return f"| {' | '.join(cells)} |"


def on_the_machine(found: Sequence[Turn]) -> str:
    """How busy the machine was, in one line: what it was before each turn."""
    loads, loops = [one.load_before for one in found], [one.calibration_ms for one in found]
    return (
        f"{os.cpu_count()} processors; load of the last minute before each load: {min(loads):.1f} to {max(loads):.1f} "
        f"(the way before has its part in it); a fixed loop took {min(loops):.0f} to {max(loops):.0f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.late_peers", description="how late messages arrive, beside the peers"
    )
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", default=",".join(one.name for one in WAYS), metavar="NAME[,NAME]")
    parser.add_argument("--tasks", type=int, default=1_000, help="due after 1 s, and as many after 5 s; 0: none")
    parser.add_argument("--moment", type=int, default=50_000, help="due at one moment; 0: none")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="every figure of every run")
    options = parser.parse_args()
    known = {one.name: one for one in WAYS}
    if strange := [name for name in options.only.split(",") if name not in known]:
        parser.error(f"--only: no way is called {', '.join(strange)}; there are {', '.join(known)}")
    ways = [known[name] for name in options.only.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    measured = Measured()
    pythons = _pythons(ways, measured)
    ways = [one for one in ways if one.name in pythons]
    began = time.monotonic()
    with Arena(ways) as arena:
        facts = machine.facts(ways, arena.versions)
        try:
            for run in range(1, options.runs + 1):
                for way in random.Random(run).sample(ways, len(ways)):
                    measured.take(turns(arena, way, pythons[way.name], tasks=options.tasks, moment=options.moment), way)
        except KeyboardInterrupt:
            measured.failed.append("interrupted: what was measured before is above")
    if options.output is not None:
        document = {"machine": facts, "runs": options.runs, **asdict(measured)}
        options.output.write_text(json.dumps(document, indent=1) + "\n")
    print("\n".join(tables(measured.found)))
    print(f"Missing is what had not arrived {PATIENCE_S:g} s after the last one was due.\n")
    for way in ways:
        print(f"- {way.name}: {way.configuration}")
    if measured.found:
        print(f"\n{on_the_machine(measured.found)}; {options.runs} runs in {time.monotonic() - began:.0f} s.")
    peers = {family: pins[family] for family, pins in facts["peers"].items()}
    versions = ", ".join(f"{name} {version}" for name, version in (facts["servers"] | peers).items())
    print(f"{facts['date']}, workq {facts['workq']['commit']}, Python {facts['python']}, {versions}")
    for one in measured.failed:
        print(f"FAILED {one}")
    return status(measured.found, measured.failed)


def _pythons(ways: Sequence[Contestant], measured: Measured) -> dict[str, Path]:
    """The interpreter of each way whose environment could be made."""
    found: dict[str, Path] = {}
    for way in ways:
        try:
            found[way.name] = environments.interpreter(way.family)
        except environments.EnvironmentFailed as error:
            measured.failed.append(f"{way.name}: no environment: {error}")
    return found


def status(found: Sequence[Turn], failed: Sequence[str]) -> int:
    """3: workq has lost a message, or sent one early; 1: a turn failed; else 0. What a peer does is a figure."""
    ours = {one.name for one in WAYS if one.module in OURS}
    if any(one.arrivals.missing or one.arrivals.early for one in found if one.way in ours):
        return 3
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
