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
"""To one destination, in one process: while one waits for its confirms, the other sends. While nothing was confirmed
there, one: a destination that hangs holds one thread."""
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
    is_proven: bool = False
    """Something was confirmed there, and nothing has failed since."""
    free: list[DestinationLink] = field(default_factory=list)
    begun: dict[int, float] = field(default_factory=dict)
    """Since when each thread uses a link, by the monotonic clock."""

    def has_room(self) -> bool:
        """Whether one more thread may use a link."""
        return len(self.begun) < (LINKS_MAX if self.is_proven else 1)

    def hangs(self) -> bool:
        """Whether every link has been in use for long."""
        return not self.has_room() and time.monotonic() - max(self.begun.values()) > WAIT_S


class Links:
    """Links by the names of destinations. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Condition(threading.Lock())
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
        me = threading.get_ident()
        with self._lock:
            if mine.hangs() or not self._lock.wait_for(mine.has_room, timeout=WAIT_S):
                raise NoLinkFree
            mine.begun[me] = time.monotonic()
            link = mine.free.pop() if mine.free else None
        try:
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
            with self._lock:
                mine.begun.pop(me, None)
                self._lock.notify_all()

    def prove(self, name: str, *, is_proven: bool) -> None:
        """Something was confirmed there, or has failed."""
        with self._lock:
            if (mine := self._to.get(name)) is not None:
                mine.is_proven = is_proven
                self._lock.notify_all()

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
