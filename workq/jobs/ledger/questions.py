"""Showing: jobs as they stand, and the items that have failed for good. Reads only."""

from __future__ import annotations

from collections.abc import Collection
from heapq import nlargest
from typing import Any

from sqlalchemy import Connection, bindparam, func, or_, select

from workq.jobs.ledger.changes import options_of
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import FailedGroup, JobRow, JobState, SlowSubtask
from workq.ledger.engine.database import Database
from workq.values import codec
from workq.values.task import FailedItem, Result


class JobQuestions:
    """Read-only questions about jobs."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def job(self, job_id: str) -> JobRow | None:
        """One job, in one read, or None."""
        if not codec.is_task_id(job_id):
            return None
        j = job_tables(self.database).job
        query = select(j, self.database.now().label("now")).where(j.c.id == job_id)
        row = self.database.ask(lambda tx: tx.execute(query).first())
        return None if row is None else _job(row)

    def jobs(
        self,
        *,
        name: str | None = None,
        parent_id: str | None = None,
        states: Collection[JobState] = (),
        limit: int = 100,
        after: str | None = None,
    ) -> list[JobRow]:
        """Jobs by id from the newest, a page at a time: `after` is the last id of the page before.

        `parent_id`: only those that are nested in this one.
        """
        j = job_tables(self.database).job
        query = select(j, self.database.now().label("now")).order_by(j.c.id.desc()).limit(limit)
        if name is not None:
            query = query.where(j.c.name == name)
        if parent_id is not None:
            query = query.where(j.c.parent_id == parent_id)
        if states:
            query = query.where(j.c.state.in_([state.value for state in states]))
        if after is not None:
            query = query.where(j.c.id < after)
        return [_job(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def recent_jobs(self, *, within_s: float, limit: int) -> list[JobRow]:
        """Jobs that have not ended, or did so since then; from the newest."""
        j, now = job_tables(self.database).job, self.database.now
        query = select(j, now().label("now")).where(or_(j.c.ended_at.is_(None), j.c.ended_at >= now(-within_s)))
        query = query.order_by(j.c.id.desc()).limit(limit)
        return [_job(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def failed_groups(self, job_id: str, *, limit: int) -> list[FailedGroup]:
        """What its items have failed of, the most frequent first."""
        f = job_tables(self.database).failed_item
        groups = (
            select(f.c.fingerprint, func.count().label("n"), func.min(f.c.id).label("first"))
            .where(f.c.job_id == job_id)
            .group_by(f.c.fingerprint)
            .order_by(func.count().desc(), func.min(f.c.id))
            .limit(limit)
        )
        sample = select(f.c.item, f.c.error).where(f.c.id == bindparam("b_id"))

        def look(tx: Connection) -> list[FailedGroup]:
            found = []
            for row in tx.execute(groups).all():
                one = tx.execute(sample, {"b_id": row.first}).one()
                found.append(FailedGroup(row.fingerprint, row.n, one.item, one.error))
            return found

        return self.database.ask(look)

    def slowest_subtasks(self, job_id: str, *, limit: int) -> list[SlowSubtask]:
        """Those whose last attempt took longest, the slowest first. Reads all of the job's."""
        t, s = self.database.tables.task, job_tables(self.database).subtask
        query = (
            select(s.c.task_id, s.c.size, t.c.started_at, t.c.settled_at)
            .join(t, t.c.id == s.c.task_id)
            .where(s.c.job_id == job_id, t.c.settled_at.is_not(None), t.c.started_at.is_not(None))
            .execution_options(yield_per=1000)
        )

        def look(tx: Connection) -> list[SlowSubtask]:
            found = (
                SlowSubtask(row.task_id, row.size, (row.settled_at - row.started_at).total_seconds())
                for row in tx.execute(query)
            )
            return nlargest(limit, found, key=lambda one: one.ran_s)

        return self.database.ask(look)

    def failed_items(
        self, job_id: str, *, after: int = 0, limit: int = 1000, of_subtasks: bool = False
    ) -> list[tuple[int, FailedItem]]:
        """A page of the items that have failed for good, in the order in which they did, each with its number.

        `of_subtasks`: only those that a subtask could carry.
        """
        tables = job_tables(self.database)
        f, s = tables.failed_item, tables.subtask
        query = (
            select(f, s.c.step_cursor)
            .outerjoin(s, s.c.task_id == f.c.task_id)
            .where(f.c.job_id == job_id, f.c.id > after)
            .order_by(f.c.id)
            .limit(limit)
        )
        if of_subtasks:
            query = query.where(f.c.task_id.is_not(None))
        return [
            (row.id, FailedItem(row.item, row.failures, row.error, row.fingerprint, row.step_cursor))
            for row in self.database.ask(lambda tx: tx.execute(query).all())
        ]

    def job_results(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[tuple[int, Result]]:
        """A page of the results that are kept of its items, in the order in which they came, each with its number."""
        r = job_tables(self.database).job_result
        query = select(r).where(r.c.job_id == job_id, r.c.id > after).order_by(r.c.id).limit(limit)
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [(row.id, Result(row.item, row.value, row.note)) for row in rows]


def _job(row: Any) -> JobRow:
    state = JobState(row.state)
    paused_s = row.paused_s
    if state in (JobState.PAUSING, JobState.PAUSED) and row.paused_at is not None:
        paused_s += (row.now - row.paused_at).total_seconds()
    return JobRow(
        id=row.id,
        name=row.name,
        key=row.job_key,
        state=state,
        state_at=row.state_at,
        params=row.params,
        options=options_of(row.options),
        split_task=row.split_task,
        cursor=None if row.source_cursor is None else codec.decode(row.source_cursor),
        is_split=bool(row.is_split),
        total=row.total,
        split=row.split,
        succeeded=row.succeeded,
        failed=row.failed,
        skipped=row.skipped,
        cancelled=row.cancelled,
        retried=row.retried,
        results=row.results,
        subtasks=row.subtasks,
        read_subtasks=row.read_subtasks,
        open_subtasks=row.open_subtasks,
        rate_max=row.rate_max,
        rate=row.rate,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        paused_s=paused_s,
        who=row.who,
        why=row.why,
        error=row.error,
        parent_id=row.parent_id,
        now=row.now,
    )
