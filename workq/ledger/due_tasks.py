"""Due tasks: what can be claimed now of some lines, for a worker that no hint reaches.

Only a read: it takes no lock and reserves nothing. Two workers that ask at the same moment may be answered the same
tasks; the hold gives each task to one of them, and the claim in the ledger decides as always.

Of each line it is one range of the index `task_open` for each state, and never more rows than the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Float, Integer, Select, bindparam, or_, select

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import as_text
from workq.ledger.engine.states import CLAIMABLE, found, unexpired
from workq.ledger.pauses import is_paused
from workq.values.task import State


class DueTask(NamedTuple):
    """One of them; in the order in which they are due."""

    due_at: datetime
    task_id: str
    queue: str


_BEGINNING: Final = DueTask(datetime(1970, 1, 1, tzinfo=UTC), "00000000-0000-7000-8000-000000000000", "")
_END: Final = DueTask(datetime(9999, 1, 1, tzinfo=UTC), "ffffffff-ffff-7fff-bfff-ffffffffffff", "")


class DueTasks:
    """Which tasks can be claimed: due and unclaimed; not expired, paused, or waiting for others.

    Whether somebody holds them the ledger does not know.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def oldest(
        self, queues: Sequence[str], *, limit: int, after: Mapping[str, DueTask], for_s: float = 0.0
    ) -> list[DueTask]:
        """Of each of these lines up to `limit` tasks that are due for `for_s` seconds, the oldest first.

        `after`: of a line that is named there, only what comes behind this task.
        """
        return self._some(queues, limit=limit, beyond=after, for_s=for_s, is_newest=False)

    def newest(
        self, queues: Sequence[str], *, limit: int, before: Mapping[str, DueTask], for_s: float = 0.0
    ) -> list[DueTask]:
        """The same from the other end: the newest first, and of a line that is named only what is before this task."""
        return self._some(queues, limit=limit, beyond=before, for_s=for_s, is_newest=True)

    def _some(
        self, queues: Sequence[str], *, limit: int, beyond: Mapping[str, DueTask], for_s: float, is_newest: bool
    ) -> list[DueTask]:
        end = _END if is_newest else _BEGINNING

        def look(tx: Connection) -> list[DueTask]:
            chosen: list[DueTask] = []
            for queue in queues:
                due_at, task_id, _ = beyond.get(queue, end)
                given = {
                    "b_queue": queue,
                    "b_due_at": due_at,
                    "b_id": task_id,
                    "b_limit": limit,
                    "b_offset_s": -for_s,
                }
                rows: list[DueTask] = []
                for state in CLAIMABLE:
                    name = f"due tasks, {state}, {'newest' if is_newest else 'oldest'}"
                    statement = self.database.kept(name, partial(self._of, state, is_newest=is_newest))
                    rows += [DueTask(due_at, task_id, queue) for due_at, task_id in statement.rows(tx, given)]
                chosen += sorted(rows, reverse=is_newest)[:limit]
            return chosen

        # a backlog is written in bulk, and has no statistics yet: PostgreSQL would read and sort all of it
        return self.database.ask(look, sorts=False) if queues else []

    def _of(self, state: State, *, is_newest: bool) -> Select[Any]:
        """One state at a time: one range of the index."""
        c, now = self.database.tables.task.c, self.database.now
        end, task_id = bindparam("b_due_at", type_=c.due_at.type), bindparam("b_id", type_=c.id.type)
        beyond = (
            (c.due_at <= end, or_(c.due_at < end, c.id < task_id))
            if is_newest
            else (c.due_at >= end, or_(c.due_at > end, c.id > task_id))
        )
        order = (c.due_at.desc(), c.id.desc()) if is_newest else (c.due_at, c.id)
        return (
            select(c.due_at, as_text(c.id, self.database.dialect))
            .where(
                found(c.state, *CLAIMABLE),
                found(c.state, state),
                c.queue == bindparam("b_queue", type_=c.queue.type),
                *beyond,
                c.due_at <= now(bindparam("b_offset_s", type_=Float())),
                unexpired(c.expires_at, now()),
                ~is_paused(c.queue, self.database),
            )
            .order_by(*order)
            .limit(bindparam("b_limit", type_=Integer()))
        )
