"""Coming: the tasks whose turn has come leave the line of their limit, and are to be hinted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Update, bindparam, update
from sqlalchemy.types import Float

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.values.task import State


def come(tx: Connection, database: Database, task_ids: Sequence[str], *, reserved_s: float) -> None:
    """It is the turn of these tasks, now."""
    come_at(tx, database, task_ids, None, reserved_s=reserved_s)


def come_at(
    tx: Connection, database: Database, task_ids: Sequence[str], at: datetime | None, *, reserved_s: float | None
) -> None:
    """It is the turn of these tasks, then; or now."""
    is_ready = at is None
    statement = database.kept(
        f"unpark, ready: {is_ready}, hinted by the caller: {reserved_s is not None}",
        partial(_coming, database, is_ready=is_ready, is_reserved=reserved_s is not None),
    )
    given: dict[str, Any] = {"b_ids": in_order(task_ids)}
    if not is_ready:
        given["b_at"] = at
    if reserved_s is not None:
        given["b_reserved_s"] = reserved_s
    statement.write(tx, given)


def _coming(database: Database, *, is_ready: bool, is_reserved: bool) -> Update:
    t, now = database.tables.task, database.now
    values: dict[str, Any] = {
        "state": State.READY if is_ready else State.WAITING,
        "due_at": now() if is_ready else bindparam("b_at", type_=t.c.due_at.type),
        "waits_for": None,
    }
    if is_reserved:
        reserved_s = bindparam("b_reserved_s", type_=Float())
        values |= {"queued_at": now(), "published_at": None, "relay_until": now(reserved_s)}
    return update(t).where(among(t.c.id, database.dialect), guarded(t.c.state, *CLAIMABLE)).values(values)
