"""Schedules as values."""

from __future__ import annotations

from datetime import datetime

from workq.schedules.timetable import MissedTicks, Timetable
from workq.values.task import Limit, TaskOptions


class NewSchedule(TaskOptions, frozen=True):
    """What is to tick, and which task each tick becomes, with which options."""

    name: str
    timetable: Timetable
    missed: MissedTicks
    task_name: str
    queue: str
    payload: str
    expires_s: float | None = None
    """Counted from the tick."""
    limit: Limit | None = None


class ScheduleRow(TaskOptions, frozen=True, kw_only=True):
    """One schedule as the ledger knows it, with the options of its tasks. `now` is the ledger's clock at the look.

    `next_at` None: it does not tick any more. `last_at`: its last tick that became a task.
    """

    name: str
    timetable: Timetable
    missed: MissedTicks
    task_name: str
    queue: str
    payload: str
    expires_s: float | None
    limit: Limit | None
    changed_at: datetime
    next_at: datetime | None
    last_at: datetime | None
    paused_at: datetime | None
    who: str | None
    why: str | None
    now: datetime
