"""Work: one attempt of a subtask, from its chunk of items to what is settled of it.

The handler is called with the chunk, and, if it raises, with parts of it (see verdict.py), all in this attempt. What
has failed and has failures left is tried again as the same task, which from then on is of those items alone; what has
none left has failed for good. An item's failures are those of its subtask before, and the calls with it that raised in
this attempt: so one that was found by halving a chunk has usually none left.

A handler may change in place what it is given. So each call has items and parameters of its own, and what is recorded
is decoded from the payload of the claim.

What goes wrong: an answer for items that were not given, or that says nothing: the whole chunk has failed of it, and
is not tried again, because that would not help. What the handler raises for itself (Cancel, Snooze, Retry, a time
limit) is said of the whole chunk; and so is all that it raises once it has begun a `current().transaction()`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from workq.errors import Cancel, PayloadError, Retry, Snooze, SoftTimeLimit
from workq.handlers.retry import Exponential, Retries
from workq.handlers.said import encoded, is_a, text_of
from workq.jobs.values import SAMPLE_RESULTS, Collect
from workq.jobs.verdict import Answered, ChunkOutcome, Raised, RecordedItems, Steps, bisected
from workq.values import codec
from workq.values.fingerprint import fingerprint
from workq.values.task import Claim, FailedItem, NewSubtask, Result, Worked
from workq.values.task import Worked as Outcome

OF_ALL: Final = (Cancel, Snooze, Retry, SoftTimeLimit)
"""What is said of the whole chunk."""
ERROR_MAX: Final = 4000
"""Characters of the error of one item."""


class Chunk:
    """One chunk in one attempt: what to call next, and what came of it."""

    def __init__(
        self,
        claim: Claim,
        items: Sequence[Any],
        params: Mapping[str, Any],
        retries: Retries,
        *,
        collect: Collect = Collect.NONE,
    ) -> None:
        """`items` and `params` are decoded from the payload of the claim, and are for the first call alone."""
        self._items = RecordedItems(len(items), lambda: _decoded(claim)[0])
        self.params = params
        """The parameters to call the handler with."""
        self._claim = claim
        self._retries = retries
        self._collect = collect
        is_last = claim.failures + 1 >= claim.failures_max
        self._steps: Steps = bisected(self._items, is_last=lambda _, error: is_last or retries.gives_up(error))
        self._worked: ChunkOutcome | None = None
        self._part: range = next(self._steps)
        self._given = items
        """The objects of the next call, or of that which is under way."""

    @property
    def recorded_items(self) -> Sequence[Any]:
        """The items as they are recorded: no handler is given these objects."""
        return [self._items[place] for place in range(len(self._items))]

    @cached_property
    def recorded_params(self) -> Mapping[str, Any]:
        """The parameters as they are recorded: no handler is given these objects."""
        return _decoded(self._claim)[1]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be called."""
        return self._worked is not None

    @property
    def part(self) -> list[Any]:
        """The items to call the handler with."""
        return list(self._given)

    def tell(self, answer: Answered | Raised) -> None:
        """What came of the last part."""
        if isinstance(answer, Answered):
            answer = Answered(answer.value, self._given)
        try:
            self._part = self._steps.send(answer)
        except StopIteration as end:
            self._worked = end.value
        else:
            items, self.params = _decoded(self._claim)
            self._given = items[self._part.start : self._part.stop]

    def outcome(self, rng: Random) -> Outcome:
        """What is settled.

        Raises:
            Exception: the whole chunk has failed of it, as any task.
        """
        worked = self._worked
        if worked is None:
            raise RuntimeError("this chunk is not done")
        if len(worked.unknown) == len(self._items):
            raise next(iter(worked.unknown.values()))
        again = sorted([*worked.unknown, *(place for place in worked.failed if self._is_tried_again(worked, place))])
        final = [place for place in sorted(worked.failed) if place not in again]
        failed = tuple(self._failed(place, *worked.failed[place]) for place in final)
        succeeded = len(self._items) - len(worked.skipped) - len(again) - len(failed)
        last = self._last_error(worked)
        text = "" if last is None else text_of(last)
        outcome = Outcome(succeeded, len(worked.skipped), failed, error=text, **self._results(worked))
        if not again:
            return outcome
        payload = codec.encode(
            {"a": [[self._items[place] for place in again]], "k": self.recorded_params}, path="items", max_bytes=1 << 30
        )
        delay_s = self._delay_s(last, rng)
        return replace(outcome, again=payload, delay_s=delay_s)

    def _results(self, worked: ChunkOutcome) -> dict[str, Any]:
        """Of what has not failed: how many results there are, and those that may be kept."""
        if self._collect is Collect.NONE:
            return {}
        most = {Collect.COUNT: 0, Collect.SAMPLE: SAMPLE_RESULTS}.get(self._collect)
        kept = tuple(_result(self._items[place], worked.results[place]) for place in sorted(worked.results)[:most])
        return {"told": len(worked.results), "results": kept}

    def _is_tried_again(self, worked: ChunkOutcome, place: int) -> bool:
        error, calls = worked.failed[place]
        if is_a(error, BaseException) and self._retries.gives_up(error):
            return False
        return self._claim.failures + calls < self._claim.failures_max

    def _failed(self, place: int, error: object, calls: int) -> FailedItem:
        text = codec.storable(text_of(error), characters_max=ERROR_MAX)
        return FailedItem(
            as_json(self._items[place]), self._claim.failures + calls, text, fingerprint(self._claim.name, "", text)
        )

    def _last_error(self, worked: ChunkOutcome) -> object | None:
        found: list[object] = [*worked.unknown.values(), *(error for error, _ in worked.failed.values())]
        return found[0] if found else None

    def _delay_s(self, error: object, rng: Random) -> float:
        failures = self._claim.failures + 1
        if is_a(error, BaseException):
            try:
                return self._retries.delay_s(failures, error, rng=rng)
            except BaseException:  # the user's function may raise anything
                return Exponential().delay_s(failures, rng=rng)
        return Exponential().delay_s(failures, rng=rng)


