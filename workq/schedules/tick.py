"""Ticks: what is due by a schedule becomes tasks. A step of the sweep, which whoever sweeps may do at any time.

A tick becomes a task a little before it is due, which then waits as any delayed task does: so its start is as exact as
that of a delay, however rarely somebody sweeps. The ledger decides that one tick is one task.

What goes wrong: nobody sweeps: the ticks were missed, and the schedule's policy says what becomes of them. The ledger
away: the next pass finds the same ticks. A crash after the commit: the tasks are there, unpublished, and the sweep
relays them. Rows that somebody else wrote and no timetable can be read from: they are told, and the others tick.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from workq.config import Settings
from workq.enqueue.producer import hints_beside
from workq.enqueue.relay import publish
from workq.errors import ConfigError
from workq.ledger import Unpublished
from workq.schedules.ledger import Schedules
from workq.schedules.timetable import ScheduleRow, due
from workq.stores import Stores
from workq.values.codec import new_task_id
from workq.values.failpoints import reach
from workq.values.task import NewTask

log = logging.getLogger("workq.ticks")

LATE_S: Final = 60.0
"""A tick that nobody has made a task so long after it was due was missed."""
AT_ONCE: Final = 100
"""Ticks of one schedule that become tasks in one transaction."""


def tick(stores: Stores, settings: Settings, *, limit: int, dry_run: bool = False, broker_is_away: bool = False) -> int:
    """Record a task for each tick that is due soon, of at most `limit` schedules; answers how many tasks.

    Where the broker is away their hints follow by the relay.

    Raises:
        LedgerUnavailable: what was recorded stands.
    """
    ahead_s = 2 * settings.times.sweep_s
    made = 0
    for row in stores.ledger.part(Schedules).schedules_due(ahead_s=ahead_s, limit=limit):
        while row.next_at is not None:
            try:
                found = due(
                    row.timetable,
                    row.missed,
                    row.next_at,
                    now=row.now,
                    ahead_s=ahead_s,
                    late_s=LATE_S,
                    limit=AT_ONCE,
                )
            except ConfigError as error:  # another host may be able to
                log.warning("schedule.unreadable", extra={"schedule": row.name, "reason": str(error)})
                break
            if not found.ticks and found.next_at == row.next_at:
                break
            made += len(found.ticks)
            if dry_run:
                break
            tasks = [(at, _task(row, at)) for at in found.ticks]
            reach("sweep.before_tick")
            if not _record(stores, row, tasks, found.next_at):
                made -= len(found.ticks)
                break  # somebody else was faster
            if tasks and not broker_is_away:  # one that blocks its publishers costs a deadline, once
                broker_is_away = not _hint(stores, tasks, confirm_s=settings.times.confirm_s)
            if len(found.ticks) < AT_ONCE:
                break
            row = replace(row, next_at=found.next_at)
    return made


def now_as_task(stores: Stores, row: ScheduleRow, *, confirm_s: float) -> str:
    """Record the task of a schedule at once, besides its ticks; answers its id."""
    task = _task(row, row.now)
    stores.ledger.tasks.record([task], hints=hints_beside(stores.broker))
    _hint(stores, [(row.now, task)], confirm_s=confirm_s)
    return task.id


def _record(stores: Stores, row: ScheduleRow, tasks: list[tuple[datetime, NewTask]], next_at: datetime | None) -> bool:
    if not stores.ledger.part(Schedules).tick(row, tasks, next_at=next_at, hints=hints_beside(stores.broker)):
        return False
    reach("sweep.after_tick")
    return True


def _hint(stores: Stores, tasks: list[tuple[datetime, NewTask]], *, confirm_s: float) -> bool:
    """Where hints are no rows beside the tasks, they are published now; whatever goes wrong, the sweep relays.

    Answers whether the broker took any.
    """
    if stores.broker.is_transactional:
        stores.broker.wake()
        return True
    rows = [Unpublished(task.id, task.queue, 0, task.delay_s) for _, task in tasks]
    return publish(stores, rows, deadline_s=confirm_s) > 0


def _task(row: ScheduleRow, at: datetime) -> NewTask:
    delay_s = max(0.0, (at - row.now).total_seconds())
    return NewTask(
        id=new_task_id(),
        name=row.task_name,
        queue=row.queue,
        payload=row.payload,
        delay_s=delay_s,
        expires_s=None if row.expires_s is None else delay_s + row.expires_s,
        limit=row.limit,
        **row.carried(),
    )
