"""Waiting for others: a task whose turn has not come, and which no hint, no sweep and no claim minds until then.

The column `waits_for` says what the task waits for, in the word of the slice that lets it go on. NULL: it waits for its
time alone.

A worker of the schema before 16 does not know the column. It tells such a task by a due time in a hundred years, and it
lets one go on without clearing the column. So while workers of both schemas live, the due time decides, every statement
here writes both, and the column is read only where the due time says that the task waits. The schema after this one can
let the column decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.answers import BEHIND_S
from workq.ledger.engine.database import Database
from workq.values.task import State

NEVER_S: Final = 100 * 365 * 86400.0
"""When a task is due that waits for others."""
BEHIND: Final = timedelta(seconds=BEHIND_S)
"""A task that is due later than this waits for others: no delay is longer than ten years."""


def is_behind(due_at: datetime, now: datetime) -> bool:
    """Whether a task waits for others."""
    return due_at - now > BEHIND


def what_for(waits_for: str | None, due_at: datetime, now: datetime) -> str | None:
    """What a task waits for; None when nothing but its time keeps it, or a worker of the schema before 16 parked it."""
    return waits_for if is_behind(due_at, now) else None


def waits(task: Table, database: Database) -> ColumnElement[bool]:
    """Whether a task waits for others, of the table `task` or an alias of it."""
    return task.c.due_at > database.now(NEVER_S / 2)


def parked(database: Database, waits_for: str) -> Mapping[str, Any]:
    """What a row gets whose task waits for others."""
    return {"state": State.WAITING, "due_at": database.now(NEVER_S), "waits_for": waits_for}


def let_go(database: Database, reserved_until: datetime) -> Mapping[str, Any]:
    """What a row gets whose task waits no longer: it is due now, and who writes this sends its hint."""
    now = database.now
    due = {"state": State.READY, "due_at": now(), "waits_for": None}
    return due | {"queued_at": now(), "published_at": None, "relay_until": reserved_until}
