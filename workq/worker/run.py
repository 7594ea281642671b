"""A run: one call of a handler, for the attempt of one task, or of several that share the call (`batch=`).

Whoever calls it, a thread or the event loop, does the same: begin, call, end, settle what came of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from workq.handlers.context import Desk
from workq.handlers.handler import Handler
from workq.values.task import Claim, Outcome
from workq.values.time_limit import SoftDeadline
from workq.worker.attempt import raised, returned, run_async, run_sync
from workq.worker.batch import Together, call, call_async


@dataclass(slots=True)
class Attempt:
    """One claim on its way through this process."""

    claim: Claim
    line: int
    """Of the crash board, until it is settled."""
    arguments: Any = None
    start_by: float | None = None
    """It has a slot in a rate, which ends then."""


@dataclass(slots=True, eq=False)
class Run:
    """The attempts that one call of their handler is for."""

    handler: Handler[..., Any] | None
    attempts: list[Attempt]
    takes_list: bool = False
    """Its handler is called with a list, of all of them."""
    limit: SoftDeadline | None = None

    @property
    def line(self) -> int:
        """That of the first, which stands for all of them."""
        return self.attempts[0].line


class Called(Protocol):
    """A call that is under way, and what came of it."""

    def call(self, desk: Desk, until: float, /) -> None:
        """Call a plain function, in this thread. What it raises for all is the caller's to tell.

        `until`: by this process's clock, when the time of the attempt is up; no further call begins then.
        """

    async def call_async(self, desk: Desk, /) -> None:
        """The same of a coroutine function, under its soft limit, in this event loop."""

    def end(self, error: BaseException) -> None:
        """Nothing is called any more: who has no answer yet has failed of this."""

    def outcomes(self) -> list[Outcome]:
        """What is settled, in the order of the attempts."""


class Alone:
    """A call for one task."""

    def __init__(self, attempt: Attempt, handler: Handler[..., Any], rng: Random) -> None:
        self._attempt = attempt
        self._handler = handler
        self._rng = rng
        self._result: Any = None
        self._ended: Outcome | None = None
        """The error itself is not kept: its traceback leads back to here."""

    def call(self, desk: Desk, _until: float, /) -> None:
        attempt = self._attempt
        self._result = run_sync(attempt.claim, self._handler, attempt.arguments, desk)

    async def call_async(self, desk: Desk, /) -> None:
        attempt = self._attempt
        self._result = await run_async(attempt.claim, self._handler, attempt.arguments, desk)

    def end(self, error: BaseException) -> None:
        self._ended = raised(self._attempt.claim, self._handler, error, rng=self._rng)

    def outcomes(self) -> list[Outcome]:
        if self._ended is not None:
            return [self._ended]
        try:
            return [returned(self._result)]
        except BaseException as error:  # whatever its answer is, or does: data never kills a worker
            return [raised(self._attempt.claim, self._handler, error, rng=self._rng)]


class Shared:
    """A call for several tasks, made again with fewer where it raises for all."""

    def __init__(self, run: Run, handler: Handler[..., Any], rng: Random, clock: Callable[[], float]) -> None:
        claims = [one.claim for one in run.attempts]
        self._together = Together(claims, [one.arguments for one in run.attempts], handler)
        self._handler = handler
        self._rng = rng
        self._clock = clock

    def call(self, desk: Desk, until: float, /) -> None:
        call(self._together, self._handler, until=until, clock=self._clock, wait=desk.wait_for)

    async def call_async(self, _desk: Desk, /) -> None:
        await call_async(self._together, self._handler)

    def end(self, error: BaseException) -> None:
        self._together.end(error)

    def outcomes(self) -> list[Outcome]:
        return self._together.outcomes(self._rng)


def called(run: Run, *, rng: Random, clock: Callable[[], float]) -> Called:
    """A call that is about to begin."""
    if run.handler is None:
        raise RuntimeError(f"{run.attempts[0].claim.task_id} was queued without a handler")
    if run.takes_list:
        return Shared(run, run.handler, rng, clock)
    return Alone(run.attempts[0], run.handler, rng)
