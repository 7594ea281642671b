"""This host's clock, which decides nothing: due times follow the ledger's, durations the monotonic one.

It still stamps what people read, and the ids of new tasks sort by it; so a clock that is clearly wrong is worth a word.
`Throttle` spaces out looks that take long, by a monotonic clock that comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

QUICK_S: Final = 0.5
"""A look that takes no longer is made each time."""
PACE: Final = 100.0
"""The pause after a slow look, as a multiple of what the look took."""
PAUSE_MAX_S: Final = 600.0
_FIRST_YEAR: Final = 2026
_LAST_YEAR: Final = 2099


def implausible(now: datetime | None = None) -> str | None:
    """A warning when this host's clock cannot be right, otherwise None."""
    now = datetime.now(UTC) if now is None else now
    if _FIRST_YEAR <= now.year <= _LAST_YEAR:
        return None
    return (
        f"this host's clock says {now:%Y-%m-%d}, which cannot be right; due times follow the ledger's clock, "
        "but ids and logs follow this one. Set it"
    )


class Throttle:
    """When one kind of look may be made again, so that looking never costs more than a hundredth of the time.

    A look that takes long is made more rarely. One that took long is no sign yet: a server that stood still for a
    moment answers late, once. Two in a row are a sign. Thread-safe: at worst a look is made once more.
    """

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
