"""Closing: a limit is closed for a time, because what it stands for is out of order.

Nothing of it starts then, what is claimed is parked, and afterwards one at a time starts, until somebody opens it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from sqlalchemy import Connection, Update, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.limits.ledger.tables import limit_tables


def close(tx: Connection, database: Database, key: str, *, for_s: float) -> None:
    """Let nothing of a limit start for so long, and one at a time afterwards; a time that ends later stays."""
    h, now = limit_tables(database).throttle, database.now
    make_row(tx, database, key)
    shorter = or_(h.c.closed_until.is_(None), h.c.closed_until < now(for_s))
    tx.execute(update(h).where(h.c.id == key, shorter).values(closed_until=now(for_s), changed_at=now()))


def reopen(tx: Connection, database: Database, keys: Iterable[str], *, at_once: bool = False) -> None:
    """Let these limits be as they were before they were closed: not one at a time any more. Repeatable.

    One that is closed still stays so until its time is over, whatever was under way when it was closed: only with
    `at_once` it does not.
    """
    what = "reopen limits at once" if at_once else "reopen limits"
    statement = database.kept(what, partial(_reopening, database, at_once=at_once))
    statement.write(tx, {"b_ids": in_order(keys)})


def _reopening(database: Database, *, at_once: bool) -> Update:
    h = limit_tables(database).throttle
    closed = update(h).where(among(h.c.id, database.dialect, item="TEXT"), h.c.closed_until.is_not(None))
    if not at_once:
        closed = closed.where(h.c.closed_until <= database.now())
    return closed.values(closed_until=None)


def make_row(tx: Connection, database: Database, key: str) -> None:
    """The row of a limit, if there is none."""
    h = limit_tables(database).throttle
    while tx.execute(select(h.c.id).where(h.c.id == key).with_for_update()).first() is None:
        try:
            with tx.begin_nested():
                tx.execute(insert(h).values(id=key, last=0, changed_at=database.now()))
        except IntegrityError:  # somebody else was faster
            continue
