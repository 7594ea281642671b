"""Pruning: a body goes with the task that sent it; that there was a message is still known for a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, select, update

from workq.ledger.engine.database import Database
from workq.messages.ledger.tables import message_tables
from workq.messages.values import KEPT_AFTER_S


def forget_bodies(tx: Connection, database: Database, task_ids: Sequence[str]) -> None:
    """Drop what messages had in them whose tasks are removed: they cannot be restored any more, and are counted.

    How each task had ended stays with its message: a restore knows by that which ones it would have sent.
    """
    m, t = message_tables(database).message, database.tables.task
    ended = select(t.c.state).where(t.c.id == m.c.task_id).scalar_subquery()
    gone = {"body": None, "headers": None, "message_key": None, "removed_at": database.now(), "ended": ended}
    tx.execute(update(m).where(m.c.task_id.in_(task_ids)).values(gone))


class MessagePruning:
    """Removes the last that is known of messages, and counts what it would remove."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def prune_messages(self, *, limit: int, dry_run: bool = False) -> int:
        """Remove at most `limit` messages whose bodies went long ago; answers how many. Repeatable."""
        m, i = message_tables(self.database).message, message_tables(self.database).intake
        is_old = m.c.removed_at.is_not(None), m.c.removed_at <= self.database.now(-KEPT_AFTER_S)
        query = select(m.c.id).where(*is_old).order_by(m.c.removed_at).limit(limit)
        ids = self.database.ask(lambda tx: list(tx.execute(query).scalars()))
        if dry_run or not ids:
            return len(ids)

        def remove(tx: Connection) -> int:
            locked = select(m.c.id, m.c.intake).where(m.c.id.in_(ids), *is_old).order_by(m.c.id).with_for_update()
            rows = tx.execute(locked).all()
            tx.execute(delete(m).where(m.c.id.in_([row.id for row in rows])))
            gone = Counter(row.intake for row in rows if row.intake is not None)
            for name in sorted(gone):
                tx.execute(update(i).where(i.c.name == name).values(kept=i.c.kept - gone[name]))
            return len(rows)

        return self.database.run(remove)

    def prunable_messages(self) -> int:
        """How many messages are beyond all retention."""
        m = message_tables(self.database).message
        query = select(func.count()).where(
            m.c.removed_at.is_not(None), m.c.removed_at <= self.database.now(-KEPT_AFTER_S)
        )
        return self.database.ask(lambda tx: int(tx.execute(query).scalar_one()))
