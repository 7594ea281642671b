"""The start gate of limits, the last of the gates: whether a task that has a limit gets a permit (see permits.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, true
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database
from workq.ledger.start import StartCandidate
from workq.limits.ledger import permits


class LimitGate:
    """What a limit has to say. The last of the gates: what has a permit starts."""

    name = "limit"

    def concerns(self, database: Database) -> ColumnElement[bool]:
        return database.tables.task.c.limit_key.is_not(None)

    def columns(self, database: Database) -> Sequence[ColumnElement[Any]]:
        c = database.tables.task.c
        return (c.limit_key, c.limit_most, c.limit_rate)

    def joined(self, _: Database, rows: Select[Any]) -> Select[Any]:
        return rows

    def is_open(self, _: Database) -> ColumnElement[bool]:
        return true()

    def ask(
        self, tx: Connection, database: Database, candidates: Sequence[StartCandidate]
    ) -> Mapping[str, float | None]:
        rows = [permits.TaskOfLimit(one.id, one.may_start, *one.knows[self.name]) for one in candidates]
        return permits.ask(tx, database, rows)
