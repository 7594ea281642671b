"""In a statement: whether a queue is paused, by the database's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, or_, select
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database


def in_force(database: Database) -> ColumnElement[bool]:
    """Of a row of the table `pause`: it has no end, or has not come to it."""
    p = database.tables.pause
    return or_(p.c.ends_at.is_(None), p.c.ends_at > database.now())


def is_paused(queue: Column[Any], database: Database) -> ColumnElement[bool]:
    """Whether the queue that a column names is paused. There are few such rows, and usually none."""
    p = database.tables.pause
    return queue.in_(select(p.c.queue).where(in_force(database)))
