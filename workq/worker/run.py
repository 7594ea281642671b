"""A run: one call of a handler, for the attempt of one task, or of several that share the call (`batch=`).

Whoever calls it, a thread or the event loop, does the same: begin, call, end, settle what came of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

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
    """The call for one task, and what came of it. `SharedRun` is that for several."""

    handler: Handler[..., Any] | None
    attempts: list[Attempt]
    limit: SoftDeadline | None = None
    _result: Any = None
    _ended: Outcome | None = None
    """The error itself is not kept: its traceback leads back to here."""

    @property
    def line(self) -> int:
        """That of the first attempt, which stands for all of them."""
        return self.attempts[0].line

    def call(self, desk: Desk, _until: float, _clock: Callable[[], float], /) -> None:
        """Call a plain function, in this thread. What it raises for all is the caller's to tell.

        `until`: by `clock`, when the time of the attempt is up; no further call begins then.
        """
        attempt = self.attempts[0]
        self._result = run_sync(attempt.claim, _known(self), attempt.arguments, desk)

    async def call_async(self, desk: Desk, /) -> None:
        """The same of a coroutine function, under its soft limit, in this event loop."""
        attempt = self.attempts[0]
        self._result = await run_async(attempt.claim, _known(self), attempt.arguments, desk)

    def end(self, error: BaseException, rng: Random) -> None:
        """Nothing is called any more: who has no answer yet has failed of this."""
        self._ended = raised(self.attempts[0].claim, _known(self), error, rng=rng)

    def outcomes(self, rng: Random) -> list[Outcome]:
        """What is settled, in the order of the attempts."""
        if self._ended is not None:
            return [self._ended]
        try:
            return [returned(self._result)]
        except BaseException as error:  # whatever its answer is, or does: data never kills a worker
            return [raised(self.attempts[0].claim, _known(self), error, rng=rng)]


@dataclass(slots=True, eq=False)
class SharedRun(Run):
    """A call for several tasks, made again with fewer where it raises for all."""

    _together: Together | None = None

    def call(self, desk: Desk, until: float, clock: Callable[[], float], /) -> None:
        call(self._shared(), _known(self), until=until, clock=clock, wait=desk.wait_for)

    async def call_async(self, _desk: Desk, /) -> None:
        await call_async(self._shared(), _known(self))

    def end(self, error: BaseException, _rng: Random) -> None:
        self._shared().end(error)

    def outcomes(self, rng: Random) -> list[Outcome]:
        return self._shared().outcomes(rng)

    def _shared(self) -> Together:
        """Of those that are called: who came too late for its slot has left before."""
        if self._together is None:
            claims = [one.claim for one in self.attempts]
            self._together = Together(claims, [one.arguments for one in self.attempts], _known(self))
        return self._together


def _known(run: Run) -> Handler[..., Any]:
    if run.handler is None:
        raise RuntimeError(f"{run.attempts[0].claim.task_id} was queued without a handler")
    return run.handler
