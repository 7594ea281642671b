"""Limits as values."""

from __future__ import annotations

from datetime import datetime

import msgspec


class LimitRow(msgspec.Struct, frozen=True):
    """One limit that is in use: how many of its tasks run, how many are hinted and may start, and how many wait.

    `closed_until`: nothing of it starts before, and one at a time afterwards; None: it is open.
    """

    key: str
    running: int
    coming: int
    parked: int
    closed_until: datetime | None = None
