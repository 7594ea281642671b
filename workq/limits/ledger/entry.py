"""The entry rule of limits: who is sent back has no place in a line yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, select

from workq.ledger.engine.database import Database
from workq.ledger.engine.states import guarded
from workq.ledger.entry import EntryRule, KeyedTask
from workq.limits.ledger import parked
from workq.limits.ledger.tables import limit_tables
from workq.values.task import State


class LimitEntry(EntryRule):
    """What limits have to say when their tasks come: nothing, before they are claimed."""

    def waits_again(self, tx: Connection, database: Database, task: KeyedTask) -> str | None:
        if task.limit_key is not None and task.state is State.CANCELLED:  # perhaps where it was parked
            parked.forget(tx, database, task.limit_key, [task.id])
        return None

    def goes_on(self, database: Database, queues: Sequence[str]) -> Sequence[Select[Any]]:
        """Those that are parked at a limit that is open, and those that are promised a permit."""
        tables, t = limit_tables(database), database.tables.task
        k, p, h = tables.parked, tables.permit, tables.throttle
        theirs = guarded(t.c.state, State.WAITING), t.c.queue.in_(queues)
        is_closed = select(h.c.id).where(h.c.id == k.c.limit_key, h.c.closed_until > database.now()).exists()
        return (
            select(k.c.task_id).join(t, t.c.id == k.c.task_id).where(*theirs, ~is_closed),
            select(p.c.task_id).join(t, t.c.id == p.c.task_id).where(p.c.attempt.is_(None), *theirs),
        )
