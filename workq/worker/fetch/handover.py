"""Handover: what was claimed by whoever settled, for whoever starts.

Whose turn it is when a task of a limit ends is known to the process that has settled it. If that has room, it claims
the next one in the same transaction (see limits/ledger/limits.py), and that starts here, without a way through the
broker. One slot stays free, so that what arrives does not wait behind the backlog of one limit.

What waits here when this process dies was claimed and had not started: its reaping returns it, as any such claim.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from workq.values.task import Claim


class Handover:
    """Claims that wait for the thread that starts them. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[list[Claim], float]] = deque()
        self._changing = threading.Lock()
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many wait."""
        with self._changing:
            return sum(len(claims) for claims, _ in self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether more are taken."""
        return not self._is_closed

    def put(self, claims: Sequence[Claim], *, asked_at: float) -> bool:
        """Hand these over; False: nobody would start them. `asked_at`: when the ledger was asked, at the latest."""
        with self._changing:
            if self._is_closed:
                return False
            self._waiting.append((list(claims), asked_at))
            return True

    def take(self, most: int) -> list[tuple[list[Claim], float]]:
        """Those that wait, each with its `asked_at`: as they were put, and not more than so many claims."""
        taken: list[tuple[list[Claim], float]] = []
        with self._changing:
            while self._waiting and len(self._waiting[0][0]) <= most:
                taken.append(self._waiting.popleft())
                most -= len(taken[-1][0])
        return taken

    def close(self) -> None:
        """Take no more."""
        with self._changing:
            self._is_closed = True
