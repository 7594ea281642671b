"""Meters: what the promise costs in fact. Started twice, and why; results too late; hints lost; time to recover.

Everything is computed at the moment of asking from the ledger's rows and events; nothing is counted on the way, and no
counter can disagree with what happened.

A duplicate start is an attempt that had started and did not settle its task, whose task then started again: a task that
failed and is tried again is none, nor is what was claimed and never begun. Where nobody can say whether an attempt had
started (its host is lost, or its process was paused), it counts as started, so that the meter never flatters, and the
answer says how many those are (`assumed`). A result that came late from there proves that it had. What runs now counts
as started from its claim on.

A recovery is the time from a worker's last beat in the ledger to the end of its claims. It died between that beat and
the next one, so the true time may be shorter by a beat (`Times.worker_beat_s`); a bound counts as exceeded only when
the time without that beat is longer. A death that a supervisor saw is shown and not judged: its process may have been
unable to beat long before (a handler that holds the interpreter lock), and the supervisor ends its claims at once.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from workq.config import Times
from workq.diagnose.bounds import Bounds
from workq.ledger import Standing
from workq.values.certificate import STARTED_UNKNOWN
from workq.values.task import Event, State

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


EVENTS_MAX: Final = 100_000
"""How many events are read at most; when there are more, the newest are, and the answer says so."""
_NEVER_STARTED: Final = ("bad_payload", "bad_arguments", "no_handler")
"""Of these a task died before any handler was called."""
_KINDS: Final = ("reaped", "failed", "snoozed", "late_result", "cancelled", "revived", "hints_lost", "polled")


class RestartCause(StrEnum):
    """Why a task that had started was started again."""

    KILLED = "killed"
    """Its process died under its supervisor's eyes."""
    HARD_LIMIT = "hard_limit"
    """A neighbour or itself exceeded its hard limit, and the process was killed."""
    CANCEL = "cancel"
    """A person cancelled a neighbour or itself by force, and the process was killed."""
    SHUTDOWN = "shutdown"
    """Its supervisor ended it at shutdown, after the grace."""
    GONE = "gone"
    """Its process and its supervisor were gone from their machine."""
    LEASE = "lease"
    """Its lease ended: paused for longer, cut off, or on a host that died."""
    ABSENCE = "absence"
    """It was gone from every store: cut off from all of them, or on a host that died."""
    REDIS_LOSS = "redis_loss"
    """The in-flight store lost its lease, and it did not come back."""
    ORPHAN = "orphan"
    """It was left over under a worker that had ended before."""
    FORGOTTEN = "forgotten"
    """Its worker lived and did not have it: the ledger was restored from a backup."""
    REPLAY = "replay"
    """A person revived it."""
    UNKNOWN = "unknown"
    """Recorded by an earlier version, which did not say."""


_SEEN: Final = (RestartCause.KILLED, RestartCause.HARD_LIMIT, RestartCause.CANCEL, RestartCause.SHUTDOWN)
"""A supervisor saw these deaths."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Some durations in seconds: how many, the median, the 95th percentile, the longest. None without any."""

    count: int
    p50_s: float | None
    p95_s: float | None
    max_s: float | None

    @staticmethod
    def of(durations_s: Iterable[float]) -> Spread:
        found = sorted(durations_s)
        if not found:
            return Spread(0, None, None, None)

        def nearest(part: float) -> float:
            return round(found[max(0, math.ceil(part * len(found)) - 1)], 3)

        return Spread(len(found), nearest(0.5), nearest(0.95), nearest(1.0))


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """How long the ends of dead workers took, for one way to die, beside what these settings promise."""

    cause: RestartCause
    measured: Spread
    promised_s: float
    exceeded: int
    """How many took longer than promised."""


