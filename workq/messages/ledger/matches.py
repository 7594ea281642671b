"""Matches: what must hold between messages, the tasks that send them, lines and ways in. Questions alone.

Each of these is written in one transaction with the other, and each question is one statement, which sees one moment:
so what it finds is wrong, and stays so.

A message of a way in says which one; the way in counts those that are there (`kept`). A worker of the schema before 17
does neither. Should it remove such a message, which it can after thirty days, the count is too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select

from workq.ledger import waiting
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import guarded
from workq.messages.ledger.line import WAITS
from workq.messages.ledger.tables import message_tables
from workq.messages.values import QUEUE, TASK_NAME
from workq.values.task import State

_OPEN = (State.READY, State.WAITING, State.RUNNING)


class LoneMessage(NamedTuple):
    """A message whose task is not there, and was not removed by retention."""

    message_id: str
    task_id: str
    destination: str


class MiscountedIntake(NamedTuple):
    """A way in: how many of its messages should be there, and how many are."""

    name: str
    kept: int
    found: int


class MessageMatches:
    """What does not match, at most so many of each."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def without_task(self, *, limit: int) -> Sequence[LoneMessage]:
        """Messages that no task sends, has sent or has given up."""
        m, t = message_tables(self.database).message, self.database.tables.task
        query = (
            select(m.c.id, m.c.task_id, m.c.destination)
            .select_from(m.outerjoin(t, t.c.id == m.c.task_id))
            .where(t.c.id.is_(None), m.c.removed_at.is_(None))
            .limit(limit)
        )
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [LoneMessage(row.id, str(row.task_id), row.destination) for row in rows]

    def without_message(self, *, limit: int) -> list[str]:
        """Open tasks that are to send a message, and are those of none."""
        m, t = message_tables(self.database).message, self.database.tables.task
        is_of_one = select(m.c.id).where(m.c.task_id == t.c.id).correlate(t).exists()
        query = (
            select(t.c.id)
            .where(guarded(t.c.state, *_OPEN), t.c.queue == QUEUE, t.c.name == TASK_NAME, ~is_of_one)
            .limit(limit)
        )
        return [str(one) for one in self.database.ask(lambda tx: tx.execute(query).scalars().all())]

    def without_place(self, *, limit: int) -> list[str]:
        """Tasks that wait for a destination, and stand in no line: nobody would let them go on."""
        w, t = message_tables(self.database).waiting_message, self.database.tables.task
        has_place = (
            select(w.c.task_id)
            .join(m := message_tables(self.database).message, m.c.destination == w.c.destination)
            .where(m.c.task_id == t.c.id, w.c.due_at == m.c.due_at, w.c.task_id == t.c.id)
            .correlate(t)
            .exists()
        )
        query = (
            select(t.c.id)
            .where(guarded(t.c.state, State.WAITING), waiting.waits(t, self.database), t.c.waits_for == WAITS)
            .where(t.c.queue == QUEUE, ~has_place)
            .limit(limit)
        )
        return [str(one) for one in self.database.ask(lambda tx: tx.execute(query).scalars().all())]

    def miscounted_intakes(self) -> Sequence[MiscountedIntake]:
        """Ways in whose messages are not as many as were recorded, less those that retention has removed."""
        tables = message_tables(self.database)
        i, m = tables.intake, tables.message
        of = select(m.c.intake, func.count().label("n")).where(m.c.intake.is_not(None)).group_by(m.c.intake).subquery()
        found = func.coalesce(of.c.n, 0)
        query = (
            select(i.c.name, i.c.kept, found.label("found"))
            .select_from(i.outerjoin(of, of.c.intake == i.c.name))
            .where(i.c.kept != found)
            .order_by(i.c.name)
        )
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [MiscountedIntake(row.name, row.kept, row.found) for row in rows]
