"""Jobs as values: their states, what is begun, what is split, and how a job stands.

    planning -> running                      its first page of subtasks is recorded, or its source had nothing
    running -> pausing -> paused -> running  by a person; pausing: some subtasks still run
    running, pausing, paused -> cancelling -> cancelled
                                             by a person; cancelling: some subtasks still run
    running, pausing, paused -> failing -> failed
                                             more items failed than it may have: what has not started is cancelled
    planning, running, paused -> failed      its source failed for good, and what was read of it is done
    running -> succeeded                     all is split, and every item has succeeded or was skipped
    running -> completed_with_failures       all is split, and some items have failed, or were cancelled one by one
    failed -> running                        its source failed, and a person lets it go on at its cursor

Paused, it still ends when nothing is left to run. Who decides: the ledger, in the transaction that settles the last
subtask, splits the last page, or obeys a person; or a sweep, for whoever died in between. Imports values and errors
only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from workq.errors import Snooze
from workq.values import codec
from workq.values.task import Limit, NewTask, TaskOptions


class JobState(StrEnum):
    """Where a job stands."""

    PLANNING = "planning"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILING = "failing"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    COMPLETED_WITH_FAILURES = "completed_with_failures"


_ENDS: Final = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.COMPLETED_WITH_FAILURES,
        JobState.CANCELLING,
        JobState.CANCELLED,
        JobState.FAILING,
        JobState.FAILED,
    }
)
JOB_TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.PLANNING: _ENDS | {JobState.RUNNING, JobState.PAUSING},
    JobState.RUNNING: _ENDS | {JobState.PAUSING},
    JobState.PAUSING: _ENDS | {JobState.PAUSED, JobState.PLANNING, JobState.RUNNING},
    JobState.PAUSED: _ENDS | {JobState.PLANNING, JobState.RUNNING},
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
    JobState.FAILING: frozenset({JobState.FAILED, JobState.CANCELLING}),
    JobState.CANCELLED: frozenset(),
    JobState.FAILED: frozenset({JobState.PLANNING, JobState.RUNNING}),
    JobState.SUCCEEDED: frozenset(),
    JobState.COMPLETED_WITH_FAILURES: frozenset(),
}
"""Which state may follow which."""

JOB_ENDED: Final = frozenset(
    {JobState.CANCELLED, JobState.FAILED, JobState.SUCCEEDED, JobState.COMPLETED_WITH_FAILURES}
)
JOB_STARTS: Final = frozenset({JobState.PLANNING, JobState.RUNNING})
"""In these, subtasks are made and claimed."""
JOB_PAUSES: Final = frozenset({JobState.PAUSING, JobState.PAUSED})
JOB_UNWANTED: Final = frozenset({JobState.CANCELLING, JobState.CANCELLED, JobState.FAILING, JobState.FAILED})
"""In these, nobody wants what has not started."""

SOURCE_FAILED: Final = "its source failed"
"""How the error of a job begins whose source has failed for good."""

CHUNK_MAX: Final = 10_000
WINDOW_MAX: Final = 100_000


class IfRunning(StrEnum):
    """What becomes of a run while a job of the same name and key has not ended."""

    REFUSE = "refuse"
    """It is not begun: an error that names the other."""
    JOIN = "join"
    """The other is answered."""
    QUEUE = "queue"
    """It begins when the other has ended."""
    REPLACE = "replace"
    """The other is cancelled; it begins when that has ended."""


class Collect(StrEnum):
    """What is kept of the results that a job's handler says of its items."""

    NONE = "none"
    COUNT = "count"
    """How many there are."""
    SAMPLE = "sample"
    """The first of them, too: see `SAMPLE_RESULTS`."""
    ALL = "all"
    """Each of them."""


SAMPLE_RESULTS: Final = 100


class Ending(StrEnum):
    """When a callback is enqueued."""

    COMPLETE = "complete"
    """However it ended."""
    SUCCESS = "success"
    FAILURE = "failure"
    """It failed, or some of its items did."""
    CANCEL = "cancel"


class Callback(TaskOptions, frozen=True, omit_defaults=True):
    """An ordinary task that follows the end of a job, and is called with what became of it."""

    when: Ending
    name: str
    queue: str


class JobOptions(TaskOptions, frozen=True, omit_defaults=True):
    """How a job's subtasks are made, and when it has failed. Kept as JSON, so that it only grows.

    `failed_max`: items that may fail before the job does; `failed_share_max`: the share of those that were tried.
    """

    queue: str
    chunk: int = 500
    window: int = 1000
    limit: Limit | None = None
    failed_max: int | None = None
    failed_share_max: float | None = None
    spread_s: float | None = None
    """Its items start evenly over so many seconds."""
    is_fed: bool = False
    """Who began it hands it its items: no splitter reads a source."""
    failed_of: str | None = None
    """The job whose failed items it works on, instead of its source."""
    retried_by: str | None = None
    """The job that works on its failed items again, the last of those that there were."""
    is_partitioned: bool = False
    """Its source yields partitions, each a subtask of its own, and its items are those that their steps tell."""
    collect: Collect = Collect.NONE
    callbacks: tuple[Callback, ...] = ()


