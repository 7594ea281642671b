"""The clock of a store by which leases are judged: whether it was set forward, or another server's has taken its place.

Then each lease looks older than it is, until its worker beats again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

JUMP_S: Final = 0.5


class StoreClock:
    """Compares a store's own reckoning of time with ours. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at = 0.0
        self._age_s: float | None = None

    def look(self, age_s: Callable[[], float]) -> tuple[float, bool]:
        """What the store says of its age, and whether that has grown by more than the time since it was asked last."""
        asked_at, was_s = self._asked_at, self._age_s
        self._asked_at = self._clock()
        self._age_s = age_s()
        passed_s = self._clock() - asked_at
        return self._age_s, was_s is not None and self._age_s - was_s > passed_s + JUMP_S
