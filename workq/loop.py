"""Loop: the event loop in which coroutines run, in a process whose other threads write to the ledger.

Between two rounds, before it looks at what has come, it may be held up for a moment by `give_way` (see
ledger/writer.py): what has come is still there afterwards.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable


def new_event_loop(give_way: Callable[[], None]) -> asyncio.AbstractEventLoop:
    """A loop; one of another kind than asyncio's own, which an application has asked for, stays as it is."""
    loop = asyncio.new_event_loop()
    if type(loop) is not asyncio.SelectorEventLoop:
        return loop
    loop.close()
    return asyncio.SelectorEventLoop(_Giving(give_way))


class _Giving(selectors.DefaultSelector):
    """Gives way before it looks."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        super().__init__()
        self._give_way = give_way

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._give_way()
        return super().select(timeout)
