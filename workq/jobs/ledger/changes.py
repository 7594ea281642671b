"""What is counted of subtasks, what a job wants after a commit, and a job's row under its lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

import msgspec

from workq.jobs.values import JOB_ENDED, JobOptions, JobState
from workq.ledger import Unpublished
from workq.values.task import FailedItem, NewSubtask, Result


class Rest(StrEnum):
    """What became of the items of a subtask that has ended, but for those that were told one by one."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Change:
    """What an attempt has done of a subtask. `rest` None: the others are still to be done."""

    task_id: str
    attempt: int
    succeeded: int = 0
    skipped: int = 0
    failed: tuple[FailedItem, ...] = ()
    rest: Rest | None = None
    is_retried: bool = False
    """What is left is tried again."""
    added: tuple[NewSubtask, ...] = ()
    """Subtasks that its handler has added to the job."""
    awaits_room: bool = False
    """It is no subtask but the splitter, and waits for room: said under the job's lock, so that no end is missed."""
    told: int = 0
    """So many items have results."""
    results: tuple[Result, ...] = ()
    """Those of them that may be kept."""

    @property
    def is_told(self) -> bool:
        """Whether some items are told one by one."""
        return bool(self.succeeded or self.skipped or self.failed or self.told)


@dataclass(slots=True)
class Wishes:
    """What is to be done after the commit. `hints`: of tasks that follow a job's end."""

    wake: list[str] = field(default_factory=list)
    """Splitters whose job has room again."""
    withdraw: list[str] = field(default_factory=list)
    """Jobs whose open subtasks nobody wants any more."""
    ended: list[tuple[str, str | None]] = field(default_factory=list)
    """Names and keys that are free again: a job may be waiting for one."""
    outer: list[str] = field(default_factory=list)
    """Jobs in which another was nested that has ended now."""
    hints: list[Unpublished] = field(default_factory=list)

    def add(self, other: Wishes) -> None:
        """Those of another transaction, too."""
        self.wake += other.wake
        self.withdraw += other.withdraw
        self.ended += other.ended
        self.outer += other.outer
        self.hints += other.hints

    def clear(self) -> None:
        """Before the transaction is tried again."""
        for one in (self.wake, self.withdraw, self.ended, self.outer, self.hints):
            one.clear()


class JobLock:
    """The row of a job, under its lock, and what changes of it."""

    _NUMBERS: Final = (
        *("split", "succeeded", "failed", "skipped", "cancelled", "retried", "results"),
        *("subtasks", "read_subtasks", "open_subtasks"),
    )
    _OTHERS: Final = (
        *(
            "live_key",
            "job_key",
            "source_cursor",
            "split_task",
            "is_split",
            "awaits_room",
            "total",
            "rate_max",
            "slot_at",
            "rate",
            "rated_at",
        ),
        *("rated_done", "started_at", "ended_at", "paused_at", "paused_s", "who", "why", "error", "state_at"),
        "parent_id",
    )

    def __init__(self, row: Any, now: datetime) -> None:
        self.id: str = row.id
        self.name: str = row.name
        self.params: str = row.params
        self.now = now
        self.state = JobState(row.state)
        self.options = options_of(row.options)
        for name in (*self._NUMBERS, *self._OTHERS):
            setattr(self, name, getattr(row, name))
        self._before = {name: getattr(self, name) for name in (*self._NUMBERS, *self._OTHERS, "state")}

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
    live_key: str | None
    job_key: str | None
    source_cursor: str | None
    split_task: str
    is_split: int
    awaits_room: int
    total: int | None
    rate_max: float | None
    slot_at: datetime | None
    rate: float | None
    rated_at: datetime | None
    rated_done: int
    started_at: datetime | None
    ended_at: datetime | None
    paused_at: datetime | None
    paused_s: float
    who: str | None
    why: str | None
    error: str | None
    state_at: datetime
    parent_id: str | None

    @property
    def done(self) -> int:
        return self.succeeded + self.failed + self.skipped + self.cancelled

    @property
    def has_ended(self) -> bool:
        return self.state in JOB_ENDED and self.ended_at is None

    @property
    def has_moved(self) -> bool:
        return self.state is not self._before["state"]

    def move(self, state: JobState) -> None:
        """Into another state, now."""
        self.state, self.state_at = state, self.now

    def changed(self) -> dict[str, Any]:
        """The columns that are to be written."""
        found = {name: getattr(self, name) for name, value in self._before.items() if getattr(self, name) != value}
        if "state" in found:
            found["state"] = self.state.value
        return found


_options = msgspec.json.Decoder(JobOptions)


def options_of(text: str) -> JobOptions:
    """A job's options, as they are kept. What a newer version has written beside them is left alone."""
    return _options.decode(text)


def by_job(changes: Sequence[tuple[str, Change]]) -> dict[str, list[Change]]:
    """Changes, by the ids of their jobs."""
    ordered = sorted(changes, key=lambda pair: pair[0])
    return {job_id: [change for _, change in pairs] for job_id, pairs in groupby(ordered, key=lambda pair: pair[0])}
