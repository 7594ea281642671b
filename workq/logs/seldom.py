"""Seldom: what may happen as often as anybody likes is a few lines and then a count.

The count is exact, and comes even if nothing else happens: the log's own thread calls `tell_counts` now and then, and
so does the end of the process.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_all: weakref.WeakSet[Seldom] = weakref.WeakSet()


@dataclass(slots=True)
class _Window:
    """Of one kind of event: since when, how many lines were written, and how many events were not told yet."""

    began: float
    lines: int = 0
    untold: int = 0
    write: Callable[[int], None] | None = None


class Seldom:
    """Up to `lines` lines in `every_s` seconds for each kind of event, and then one with the count of the others.

    That one is the first of the next `every_s` seconds: what goes on and on is one line in each, not two.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        lines: int = 1,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._lines = lines
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[Hashable, _Window] = {}
        _all.add(self)

    def warning(self, event: str, *, reason: str, count: int = 1, **fields: object) -> None:
        """Note `count` events; `fields` describe the last of them."""

        def write(count: int) -> None:
            self._log.warning(event, extra={"reason": reason, "count": count, **fields})

        self.note((event, reason), write, count=count)

    def note(
        self, kind: Hashable, write: Callable[[int], None], *, rest: Callable[[int], None] | None = None, count: int = 1
    ) -> None:
        """Note `count` events: `write` is called now with this, or later, once, with all that were not told.

        `rest`: called later in the place of `write`.
        """
        now = self._clock()
        self._tell(now)
        with self._lock:
            window = self._windows.setdefault(kind, _Window(now))
            is_told = window.lines < self._lines
            if is_told:
                window.lines += 1
            else:
                window.untold += count
                window.write = rest or write
        if is_told:
            write(count)

    def flush(self) -> None:
        """Write what was counted and not told yet."""
        self._tell(math.inf)

    def _tell(self, now: float) -> None:
        """Of windows that are over. At the end (infinity) all are, and none follows."""
        ended: list[_Window] = []
        with self._lock:
            while self._windows:
                kind, oldest = next(iter(self._windows.items()))  # they are in the order in which they began
                if now - oldest.began < self._every_s:
                    break
                ended.append(self._windows.pop(kind))
                if oldest.write is not None and now < math.inf:
                    self._windows[kind] = _Window(now, lines=1)
        for one in ended:
            if one.write is not None:
                one.write(one.untold)


def tell_counts(*, are_all: bool = False) -> None:
    """Write the counts whose time has come, or all of them."""
    for one in list(_all):
        one._tell(math.inf if are_all else one._clock())


def _forget() -> None:
    """In a forked child: its parent tells what was counted, and may have held a lock."""
    for one in list(_all):
        one._lock = threading.Lock()
        one._windows = {}


os.register_at_fork(after_in_child=_forget)
