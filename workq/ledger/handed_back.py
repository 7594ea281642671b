"""What a worker gives back before it began: no thread came free soon, it leaves, or nobody knew that it was granted.

It costs the task nothing but the number of an attempt. So that nobody has to guess what became of that number, the
history has an event for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, case, insert, null, select
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.values.task import State

EVENT: Final = "handed_back"


def values(t: Table, now: Callable[[], ColumnElement[Any]], is_cancel_asked: ColumnElement[bool]) -> dict[str, Any]:
    """Back to ready, at no cost. The attempt's number is spent, and its fence ends."""
    return {
        "state": case((is_cancel_asked, State.CANCELLED), else_=State.READY),
        "settled_at": case((is_cancel_asked, now()), else_=null()),
        "live_key": case((is_cancel_asked, null()), else_=t.c.live_key),
        "token": None,
        "queued_at": now(),
        "published_at": None,
        "relay_until": None,
    }


def note(tx: Connection, database: Database, attempts: Sequence[tuple[str, int]]) -> None:
    """Note that these attempts, each the newest of its task, were given back, and by which worker. Repeatable."""
    t, e = database.tables.task, database.tables.event
    given = {"b_ids": in_order(task_id for task_id, _ in attempts)}
    told = select(as_text(e.c.task_id, database.dialect), e.c.attempt)
    told = told.where(among(e.c.task_id, database.dialect), e.c.kind == EVENT)
    known = {(task_id, attempt) for task_id, attempt in tx.execute(told, given)}
    by = select(as_text(t.c.id, database.dialect).label("id"), t.c.worker).where(among(t.c.id, database.dialect))
    workers = {row.id: row.worker for row in tx.execute(by, given)}
    new = [
        {"task_id": task_id, "attempt": attempt, "worker": workers.get(task_id)}
        for task_id, attempt in attempts
        if (task_id, attempt) not in known
    ]
    if new:
        tx.execute(insert(e).values(at=database.now(), kind=EVENT, detail="{}"), new)
