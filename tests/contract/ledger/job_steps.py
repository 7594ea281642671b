"""What the tests of jobs share: a job that has begun, its subtasks that run, and how it stands."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.given import chunks, new_job
from tests.contract.ledger.steps import Steps
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import Callback, Ending, IfRunning, JobOptions, JobRow, NewJob
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, FailedItem

WHO: dict[str, Any] = {"who": "eve@host", "why": "?"}
AGAIN: dict[str, Any] = {"rate_max": None, "if_running": IfRunning.REFUSE, **WHO, "hints": None}
"""How `retry_job` is called, where only the job matters."""
CALLBACKS = tuple(Callback(when, f"on.{when}", "default") for when in Ending)
OPTIONS = JobOptions(queue="default", chunk=10, window=4, callbacks=CALLBACKS)
BAD = FailedItem("3", 5, "ValueError: boom", "f" * 16)


def job_of(options: JobOptions = OPTIONS, **facts: Any) -> NewJob:
    """A job to begin."""
    return new_job(options, **facts)


class JobSteps(Steps):
    @pytest.fixture
    def job(self, ledger: Ledger) -> NewJob:
        """A job that has just begun."""
        job = job_of()
        ledger.part(JobLedger).jobs.begin_job(job)
        return job

    @staticmethod
    def stands(ledger: Ledger, job: NewJob) -> JobRow:
        row = ledger.part(JobLedger).questions.job(job.id)
        assert row is not None
        return row

    @staticmethod
    def split(ledger: Ledger, job: NewJob, count: int, *, after: int = 0, is_last: bool = False) -> list[str]:
        """A page of so many subtasks."""
        page = chunks(count)
        split = ledger.part(JobLedger).jobs.split_job(
            job.id, page, after=after, cursor=10 * (after + count), is_last=is_last
        )
        assert split.room is not None
        return [one.task_id for one in page]

    def running(self, ledger: Ledger, worker: Incarnation, job: NewJob, count: int, **facts: Any) -> list[Claim]:
        """So many subtasks, which run."""
        ids = self.split(ledger, job, count, **facts)
        claims = ledger.claims.claim(ids, by=worker.id)
        assert len(claims) == count
        return claims

    @staticmethod
    def followers(ledger: Ledger) -> list[str]:
        """What was enqueued because a job has ended."""
        return sorted(task.name for task in ledger.questions.tasks() if task.name.startswith("on."))
