"""What a running handler may know of itself: `workq.current()`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from workq.errors import NotInTask, Unavailable
from workq.task import Claim

_LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class Current:
    """The task that this handler runs. `job` is the id of its job, or None."""

    id: str
    name: str
    queue: str
    attempt: int
    job: str | None
    _is_cancelled: Callable[[], bool] = field(repr=False)
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
                self._answer = self._is_cancelled()
            except Unavailable:
                return False
        return self._answer


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


def enter(claim: Claim, is_cancelled: Callable[[], bool]) -> None:
    """Begin an attempt in this thread or coroutine."""
    _current.set(Current(claim.task_id, claim.name, claim.queue, claim.attempt, claim.job_id, is_cancelled))


def leave() -> None:
    """The attempt has ended."""
    _current.set(None)
