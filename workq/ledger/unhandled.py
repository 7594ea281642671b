"""Tasks that wait because no worker that looked knows their name: since when, who looked, and when that is enough.

In a rolling deploy the workers of the old release meet tasks of the new one. Such a look costs the task nothing: it
waits until a worker knows its name, and is dead as `no_handler` when the first look was `times.no_handler_wait_s` ago.
The history has the first looks, each with its worker; an attempt that failed, a reaped one or a person's `retry` after
them begins the time anew. The database's clock decides, in the statement that settles the look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, or_, select, update

from workq.ledger.answers import Unknown
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.states import CLAIMABLE, found
from workq.values.task import Claim, Event, State, Unhandled

NO_HANDLER: Final = "no_handler"
"""The event of a look, and the reason of a task that waits or is dead because of it."""
LOOKERS_MAX: Final = 5
"""So many workers that looked are noted for each task."""
_ENDS: Final = ("failed", "snoozed", "reaped", "revived")
"""What ends such a wait: the task was started, or a person sent it back."""


def since(database: Database, task_id: ColumnElement[Any]) -> ColumnElement[Any]:
    """When a task first met a worker that does not know its name, since it last did anything else; NULL: never."""
    e, later = database.tables.event, database.tables.event.alias("later")
    is_end = or_(*(later.c.kind == kind for kind in _ENDS))  # not `in_`: the statement is kept with its text
    last = select(func.coalesce(func.max(later.c.id), 0)).where(later.c.task_id == task_id, is_end)
    first = select(func.min(e.c.at)).where(e.c.task_id == task_id, e.c.kind == NO_HANDLER)
    return first.where(e.c.id > last.correlate_except(later).scalar_subquery()).correlate_except(e).scalar_subquery()


def looks(history: Sequence[Event]) -> list[Event]:
    """The looks of such a wait in a task's history, the oldest first: those since it last did anything else."""
    ends = [place for place, event in enumerate(history, 1) if event.kind in _ENDS]
    return [event for event in history[ends[-1] if ends else 0 :] if event.kind == NO_HANDLER]


def note(tx: Connection, database: Database, looks: Sequence[tuple[Claim, Unhandled, State]]) -> None:
    """Note which workers have just looked, a few for each task; name them in the error of what is dead. Repeatable.

    `looks`: each with where it has led its task.
    """
    t, e = database.tables.task, database.tables.event
    given = {"b_ids": in_order(claim.task_id for claim, _, _ in looks)}
    attempts = {claim.task_id: claim.attempt for claim, _, _ in looks}
    looked: defaultdict[str, list[str]] = defaultdict(list)
    events = select(as_text(e.c.task_id, database.dialect), e.c.kind, e.c.worker).order_by(e.c.id)
    for task_id, kind, worker in tx.execute(
        events.where(among(e.c.task_id, database.dialect), e.c.kind.in_([NO_HANDLER, *_ENDS])), given
    ):
        if kind in _ENDS:
            looked[task_id].clear()
        elif worker is not None:
            looked[task_id].append(worker)
    new = []
    workers = select(as_text(t.c.id, database.dialect), t.c.worker).where(among(t.c.id, database.dialect))
    for task_id, worker in tx.execute(workers, given):
        if worker not in looked[task_id] and len(looked[task_id]) < LOOKERS_MAX:
            looked[task_id].append(worker)
            new.append({"task_id": task_id, "attempt": attempts[task_id], "worker": worker})
    if new:
        tx.execute(insert(e).values(at=database.now(), kind=NO_HANDLER, detail="{}"), new)
    dead = [
        {"b_id": claim.task_id, "b_token": claim.token, "b_error": _in_the_end(look, looked[claim.task_id])}
        for claim, look, state in looks
        if state is State.DEAD
    ]
    if dead:
        told = update(t).where(t.c.id == bindparam("b_id"), t.c.token == bindparam("b_token"))
        tx.execute(told.values(error=bindparam("b_error")), dead)


def _in_the_end(look: Unhandled, workers: Sequence[str]) -> str:
    which = ", ".join(workers) + (", and perhaps others" if len(workers) == LOOKERS_MAX else "")
    return f"{look.error}: waited {look.wait_s:g} s for a worker that knows it; looked: {which}"


def waiting(tx: Connection, database: Database) -> list[Unknown]:
    """The names that no worker knows of tasks that wait for one, the longest first."""
    t = database.tables.task
    each = (
        select(t.c.name, since(database, t.c.id).label("since"))
        .where(found(t.c.state, *CLAIMABLE), t.c.reason == NO_HANDLER)
        .subquery()
    )
    first = func.min(each.c.since).label("since")
    query = (
        select(each.c.name, func.count().label("tasks"), first)
        .where(each.c.since.is_not(None))
        .group_by(each.c.name)
        .order_by(first, each.c.name)
    )
    return [Unknown(row.name, row.tasks, row.since) for row in tx.execute(query)]
