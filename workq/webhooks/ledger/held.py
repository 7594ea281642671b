"""Held: a delivery whose endpoint was disabled keeps its turn in an order, and does not come."""

from __future__ import annotations

from sqlalchemy import Connection, select

from workq.ledger.engine.database import Database
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import TASK_NAME, DeliveryState


def stays_held(tx: Connection, database: Database, task_id: str, name: str) -> bool:
    """Whether a task sends a delivery that is held: it stays due never though it is its turn (see Order)."""
    if name != TASK_NAME:
        return False
    d = webhook_tables(database).delivery
    held = select(d.c.id).where(d.c.task_id == task_id, d.c.state == DeliveryState.HELD.value)
    return tx.execute(held).first() is not None
