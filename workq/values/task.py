"""The values of the queue: a task, its states, one claim of it, and how an attempt can end.

    ready, waiting -> running                claimed (waiting: only when due)
    running -> succeeded                     settled by its handler
    running -> waiting | dead                failed, with failures left or used up
    running -> waiting                       snoozed by its handler, or this worker does not know its name
    running -> ready                         reaped, or handed back unstarted
    running -> dead                          crashed once too often
    running -> cancelled                     cancelled by its handler, or asked for and then failed or reaped
    waiting -> ready                         promoted: its time has come
    ready, waiting -> waiting, ready         rescheduled by a person
    ready, waiting -> cancelled              by a person, or because it has expired
    dead, cancelled -> ready                 revived by a person
    dead -> cancelled                        discarded by a person, or its failed items are run again by a job

`attempt` never decreases and is never used twice. `token` is the secret of one claim; both together are the fence.
What is made for every task is a Struct of msgspec, several times cheaper than a dataclass. This module imports nothing
of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec


class State(StrEnum):
    """Where a task stands. "Is it in the broker?" is not a state: it cannot be known."""

    READY = "ready"
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.READY: frozenset({State.RUNNING, State.WAITING, State.CANCELLED}),
    State.WAITING: frozenset({State.RUNNING, State.READY, State.CANCELLED}),
    State.RUNNING: frozenset({State.SUCCEEDED, State.WAITING, State.READY, State.DEAD, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.DEAD: frozenset({State.READY, State.CANCELLED}),
    State.CANCELLED: frozenset({State.READY}),
}
"""Which state may follow which. `dead` and `cancelled` end only when a person says so."""

SETTLED: Final = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})


class OnCrash(StrEnum):
    """What becomes of a task that had started when its worker process died, so that nobody knows what it has done."""

    AGAIN = "again"
    """It runs again, until `crashes_max`."""
    FAIL = "fail"
    """The attempt has failed: it is tried again after a wait, until `failures_max`."""
    ASK = "ask"
    """It is dead, and a person says whether it runs again."""


class Priority(StrEnum):
    """Which of a queue's three bands a task waits in."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class AfterDeath(StrEnum):
    """What becomes of the others of an order key when one of them is dead."""

    BLOCK = "block"
    """They wait until a person revives or discards it."""
    SKIP = "skip"
    """The next one goes on."""


class Limit(msgspec.Struct, frozen=True):
    """What a task counts for: with all of the same key, at most so many at once, and at such a `rate`, as `100/s`."""

    key: str
    concurrency: int | None = None
    rate: str | None = None


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a handler that each of its tasks has, from a call, a job or a schedule.

    All of them carry this value. Checks, columns and texts of each option: options.py.
    """

    failures_max: int = 5
    crashes_max: int = 3
    on_crash: OnCrash = OnCrash.AGAIN

    def carried(self) -> dict[str, Any]:
        """These options alone, by name: `NewTask(..., **job_options.carried())`."""
        return {name: getattr(self, name) for name in TaskOptions.__struct_fields__}


class NewTask(TaskOptions, frozen=True):
    """A task to record. `payload` is encoded JSON; its seconds count from the ledger's clock at the insert.

    `at`: when it is due exactly, where a person has named an instant; `delay_s` is as long by the clock of its host.
    `waits_for`: the word of the slice that lets it go on; it is not due before that.
    Here as in every value below but `Task`, `queue` is a band of it (see lane.py).
    """

    id: str
    name: str
    queue: str
    payload: str
    delay_s: float = 0.0
    key: str | None = None
    expires_s: float | None = None
    key_for_s: float | None = None
    order_key: str | None = None
    after_death: AfterDeath = AfterDeath.BLOCK
    limit: Limit | None = None
    job_id: str | None = None
    at: datetime | None = None
    waits_for: str | None = None


class Enqueued(msgspec.Struct, frozen=True):
    """What `enqueue()` returns. `created` is False when a live task with the same key existed already.

    `is_behind`: it waits for others of its order key. `due_in_s`: of one with a named instant, by the ledger's clock.
    """

    id: str
    state: State
    created: bool
    is_behind: bool = False
    due_in_s: float | None = None


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """The right to one attempt of one task, granted by the ledger.

    A suspect was running in company when its process died: it must run alone in its process. `start_within_s`: so long
    after the claim its slot in the rate of its limit ends, and it may not start any more.
    """

    task_id: str
    name: str
    queue: str
    payload: str
    attempt: int
    token: str
    failures: int
    crashes: int
    failures_max: int
    crashes_max: int
    job_id: str | None
    is_suspect: bool = False
    order_key: str | None = None
    limit_key: str | None = None
    start_within_s: float | None = None


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The handler returned. `result` is encoded JSON; `note` says why a result could not be kept."""

    result: str | None = None
    note: str | None = None


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The handler failed and failures are left: run it again in `delay_s` seconds."""

    delay_s: float
    error: str


class Dead(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The task will not be tried again until a person revives it.

    `failed` says whether the handler failed (a failure is counted) or the task could never start.
    """

    reason: str
    error: str
    failed: bool = True


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The handler cancelled its own task."""

    reason: str


class Snoozed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The handler wants to run again in `delay_s` seconds. It has not failed.

    `awaits_room`: it splits a job, and is due before, as soon as half of the job's window is done.
    """

    delay_s: float
    reason: str = ""
    awaits_room: bool = False


