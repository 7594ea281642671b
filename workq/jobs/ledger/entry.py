"""The job's entry rule: what a job has counted is not sent back by anybody but the job."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.sql.elements import ColumnElement

from workq.jobs.ledger.tables import job_tables
from workq.ledger.engine.database import Database
from workq.ledger.entry import EntryRule, KeyedTask


class JobEntry(EntryRule):
    """What jobs have to say when a task of theirs is sent back."""

    def bars(self, database: Database) -> ColumnElement[bool]:
        """Those whose job is there: it has counted the task's end, and does not count another."""
        t, j = database.tables.task, job_tables(database).job
        return select(j.c.id).where(j.c.id == t.c.job_id).exists()

    def why_barred(self, task: KeyedTask) -> str | None:
        if task.job_id is None:
            return None
        return (
            f"task {task.id} is of job {task.job_id}, which has counted its items; to run those that failed again: "
            f"workq job retry {task.job_id}; to read its source again: workq job resume {task.job_id}"
        )
