"""Positions: the tasks of one order key stand in line, in the order in which they were committed.

Each key with open tasks has a row in `sequence`, and each of its tasks a row in `position`. Whoever records a task of a
key adds to its sequence first: the lock of that row, which lasts until the commit, makes the order of positions that of
the commits. The first in line is an ordinary task. The others wait for it (ledger/waiting.py), so that no hint, no
sweep and no claim minds them; when each was to be due is in its row of `position`. When the first has ended, the line
moves up (see order.py).

Locks: sequences in the order of their keys, before anything else of a transaction, so that nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import Float

from workq.ledger.engine.database import Database
from workq.ledger.named_instants import left_s
from workq.order.ledger.tables import order_tables
from workq.values.task import AfterDeath, NewTask

WAITS: Final = "order"
"""What a task waits for that stands behind another one of its key."""


def enter(tx: Connection, database: Database, tasks: Sequence[NewTask]) -> list[NewTask]:
    """Give new tasks their positions, before they are inserted; answers them; a task behind another one waits."""
    ordered = sorted(
        (place for place, task in enumerate(tasks) if task.order_key is not None),
        key=lambda place: tasks[place].order_key or "",
    )
    entered = list(tasks)
    rows: list[dict[str, Any]] = []
    for key, places in groupby(ordered, key=lambda place: tasks[place].order_key or ""):
        mine = list(places)
        first, has_head = _take(tx, database, key, len(mine), tasks[mine[0]].id)
        for number, place in enumerate(mine):
            task = tasks[place]
            rows.append(
                {
                    "b_order_key": key,
                    "b_position": first + number,
                    "b_task_id": task.id,
                    "b_delay_s": task.delay_s,
                    "b_after_death": task.after_death.value,
                }
            )
            if has_head or number:
                entered[place] = replace(task, waits_for=WAITS)
    if rows:
        _write(tx, database, rows)
    return entered


def is_first(tx: Connection, database: Database, task_id: str, key: str) -> bool:
    """Whether it is the turn of a task in its order key; what it waits for is something else."""
    s = order_tables(database).sequence
    return tx.execute(select(s.c.id).where(s.c.id == key, s.c.head_task == task_id)).first() is not None


def heads(tx: Connection, database: Database, keys: Collection[str]) -> set[str]:
    """The tasks whose turn it is in these order keys."""
    s = order_tables(database).sequence
    return set(tx.execute(select(s.c.head_task).where(s.c.id.in_(sorted(keys)))).scalars()) if keys else set()


def enter_again(tx: Connection, database: Database, task_id: str, key: str) -> bool:
    """Give a task that a person has sent back a position, if it has none; False when it stands behind another."""
    tables = order_tables(database)
    s, p = tables.sequence, tables.position
    head = tx.execute(select(s.c.head_task).where(s.c.id == key).with_for_update()).scalar()
    if head == task_id:
        return True
    mine = select(p.c.position).where(p.c.order_key == key, p.c.task_id == task_id)
    if tx.execute(mine).first() is not None:
        return False
    first, has_head = _take(tx, database, key, 1, task_id)
    t = database.tables.task
    query = select(t.c.after_death, t.c.due_at, database.now().label("now")).where(t.c.id == task_id)
    task = tx.execute(query).one()
    row = {
        "b_order_key": key,
        "b_position": first,
        "b_task_id": task_id,
        "b_delay_s": left_s(task.due_at, task.now),
        "b_after_death": task.after_death or AfterDeath.BLOCK.value,
    }
    _write(tx, database, [row])
    return not has_head


def _take(tx: Connection, database: Database, key: str, count: int, head: str) -> tuple[int, bool]:
    """So many positions at the end of a line; answers the first, and whether somebody stands before it."""
    s = order_tables(database).sequence
    more = update(s).where(s.c.id == key).values(last=s.c.last + count)
    while not tx.execute(more).rowcount:
        try:
            with tx.begin_nested():
                tx.execute(insert(s).values(id=key, last=count, head_position=1, head_task=head))
            return 1, False
        except IntegrityError:  # somebody else has just begun this line; it may have ended again when we look
            continue
    last: int = tx.execute(select(s.c.last).where(s.c.id == key)).scalar_one()
    return last - count + 1, True


def _write(tx: Connection, database: Database, rows: Sequence[dict[str, Any]]) -> None:
    p = order_tables(database).position
    made = insert(p).values(
        order_key=bindparam("b_order_key"),
        position=bindparam("b_position"),
        task_id=bindparam("b_task_id"),
        due_at=database.now(bindparam("b_delay_s", type_=Float())),
        after_death=bindparam("b_after_death"),
    )
    tx.execute(made, list(rows))
