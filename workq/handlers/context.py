"""What a running handler may know of itself: `workq.current()`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from workq.errors import ConfigError, NotInTask, Unavailable
from workq.handlers.forks import handlers_code, is_child
from workq.values.lane import queue_of
from workq.values.task import Claim, Done, Outcome
from workq.values.time_limit import apart, whole

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workq.ledger.sql import Ledger

T = TypeVar("T")
_LOOK_EVERY_S = 0.5
TASKS_MAX = 10
"""Of tasks that share a call, so many are named in the records that it writes."""


class Desk(Protocol):
    """What the process that runs a handler does for it."""

    def is_cancelled(self, claim: Claim) -> bool:
        """Whether to stop."""
        ...

    def transaction(self, claim: Claim, *, succeeds: Callable[[], Outcome]) -> AbstractContextManager[Connection]:
        """See `Current.transaction`. `succeeds`: asked at its end, the outcome."""
        ...

    def part(self, kind: Callable[[Ledger], T]) -> T:
        """What a slice keeps in the ledger that this process works with."""
        ...

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Await this in the event loop, and wait for it in this thread; what comes of it."""
        ...

    def is_leaving(self) -> bool:
        """Whether this process is about to end, so that nothing long may be begun."""
        ...


class PartitionSteps(Protocol):
    """The partition whose handler runs (see jobs/partition.py)."""

    has_ended: bool

    def step(self, *, cursor: Any, items: int) -> AbstractContextManager[Connection]:
        """See `Current.step`."""
        ...


class AddsItems(Protocol):
    """What the handler of a subtask adds to its job (see jobs/work.py)."""

    def add(self, items: Iterable[Any]) -> int:
        """See `Current.add`."""
        ...

    def succeeded(self) -> Outcome:
        """As what its task succeeds at the end of a `transaction()`."""
        ...


