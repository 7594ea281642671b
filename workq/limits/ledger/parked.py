"""Parked: the line of those who wait for a limit, in the order in which they came, and how they leave it.

A place in it is a number that grows with the time: who comes behind others needs no lock to get one (see permits.py).
A task that is parked waits for others, so that no hint, no sweep and no claim minds it. When its turn has come, it is
due and is to be hinted.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Delete, Insert, Select, Update, bindparam, delete, func, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import waiting
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.limits.ledger.tables import limit_tables
from workq.values.task import State

WAITS: Final = "limit"
"""What a task waits for that is parked."""
AT_ONCE: Final = 200
"""So many of the parked are looked at in one transaction."""
GONE_AT_ONCE: Final = 5_000
"""So many of them are looked at by the statement that forgets those who do not wait any more."""
FEW: Final = 20
"""So many of them are read at a time."""


class Parked(NamedTuple):
    """What waits for a limit, and its task, if that is still there."""

    number: int
    task_id: str
    state: str | None
    due_at: datetime | None
    queue: str
    attempt: int
    limit_most: int | None
    limit_rate: str | None
    is_of_job: bool


def first(tx: Connection, database: Database, key: str) -> Iterator[Parked]:
    """In the order in which they came, a few at a time: most often no more are needed."""
    statement = database.kept("first parked", partial(_firsts, database))
    after = 0
    for _ in range(0, AT_ONCE, FEW):
        rows = [Parked(*row) for row in statement.rows(tx, {"b_key": key, "b_after": after})]
        yield from rows
        if len(rows) < FEW:
            return
        after = rows[-1].number


def _firsts(database: Database) -> Select[Any]:
    t, k = database.tables.task, limit_tables(database).parked
    return (
        select(
            k.c.number,
            as_text(k.c.task_id, database.dialect),
            t.c.state,
            t.c.due_at,
            t.c.queue,
            t.c.attempt,
            t.c.limit_most,
            t.c.limit_rate,
            t.c.job_id.is_not(None),
        )
        .outerjoin(t, t.c.id == k.c.task_id)
        .where(
            k.c.limit_key == bindparam("b_key", type_=k.c.limit_key.type),
            k.c.number > bindparam("b_after", type_=k.c.number.type),
        )
        .order_by(k.c.number)
        .limit(FEW)
    )


def number(now: datetime) -> int:
    """A place in the line of those who are parked. Two that are given in one microsecond differ, nearly always."""
    return int(now.timestamp() * 1e6) * 1000 + secrets.randbelow(1000)


def crowded(tx: Connection, database: Database, keys: Iterable[str]) -> dict[str, datetime]:
    """The limits for which others wait; each with what time it is."""
    return dict(database.kept("crowded limits", partial(_with_parked, database)).rows(tx, {"b_ids": in_order(keys)}))


def _with_parked(database: Database) -> Select[Any]:
    h = limit_tables(database).throttle
    return select(h.c.id, database.now()).where(among(h.c.id, database.dialect, item="TEXT"), is_waited_for(database))


def is_waited_for(database: Database) -> ColumnElement[bool]:
    """Whether somebody is parked for a limit: one look, however many they are."""
    tables = limit_tables(database)
    h, k = tables.throttle, tables.parked
    return select(k.c.number).where(k.c.limit_key == h.c.id).correlate(h).exists()


def forget(tx: Connection, database: Database, key: str, task_ids: Collection[str]) -> None:
    """These do not wait there any more: they were cancelled, or are kept back. Sent back, they get other places."""
    k = limit_tables(database).parked
    tx.execute(delete(k).where(k.c.limit_key == key, k.c.task_id.in_(sorted(task_ids))))


def leave_gone(tx: Connection, database: Database, key: str) -> None:
    """Forget those of the first `GONE_AT_ONCE` places whose tasks do not wait any more, whatever became of them.

    Each by what its task is now: meanwhile somebody may have got a place between them.
    """
    database.kept("gone while parked", partial(_going, database)).write(tx, {"b_key": key})


def _going(database: Database) -> Delete:
    k, t = limit_tables(database).parked, database.tables.task
    mine = k.c.limit_key == bindparam("b_key", type_=k.c.limit_key.type)
    firsts = select(k.c.number).where(mine).order_by(k.c.number).limit(GONE_AT_ONCE).subquery()
    until = select(func.max(firsts.c.number)).scalar_subquery()
    waits = select(t.c.id).where(t.c.id == k.c.task_id, guarded(t.c.state, State.WAITING), waiting.waits(t, database))
    return delete(k).where(mine, k.c.number <= until, ~waits.correlate(k).exists())


def leave(tx: Connection, database: Database, key: str, numbers: Sequence[int]) -> None:
    """Forget these places, each by itself: meanwhile somebody may have got one between them."""
    database.kept("not parked any more", partial(_leaving, database)).write(tx, {"b_key": key, "b_ids": numbers})


def _leaving(database: Database) -> Delete:
    k = limit_tables(database).parked
    these = among(k.c.number, database.dialect, item="BIGINT")
    return delete(k).where(k.c.limit_key == bindparam("b_key", type_=k.c.limit_key.type), these)


def park(tx: Connection, database: Database, key: str, task_ids: Sequence[str], *, first: int) -> None:
    """Behind those who are parked already, from this number on, in the order of their ids."""
    ids = in_order(task_ids)
    entering = database.kept("enter who is parked", partial(_entering, database))
    entering.write(tx, {"b_key": key, "b_first": first, "b_ids": ids})
    database.kept("park", partial(_parking, database)).write(tx, {"b_ids": ids})


def _entering(database: Database) -> Insert:
    k, t = limit_tables(database).parked, database.tables.task
    first = bindparam("b_first", type_=k.c.number.type)
    values: dict[Any, ColumnElement[Any]] = {
        k.c.limit_key: bindparam("b_key", type_=k.c.limit_key.type),
        k.c.number: first + func.row_number().over(order_by=t.c.id) - 1,
        k.c.task_id: t.c.id,
    }
    tasks = select(*values.values()).where(among(t.c.id, database.dialect), guarded(t.c.state, *CLAIMABLE))
    return insert(k).from_select(list(values), tasks)


def _parking(database: Database) -> Update:
    t = database.tables.task
    return (
        update(t)
        .where(among(t.c.id, database.dialect), guarded(t.c.state, *CLAIMABLE))
        .values(waiting.parked(database, WAITS))
    )


def come(tx: Connection, database: Database, task_ids: Sequence[str], *, reserved_until: datetime | None) -> None:
    """It is the turn of these tasks, now."""
    come_at(tx, database, task_ids, None, reserved_until=reserved_until)


def come_at(
    tx: Connection, database: Database, task_ids: Sequence[str], at: datetime | None, *, reserved_until: datetime | None
) -> None:
    """It is the turn of these tasks, then; or now. `reserved_until`: for the caller, who sends their hints."""
    is_ready = at is None
    statement = database.kept(
        f"unpark, ready: {is_ready}, hinted by the caller: {reserved_until is not None}",
        partial(_coming, database, is_ready=is_ready, is_reserved=reserved_until is not None),
    )
    given: dict[str, Any] = {"b_ids": in_order(task_ids)}
    if not is_ready:
        given["b_at"] = at
    if reserved_until is not None:
        given["b_reserved_until"] = reserved_until
    statement.write(tx, given)


def _coming(database: Database, *, is_ready: bool, is_reserved: bool) -> Update:
    t, now = database.tables.task, database.now
    values: dict[str, Any] = {
        "state": State.READY if is_ready else State.WAITING,
        "due_at": now() if is_ready else bindparam("b_at", type_=t.c.due_at.type),
        "waits_for": None,
    }
    if is_reserved:
        until = bindparam("b_reserved_until", type_=t.c.relay_until.type)
        values |= {"queued_at": now(), "published_at": None, "relay_until": until}
    return update(t).where(among(t.c.id, database.dialect), guarded(t.c.state, *CLAIMABLE)).values(values)
