"""What a person decides about a job: pause, resume, cancel, throttle it, run again what has failed of it."""

from __future__ import annotations

from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import Begun, IfRunning, JobRow
from workq.operations import Announce
from workq.stores import Stores


def pause(stores: Stores, job_id: str, *, who: str, why: str, is_forced: bool = False) -> JobRow:
    """Start none of its subtasks until it is resumed. What runs goes on; `is_forced`: that is not waited for.

    Raises:
        NotFound: no such job. Refused: it has ended.
    """
    return stores.ledger.part(JobLedger).decisions.pause_job(job_id, who=who, why=why, is_forced=is_forced)


def resume(stores: Stores, job_id: str, *, who: str, why: str, announce: Announce) -> tuple[JobRow | None, int]:
    """Let a paused job go on, or one whose source has failed, where it was in it; answers how many hints that needs.

    None: its row is gone, and its subtasks go on like any other task.

    Raises:
        NotFound: no such job. Refused: it has ended otherwise.
    """
    job, hints = stores.ledger.part(JobLedger).decisions.resume_job(job_id, who=who, why=why)
    announce(hints)
    return job, len(hints)


def cancel(stores: Stores, job_id: str, *, who: str, why: str, announce: Announce, is_forced: bool = False) -> JobRow:
    """Start nothing of it any more. What runs is asked to stop; `is_forced`: that is not waited for.

    Raises:
        NotFound: no such job. Refused: it has ended.
    """
    job, hints = stores.ledger.part(JobLedger).decisions.cancel_job(job_id, who=who, why=why, is_forced=is_forced)
    announce(hints)
    return job


def throttle(
    stores: Stores, job_id: str, *, items_per_s: float | None, who: str, why: str, announce: Announce
) -> JobRow:
    """At most so many items a second from now on, or as fast as it can (None), also for what is waiting already.

    Raises:
        NotFound: no such job. Refused: it has ended.
    """
    job, hints = stores.ledger.part(JobLedger).decisions.throttle_job(job_id, rate_max=items_per_s, who=who, why=why)
    announce(hints)
    return job


def retry(
    stores: Stores,
    job_id: str,
    *,
    who: str,
    why: str,
    announce: Announce,
    chunk: int | None = None,
    items_per_s: float | None = None,
    if_running: IfRunning = IfRunning.REFUSE,
) -> Begun:
    """Begin a job over the failed items of one that has ended, with its parameters and what follows its end.

    `chunk`: items of one subtask; by default as before.

    Raises:
        NotFound: no such job.
        Refused: it has not ended, nothing of it has failed, or another runs these items again or has done so.
    """
    begun = stores.ledger.part(JobLedger).jobs.retry_job(
        job_id, chunk=chunk, rate_max=items_per_s, if_running=if_running, who=who, why=why, hints=None
    )
    announce(begun.hints)
    return begun
