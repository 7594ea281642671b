"""The entry rule of order keys: who comes, or comes back, gets a position behind those who came before."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from workq.ledger.engine.database import Database
from workq.ledger.entry import EntryRule, KeyedTask
from workq.order.ledger import positions
from workq.values.task import NewTask


class OrderEntry(EntryRule):
    """What the order of a key has to say when its tasks come."""

    def enter(self, tx: Connection, database: Database, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        return positions.enter(tx, database, tasks)

    def waits_again(self, tx: Connection, database: Database, task: KeyedTask) -> str | None:
        is_ready = task.order_key is None or positions.enter_again(tx, database, task.id, task.order_key)
        return None if is_ready else positions.WAITS

    def keeps_its_time(self, tx: Connection, database: Database, task: KeyedTask) -> str | None:
        if task.order_key is None or positions.is_first(tx, database, task.id, task.order_key):
            return None
        return f"task {task.id} waits for its turn in order key {task.order_key!r}: it is due then"
