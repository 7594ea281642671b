"""Windows of keys: a key that its task keeps for a time of its own (`key_for_s`), be the task settled or not.

A row each, beside `live_key`, which only live tasks have. Whoever records a task with a key inserts its row first, and
looks for the window of the key afterwards: until it commits, nobody else can take the key, and what was committed
before is seen. So the unique constraint of live keys decides here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select
from sqlalchemy.types import Float

from workq.ledger.engine.database import Database
from workq.values.task import NewTask


def live_key(name: str, key: str | None) -> str | None:
    """What the unique constraint compares: a key belongs to the name of its task. No name contains a slash."""
    return None if key is None else f"{name}/{key}"


def is_open(tx: Connection, database: Database, tasks: Sequence[NewTask]) -> bool:
    """Whether any of these keys is in the window of a task that was recorded before."""
    keys = _keys(tasks)
    if not keys:
        return False
    w = database.tables.window
    return tx.execute(select(w.c.id).where(w.c.id.in_(keys), w.c.ends_at > database.now()).limit(1)).first() is not None


def holder(tx: Connection, database: Database, key: str) -> str | None:
    """The id of the task in whose window a live key is."""
    w = database.tables.window
    found: str | None = tx.execute(select(w.c.task_id).where(w.c.id == key, w.c.ends_at > database.now())).scalar()
    return found


def begin(tx: Connection, database: Database, tasks: Iterable[NewTask]) -> None:
    """Let the windows of new tasks begin, in the transaction that has inserted them."""
    rows = [
        {"b_id": live_key(task.name, task.key), "b_task_id": task.id, "b_for_s": task.key_for_s}
        for task in tasks
        if task.key_for_s is not None
    ]
    if not rows:
        return
    w = database.tables.window
    tx.execute(delete(w).where(w.c.id == bindparam("b_id")), [{"b_id": row["b_id"]} for row in rows])
    made = insert(w).values(
        id=bindparam("b_id"), task_id=bindparam("b_task_id"), ends_at=database.now(bindparam("b_for_s", type_=Float()))
    )
    tx.execute(made, rows)


def _keys(tasks: Iterable[NewTask]) -> list[str]:
    return sorted({key for task in tasks if (key := live_key(task.name, task.key)) is not None})
