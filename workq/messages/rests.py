"""Rests: for how long a destination that has failed is left alone. Pure."""

from __future__ import annotations

from typing import Final

REST_MIN_S: Final = 1.0
REST_MAX_S: Final = 60.0
ASKED_MAX_S: Final = 3600.0


def rest_s(failures: int, *, asked_s: float | None = None) -> float:
    """Seconds of rest after so many failures in a row: twice as long each time, up to a minute.

    `asked_s`: the wait that the destination has asked for, up to an hour; it rests for that long at least.
    """
    own = min(REST_MAX_S, REST_MIN_S * 2.0 ** min(max(failures, 1) - 1, 30))
    return max(own, min(asked_s or 0.0, ASKED_MAX_S))
