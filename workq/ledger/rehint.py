"""Rehint: a hint was sent in place of another: no marker that was sent in between may prove it lost (see hints.py)."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, update

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import CLAIMABLE, guarded


def rehint(tx: Connection, database: Database, task_ids: Iterable[str], *, delay_s: float) -> None:
    """See `Ledger.rehinted`, in a transaction of the caller's."""
    t = database.tables.task
    statement = (
        update(t)
        .where(
            among(t.c.id, database.dialect),
            guarded(t.c.state, *CLAIMABLE),
            t.c.published_at < database.now(delay_s),
        )
        .values(published_at=database.now(delay_s))
    )
    tx.execute(statement, {"b_ids": in_order(task_ids)})