@dataclass(frozen=True, slots=True)
class Meters:
    """What happened `within_s` seconds. `starts` are the attempts that ended meanwhile or run now."""

    within_s: float
    is_complete: bool
    starts: int
    duplicates: Mapping[RestartCause, int]
    assumed: int
    """Of the duplicates, those of which nobody saw whether the first attempt had started."""
    late_results: int
    hints_lost: int
    losses: int
    """How often a marker proved that hints were lost."""
    hints_lost_started: Spread
    """From the proof to the start of the tasks, as far as the events name them."""
    polled: int
    """How many tasks workers found in the ledger while the broker was away, as far as they have told it."""
    polled_idle: int
    """The same while the broker was well: their hints waited for a process that was busy or dead."""
    recoveries: Sequence[RecoveryTimes]

    @property
    def duplicates_per_million(self) -> float | None:
        """Duplicate starts for each million starts; None when nothing started."""
        return round(sum(self.duplicates.values()) * 1e6 / self.starts, 1) if self.starts else None

    @property
    def findings(self) -> list[str]:
        """What is not as promised."""
        return [
            f"{one.exceeded} of {one.measured.count} recoveries ({one.cause}) took longer than the promised "
            f"{one.promised_s:.0f} s, the longest {one.measured.max_s:.0f} s: no sweep ran, a server was away, or "
            "handlers kept a worker from beating; see the log of that time"
            for one in self.recoveries
            if one.exceeded and one.measured.max_s is not None
        ]


def measure(ledger: Ledger, times: Times, *, within_s: float) -> Meters:
    """What happened lately, by the ledger's account.

    Raises:
        LedgerUnavailable: it did not answer.
    """
    events = ledger.questions.happened(_KINDS, within_s=within_s, limit=EVENTS_MAX)
    by_kind: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_kind[event.kind].append(event)
    ends = _ends(events)
    losses = by_kind["hints_lost"]
    named = [task_id for event in losses for task_id in event.detail.get("first", ())]
    interrupted = [event for event in by_kind["reaped"] if had_started(event)]
    tasks = ledger.questions.standings(
        [event.task_id for event in (*interrupted, *by_kind["revived"]) if event.task_id is not None] + named
    )
    duplicates: Counter[RestartCause] = Counter()
    assumed = 0
    came_late = {(event.task_id, event.attempt) for event in by_kind["late_result"]}
    for event in interrupted:
        if _started_again(event, tasks, ends):
            duplicates[_cause(event.detail.get("kind"))] += 1
            assumed += _is_assumed(event) and (event.task_id, event.attempt) not in came_late
    for event in by_kind["revived"]:
        if _replayed(event, tasks, ends):
            duplicates[RestartCause.REPLAY] += 1
    return Meters(
        within_s=within_s,
        is_complete=len(events) < EVENTS_MAX,
        starts=ledger.questions.begun(within_s=within_s) + sum(map(len, ends.values())),
        duplicates={cause: duplicates[cause] for cause in RestartCause if duplicates[cause]},
        assumed=assumed,
        late_results=len(by_kind["late_result"]),
        hints_lost=sum(int(event.detail.get("tasks", 0)) for event in losses),
        losses=len(losses),
        hints_lost_started=Spread.of(_starts_after(losses, tasks)),
        polled=_polled(by_kind["polled"], is_away=True),
        polled_idle=_polled(by_kind["polled"], is_away=False),
        recoveries=_recoveries(ledger, times, by_kind["reaped"], within_s=within_s),
    )


def _polled(events: Sequence[Event], *, is_away: bool) -> int:
    return sum(int(event.detail.get("tasks", 0)) for event in events if ("reason" in event.detail) is is_away)


def had_started(event: Event) -> bool:
    """Whether the attempt that a `reaped` event ended had started. Not known counts as yes."""
    detail = event.detail
    if detail.get("started") or "ran_s" in detail:  # at shutdown nobody is charged, but it did run
        return True
    return "started" not in detail and detail.get("charged") != "nothing"


def _is_assumed(event: Event) -> bool:
    """Whether nobody saw if the attempt that a `reaped` event ended had started."""
    return "started" not in event.detail or STARTED_UNKNOWN in event.detail.get("unknown", ())


# -- duplicate starts


def _ends(events: Iterable[Event]) -> dict[str, dict[int, datetime]]:
    """Which attempts of each task had started and ended otherwise than by success, and when."""
    ends: defaultdict[str, dict[int, datetime]] = defaultdict(dict)
    for event in events:
        if event.task_id is None or event.attempt is None:
            continue
        is_end = event.kind in ("failed", "snoozed", "cancelled") and event.detail.get("dead") not in _NEVER_STARTED
        is_end = is_end or (event.kind == "reaped" and had_started(event))
        if is_end:
            ends[event.task_id].setdefault(event.attempt, event.at)
    return ends


