"""The entry rule of messages: what waits for a destination that is enabled goes on without a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select

from workq.ledger.engine.database import Database
from workq.ledger.engine.states import guarded
from workq.ledger.entry import EntryRule
from workq.messages.ledger.tables import message_tables
from workq.messages.values import DestinationState
from workq.values.task import State


class MessageEntry(EntryRule):
    """What messages have to say when their tasks come: nothing."""

    def goes_on(self, database: Database, queues: Sequence[str]) -> Sequence[Select[Any]]:
        tables, t, now = message_tables(database), database.tables.task, database.now
        w, d = tables.waiting_message, tables.destination
        rests = select(d.c.name).where(d.c.name == w.c.destination, d.c.rests_until > now()).correlate(w).exists()
        off = select(d.c.name).where(d.c.name == w.c.destination, d.c.state == DestinationState.DISABLED.value)
        theirs = guarded(t.c.state, State.WAITING), t.c.queue.in_(queues)
        query = select(w.c.task_id).join(t, t.c.id == w.c.task_id)
        return (query.where(*theirs, ~rests, ~off.correlate(w).exists()),)
