"""The entry rule of order keys: who comes, or comes back, gets a position behind those who came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, false
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database
from workq.ledger.entry import KeyedTask
from workq.order.ledger import positions
from workq.values.task import NewTask


class OrderEntry:
    """What the order of a key has to say when its tasks come."""

    def enter(self, tx: Connection, database: Database, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        return positions.enter(tx, database, tasks)

    def comes_back(self, tx: Connection, database: Database, task: KeyedTask) -> bool:
        return task.order_key is None or positions.enter_again(tx, database, task.id, task.order_key)

    def keeps_its_time(self, tx: Connection, database: Database, task: KeyedTask) -> str | None:
        if task.order_key is None or positions.is_first(tx, database, task.id, task.order_key):
            return None
        return f"task {task.id} waits for its turn in order key {task.order_key!r}: it is due then"

    def bars(self, _database: Database) -> ColumnElement[bool]:
        return false()

    def why_barred(self, _task: KeyedTask) -> str | None:
        return None

    def goes_on(self, _database: Database, _queues: Sequence[str]) -> Sequence[Select[Any]]:
        return ()
