"""Links: the open connections of one process to destinations. Each is used by one thread at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from workq.messages.kinds import DestinationLink

LINKS_MAX: Final = 2
"""To one destination, in one process: while one waits for its confirms, the other sends."""
WAIT_S: Final = 1.0
"""For so long a thread waits for a link; not at all where every link was in use for longer already: behind a
destination that hangs, others have their turn."""


class NoLinkFree(Exception):
    """Every link to this destination is in use, and stays so for a while."""

    wait_s = 1.0


@dataclass(slots=True)
class _ToOne:
    """The links to one destination, as it was when they were opened."""

    changed_at: str
    free: list[DestinationLink] = field(default_factory=list)
    room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(LINKS_MAX))
    begun: dict[int, float] = field(default_factory=dict)
    """Since when each thread uses a link, by the monotonic clock."""

    def hangs(self) -> bool:
        """Whether every link has been in use for long."""
        begun = list(self.begun.values())
        return len(begun) >= LINKS_MAX and time.monotonic() - max(begun) > WAIT_S


class Links:
    """Links by the names of destinations. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._to: dict[str, _ToOne] = {}

    @contextmanager
    def to(self, name: str, changed_at: str, make: Callable[[], DestinationLink]) -> Iterator[DestinationLink]:
        """A link of this thread's own, for a while; made where none is free. One of an older destination is closed.

        Raises:
            NoLinkFree: all of them are in use.
        """
        with self._lock:
            mine = self._to.get(name)
            old = mine if mine is not None and mine.changed_at != changed_at else None
            if mine is None or old is not None:
                mine = self._to[name] = _ToOne(changed_at)
        if old is not None:
            _close(old)
        if not mine.room.acquire(blocking=False) and (mine.hangs() or not mine.room.acquire(timeout=WAIT_S)):
            raise NoLinkFree
        me = threading.get_ident()
        mine.begun[me] = time.monotonic()
        try:
            with self._lock:
                link = mine.free.pop() if mine.free else None
            if link is None:
                link = make()
            try:
                yield link
            finally:
                with self._lock:
                    is_current = self._to.get(name) is mine
                    if is_current:
                        mine.free.append(link)
                if not is_current:
                    _close_one(link)
        finally:
            mine.begun.pop(me, None)
            mine.room.release()

    def close(self) -> None:
        """Close what is not in use. Repeatable; what is asked for afterwards is opened anew."""
        with self._lock:
            found, self._to = list(self._to.values()), {}
        for one in found:
            _close(one)


def _close(links: _ToOne) -> None:
    while links.free:
        _close_one(links.free.pop())


def _close_one(link: DestinationLink) -> None:
    with suppress(Exception):  # whatever its library does there: nobody waits for it any more
        link.close()
