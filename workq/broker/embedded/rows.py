"""A row of the table `hint`: who has it, what its body is, and the delivery that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, LargeBinary, cast, delete, or_, update
from sqlalchemy.sql.elements import ColumnElement

from workq.broker import Delivery
from workq.ledger.engine.database import Database
from workq.values.codec import Envelope

VISIBILITY_S: Final = 30.0
"""How long a delivery may stay unacked before it comes again. A worker acks after its hold, not after its run."""


@dataclass(frozen=True, slots=True)
class TakenRow:
    """Which row a delivery was, and its body for the quarantine."""

    id: int
    body: bytes


def is_free(database: Database) -> ColumnElement[bool]:
    """Nobody has the row, or not any more."""
    hint = database.tables.hint
    return or_(hint.c.consumer.is_(None), hint.c.delivered_at < database.now(-VISIBILITY_S))


def unmark(database: Database, name: str, connection: Connection) -> None:
    """Give back what a consumer of this name has."""
    hint = database.tables.hint
    connection.execute(update(hint).where(hint.c.consumer == name).values(consumer=None, delivered_at=None))


def remove(database: Database, row_ids: Sequence[int], connection: Connection) -> None:
    """Delete those of these rows that nobody has."""
    hint = database.tables.hint
    connection.execute(delete(hint).where(hint.c.id.in_(row_ids), is_free(database)))


def body_of(database: Database) -> ColumnElement[Any]:
    """As bytes on SQLite: what somebody else wrote there may not be text."""
    hint = database.tables.hint
    return cast(hint.c.body, LargeBinary) if database.dialect == "sqlite" else hint.c.body


def delivery_of(hint: Envelope | str, queue: str, row_id: int, body: bytes, deliveries: int) -> Delivery:
    """A delivery of a row whose body was decoded to `hint`."""
    row, again = TakenRow(row_id, body), deliveries > 1
    if isinstance(hint, str):
        return Delivery(row, queue, (), 0, again, hint, deliveries - 1)
    return Delivery(row, queue, hint.task_ids, hint.looks, again, marker=hint.marker)


def as_bytes(body: bytes | str) -> bytes:
    return body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
