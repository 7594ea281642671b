"""Schedules: rows that say what ticks, and when next. One tick is one task, however many look at once.

A tick becomes a task in one transaction: the schedule's row moves on to its next tick, if it still stands where whoever
looked saw it; then the tick is written down, under a key that no other can have; then the task is recorded. Whoever
comes second changes nothing. A clock that is set back makes nothing tick again, because the row has moved on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, null, select, update
from sqlalchemy.exc import IntegrityError

from workq.errors import NotFound
from workq.ledger import HintRows
from workq.ledger.columns import TableSpace, body, double, instant, integer, optional, required, word
from workq.ledger.engine.database import Database
from workq.ledger.history import who_and_why
from workq.schedules.timetable import MissedTicks, NewSchedule, Rule, ScheduleRow, Timetable
from workq.values.options import LIMIT, OF_EACH_TASK, in_columns, of_row
from workq.values.task import NewTask

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


class ScheduleTables:
    """What ticks. The ticks themselves are removed with the core's own old rows, and are the core's."""

    def __init__(self, space: TableSpace) -> None:
        self.schedule = space.table(
            "schedule",
            "What ticks: again and again, or once.",
            required("name", word(200)),
            required("rule", word(5), "cron, every or at"),
            required("text", word(150), "cron text, seconds, or an instant"),
            required("zone", word(64), "the time zone of cron text"),
            required("missed", word(4), "of missed ticks: skip, once or all"),
            required("task_name", word(200)),
            required("queue", word(100)),
            required("payload", body()),
            required("failures_max", integer()),
            required("crashes_max", integer()),
            optional("expires_s", double(), "of each task, after its tick; NULL: never"),
            required("changed_at", instant(), "when a person last decided about it"),
            optional("next_at", instant(), "its next tick; NULL: there is none"),
            optional("last_at", instant(), "the last tick that became a task"),
            optional("paused_at", instant()),
            optional("who", word(200)),
            optional("why", word(200)),
            optional("on_crash", word(5), "of its tasks, as task has it"),
            optional("limit_key", word(200), "the limit of its tasks, as task has it"),
            optional("limit_most", integer()),
            optional("limit_rate", word(10)),
            space.rule("schedule_rule", "rule IN ('cron', 'every', 'at')"),
            space.rule("schedule_missed", "missed IN ('skip', 'once', 'all')"),
            key=("name",),
        )


def schedule_tables(database: Database) -> ScheduleTables:
    """The tables of this slice in one database, under its namespace."""
    return database.tables.part(ScheduleTables)


class Schedules:
    """Schedules and their ticks, in one ledger: `ledger.part(Schedules)`."""

    def __init__(self, ledger: Ledger) -> None:
        self.database = ledger.database
        self._lanes = ledger.lanes
        self._history = ledger.history
        self._tasks = ledger.tasks

    def schedule(self, given: NewSchedule) -> bool:
        """Let something tick, or change what stands under that name; False when it stands so already.

        Whose timetable stays keeps its next tick. Repeatable.
        """
        s = schedule_tables(self.database).schedule
        rule = {"rule": given.timetable.rule, "text": given.timetable.text, "zone": given.timetable.zone}
        what = {
            "missed": given.missed,
            "task_name": given.task_name,
            "queue": given.queue,
            "payload": given.payload,
            "expires_s": given.expires_s,
            **in_columns(given, (*OF_EACH_TASK, LIMIT)),
        }
        standing = select(s).where(s.c.name == given.name)

        def write(tx: Connection) -> bool:
            now: datetime = tx.execute(select(self.database.now())).scalar_one()
            row = tx.execute(standing.with_for_update()).first()
            changed: dict[str, Any] = {"changed_at": now}
            if row is None or any(getattr(row, column) != value for column, value in rule.items()):
                changed |= rule | {"next_at": given.timetable.first(now)}
            if row is None:
                tx.execute(insert(s).values(name=given.name, **what, **changed))
            elif len(changed) > 1 or any(getattr(row, column) != value for column, value in what.items()):
                tx.execute(update(s).where(s.c.name == given.name).values(**what, **changed))
            else:
                return False
            self._history.append(tx, "scheduled", {"schedule": given.name, "timetable": given.timetable.shown()})
            return True

        try:
            return self.database.run(write)
        except IntegrityError:  # somebody else has just scheduled the same: its row is there now
            return self.database.run(write)

    def unschedule(self, name: str, *, who: str, why: str) -> bool:
        """Let it tick no more; False when there is none of that name. What has become a task stays one."""
        s = schedule_tables(self.database).schedule

        def remove(tx: Connection) -> bool:
            if not tx.execute(delete(s).where(s.c.name == name)).rowcount:
                return False
            self._history.append(tx, "unscheduled", {"schedule": name, **who_and_why(who, why)})
            return True

        return self.database.run(remove)

    def pause_schedule(self, name: str, *, who: str, why: str) -> None:
        """Let it not tick until `resume_schedule`. NotFound when there is none."""
        s, now = schedule_tables(self.database).schedule, self.database.now

        def write(tx: Connection) -> None:
            said = who_and_why(who, why)
            if not tx.execute(update(s).where(s.c.name == name).values(paused_at=now(), **said)).rowcount:
                raise _unknown(name)
            self._history.append(tx, "paused", {"schedule": name, **said})

        self.database.run(write)

    def resume_schedule(self, name: str, *, who: str, why: str) -> bool:
        """Let it tick again, from now on; False when it was not paused. NotFound when there is none."""
        s = schedule_tables(self.database).schedule
        locked = select(s, self.database.now().label("now")).where(s.c.name == name).with_for_update()

        def write(tx: Connection) -> bool:
            row = tx.execute(locked).first()
            if row is None:
                raise _unknown(name)
            if row.paused_at is None:
                return False
            next_at = row.next_at
            if next_at is not None and next_at < row.now and row.rule != Rule.AT:
                next_at = _timetable(row).after(_timetable(row).newest(next_at, row.now))
            tx.execute(
                update(s)
                .where(s.c.name == name)
                .values(paused_at=null(), who=null(), why=null(), next_at=next_at, changed_at=row.now)
            )
            self._history.append(tx, "resumed", {"schedule": name, **who_and_why(who, why)})
            return True

        return self.database.run(write)

    def all(self) -> list[ScheduleRow]:
        """All of them, by name."""
        s = schedule_tables(self.database).schedule
        query = select(s, self.database.now().label("now")).order_by(s.c.name)
        return [_row(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def schedules_due(self, *, ahead_s: float, limit: int) -> list[ScheduleRow]:
        """Those whose next tick comes within `ahead_s`, the earliest first. None that is paused."""
        s, now = schedule_tables(self.database).schedule, self.database.now
        query = (
            select(s, now().label("now"))
            .where(s.c.paused_at.is_(None), s.c.next_at <= now(ahead_s))
            .order_by(s.c.next_at, s.c.name)
            .limit(limit)
        )
        return [_row(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def tick(
        self,
        row: ScheduleRow,
        ticks: Sequence[tuple[datetime, NewTask]],
        *,
        next_at: datetime | None,
        hints: HintRows | None = None,
    ) -> bool:
        """Record a task for each of these ticks, and let the next one be at `next_at`, in one transaction.

        False, and nothing is recorded, when the schedule does not stand any more where `row` saw it. Repeatable.
        """
        s, k = schedule_tables(self.database).schedule, self.database.tables.tick
        moved = (
            update(s)
            .where(
                s.c.name == row.name,
                s.c.next_at == row.next_at,
                s.c.changed_at == row.changed_at,
                s.c.paused_at.is_(None),
            )
            .values(next_at=next_at, **({"last_at": max(at for at, _ in ticks)} if ticks else {}))
        )
        known = select(k.c.at).where(k.c.schedule == row.name, k.c.at.in_([at for at, _ in ticks]))
        stands = select(k.c.task_id).where(k.c.task_id.in_([task.id for _, task in ticks]))

        def write(tx: Connection) -> bool:
            if not tx.execute(moved).rowcount:
                # by another; or by us, in a try whose answer was lost
                return bool(ticks) and tx.execute(stands).first() is not None
            before = set(tx.execute(known).scalars()) if ticks else set()  # it was scheduled before, and removed
            new = [(at, task) for at, task in ticks if at not in before]
            if new:
                made = [{"schedule": row.name, "at": at, "task_id": task.id} for at, task in new]
                tx.execute(insert(k).values(made_at=self.database.now()), made)
                self._tasks.insert(tx, [task for _, task in new], hints)
            return True

        self._lanes.announce([task for _, task in ticks])
        return self.database.run(write)

    def ticks(self, schedule: str, *, limit: int) -> list[tuple[datetime, str]]:
        """When it has ticked, and which task that became, the newest first."""
        k = self.database.tables.tick
        query = select(k.c.at, k.c.task_id).where(k.c.schedule == schedule).order_by(k.c.at.desc()).limit(limit)
        return [(row.at, row.task_id) for row in self.database.ask(lambda tx: tx.execute(query).all())]


def _timetable(row: Any) -> Timetable:
    return Timetable(Rule(row.rule), row.text, row.zone)


def _row(row: Any) -> ScheduleRow:
    return ScheduleRow(
        name=row.name,
        timetable=_timetable(row),
        missed=MissedTicks(row.missed),
        task_name=row.task_name,
        queue=row.queue,
        payload=row.payload,
        expires_s=row.expires_s,
        **of_row(row, (*OF_EACH_TASK, LIMIT)),
        changed_at=row.changed_at,
        next_at=row.next_at,
        last_at=row.last_at,
        paused_at=row.paused_at,
        who=row.who,
        why=row.why,
        now=row.now,
    )


def _unknown(name: str) -> NotFound:
    return NotFound(f"no schedule {name[:100]!r}; list them with: workq schedule ls")
