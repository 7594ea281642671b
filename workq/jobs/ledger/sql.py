"""What jobs keep in the ledger, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workq.jobs.ledger.care import JobCare
from workq.jobs.ledger.counts import JobCounts
from workq.jobs.ledger.decisions import JobDecisions
from workq.jobs.ledger.jobs import Jobs
from workq.jobs.ledger.questions import JobQuestions
from workq.jobs.ledger.settle import SubtaskCounter
from workq.jobs.ledger.steps import CommittedSteps

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


class JobLedger:
    """Jobs in one ledger: `ledger.part(JobLedger)`."""

    def __init__(self, ledger: Ledger) -> None:
        database, history, tasks = ledger.database, ledger.history, ledger.tasks
        counts = JobCounts(database, tasks=tasks, history=history)
        self.questions = JobQuestions(database)
        self.care = JobCare(
            database,
            tasks=tasks,
            job_counts=counts,
            bulk=ledger.bulk,
            history=history,
            reserved_s=ledger.reserved_s,
            cancel_nested=lambda job_id: self.decisions.cancel_nested(job_id),  # which is made next, of this
        )
        self.decisions = JobDecisions(
            database, job_care=self.care, job_questions=self.questions, job_counts=counts, history=history
        )
        self.jobs = Jobs(
            database,
            job_counts=counts,
            tasks=tasks,
            job_questions=self.questions,
            history=history,
            job_decisions=self.decisions,
            job_care=self.care,
        )
        self.counter = SubtaskCounter(database, job_counts=counts, job_care=self.care)
        self.steps = CommittedSteps(ledger, job_counts=counts, job_care=self.care)
