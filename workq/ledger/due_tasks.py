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


class DueTasks:
    """Which tasks can be claimed."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def oldest(
        self, queues: Sequence[str], *, limit: int, after: Mapping[str, DueTask], for_s: float = 0.0
    ) -> list[DueTask]:
        """Of each of these lines up to `limit` tasks that are due for `for_s` seconds and unclaimed, the oldest first.

        Without what has expired, what waits for others, and what is paused. `after`: of a line that is named there,
        only what comes behind this task. Whether somebody holds them the ledger does not know.
        """

        def look(tx: Connection) -> list[DueTask]:
            chosen: list[DueTask] = []
            for queue in queues:
                due_at, task_id, _ = after.get(queue, _BEGINNING)
                given = {
                    "b_queue": queue,
                    "b_due_at": due_at,
                    "b_id": task_id,
                    "b_limit": limit,
                    "b_offset_s": -for_s,
                }
                rows: list[DueTask] = []
                for state in CLAIMABLE:
                    statement = self.database.kept(f"due tasks, {state}", partial(self._of, state))
                    rows += [DueTask(due_at, task_id, queue) for due_at, task_id in statement.rows(tx, given)]
                chosen += sorted(rows)[:limit]
            return chosen

        return self.database.ask(look) if queues else []

    def _of(self, state: State) -> Select[Any]:
        """One state at a time: one range of the index."""
        c, now = self.database.tables.task.c, self.database.now
        since = bindparam("b_due_at", type_=c.due_at.type)
        return (
            select(c.due_at, as_text(c.id, self.database.dialect))
            .where(
                found(c.state, *CLAIMABLE),
                found(c.state, state),
                c.queue == bindparam("b_queue", type_=c.queue.type),
                c.due_at >= since,
                c.due_at <= now(bindparam("b_offset_s", type_=Float())),
                or_(c.due_at > since, c.id > bindparam("b_id", type_=c.id.type)),
                unexpired(c.expires_at, now()),
                ~is_paused(c.queue, self.database),
            )
            .order_by(c.due_at, c.id)
            .limit(bindparam("b_limit", type_=Integer()))
        )
