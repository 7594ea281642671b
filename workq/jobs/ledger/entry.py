"""The job's entry rule: what a job has counted is not sent back by anybody but the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database
from workq.ledger.entry import KeyedTask
from workq.values.task import NewTask


class JobEntry:
    """What jobs have to say when a task of theirs is sent back."""

    def enter(self, _tx: Connection, _database: Database, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        return tasks

    def comes_back(self, _tx: Connection, _database: Database, _task: KeyedTask) -> bool:
        return True

    def keeps_its_time(self, _tx: Connection, _database: Database, _task: KeyedTask) -> str | None:
        return None

    def bars(self, database: Database) -> ColumnElement[bool]:
        """Those whose job is there: it has counted the task's end, and does not count another."""
        t, j = database.tables.task, database.tables.job
        return select(j.c.id).where(j.c.id == t.c.job_id).exists()

    def why_barred(self, task: KeyedTask) -> str | None:
        if task.job_id is None:
            return None
        return (
            f"task {task.id} is of job {task.job_id}, which has counted its items; to run those that failed again: "
            f"workq job retry {task.job_id}; to read its source again: workq job resume {task.job_id}"
        )

    def goes_on(self, _database: Database, _queues: Sequence[str]) -> Sequence[Select[Any]]:
        return ()
