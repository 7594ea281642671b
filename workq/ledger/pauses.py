"""Queues that a person has paused: a row each, which every claim looks at. So a pause holds from its commit on.

One that has an end ends by the database's clock, in each statement that asks; its row stays until the queue is paused
or resumed again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Connection, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import Pause
from workq.ledger.engine.database import Database
from workq.ledger.history import History, who_and_why
from workq.values.lane import meant


class Pauses:
    """Which queues are paused."""

    def __init__(self, database: Database, *, history: History) -> None:
        self.database = database
        self._history = history

    def pause(self, queue: str, *, who: str, why: str, for_s: float | None = None) -> Pause:
        """Let nothing of a queue, or of one band of it, be claimed from now on, for `for_s` seconds or until `resume`.

        What is claimed goes on, also by a statement that is under way. A queue that is paused already is paused anew.
        Needs no queue of that name. Atomic: all of its bands are paused, or none.
        """
        p, now = self.database.tables.pause, self.database.now
        said = who_and_why(who, why)
        named = meant(queue)

        def write(tx: Connection) -> Pause:
            paused_at: datetime = tx.execute(select(now())).scalar_one()
            ends_at = None if for_s is None else paused_at + timedelta(seconds=for_s)
            values = {"paused_at": paused_at, "ends_at": ends_at, **said}
            for name in named:
                if not tx.execute(update(p).where(p.c.queue == name).values(values)).rowcount:
                    tx.execute(insert(p).values(queue=name, **values))
            self._history.append(tx, "paused", {"queue": queue, **said, "for_s": for_s})
            return Pause(queue, paused_at, ends_at, said["who"], said["why"])

        try:
            return self.database.run(write)
        except IntegrityError:  # another person paused it at the same moment: its row is there now
            return self.database.run(write)

    def resume(self, queue: str, *, who: str, why: str) -> bool:
        """Let it be claimed again, a queue with all of its bands; False when none of it was paused. Repeatable."""
        p = self.database.tables.pause

        def write(tx: Connection) -> bool:
            its_own = p.c.queue.in_(meant(queue))
            was_paused = tx.execute(select(p.c.queue).where(its_own, in_force(self.database))).first() is not None
            if tx.execute(delete(p).where(its_own)).rowcount and was_paused:
                self._history.append(tx, "resumed", {"queue": queue, **who_and_why(who, why)})
                return True
            return False

        return self.database.run(write)

    def all(self) -> dict[str, Pause]:
        """What is paused now, band by band: by the names that tasks have as `queue`."""
        p = self.database.tables.pause
        query = select(*p.c).where(in_force(self.database)).order_by(p.c.queue)
        return {row.queue: Pause(*row) for row in self.database.ask(lambda tx: tx.execute(query).all())}


def in_force(database: Database) -> ColumnElement[bool]:
    """Of a row of the table `pause`: it has no end, or has not come to it."""
    p = database.tables.pause
    return or_(p.c.ends_at.is_(None), p.c.ends_at > database.now())


def is_paused(queue: Column[Any], database: Database) -> ColumnElement[bool]:
    """Whether the queue that a column names is paused. There are few such rows, and usually none."""
    p = database.tables.pause
    return queue.in_(select(p.c.queue).where(in_force(database)))
