"""Batches (`batch=`): claimed tasks of one handler wait for each other, then one call runs them (attempt.py: one task).

`BatchCollector` is the waiting half. A batch goes on when it has as many tasks as its handler takes, when its first
task has waited for `linger_s`, or when this process is crowded with such tasks; dispatch.py asks for those batches in
each of its rounds. A task that has a slot in a rate has to start in time: it waits for at most half of what is left of
that. A task that waits is claimed and has not started. It takes no thread and has no line on the crash board: a process
that dies is not charged for it, and one that leaves hands it back at no cost.

`Together` is the calling half, from the claims to an outcome for each.

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
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from workq.errors import Cancel, Retry, Snooze, SoftTimeLimit
from workq.handlers import answer, context
from workq.handlers.answer import NotRun
from workq.handlers.handler import Handler
from workq.handlers.options import Batch
from workq.handlers.said import describe, is_a
from workq.jobs.verdict import Answered, ChunkOutcome, Raised, RecordedItems, Steps, WrongVerdict, bisected, read
from workq.values import codec
from workq.values.task import Claim, Dead, Done, Outcome
from workq.worker.attempt import raised, returned, told

SKIPPED: Final = "skipped"
"""The reason of a task that has succeeded because its handler has skipped it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One task of a batch: its claim, the argument that it was enqueued with, and until when it has to start."""

    claim: Claim
    item: Any
    start_by: float | None


@dataclass(slots=True)
class FillingBatch:
    """Tasks of one handler that wait for others, to be run together at `due_at` at the latest."""

    handler: Handler[..., Any]
    members: list[Member]
    due_at: float


class BatchCollector:
    """Collects claimed tasks until a batch is full or `linger_s` has passed. Of one process; used by one thread."""

    def __init__(self, *, most: int, clock: Callable[[], float]) -> None:
        """`most`: when so many tasks wait in all, none waits any longer."""
        self.count = 0
        self.more = 0
        """Room left in the batches that are filling, as far as the last claims suggest that it will be used."""
        self.is_used = False
        self._most = most
        self._clock = clock
        self._open: dict[tuple[str, str], FillingBatch] = {}
        """By the names of their handlers, and by what only tasks that share a call have (`Handler.batch_by`)."""
        self._full: list[FillingBatch] = []
        self._joined = self._in_a_row = 0
        """Tasks that were added since the last `came`; and before that, in claims of such tasks alone."""

    def add(self, batch: Batch, handler: Handler[..., Any], member: Member) -> None:
        """Add one task of a handler with `batch=`."""
        now = self._clock()
        of = handler.name, "" if handler.batch_by is None else handler.batch_by(member.item)
        group = self._open.get(of)
        if group is None:
            group = self._open[of] = FillingBatch(handler, [], now + batch.linger_s)
        group.members.append(member)
        if member.start_by is not None:
            group.due_at = min(group.due_at, (now + member.start_by) / 2)
        if len(group.members) >= batch.size:
            self._full.append(self._open.pop(of))
        self.count += 1
        self._joined += 1
        self.is_used = True

    def came(self, claims: int) -> None:
        """Note how many tasks one claim brought, those that were added here among them.

        A claim costs much the same for one task as for many. While claims bring tasks for these batches only, each
        claim asks for more: for as many as have come so far.
        """
        self._in_a_row = self._in_a_row + self._joined if self._joined == claims else 0
        self._joined = 0

    def ready(self, *, is_all: bool = False) -> list[FillingBatch]:
        """The batches that wait no longer, in the order in which they are due; `is_all`: all of them."""
        is_all = is_all or self.count >= self._most
        now = self._clock()
        due = [of for of, group in self._open.items() if is_all or group.due_at <= now]
        groups = [*self._full, *(self._open.pop(of) for of in due)]
        self._full.clear()
        self.count -= sum(len(group.members) for group in groups)
        places = sum(
            group.handler.batch.size - len(group.members) for group in self._open.values() if group.handler.batch
        )
        self.more = min(self._in_a_row, places)
        return sorted(groups, key=lambda group: group.due_at)

    def wait_s(self) -> float:
        """Seconds until the next batch is due; only while any task waits."""
        return max(0.0, min((group.due_at for group in self._open.values()), default=0.0) - self._clock())

    def take_all(self) -> list[Claim]:
        """The claims of all tasks that wait; none is left."""
        return [member.claim for group in self.ready(is_all=True) for member in group.members]


class Together:
    """Several tasks in one attempt: whom to call the handler with next, and what came of each."""

    def __init__(self, claims: Sequence[Claim], items: Sequence[Any], handler: Handler[..., Any]) -> None:
        """`items` are decoded from the payloads of the claims, and are for the first call alone.

        Each call has items of its own, because a handler may change them in place.
        """
        self.claims = claims
        self._items = RecordedItems(len(items), lambda: [_item_of(claim) for claim in claims])
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
