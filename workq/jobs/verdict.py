"""Verdicts: which items of a chunk are done, which have failed, and how a bad one is found. Pure.

A handler that gets a list answers nothing (all are done), what has failed (a mapping of items to errors), or a
`Verdict`. When it raises instead, nobody knows who is at fault: the chunk is halved, and halved again where it raises,
until the bad item stands alone. That is done at once and in the same attempt: with one bad item among n, all the
others are done after 2 log2(n) + 1 calls.

Where both halves raise, it is rather the world than an item (a database is away): then the rest fails as a whole, and
is tried again after its delay; only what is not tried again is halved to the end.

A handler names items by the objects that its call was given, which it may have changed: so an object is known by its
identity; any other name is compared with the items as they are recorded, and with what the call was given as it is now.

`bisected` says what to call next and is told what came of it, so that plain functions and coroutines share it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol

from workq.errors import PayloadError, SoftTimeLimit
from workq.handlers import answer
from workq.handlers.said import is_a, kind_of
from workq.handlers.verdict import Verdict
from workq.values import codec

_CHANGEABLE: Final = frozenset({dict, list})
"""Of what JSON is decoded to, a handler can change these in place."""
_FIXED: Final = frozenset({type(None), bool, int, float, str})
"""These it cannot: such an item is now as it is recorded."""


class ByPlace(Protocol):
    """Items, by their places in the chunk."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


class RecordedItems:
    """Items that no handler is given. They are decoded when one is asked for, which most attempts never do.

    They are the items of one attempt as the ledger has them, whatever a handler does with those that it is given. A
    handler may change its items in place, and may be called again in the same attempt with some of them. So each call
    is given objects of its own, and what is recorded afterwards is decoded from what was recorded before.
    """

    def __init__(self, count: int, decode: Callable[[], Sequence[Any]]) -> None:
        """`decode` answers all of them, as new objects."""
        self._count = count
        self._decode = decode
        self._items: Sequence[Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int, /) -> Any:
        if self._items is None:
            self._items = self._decode()
        return self._items[place]


class Answered:
    """Of a part of the chunk: what the handler has returned, and what it was given; None: the items themselves."""

    __slots__ = ("given", "value")

    def __init__(self, value: object, given: Sequence[Any] | None = None) -> None:
        self.value = value
        self.given = given