class NewJob(msgspec.Struct, frozen=True):
    """A job to begin. `params` is encoded JSON, `{"a": [], "k": {...}}`; `splitter` reads its source."""

    id: str
    name: str
    params: str
    options: JobOptions
    splitter: NewTask
    key: str | None = None
    total: int | None = None
    rate_max: float | None = None
    parent_id: str | None = None
    """The job that it is nested in."""
    if_running: IfRunning = IfRunning.REFUSE


SPLIT: Final = ".split"
"""What the name of a job's splitter ends with."""


def nested_id(parent_id: str, name: str, key: str | None, params: str) -> str:
    """The id of a job that is nested in another: the same for the same name, key and parameters, whoever begins it.

    So a handler that runs again, after a crash or as half of a chunk, begins no second one.
    """
    told = hashlib.sha256(codec.encode([parent_id, name, key, params], path="nested", max_bytes=1 << 30).encode())
    bits = int.from_bytes(told.digest()[:10], "big")
    at = parent_id[:13]  # by time it stands beside its parent
    return f"{at}-7{bits & 0xFFF:03x}-{0x8000 | bits >> 12 & 0x3FFF:04x}-{bits >> 26 & 0xFFFFFFFFFFFF:012x}"


class Full(Snooze):
    """What a splitter raises whose job has no room: it is due as soon as half of the window is done."""


def splitter(task_id: str, name: str, queue: str, job_id: str) -> NewTask:
    """The task that reads a job's source: its first, and another where a person lets it go on after a failure."""
    return NewTask(task_id, name + SPLIT, queue, codec.encode({"a": [job_id], "k": {}}, path="args"), failures_max=5)


class Tended(msgspec.Struct, frozen=True):
    """What was done about a job: so many of its subtasks were counted; `hints` are to be published."""

    counted: int
    hints: tuple[Any, ...] = ()


class Begun(msgspec.Struct, frozen=True):
    """What a run answers: the job, and whether it is a new one. `hints` are to be published."""

    id: str
    created: bool
    hints: tuple[Any, ...] = ()


class Bookmark(msgspec.Struct, frozen=True):
    """Where a partition goes on: behind the last of so many steps. `cursor` None: it is at its beginning."""

    cursor: Any
    steps: int


class NewStep(msgspec.Struct, frozen=True):
    """A step to commit, behind `steps` others. `cursor` is encoded JSON; None: nothing is behind it."""

    steps: int
    cursor: str | None
    items: int


class Stepped(msgspec.Struct, frozen=True):
    """A step stands. `state`: how its job stands now; None: it is not there any more.

    `wait_s`: so long after it the next step may begin, because the job has a rate.
    """

    state: JobState | None
    wait_s: float = 0.0


class FailedGroup(msgspec.Struct, frozen=True):
    """Items of a job that have failed of the same: how many, and one of them."""

    fingerprint: str
    count: int
    item: str
    error: str


class SlowSubtask(msgspec.Struct, frozen=True):
    """A subtask that has ended: how many items it had, and how long its last attempt took."""

    task_id: str
    items: int
    ran_s: float


class Split(msgspec.Struct, frozen=True):
    """What came of a page: how many subtasks may still be made now.

    None: it was not recorded, because the job is paused, takes no more, or stands elsewhere: another attempt of this
    splitter, or another feeder, has gone on with it.
    """

    room: int | None
    is_paused: bool = False
    is_elsewhere: bool = False
    hints: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the ledger knows it. Counts are of items, except `subtasks` and `open_subtasks`.

    `read_subtasks`: of the subtasks, those that its splitter has made. `rate`: items a second, smoothed over a minute
    of running. `paused_s`: in all, until `now`, the ledger's clock. `parent_id`: the job that it is nested in.
    """

    id: str
    name: str
    key: str | None
    state: JobState
    state_at: datetime
    params: str
    options: JobOptions
    split_task: str
    cursor: Any
    is_split: bool
    total: int | None
    split: int
    succeeded: int
    failed: int
    skipped: int
    cancelled: int
    retried: int
    results: int
    subtasks: int
    read_subtasks: int
    open_subtasks: int
    rate_max: float | None
    rate: float | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    paused_s: float
    who: str | None
    why: str | None
    error: str | None
    parent_id: str | None
    now: datetime = field(compare=False)

    @property
    def done(self) -> int:
        """Items that are settled, one way or the other."""
        return self.succeeded + self.failed + self.skipped + self.cancelled

    @property
    def ran_s(self) -> float:
        """Seconds from its begin to its end, or until now, without pauses."""
        return max(0.0, ((self.ended_at or self.now) - self.created_at).total_seconds() - self.paused_s)


@dataclass(frozen=True, slots=True)
class PrunedJobs:
    """How many jobs retention removed, and rows of what hung on them, or on those that are still there."""

    jobs: int
    subtasks: int
    failed_items: int
    results: int
