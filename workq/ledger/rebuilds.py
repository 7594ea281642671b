"""The ledger's part of a rebuild (recovery/rebuild.py): what is unclaimed, page by page, and that it needs a hint.

A page is read in the order of the index `task_open`, once for each state, so that a backlog of a million rows is read
once. Waiting rows are read first: a task that is promoted between the two reads is found by the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, delete, func, not_, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import Fence, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, found, guarded
from workq.ledger.plan_guard import fence_of
from workq.ledger.workers import RESERVED_S, queues_where, unpublished
from workq.values import codec
from workq.values.task import State


class Rebuilding:
    """The part of the ledger from which a broker is filled again."""

    database: Database
    reserved_s: float = RESERVED_S

    def open_queues(self) -> list[str]:
        """The queues with tasks that are ready or waiting."""
        t = self.database.tables.task
        query = queues_where(t, found(t.c.state, *CLAIMABLE))
        return self.database.ask(lambda tx: sorted(tx.execute(query).scalars()))

    def unclaimed(self, queue: str, *, before: datetime) -> int:
        """How many tasks of a queue are ready or waiting since `before`, without a hint that was confirmed later."""
        t = self.database.tables.task
        query = (
            select(func.count())
            .select_from(t)
            .where(found(t.c.state, *CLAIMABLE), t.c.queue == queue, *self._unhinted(before))
        )
        return self.database.ask(lambda tx: int(tx.execute(query).scalar_one()))

    def unclaimed_page(
        self, queue: str, *, before: datetime, after: tuple[datetime, str] | None, limit: int
    ) -> list[Fence]:
        """Those tasks in the order in which they are due, a page at a time: `after` is the last of the page before."""
        t = self.database.tables.task
        columns = select(
            t.c.id,
            t.c.queue,
            t.c.state,
            t.c.attempt,
            t.c.token,
            t.c.worker,
            t.c.due_at,
            t.c.queued_at,
            t.c.published_at,
        )

        def of(state: State) -> Select[Any]:
            chosen = columns.where(
                found(t.c.state, *CLAIMABLE), found(t.c.state, state), t.c.queue == queue, *self._unhinted(before)
            )
            if after is not None:
                due_at, task_id = after
                chosen = chosen.where(
                    t.c.due_at >= due_at, or_(t.c.due_at > due_at, and_(t.c.due_at == due_at, t.c.id > task_id))
                )
            return chosen.order_by(t.c.due_at, t.c.id).limit(limit)

        def look(tx: Connection) -> list[Any]:
            waiting = tx.execute(of(State.WAITING)).all()
            return [*waiting, *tx.execute(of(State.READY)).all()]

        by_id = {row.id: row for row in self.database.ask(look)}
        rows = sorted(by_id.values(), key=lambda row: (row.due_at, row.id))
        return [fence_of(row) for row in rows[:limit]]

    def renew(self, task_ids: Sequence[str], *, before: datetime) -> list[Unpublished]:
        """Those of these tasks that are still unclaimed, and have no hint that was confirmed after `before`.

        They are unpublished, and reserved as by `take_unpublished`; answered in the order in which they are due.
        """
        ids = sorted({one for one in task_ids if codec.is_task_id(one)})
        if not ids:
            return []
        t, now = self.database.tables.task, self.database.now
        still = [
            t.c.id.in_(ids),
            guarded(t.c.state, *CLAIMABLE),
            *self._unhinted(before),
            or_(t.c.relay_until.is_(None), t.c.relay_until <= now()),
        ]
        locked = (
            select(t.c.id, t.c.queue, t.c.attempt, t.c.due_at, now().label("now"))
            .where(*still)
            .order_by(t.c.id)
            .with_for_update(skip_locked=True)
        )

        def take(tx: Connection) -> list[Any]:
            rows = list(tx.execute(locked))
            if rows:
                tx.execute(
                    update(t)
                    .where(t.c.id.in_([row.id for row in rows]), *still[1:])
                    .values(published_at=None, relay_until=now(self.reserved_s))
                )
            return rows

        return unpublished(sorted(self.database.run(take), key=lambda row: (row.due_at, row.id)))

    def markers_dropped(self, queue: str) -> int:
        """Forget the markers of a queue that are out: they will not come back. Answers how many. Repeatable."""
        m = self.database.tables.marker
        out = delete(m).where(m.c.queue == queue, m.c.returned_at.is_(None))
        dropped: int = self.database.run(lambda tx: tx.execute(out).rowcount)
        return dropped

    def _unhinted(self, before: datetime) -> list[ColumnElement[bool]]:
        """It waits since then, and no hint was confirmed later. A hint that was sent with a delay has a later stamp."""
        t, now = self.database.tables.task, self.database.now
        is_sent_since = and_(t.c.published_at > before, t.c.published_at <= now())
        return [t.c.queued_at <= before, or_(t.c.published_at.is_(None), not_(is_sent_since))]
