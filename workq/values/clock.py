"""This host's clock, which decides nothing: due times follow the ledger's, durations the monotonic one.

It still stamps what people read, and the ids of new tasks sort by it; so a clock that is clearly wrong is worth a word.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

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
