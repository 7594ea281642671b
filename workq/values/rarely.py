"""Rarely: a look that takes long is made more rarely, so that looking never costs more than a hundredth of the time.

One that took long is no sign yet: a server that stood still for a moment answers late, once. Two in a row are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

QUICK_S: Final = 0.5
"""A look that takes no longer is made each time."""
PACE: Final = 100.0
PAUSE_MAX_S: Final = 600.0


class Throttle:
    """When one kind of look may be made again. Thread-safe: at worst it is made once more."""

    __slots__ = ("_clock", "_next_at", "_was_slow")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_at = 0.0
        self._was_slow = False

    def is_due(self) -> bool:
        """Whether it may be made now."""
        return self._clock() >= self._next_at

    def took(self, spent_s: float) -> bool:
        """Note how long one took. Answers whether it was the second in a row that took long."""
        is_slow = spent_s > QUICK_S
        is_second = is_slow and self._was_slow
        self._was_slow = is_slow
        self._next_at = self._clock() + min(spent_s * PACE, PAUSE_MAX_S) if is_second else 0.0
        return is_second
