"""A task's state in a WHERE clause: either to find rows by, or to guard rows that are found by their ids.

To find rows, the states must be literals: only then do PostgreSQL's generic plans and SQLite see that a partial index
covers them, and SQLite wants the index's own condition word by word. To guard, they are hidden behind an expression:
with the statistics of an idle hour, a planner takes `state = 'running'` for a better index than the ids, and reads the
whole backlog (four times slower at 20,000 open rows, and growing).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Column, Select, Table, func, literal_column, or_, select
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.answers import Unpublished
from workq.values.task import State

CLAIMABLE: Final = (State.READY, State.WAITING)
NOTED: Final = 1
"""Of `is_suspect`: it was there once when a worker ended and nobody saw why. The next time it is charged."""
SUSPECT: Final = 2
"""Of `is_suspect`: a process died while it ran. It runs alone from now on, and is charged the next time."""
ENDED: Final = (State.SUCCEEDED, State.DEAD, State.CANCELLED)


def found(column: Column[Any], *states: State) -> ColumnElement[bool]:
    """The state is one of these; the index is welcome to find it."""
    if len(states) == 1:
        return column == _literal(states[0])
    return column.in_([_literal(state) for state in states])


def guarded(column: Column[Any], *states: State) -> ColumnElement[bool]:
    """The state is one of these; the rows are found by something else."""
    return column.concat(literal_column("''")).in_([_literal(state) for state in states])


def unexpired(expires_at: Column[Any], now: ColumnElement[Any]) -> ColumnElement[bool]:
    """It may still be started."""
    return or_(expires_at.is_(None), expires_at > now)


@lru_cache(maxsize=32)
def queues_where(t: Table, *states: tuple[State, ...]) -> Select[Any]:
    """The queues of what is in one of these states (and of these), one index probe for each: the next name after the
    last, until there is none.

    Each pass of a sweep asks for them, and the mover: to put it together each time was a tenth of a pass.
    """
    waits = [found(t.c.state, *some) for some in states]
    first = select(func.min(t.c.queue).label("queue")).where(*waits)
    queues = first.cte("queues", recursive=True)
    following = select(func.min(t.c.queue)).where(*waits, t.c.queue > queues.c.queue).scalar_subquery()
    queues = queues.union_all(select(following).where(queues.c.queue.is_not(None)))
    return select(queues.c.queue).where(queues.c.queue.is_not(None))


def not_before(chosen: Select[Any], t: Table, since: datetime | None) -> Select[Any]:
    """Of these, what is due since then; None: all."""
    return chosen if since is None else chosen.where(t.c.due_at >= since)


def in_turn(rows: Iterable[Any], reserved_until: datetime | None) -> list[Unpublished]:
    """As `unpublished`, in the order in which they are due."""
    return unpublished(sorted(rows, key=lambda row: (row.due_at, row.id)), reserved_until)


def unpublished(rows: Iterable[Any], reserved_until: datetime | None) -> list[Unpublished]:
    """Rows with id, queue, attempt, due_at and now, as what is to be published. None: they are not reserved."""
    return [
        Unpublished(
            row.id,
            row.queue,
            row.attempt,
            max(0.0, (row.due_at - row.now).total_seconds()),
            reserved_until=reserved_until,
        )
        for row in rows
    ]


def _literal(state: State) -> ColumnElement[Any]:
    return literal_column(f"'{state.value}'")
