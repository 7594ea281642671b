"""Waiting for others: a task whose turn has not come is due never, so that no hint, no sweep and no claim minds it.

What it waits for is known to the slice that lets it go on: an order key, a limit, its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from workq.ledger.answers import BEHIND_S
from workq.ledger.engine.database import Database
from workq.values.task import State

NEVER_S: Final = 100 * 365 * 86400.0
"""When those are due that wait for others."""
BEHIND: Final = timedelta(seconds=BEHIND_S)
"""What is due later than this waits for others: no delay is longer than ten years."""


def is_behind(due_at: datetime, now: datetime) -> bool:
    """Whether a task waits for others."""
    return due_at - now > BEHIND


def never(database: Database) -> Mapping[str, Any]:
    """What a row gets that waits for others."""
    return {"state": State.WAITING, "due_at": database.now(NEVER_S)}