class Unhandled(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The worker's application knows no handler of the task's name: another looks in `delay_s` seconds, at no cost.

    `wait_s` seconds after the first such look the task is dead as `no_handler`.
    """

    delay_s: float
    wait_s: float
    error: str


class FailedItem(msgspec.Struct, frozen=True, array_like=True):
    """One item of a job that has failed for good. `item` is JSON; so many calls with it have failed.

    `cursor`: of a partition, as JSON: where it stood; None: at its beginning.
    """

    item: str
    failures: int
    error: str
    fingerprint: str
    cursor: str | None = None


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What came of one item of a job. `item` and `value` are JSON; `value` None: it could not be kept, for `note`."""

    item: str
    value: str | None
    note: str | None = None


class NewSubtask(msgspec.Struct, frozen=True, array_like=True):
    """A chunk to record, or a partition. `payload` is encoded JSON; `items`: how many it has.

    `cursor`: as JSON, where a partition goes on; None: at its beginning.
    """

    task_id: str
    payload: str
    items: int
    cursor: str | None = None


class Worked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A job's handler has worked on a chunk. `again` is the payload of what is to be tried again in `delay_s`.

    `added`: subtasks that it has added to its job. `told`: so many items have results; `results`: those to be kept.
    """

    succeeded: int
    skipped: int = 0
    failed: tuple[FailedItem, ...] = ()
    again: str | None = None
    delay_s: float = 0.0
    error: str = ""
    added: tuple[NewSubtask, ...] = ()
    told: int = 0
    results: tuple[Result, ...] = ()


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """One try to send a webhook, the `number`th of its delivery. `error_class` None: it has arrived.

    `status` None: there was no answer. `answer`: the first 16 KiB of it, as text; `is_cut`: there was more.
    `rest_s`: for so long nothing else is sent to this endpoint. `is_gone`: nothing is ever to be sent there again.
    """

    delivery_id: str
    endpoint_id: str
    number: int
    cause: str
    url: str
    status: int | None
    error_class: str | None
    error: str | None
    duration_ms: float
    answer: str = ""
    is_cut: bool = False
    rest_s: float = 0.0
    is_gone: bool = False


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A webhook was sent, or could not be; `then`: what that means for its task."""

    sent: Sent
    then: Done | Failed | Dead


class HandedBack(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Claimed but never started: back to ready, at no cost."""


Outcome = Done | Failed | Dead | Cancelled | Snoozed | Unhandled | Worked | Delivered | HandedBack


class Settlement(msgspec.Struct, frozen=True, array_like=True):
    """One outcome with the fence that guards its write."""

    claim: Claim
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Task:
    """One task as the ledger knows it. Times are aware, in UTC, by the ledger's clock."""

    id: str
    name: str
    queue: str
    state: State
    attempt: int
    failures: int
    crashes: int
    failures_max: int
    crashes_max: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str | None
    job_id: str | None
    result: Any
    error: str | None
    reason: str | None
    worker: str | None
    is_cancel_requested: bool
    created_at: datetime
    due_at: datetime
    waits_for: str | None
    started_at: datetime | None
    settled_at: datetime | None
    expires_at: datetime | None
    on_crash: OnCrash
    order_key: str | None
    limit: Limit | None
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a task's history.

    Its kind is failed, snoozed, handed_back, no_handler, reaped, late_result, cancelled, rescheduled, revived,
    quarantined or manual.
    """

    at: datetime
    kind: str
    task_id: str | None
    attempt: int | None
    worker: str | None
    detail: dict[str, Any]
