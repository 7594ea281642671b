"""A job that a command is about, and how it looks in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workq.errors import NotFound
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.progress import left_s
from workq.jobs.values import JobRow
from workq.values import codec

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


def job_of(ledger: Ledger, job_id: str) -> JobRow:
    """A job that is there."""
    found = ledger.part(JobLedger).questions.job(job_id)
    if found is None:
        raise NotFound(f"no job {job_id}; list them with: workq job ls")
    return found


def document(found: JobRow) -> dict[str, Any]:
    """A job as JSON."""
    return {
        "id": found.id,
        "name": found.name,
        "key": found.key,
        "state": found.state,
        "params": codec.decode(found.params)["k"],
        "total": found.total,
        "split": found.split,
        "is_split": found.is_split,
        "done": found.done,
        "succeeded": found.succeeded,
        "failed": found.failed,
        "skipped": found.skipped,
        "cancelled": found.cancelled,
        "retried": found.retried,
        "results": found.results,
        "subtasks": found.subtasks,
        "open_subtasks": found.open_subtasks,
        "rate": found.rate,
        "rate_max": found.rate_max,
        "left_s": left_s(total=found.total, done=found.done, rate=found.rate),
        "ran_s": found.ran_s,
        "paused_s": found.paused_s,
        "created_at": found.created_at,
        "started_at": found.started_at,
        "ended_at": found.ended_at,
        "who": found.who,
        "why": found.why,
        "error": found.error,
        "parent": found.parent_id,
        "failed_of": found.options.failed_of,
        "retried_by": found.options.retried_by,
    }
