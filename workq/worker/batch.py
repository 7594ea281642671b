"""Together: one call of a handler for several tasks; from their claims to an outcome for each (attempt.py is of one).

The handler gets a list with the argument of each task, and what it answers means what a job's handler answers (see
jobs/verdict.py): nothing, all have succeeded; a mapping or a `Verdict`, only those that it names have failed. When it
raises, the list is halved, and halved again where it raises, until the bad task stands alone: all of that is one
attempt. Every task is settled by itself, with its own failures, waits and end.

Where both halves raise, it is rather the world than a task: all of them have failed, each by itself, and nothing is
given up for an error that may be another's. But nobody dies of what others did: a part with a task that has no failure
left is halved to its end.

What goes wrong: an answer for what was not given, or that says nothing: the tasks of that list are dead, because it
would not help to repeat it. `Cancel`, `Snooze` and `Retry`: said of the list that it was raised with. The time limit is
of the attempt: whoever has no answer yet has exceeded it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from workq.errors import Cancel, Retry, Snooze, SoftTimeLimit
from workq.handlers import answer, context
from workq.handlers.answer import NotRun
from workq.handlers.handler import Handler
from workq.handlers.said import describe
from workq.jobs.recorded import Recorded
from workq.jobs.verdict import Answered, ChunkOutcome, Raised, Steps, WrongVerdict, bisected, read
from workq.values import codec
from workq.values.opaque import is_a
from workq.values.task import Claim, Dead, Done, Outcome
from workq.worker.attempt import raised, returned, told

SKIPPED: Final = "skipped"
"""The reason of a task that has succeeded because its handler has skipped it."""


class Together:
    """Several tasks in one attempt: whom to call the handler with next, and what came of each."""

    def __init__(self, claims: Sequence[Claim], items: Sequence[Any], handler: Handler[..., Any]) -> None:
        """`items` are decoded from the payloads of the claims, and are for the first call alone.

        Each call has items of its own, because a handler may change them in place.
        """
        self.claims = claims
        self._items = Recorded(len(items), lambda: [_item_of(claim) for claim in claims])
        self._given = items
        """The objects of the next call, or of that which is under way."""
        self._handler = handler
        self._said: dict[int, BaseException] = {}
        """By place: what the handler has raised for a whole list, or what was wrong with its answer."""
        self._told = ChunkOutcome()
        """By place: whom the handler has named in its answers."""
        self._answers: list[Answered | Raised] = []
        self._steps = self._begun()
        self._part: range | None = next(self._steps)
        self._found = ChunkOutcome()
        """By place: whose fault it was, as halving has found it."""

    @property
    def part(self) -> list[Any] | None:
        """What to call the handler with next; None when that is all."""
        if self._part is None:
            return None
        return list(self._given)

    def answered(self, value: object) -> None:
        """The handler has returned this."""
        part = self._part or range(0)
        try:
            told_now = read(self._items, part, Answered(value, self._given))
        except WrongVerdict as wrong:
            self._said.update(dict.fromkeys(part, wrong))
        else:
            self._told.failed.update(told_now.failed)
            self._told.skipped.update(told_now.skipped)
            self._told.results.update(told_now.results)
        self._go_on(Answered(None))

    def raised(self, error: BaseException) -> None:
        """The handler has raised this."""
        if any(is_a(error, kind) for kind in (Cancel, Snooze, Retry)):
            self._said.update(dict.fromkeys(self._part or (), error))
            self._go_on(Answered(None))
        else:
            self._go_on(Raised(error))

    def end(self, error: BaseException) -> None:
        """Nothing is called any more: who has no answer yet has failed of this.

        It may have come at any time, as a soft time limit does: only what was written down counts.
        """
        steps = self._begun()
        answers = iter(self._answers)
        next(steps)
        try:
            while True:
                steps.send(next(answers, None) or Raised(error))
        except StopIteration as end:
            self._part, self._found = None, end.value

    def outcomes(self, rng: Random) -> list[Outcome]:
        """What is settled, in the order of the claims."""
        found = []
        for place, claim in enumerate(self.claims):
            try:
                found.append(self._outcome(place, claim, rng))
            except NotRun as error:
                found.append(raised(claim, self._handler, error, rng=rng))
        return found

    def _begun(self) -> Steps:
        last = {place for place, claim in enumerate(self.claims) if claim.failures + 1 >= claim.failures_max}
        return bisected(self._items, is_last=lambda part, _: not last.isdisjoint(part))

    def _go_on(self, answer: Answered | Raised) -> None:
        self._answers.append(answer)
        try:
            self._part = self._steps.send(answer)
        except StopIteration as end:
            self._found = end.value
            self._part = None
        else:
            self._given = [_item_of(self.claims[place]) for place in self._part]

    def _outcome(self, place: int, claim: Claim, rng: Random) -> Outcome:
        wrong = self._said.get(place)
        if is_a(wrong, WrongVerdict):
            return Dead("not retried: WrongVerdict", describe(wrong))
        if wrong is not None:
            return raised(claim, self._handler, wrong, rng=rng)
        if place in self._found.unknown:
            return raised(claim, self._handler, self._found.unknown[place], rng=rng, is_shared=True)
        failed = self._told.failed.get(place) or self._found.failed.get(place)
        if failed is not None:
            error, _ = failed
            if is_a(error, BaseException):
                return raised(claim, self._handler, error, rng=rng)
            return told(claim, self._handler, error, rng=rng)
        if place in self._told.skipped:
            return Done(None, SKIPPED)
        return returned(self._told.results.get(place))


def _item_of(claim: Claim) -> Any:
    return codec.decode(claim.payload)["a"][0]


def call(
    together: Together, handler: Handler[..., Any], *, until: float, clock: Callable[[], float], wait: answer.Wait
) -> None:
    """Call a plain function, as often as it takes, in this thread. What it raises for all is the caller's to tell.

    `until`: by this clock, when the time of the attempt is up; no further call begins then.
    """
    context.enter_together(handler.name, together.claims)
    try:
        while (items := together.part) is not None:
            if clock() > until:
                raise SoftTimeLimit
            try:
                value = answer.call(handler.function, wait, items)
            except SoftTimeLimit:
                raise
            except BaseException as error:  # SystemExit and KeyboardInterrupt too: data never kills a worker
                together.raised(error)
            else:
                together.answered(value)
    finally:
        context.leave_together()


async def call_async(together: Together, handler: Handler[..., Any]) -> None:
    """`call` of a coroutine function, under its soft limit, in this event loop."""
    context.enter_together(handler.name, together.claims)
    try:
        async with asyncio.timeout(handler.time_limit_s) as limit:
            while (items := together.part) is not None:
                if limit.expired():  # the handler has made something else of it
                    raise SoftTimeLimit
                try:
                    value = await answer.call_async(handler.function, items)
                except (SoftTimeLimit, asyncio.CancelledError, GeneratorExit):
                    raise
                except BaseException as error:  # SystemExit too: the loop serves other tasks
                    together.raised(error)
                else:
                    together.answered(value)
    except TimeoutError as error:  # the handler's own were told
        raise SoftTimeLimit(f"ran longer than time_limit_s={handler.time_limit_s}") from error
    finally:
        context.leave_together()
