"""Begin: a job is recorded with the task that reads its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workq.enqueue.producer import Producer
from workq.jobs.values import Begun, NewJob
from workq.ledger import HintRows, Unpublished

if TYPE_CHECKING:
    from workq.jobs.ledger.sql import JobLedger


def begin_job(new: NewJob, producer: Producer, jobs: JobLedger) -> Begun:
    """Record a job, and see to the hint of its splitter.

    Raises:
        Refused: the other of its name and key has not ended, and this one was to be refused then; or this is inside of
            a handler's transaction.
    """
    producer.check_outside("begin the job before it")

    def write(hints: HintRows | None) -> tuple[Begun, list[Unpublished]]:
        begun = jobs.jobs.begin_job(new, hints=hints)
        return begun, list(begun.hints)

    return producer.record_by(write)