class Raised:
    """Of a part of the chunk: what the handler has raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


@dataclass(slots=True)
class ChunkOutcome:
    """What became of a chunk in one attempt, by the places of its items."""

    skipped: set[int] = field(default_factory=set)
    failed: dict[int, tuple[object, int]] = field(default_factory=dict)
    """Whose fault is known: the error (a text, or an exception), and how many calls with it have failed."""
    results: dict[int, object] = field(default_factory=dict)
    unknown: dict[int, BaseException] = field(default_factory=dict)
    """Some of them, or none: the calls with all of them have raised this."""


class WrongVerdict(Exception):
    """The handler has answered for what it was not given, or in a way that says nothing."""


Steps = Generator[range, Answered | Raised, ChunkOutcome]
IsLast = Callable[[range, BaseException], bool]


def bisected(items: ByPlace, *, is_last: IsLast) -> Steps:
    """Call the handler with the items in each range that this yields, and send what came of it; returns the whole.

    `items` are those that are recorded. `is_last`: whether these, if all of them fail of this, are not tried again.
    """
    worked = ChunkOutcome()
    whole = range(len(items))
    answer = yield whole
    if isinstance(answer, Answered):
        _take(worked, items, whole, answer)
    else:
        yield from _halved(worked, items, whole, answer.error, 1, is_last=is_last)
    return worked


def _halved(
    worked: ChunkOutcome,
    items: ByPlace,
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
            _take(worked, items, half, answer)
        else:
            raised.append((half, answer.error))
    is_world = len(raised) == 2
    for half, why in raised:
        if is_world and not is_last(half, why):
            worked.unknown.update(dict.fromkeys(half, why))
            continue
        yield from _halved(worked, items, half, why, calls + 1, is_last=is_last)


def read(items: ByPlace, part: range, answer: Answered) -> ChunkOutcome:
    """What a handler has answered for a part of the items.

    Raises:
        WrongVerdict: for others, or nothing that means anything.
    """
    worked = ChunkOutcome()
    _take(worked, items, part, answer)
    return worked


def _take(worked: ChunkOutcome, items: ByPlace, part: range, answer: Answered) -> None:
    """What a handler has answered for a part of the items."""
    if answer.value is None:
        return
    given = [items[place] for place in part] if answer.given is None else answer.given
    found = ChunkOutcome()
    try:
        _look_through(found, _Names(items, part, given), answer.value)
    except (WrongVerdict, SoftTimeLimit):
        raise
    except BaseException as error:  # of what the handler has made: its own methods may raise anything
        raise WrongVerdict(f"its answer cannot be read: {kind_of(error)}") from None
    worked.failed.update(found.failed)
    worked.skipped.update(found.skipped)
    worked.results.update(found.results)


def _look_through(worked: ChunkOutcome, names: _Names, value: object) -> None:
    verdict = Verdict(value) if isinstance(value, Mapping) else value
    if not is_a(verdict, Verdict):
        _check_run(value)
        raise WrongVerdict(
            f"a handler of a list answers None, a mapping of failed items to errors, or a workq.Verdict; "
            f"it answered {kind_of(value)}"
        )
    for item, error in _pairs(verdict.failed):
        for place in names.places(item):
            worked.failed[place] = error, 1
    for item in verdict.skipped:
        worked.skipped.update(place for place in names.places(item) if place not in worked.failed)
    for item, result in _pairs(verdict.results):
        _check_run(result)
        worked.results.update((place, result) for place in names.places(item) if place not in worked.failed)


def _check_run(value: object) -> None:
    try:
        answer.check(value)
    except answer.NotRun as error:
        raise WrongVerdict(str(error)) from None


def _pairs(given: Mapping[Any, object] | Iterable[tuple[Any, object]]) -> Iterable[tuple[Any, object]]:
    return given.items() if isinstance(given, Mapping) else given


class _Names:
    """Which items a handler means by what it names. Items that are recorded alike are one: all of them are meant."""

    def __init__(self, items: ByPlace, part: range, given: Sequence[Any]) -> None:
        self._items = items
        self._part = part
        self._given = given
        self._objects = {id(one): place for place, one in zip(part, given, strict=True) if type(one) in _CHANGEABLE}

    def places(self, item: object) -> Sequence[int]:
        """The places of the items that are meant.

        Raises:
            WrongVerdict: none is, or that cannot be told.
        """
        place = self._objects.get(id(item))
        if place is not None:
            return self._recorded[self._name_at[place]]
        name = _name(item)
        meant = {name} if name in self._recorded else set()
        if type(item) not in _FIXED:
            meant |= self._changed.get(name, set())
        if len(meant) == 1:
            return self._recorded[meant.pop()]
        shown = codec.storable(repr(item), characters_max=200)
        if meant:
            raise WrongVerdict(
                f"the handler has changed its items, and this may be several of them: {shown}; "
                "name the very object that the handler was given"
            )
        raise WrongVerdict(f"the handler has answered for an item that it was not given: {shown}")

    @cached_property
    def _name_at(self) -> dict[int, str]:
        """By place: the name of the item as it is recorded."""
        return {place: _name(self._items[place]) for place in self._part}

    @cached_property
    def _recorded(self) -> dict[str, list[int]]:
        """The places of each name."""
        found: dict[str, list[int]] = {}
        for place, name in self._name_at.items():
            found.setdefault(name, []).append(place)
        return found

    @cached_property
    def _changed(self) -> dict[str, set[str]]:
        """By the name that an item has now: the names of those items as they are recorded."""
        found: dict[str, set[str]] = {}
        for place, one in zip(self._part, self._given, strict=True):
            if type(one) in _CHANGEABLE:
                found.setdefault(_name(one), set()).add(self._name_at[place])
        return found


def _name(item: object) -> str:
    """What tells items apart: how they are written down."""
    try:
        return codec.encode(item, path="item")
    except PayloadError:
        return repr(item)
