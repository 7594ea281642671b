"""What the audit asks of the ledger: the tasks that are open, page by page, and what markers are worth meanwhile.

The pages follow the indexes, so that an audit reads the open tasks and never the settled ones. A task that changes its
state between two pages may be met twice, or not at all; one that nobody touches is met once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, or_, select
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import Applied, Fence, OpenTask, Unpublished
from workq.ledger.charge import certificate_of, verdicts_of
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, found, guarded, queues_where
from workq.ledger.plan_guard import fence_of, moved
from workq.ledger.plans import Plans
from workq.ledger.workers import FORGOTTEN, Workers
from workq.values import codec
from workq.values.task import State


class Audits:
    """What an audit looks at, and the one thing that it may return."""

    def __init__(self, database: Database, *, plans: Plans, workers: Workers) -> None:
        self.database = database
        self._plans = plans
        self._workers = workers

    def queues_with_open_tasks(self) -> list[str]:
        """The queues with tasks that are not settled."""
        t = self.database.tables.task
        unclaimed = queues_where(t, CLAIMABLE)
        running = select(t.c.queue).where(found(t.c.state, State.RUNNING)).distinct()
        return self.database.ask(lambda tx: sorted({*tx.execute(unclaimed).scalars(), *tx.execute(running).scalars()}))

    def open_tasks(
        self, queue: str, *, is_running: bool, after: OpenTask | None = None, limit: int = 1000
    ) -> list[OpenTask]:
        """The tasks of a queue that run, or those that are still to be claimed: a page at a time, after the last one.

        One that changes its state between two pages may be met twice, or not at all.
        """
        c = self.database.tables.task.c
        if is_running:
            rest: list[ColumnElement[bool]] = [] if after is None else [c.id > after.task_id]
            page = (
                self._open().where(found(c.state, State.RUNNING), c.queue == queue, *rest).order_by(c.id).limit(limit)
            )
            return self.database.ask(partial(_page, page))
        tasks: list[OpenTask] = []
        # one state after the other: each page is one range of the index
        for state in (State.WAITING, State.READY):
            if after is not None and after.state is State.READY and state is State.WAITING:
                continue
            rest = []
            if after is not None and after.state is state:
                rest = [c.due_at >= after.due_at, or_(c.due_at > after.due_at, c.id > after.task_id)]
            page = (
                self._open()
                .where(found(c.state, *CLAIMABLE), found(c.state, state), c.queue == queue, *rest)
                .order_by(c.due_at, c.id)
                .limit(limit - len(tasks))
            )
            tasks += self.database.ask(partial(_page, page))
            if len(tasks) >= limit:
                break
        return tasks

    def open_among(self, task_ids: Sequence[str]) -> dict[str, OpenTask]:
        """Those of these tasks that are not settled."""
        ids = sorted({one for one in task_ids if codec.is_task_id(one)})
        c = self.database.tables.task.c
        answer: dict[str, OpenTask] = {}
        for start in range(0, len(ids), 500):
            page = self._open().where(c.id.in_(ids[start : start + 500]), guarded(c.state, *CLAIMABLE, State.RUNNING))
            answer |= {one.task_id: one for one in self.database.ask(partial(_page, page))}
        return answer

    def marker_sent_at(self, queue: str, band: int) -> datetime | None:
        """When the newest marker of a line was sent; None when it has none."""
        m = self.database.tables.marker
        newest = select(m.c.sent_at).where(m.c.queue == queue, m.c.band == band).order_by(m.c.sent_at.desc()).limit(1)
        sent_at: datetime | None = self.database.ask(lambda tx: tx.execute(newest).scalar())
        return sent_at

    def has_marker_returned(self, queue: str, band: int, *, since: datetime) -> bool:
        """Whether a marker sent then or later has come back: whatever was confirmed before has left the line."""
        m = self.database.tables.marker
        back = (
            select(m.c.id)
            .where(m.c.queue == queue, m.c.band == band, m.c.sent_at >= since, m.c.returned_at.is_not(None))
            .limit(1)
        )
        return self.database.ask(lambda tx: tx.execute(back).first()) is not None

    def markers_voided(self, queue: str, *, since: datetime) -> int:
        """The order of a queue was disturbed, from `since` until now: markers that were on their way prove nothing.

        Those that are out, or came back since then, are dropped. Answers how many. Repeatable.
        """
        m = self.database.tables.marker
        disturbed = or_(m.c.returned_at.is_(None), m.c.returned_at >= since)
        return self.database.written(delete(m).where(m.c.queue == queue, disturbed, m.c.closed_at.is_(None)))

    def return_unheld(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that still run under the same claim are returned at no charge, though their worker lives.

        Only for what nobody holds: a worker that runs one all the same settles it as a late result. As with plans, each
        has an event `manual` with `by`.
        """

        def why_not(planned: Fence, row: Any) -> str | None:
            if (why := moved(planned, fence_of(row))) is not None:
                return why
            return None if row.state == State.RUNNING else f"it is {row.state}"

        def change(tx: Connection, rows: Sequence[Row[Any]]) -> list[Unpublished]:
            hints: list[Unpublished] = []
            for worker in dict.fromkeys(row.worker for row in rows):
                verdicts = verdicts_of([row for row in rows if row.worker == worker], FORGOTTEN, is_all=False)
                hints.extend(
                    self._workers.reclaim(tx, verdicts, worker, certificate_of(None, FORGOTTEN, verdicts)).hints
                )
            return hints

        return self._plans.decide(self._plans.claims(), fences, why_not, change, by)

    def _open(self) -> Select[Any]:
        c = self.database.tables.task.c
        return select(
            c.id,
            c.queue,
            c.state,
            c.attempt,
            c.worker,
            c.due_at,
            c.queued_at,
            c.published_at,
            c.relay_until,
            c.expires_at,
            self.database.now().label("now"),
        )


def _page(query: Select[Any], tx: Connection) -> list[OpenTask]:
    return [_open_task(row) for row in tx.execute(query)]


def _open_task(row: Row[Any]) -> OpenTask:
    return OpenTask(
        task_id=row.id,
        queue=row.queue,
        state=State(row.state),
        attempt=row.attempt,
        worker=row.worker,
        due_at=row.due_at,
        queued_at=row.queued_at,
        published_at=row.published_at,
        reserved_until=row.relay_until,
        now=row.now,
        expires_at=row.expires_at,
    )
