"""What a running handler may know of itself: `workq.current()`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from workq.bands import queue_of
from workq.errors import ConfigError, NotInTask, Unavailable
from workq.task import Claim

if TYPE_CHECKING:
    from sqlalchemy import Connection

_LOOK_EVERY_S = 0.5


class Desk(Protocol):
    """What the process that runs a handler does for it."""

    def is_cancelled(self, claim: Claim) -> bool:
        """Whether to stop."""
        ...

    def transaction(self, claim: Claim) -> AbstractContextManager[Connection]:
        """See `Current.transaction`."""
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
    _claim: Claim = field(repr=False, kw_only=True)
    _desk: Desk = field(repr=False, kw_only=True)
    _looked_at: float = field(default=float("-inf"), repr=False)
    _answer: bool = field(default=False, repr=False)

    def cancelled(self) -> bool:
        """Whether to stop: a person asked for it, or this attempt was taken away (its result would be refused).

        Asks the ledger at most twice a second, so it may be called in every loop. False while the ledger is away.
        """
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
        whatever the handler still does or raises changes nothing. On SQLite nobody else writes meanwhile.

        Raises:
            Refused: this attempt was taken away, or the block has ended the transaction (by commit() or rollback(), or
                by a database error that it swallowed); nothing of the block stands.
            LedgerUnavailable: the ledger did not answer; nothing stands, or as CommitUnknown perhaps all.
            ConfigError: in a coroutine, which would stop all others; use `asyncio.to_thread`.
        """
        if _is_in_event_loop():
            raise ConfigError(
                "transaction() blocks its thread, and the event loop with it: "
                "do it in a plain function, by `await asyncio.to_thread(function)`"
            )
        with self._desk.transaction(self._claim) as connection:
            yield connection
        self.has_succeeded = True


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_current: ContextVar[Current | None] = ContextVar("workq_current", default=None)


def current() -> Current:
    """The running task, inside of a handler.

    Raises:
        NotInTask: called anywhere else, also in a thread that the handler started without copying its context.
    """
    found = _current.get()
    if found is None:
        raise NotInTask("workq.current() works inside a running handler only; pass its id to other threads")
    return found


def enter(claim: Claim, desk: Desk) -> Current:
    """Begin an attempt in this thread or coroutine."""
    entered = Current(
        claim.task_id, claim.name, queue_of(claim.queue), claim.attempt, claim.job_id, _claim=claim, _desk=desk
    )
    _current.set(entered)
    return entered


def leave() -> None:
    """The attempt has ended."""
    _current.set(None)
