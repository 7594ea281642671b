"""What only operators ask: where exactly a task stands, and what happened lately. Reads only.

None of it is asked on the path of a task. Each question has a bound of its own, so that asking about a backlog of
millions costs no more than about one of a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, or_, select

from workq.ledger import Company, Standing
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, ENDED, SUSPECT, found
from workq.values import codec
from workq.values.task import Event, State

OLDER_MAX = 100_000
"""How many older tasks are counted at most."""
IDS_AT_ONCE = 500
_NOT_ASKED = ("token", "payload", "result")


class Reporting:
    """The part of the ledger that answers operators."""

    database: Database

    def standings(self, task_ids: Iterable[str]) -> dict[str, Standing]:
        """Where these tasks stand in every detail; an id that the ledger does not know is missing in the answer."""
        wanted = sorted({one for one in task_ids if codec.is_task_id(one)})
        t = self.database.tables.task
        columns = select(*(column for column in t.c if column.name not in _NOT_ASKED), self.database.now().label("now"))
        answer: dict[str, Standing] = {}
        for start in range(0, len(wanted), IDS_AT_ONCE):
            query = columns.where(t.c.id.in_(wanted[start : start + IDS_AT_ONCE]))
            answer |= {row.id: _standing(row) for row in self.database.ask(partial(_all, query))}
        return answer

    def older(self, than: Standing) -> int:
        """How many tasks of the same queue could be claimed and were due before this one; counted up to 100,000."""
        t = self.database.tables.task
        is_before = or_(t.c.due_at < than.due_at, (t.c.due_at == than.due_at) & (t.c.id < than.task_id))
        before = (
            select(t.c.id)
            .where(found(t.c.state, *CLAIMABLE), t.c.queue == than.queue, t.c.due_at <= than.due_at, is_before)
            .limit(OLDER_MAX)
            .subquery()
        )
        count = select(func.count()).select_from(before)
        return self.database.ask(lambda tx: int(tx.execute(count).scalar_one()))

    def company(self, of: Standing) -> Company:
        """Which other tasks the same worker has claimed and not settled."""
        t = self.database.tables.task
        query = (
            select(func.count(), func.coalesce(func.sum(case((t.c.is_suspect >= SUSPECT, 1), else_=0)), 0))
            .select_from(t)
            .where(found(t.c.state, State.RUNNING), t.c.worker == of.worker, t.c.id != of.task_id)
        )
        others, suspects = self.database.ask(lambda tx: tx.execute(query).one())
        return Company(int(others), int(suspects))

    def occupied(self, workers: Iterable[str]) -> dict[str, int]:
        """How many tasks each of these workers has claimed and not settled; a worker without any is missing."""
        t = self.database.tables.task
        query = (
            select(t.c.worker, func.count().label("tasks"))
            .where(found(t.c.state, State.RUNNING), t.c.worker.in_(sorted(set(workers))))
            .group_by(t.c.worker)
        )
        return {row.worker: int(row.tasks) for row in self.database.ask(partial(_all, query))}

    def happened(self, kinds: Collection[str], *, within_s: float, limit: int) -> list[Event]:
        """The newest events of these kinds, at most `limit` and `within_s` seconds old; the oldest first."""
        e = self.database.tables.event
        query = (
            select(e.c.at, e.c.kind, e.c.task_id, e.c.attempt, e.c.worker, e.c.detail)
            .where(e.c.at >= self.database.now(-within_s), e.c.kind.in_(sorted(kinds)))
            .order_by(e.c.at.desc(), e.c.id.desc())
            .limit(limit)
        )
        return [
            Event(row.at, row.kind, row.task_id, row.attempt, row.worker, codec.decode(row.detail))
            for row in reversed(self.database.ask(partial(_all, query)))
        ]

    def begun(self, *, within_s: float) -> int:
        """How many tasks have succeeded within these seconds, or run now: attempts of which no event tells."""
        t = self.database.tables.task
        of_tasks = select(func.count()).select_from(t)
        # both: SQLite proves the index by the first
        succeeded = of_tasks.where(
            found(t.c.state, *ENDED), found(t.c.state, State.SUCCEEDED), t.c.settled_at >= self.database.now(-within_s)
        )
        running = of_tasks.where(found(t.c.state, State.RUNNING))
        return self.database.ask(
            lambda tx: int(tx.execute(succeeded).scalar_one()) + int(tx.execute(running).scalar_one())
        )

    def swept_for_s(self) -> float | None:
        """How long ago a sweep last finished a pass; None when it is not known."""
        m = self.database.tables.meta
        query = select(m.c.at, self.database.now().label("now")).where(m.c.name == "swept")
        row = self.database.ask(lambda tx: tx.execute(query).first())
        return None if row is None else float((row.now - row.at).total_seconds())


def _all(query: Select[Any], tx: Connection) -> list[Row[Any]]:
    return list(tx.execute(query).all())


def _standing(row: Row[Any]) -> Standing:
    return Standing(
        task_id=row.id,
        name=row.name,
        queue=row.queue,
        state=State(row.state),
        attempt=row.attempt,
        failures=row.failures,
        failures_max=row.failures_max,
        is_suspect=row.is_suspect >= SUSPECT,
        worker=row.worker,
        error=row.error,
        reason=row.reason,
        now=row.now,
        due_at=row.due_at,
        queued_at=row.queued_at,
        published_at=row.published_at,
        reserved_until=row.relay_until,
        started_at=row.started_at,
        settled_at=row.settled_at,
        cancel_requested_at=row.cancel_requested_at,
        expires_at=row.expires_at,
        order_key=row.order_key,
        limit_key=row.limit_key,
        job_id=row.job_id,
    )