def _started_again(event: Event, tasks: Mapping[str, Standing], ends: Mapping[str, Mapping[int, datetime]]) -> bool:
    """Whether a later attempt of the task started, too."""
    task_id, attempt = event.task_id or "", event.attempt or 0
    if any(later > attempt for later in ends.get(task_id, ())):
        return True
    task = tasks.get(task_id)
    if task is None:  # pruned since, so it was settled: by a later attempt, unless this was its end
        return event.detail.get("state") in (State.READY, State.WAITING)
    return task.attempt > attempt and task.state in (State.SUCCEEDED, State.RUNNING)


def _replayed(event: Event, tasks: Mapping[str, Standing], ends: Mapping[str, Mapping[int, datetime]]) -> bool:
    """Whether a revived task that had started before did so again."""
    task = tasks.get(event.task_id or "")
    attempts = ends.get(event.task_id or "", {})
    after = [attempt for attempt, at in attempts.items() if at > event.at]
    has_started = task is not None and task.state in (State.SUCCEEDED, State.RUNNING)
    if has_started and task is not None and task.started_at is not None and task.started_at >= event.at:
        after.append(task.attempt)
    return bool(after) and min(after) > 1


def _cause(kind: object) -> RestartCause:
    try:
        return RestartCause(str(kind))
    except ValueError:
        return RestartCause.UNKNOWN


# -- lost hints


def _starts_after(losses: Iterable[Event], tasks: Mapping[str, Standing]) -> Iterable[float]:
    for event in losses:
        for task_id in event.detail.get("first", ()):
            task = tasks.get(task_id)
            if task is not None and task.started_at is not None and task.started_at >= event.at:
                yield (task.started_at - event.at).total_seconds()


# -- recoveries


def _recoveries(ledger: Ledger, times: Times, reaped: Iterable[Event], *, within_s: float) -> list[RecoveryTimes]:
    bounds = Bounds.of(times)
    now = ledger.questions.clock()
    ended: dict[str, tuple[RestartCause, datetime, float]] = {}
    for event in reaped:  # kept longer than the rows of workers
        age_s = event.detail.get("beat_age_s")
        if event.worker is not None and isinstance(age_s, int | float):
            ended[event.worker] = _cause(event.detail.get("kind")), event.at, float(age_s)
    for row in ledger.questions.workers(live_only=False):
        if row.state == "reaped" and row.ended_at is not None and (now - row.ended_at).total_seconds() <= within_s:
            cause = _cause(row.certificate.kind if row.certificate is not None else None)
            ended[row.id] = cause, row.ended_at, (row.ended_at - row.beat_at).total_seconds()
    took: defaultdict[RestartCause, list[float]] = defaultdict(list)
    exceeded: Counter[RestartCause] = Counter()
    for cause, at, measured_s in ended.values():
        took[cause].append(measured_s)
        is_alone = not any(
            0.0 < abs((at - other).total_seconds()) < bounds.dead_fleet_s for _, other, _ in ended.values()
        )
        promised_s = _promised_s(cause, bounds) if is_alone else max(_promised_s(cause, bounds), bounds.dead_fleet_s)
        exceeded[cause] += cause not in _SEEN and measured_s - times.worker_beat_s > promised_s
    return [
        RecoveryTimes(cause, Spread.of(took[cause]), _promised_s(cause, bounds), exceeded[cause])
        for cause in RestartCause
        if took[cause]
    ]


def _promised_s(cause: RestartCause, bounds: Bounds) -> float:
    match cause:
        case RestartCause.KILLED | RestartCause.HARD_LIMIT | RestartCause.CANCEL | RestartCause.SHUTDOWN:
            return bounds.local_crash_s
        case RestartCause.REDIS_LOSS:
            return bounds.inflight_wiped_s
        case RestartCause.FORGOTTEN:
            return bounds.forgotten_s
        case RestartCause.ABSENCE:
            return bounds.absent_host_s
        case RestartCause.GONE | RestartCause.LEASE | RestartCause.ORPHAN | RestartCause.REPLAY | RestartCause.UNKNOWN:
            return bounds.dead_host_s
