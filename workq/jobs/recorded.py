"""Recorded: the items of one attempt as the ledger has them, whatever a handler does with those that it is given.

A handler may change its items in place, and may be called again in the same attempt with some of them. So each call is
given objects of its own, and what is recorded afterwards is decoded from what was recorded before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class ByPlace(Protocol):
    """Items, by their places in the chunk."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


class RecordedItems:
    """Items that no handler is given. They are decoded when one is asked for, which most attempts never do."""

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
