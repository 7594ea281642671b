"""Verdicts: which items of a chunk are done, which have failed, and how a bad one is found. Pure.

A handler that gets a list answers nothing (all are done), what has failed (a mapping of items to errors), or a
`Verdict`. When it raises instead, nobody knows who is at fault: the chunk is halved, and halved again where it raises,
until the bad item stands alone. That is done at once and in the same attempt: with one bad item among n, all the
others are done after 2 log2(n) + 1 calls.

Where both halves raise, it is rather the world than an item (a database is away): then the rest fails as a whole, and
is tried again after its delay; only what is not tried again is halved to the end.

`bisected` says what to call next and is told what came of it, so that plain functions and coroutines share it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from workq.errors import PayloadError, SoftTimeLimit
from workq.handlers import answer
from workq.values import codec
from workq.values.opaque import is_a, kind_of

TEXT_MAX: Final = 1000
"""Characters of what a handler says of one item."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a handler of a list may return: who failed, and why, and who was skipped; all the others have succeeded.

    `failed` maps items to errors (a text, or an exception), or has pairs of both, for items that cannot be keys.
    `results` does so for what came of items, which is kept as the job's `collect` says; not of those that have failed.
    """

    failed: Mapping[Any, object] | Iterable[tuple[Any, object]] = ()
    skipped: Iterable[Any] = ()
    results: Mapping[Any, object] | Iterable[tuple[Any, object]] = ()


class Answered:
    """Of a part of the chunk: what the handler has returned."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Raised:
    """Of a part of the chunk: what the handler has raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


@dataclass(slots=True)
class Worked:
    """What became of a chunk in one attempt, by the places of its items."""

    skipped: set[int] = field(default_factory=set)
    failed: dict[int, tuple[object, int]] = field(default_factory=dict)
    """Whose fault is known: the error (a text, or an exception), and how many calls with it have failed."""
    results: dict[int, object] = field(default_factory=dict)
    unknown: dict[int, BaseException] = field(default_factory=dict)
    """Some of them, or none: the calls with all of them have raised this."""


class WrongVerdict(Exception):
    """The handler has answered for what it was not given, or in a way that says nothing."""


Steps = Generator[range, Answered | Raised, Worked]
IsLast = Callable[[range, BaseException], bool]


def bisected(items: Sequence[Any], *, is_last: IsLast) -> Steps:
    """Call the handler with the items in each range that this yields, and send what came of it; returns the whole.

    `is_last`: whether these, if all of them fail of this, are not tried again.
    """
    worked = Worked()
    whole = range(len(items))
    answer = yield whole
    if isinstance(answer, Answered):
        _take(worked, items, whole, answer.value)
    else:
        yield from _halved(worked, items, whole, answer.error, 1, is_last=is_last)
    return worked


def _halved(
    worked: Worked,
    items: Sequence[Any],
    part: range,
    error: BaseException,
    calls: int,
    *,
    is_last: IsLast,
) -> Generator[range, Answered | Raised, None]:
    """The calls with this part have raised, so many of them."""
    if len(part) == 1:
        worked.failed[part[0]] = error, calls
        return
    middle = len(part) // 2
    raised = []
    for half in (part[:middle], part[middle:]):
        answer = yield half
        if isinstance(answer, Answered):
            _take(worked, items, half, answer.value)
        else:
            raised.append((half, answer.error))
    is_world = len(raised) == 2
    for half, why in raised:
        if is_world and not is_last(half, why):
            worked.unknown.update(dict.fromkeys(half, why))
            continue
        yield from _halved(worked, items, half, why, calls + 1, is_last=is_last)


def read(items: Sequence[Any], part: range, value: object) -> Worked:
    """What a handler has answered for a part of the items.

    Raises:
        WrongVerdict: for others, or nothing that means anything.
    """
    worked = Worked()
    _take(worked, items, part, value)
    return worked


def _take(worked: Worked, items: Sequence[Any], part: range, value: object) -> None:
    """What a handler has answered for a part of the items."""
    if value is None:
        return
    found = Worked()
    try:
        _look_through(found, items, part, value)
    except (WrongVerdict, SoftTimeLimit):
        raise
    except BaseException as error:  # of what the handler has made: its own methods may raise anything
        raise WrongVerdict(f"its answer cannot be read: {kind_of(error)}") from None
    worked.failed.update(found.failed)
    worked.skipped.update(found.skipped)
    worked.results.update(found.results)


def _look_through(worked: Worked, items: Sequence[Any], part: range, value: object) -> None:
    verdict = Verdict(value) if isinstance(value, Mapping) else value
    if not is_a(verdict, Verdict):
        _check_run(value)
        raise WrongVerdict(
            f"a handler of a list answers None, a mapping of failed items to errors, or a workq.Verdict; "
            f"it answered {kind_of(value)}"
        )
    places: dict[str, list[int]] = {}
    for place in part:
        places.setdefault(_name(items[place]), []).append(place)
    for item, error in _pairs(verdict.failed):
        for place in _places(places, item):
            worked.failed[place] = error, 1
    for item in verdict.skipped:
        worked.skipped.update(place for place in _places(places, item) if place not in worked.failed)
    for item, result in _pairs(verdict.results):
        _check_run(result)
        worked.results.update((place, result) for place in _places(places, item) if place not in worked.failed)


def _check_run(value: object) -> None:
    try:
        answer.check(value)
    except answer.NotRun as error:
        raise WrongVerdict(str(error)) from None


def _pairs(given: Mapping[Any, object] | Iterable[tuple[Any, object]]) -> Iterable[tuple[Any, object]]:
    return given.items() if isinstance(given, Mapping) else given


def _places(places: Mapping[str, list[int]], item: object) -> list[int]:
    found = places.get(_name(item))
    if found is None:
        shown = codec.storable(repr(item), characters_max=200)
        raise WrongVerdict(f"the handler has answered for an item that it was not given: {shown}")
    return found


def _name(item: object) -> str:
    """What tells items apart: how they are written down."""
    try:
        return codec.encode(item, path="item")
    except PayloadError:
        return repr(item)
