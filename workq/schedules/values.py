"""Schedules as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from workq.schedules.timetable import MissedTicks, Timetable
from workq.values.task import Limit, OnCrash


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """What is to tick, and which task each tick becomes."""

    name: str
    timetable: Timetable
    missed: MissedTicks
    task_name: str
    queue: str
    payload: str
    failures_max: int
    crashes_max: int
    expires_s: float | None = None
    """Counted from the tick."""
    on_crash: OnCrash = OnCrash.AGAIN
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One schedule as the ledger knows it. `now` is the ledger's clock at the look.

    `next_at` None: it does not tick any more. `last_at`: its last tick that became a task.
    """

    name: str
    timetable: Timetable
    missed: MissedTicks
    task_name: str
    queue: str
    payload: str
    failures_max: int
    crashes_max: int
    expires_s: float | None
    on_crash: OnCrash
    limit: Limit | None
    changed_at: datetime
    next_at: datetime | None
    last_at: datetime | None
    paused_at: datetime | None
    who: str | None
    why: str | None
    now: datetime
