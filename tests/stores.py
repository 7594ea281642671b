"""What tests reach behind the ports of an application."""

from __future__ import annotations

from workq.app import WorkQueue
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger


def database_of(app: WorkQueue) -> Database:
    """The database of its ledger: its clock can be moved, and its rows taken away on purpose. No port offers that."""
    ledger = app.stores.ledger
    assert isinstance(ledger, Ledger)
    return ledger.database