def _decoded(claim: Claim) -> tuple[list[Any], dict[str, Any]]:
    """The items and parameters of a claim, as new objects."""
    arguments = codec.decode(claim.payload)
    return arguments["a"][0], arguments["k"]


def work(
    call: Callable[[list[Any]], object], chunk: Chunk, *, stops: Callable[[], bool], is_whole: Callable[[], bool]
) -> None:
    """Work on a chunk in this thread.

    `stops`: whether to begin nothing more of it. `is_whole`: whether it may not be halved (it has begun a transaction,
    whose end is that of all of its items).
    """
    while not chunk.is_done:
        try:
            answer: Answered | Raised = Answered(call(chunk.part))
        except OF_ALL:
            raise
        except Exception as error:
            answer = _blamed(error, is_whole=is_whole())
        _go_on(chunk, answer, stops)


async def work_async(
    call: Callable[[list[Any]], Awaitable[object]],
    chunk: Chunk,
    *,
    stops: Callable[[], bool],
    is_whole: Callable[[], bool],
) -> None:
    """`work` in this event loop."""
    while not chunk.is_done:
        try:
            answer: Answered | Raised = Answered(await call(chunk.part))
        except OF_ALL:
            raise
        except Exception as error:
            answer = _blamed(error, is_whole=is_whole())
        _go_on(chunk, answer, stops)


def _blamed(error: Exception, *, is_whole: bool) -> Raised:
    """What to tell the chunk; or, where it cannot be halved, it fails as a whole."""
    if is_whole:
        raise error
    return Raised(error)


def _go_on(chunk: Chunk, answer: Answered | Raised, stops: Callable[[], bool]) -> None:
    chunk.tell(answer)
    if not chunk.is_done and stops():
        raise Cancel("it was cancelled while a bad item was looked for")


def _result(item: object, value: object) -> Result:
    """A result that JSON cannot carry does not undo the work that was done."""
    return Result(as_json(item), *encoded(value))


def as_json(item: object) -> str:
    """An item as JSON."""
    try:
        return codec.encode(item, path="item", max_bytes=1 << 24)
    except PayloadError:
        return codec.encode(codec.storable(repr(item), characters_max=ERROR_MAX), path="item")


class Additions:
    """What the handler of a subtask adds to its job: kept, once the call that has added it has returned."""

    def __init__(self, cut: Callable[[Iterable[Any]], list[NewSubtask]]) -> None:
        """`cut` makes subtasks of items."""
        self._cut = cut
        self.kept: list[NewSubtask] = []
        """By calls that have returned."""
        self._of_this_call: list[NewSubtask] = []

    def begin(self) -> None:
        """A call begins: what one before has added, and has not returned, is forgotten."""
        self._of_this_call = []

    def add(self, items: Iterable[Any]) -> int:
        """Answers how many items these are."""
        subtasks = self._cut(items)
        self._of_this_call += subtasks
        return sum(one.items for one in subtasks)

    def keep(self) -> None:
        """The call has returned."""
        self.kept += self._of_this_call
        self._of_this_call = []

    def all(self) -> tuple[NewSubtask, ...]:
        """With those of the call that is under way."""
        return (*self.kept, *self._of_this_call)

    def succeeded(self) -> Worked:
        """What its task succeeds as, at the end of its own transaction."""
        return Worked(0, added=self.all())
