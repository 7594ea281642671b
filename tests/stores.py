"""What tests reach behind the ports of an application."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sqlalchemy import Table

from workq.app import WorkQueue
from workq.ledger.engine.database import Database
from workq.ledger.schema import Tables
from workq.ledger.sql import Ledger
from workq.slices import every_table


def database_of(app: WorkQueue) -> Database:
    """The database of its ledger: its clock can be moved, and its rows taken away on purpose. No port offers that."""
    ledger = app.stores.ledger
    assert isinstance(ledger, Ledger)
    return ledger.database


def tables_of(database: Database) -> Sequence[Table]:
    """All of its tables, to be read: made once for all that ask."""
    return _tables(database.tables.namespace, database.tables.dialect)


@lru_cache(maxsize=16)
def _tables(namespace: str, dialect: str) -> Sequence[Table]:
    return every_table(Tables(namespace, dialect)).sorted_tables