@dataclass(slots=True)
class Current:
    """The task that this handler runs. `job` is the id of its job, or None."""

    id: str
    name: str
    queue: str
    attempt: int
    job: str | None
    has_succeeded: bool = field(default=False, repr=False)
    """By a `transaction()` that stands."""
    has_begun_transaction: bool = field(default=False, repr=False)
    steps: PartitionSteps | None = field(default=None, repr=False)
    """Of the partition that it runs, in a job with `partitioned=True`."""
    additions: AddsItems | None = field(default=None, repr=False)
    """None: it is no subtask of a job."""
    _claim: Claim = field(repr=False, kw_only=True)
    _desk: Desk = field(repr=False, kw_only=True)
    _looked_at: float = field(default=float("-inf"), repr=False)
    _answer: bool = field(default=False, repr=False)

    def cancelled(self) -> bool:
        """Whether to stop: a person asked for it, or this attempt was taken away (its result would be refused).

        Asks the ledger at most twice a second, so it may be called in every loop. False while the ledger is away.
        """
        _check_process("cancelled()")
        now = time.monotonic()
        if not self._answer and now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            try:
                self._answer = self._desk.is_cancelled(self._claim)
            except Unavailable:
                return False
        return self._answer

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this task and for no other task: what the outside world may know it by."""
        return self.id

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """The handler's own writes and the task's success in one transaction: both stand, or neither.

        Gives a SQLAlchemy connection to the ledger's database; it commits at the end of the block. What the block
        raises rolls back, and is a failure like any other. Afterwards the task has succeeded, without a result, and
        whatever the handler still does or raises changes nothing. On SQLite nobody else writes meanwhile. In a job the
        chunk succeeds or fails as a whole.

        Raises:
            Refused: this attempt was taken away, or the block has ended the transaction (by commit() or rollback(), or
                by a database error that it swallowed); nothing of the block stands.
            LedgerUnavailable: the ledger did not answer; nothing stands, or as CommitUnknown perhaps all.
            ConfigError: in a coroutine, which would stop all others; use `asyncio.to_thread`.
        """
        _check_process("transaction()")
        _check_thread("transaction()")
        self.has_begun_transaction = True
        succeeds = Done if self.additions is None else self.additions.succeeded
        with whole():
            with self._desk.transaction(self._claim, succeeds=succeeds) as connection, apart(), handlers_code:
                yield connection
            self.has_succeeded = True

    @contextmanager
    def step(self, *, cursor: Any, items: int = 0) -> Iterator[Connection]:
        """One step of a partition: the handler's own writes, the cursor and the count of items stand together.

        Gives a SQLAlchemy connection to the ledger's database; it commits at the end of the block. What the block
        raises rolls back. The next call gets this cursor, also after a crash: any JSON, or None: nothing is behind it,
        and with this very commit the partition is done. A call may make several steps; between them it is not looked
        whether to stop. On SQLite nobody else writes during the block: whatever takes long belongs before it.

        Raises:
            Refused: this attempt was taken away, another step was made meanwhile, or the block has ended the
                transaction; nothing of the block stands.
            LedgerUnavailable: the ledger did not answer; nothing stands, or as CommitUnknown perhaps all.
            PayloadError: JSON cannot carry the cursor.
            ConfigError: its job is not `partitioned`; or in a coroutine, as for `transaction`.
        """
        if self.steps is None:
            raise ConfigError("step() is for the handler of a job with partitioned=True")
        _check_process("step()")
        _check_thread("step()")
        with whole():
            with self.steps.step(cursor=cursor, items=items) as connection, apart(), handlers_code:
                yield connection
            self.has_succeeded = self.has_succeeded or self.steps.has_ended

    def add(self, items: Iterable[Any]) -> int:
        """Add items to the job whose subtask this is; answers how many they are.

        They become subtasks of their own, of as many items as its others have, in the transaction that settles this
        one: each is there once, however often this one is tried, and the job does not end before. They count if this
        call of the handler returns; if it raises, the next one adds them again.

        Raises:
            ConfigError: it is no subtask of a job, or a partition, or its `transaction()` stands already: add inside of
                the block.
            PayloadError: JSON cannot carry an item, or it is larger than a payload may be; nothing was added.
        """
        if self.steps is not None:
            raise ConfigError("current().add(): the partitions of a job are those that its source yields")
        if self.additions is None:
            raise ConfigError(f"current().add(): {self.name} is no job's handler; enqueue tasks instead")
        if self.has_succeeded:
            raise ConfigError("current().add(): this chunk has succeeded already; add before its transaction() ends")
        return self.additions.add(items)


def _check_process(what: str) -> None:
    if is_child():
        raise NotInTask(
            f"{what} uses the connections of the worker that runs the task, and this process was forked off it: "
            "call it in the handler itself"
        )


def _check_thread(what: str) -> None:
    if _is_in_event_loop():
        raise ConfigError(
            f"{what} blocks its thread, and the event loop with it: "
            "do it in a plain function, by `await asyncio.to_thread(function)`"
        )


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_current: ContextVar[Current | None] = ContextVar("workq_current", default=None)
_together: ContextVar[tuple[str, Sequence[Claim]] | None] = ContextVar("workq_together", default=None)
"""The name of a handler that runs several tasks in this call, and their claims."""


def running() -> Claim:
    """The claim of the attempt that this thread or coroutine runs."""
    return current()._claim


def desk() -> Desk:
    """What the process does for the attempt that this thread or coroutine runs."""
    return current()._desk


def current() -> Current:
    """The running task, inside of a handler.

    Raises:
        NotInTask: called anywhere else, also in a thread that the handler started without copying its context; or in a
            handler with `batch=`, whose call is of several tasks.
    """
    found = _current.get()
    if found is None:
        if (together := _together.get()) is not None:
            raise NotInTask(
                f"{together[0]!r} is called for several tasks at once (batch=), so that none of them is the current "
                "one, and none has a transaction(); what is to be known of each goes into its argument"
            )
        raise NotInTask("workq.current() works inside a running handler only; pass its id to other threads")
    return found


def enter(claim: Claim, desk: Desk) -> Current:
    """Begin an attempt in this thread or coroutine."""
    entered = Current(
        claim.task_id, claim.name, queue_of(claim.queue), claim.attempt, claim.job_id, _claim=claim, _desk=desk
    )
    _current.set(entered)
    return entered


def enter_together(name: str, claims: Sequence[Claim]) -> None:
    """Begin a call of several tasks in this thread or coroutine."""
    _together.set((name, claims))


def leave_together() -> None:
    """It has ended."""
    _together.set(None)


def leave() -> None:
    """The attempt has ended."""
    _current.set(None)


class TaskFields(logging.Filter):
    """A filter for a handler of `logging`: it adds to each record the task whose handler writes it.

    `task` is its id, `task_name` its name, `attempt` a number, `job` the id of its job, where it has one. In a call of
    several tasks (`batch=`): `task_name`, `tasks` with the first ten ids, and `tasks_count`. What a record has already
    is kept. Elsewhere nothing is added.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True: it drops nothing."""
        for name, value in _fields().items():
            vars(record).setdefault(name, value)
        return True


def _fields() -> dict[str, object]:
    found = _current.get()
    if found is not None:
        fields: dict[str, object] = {"task": found.id, "task_name": found.name, "attempt": found.attempt}
        return fields if found.job is None else fields | {"job": found.job}
    together = _together.get()
    if together is None:
        return {}
    name, claims = together
    return {"task_name": name, "tasks": [one.task_id for one in claims[:TASKS_MAX]], "tasks_count": len(claims)}
