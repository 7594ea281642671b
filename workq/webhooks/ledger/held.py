"""Held: a delivery whose endpoint was disabled keeps its turn in an order, and does not come."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select

from workq.ledger.engine.database import Database
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.values import TASK_NAME, DeliveryState

WAITS: Final = "endpoint"
"""What the task of a held delivery waits for."""


def stays_held(tx: Connection, database: Database, task_id: str, name: str) -> str | None:
    """What a task still waits for whose turn it is (see Order), when it sends a delivery that is held."""
    if name != TASK_NAME:
        return None
    d = webhook_tables(database).delivery
    held = select(d.c.id).where(d.c.task_id == task_id, d.c.state == DeliveryState.HELD.value)
    return WAITS if tx.execute(held).first() is not None else None
