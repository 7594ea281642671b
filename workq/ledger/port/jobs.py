"""The port of the ledger: jobs, their subtasks and their counts.

What holds for all of it is said in `workq/ledger/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection

from workq.jobs.values import (
    Begun,
    Bookmark,
    FailedGroup,
    IfRunning,
    JobRow,
    JobState,
    NewJob,
    NewStep,
    SlowSubtask,
    Split,
    Stepped,
    Tended,
)
from workq.ledger.answers import HintRows, PrunedJobs, Unpublished
from workq.values.task import Claim, FailedItem, NewSubtask, Result


class Jobs(Protocol):
    """This part of what every ledger promises."""

    def begin_job(self, job: NewJob, *, hints: HintRows | None = None) -> Begun:
        """Record a job with the task that reads its source, in one transaction. Repeatable.

        While another of its name and key has not ended, `job.if_running` says what becomes of it.

        Raises:
            Refused: the other one has not ended, and this one was to be refused then.
        """
        ...

    def retry_job(
        self, job_id: str, *, chunk: int | None, rate_max: float | None, if_running: IfRunning, hints: HintRows | None
    ) -> Begun:
        """Begin a job over the failed items of one that has ended, with its parameters, and what follows its end.

        `chunk`: other than that one's. Items that no subtask could carry are left out.

        Raises:
            NotFound: there is no such job.
            Refused: it has not ended, nothing of it has failed, or another job runs these items again or has done so
                (not one that was cancelled or has failed); or as `begin_job`.
        """
        ...

    def split_job(
        self,
        job_id: str,
        subtasks: Sequence[NewSubtask],
        *,
        after: int,
        cursor: Any,
        is_last: bool,
        failed: Sequence[FailedItem] = (),
        total: int | None = None,
        hints: HintRows | None = None,
    ) -> Split:
        """Record a page of subtasks and the cursor behind it, in one transaction, if `after` of them were made before.

        `failed`: items of it that no subtask can carry. Answers how many subtasks may be made now; None, and nothing is
        recorded, when the job stands elsewhere, or does not run: it may be paused. `is_last`: its source is read to the
        end. Repeatable.
        """
        ...

    def bookmark(self, claim: Claim) -> Bookmark:
        """Where the partition of a claim goes on. Refused: nobody knows, because its subtask was removed."""
        ...

    def step(
        self, claim: Claim, new: NewStep, *, on_stood: Callable[[Stepped], None]
    ) -> AbstractContextManager[Connection]:
        """As `transaction`, of a partition: the block's writes, the cursor and the count of items stand, or nothing.

        The task keeps running, with its whole budget again; or it has succeeded, if nothing is behind the cursor.
        `on_stood` is told after the commit. Fenced. Once: Refused, if another number of steps stands than it says, or
        the job does not wait for this partition any more (it was cancelled by force).
        """
        ...

    def pause_job(self, job_id: str, *, who: str, why: str, is_forced: bool = False) -> JobRow:
        """Start none of its subtasks any more, and split no further. What runs goes on. Repeatable.

        It is paused when nothing of it runs any more; `is_forced`: at once.
        Here as below: NotFound when there is no such job, Refused when it has ended.
        """
        ...

    def resume_job(self, job_id: str, *, who: str, why: str) -> tuple[JobRow | None, list[Unpublished]]:
        """Let a paused job go on, or one whose source has failed, at its cursor; answers what is to be hinted.

        None: the job's row was removed, and what was parked of it runs as any other task.
        """
        ...

    def cancel_job(
        self, job_id: str, *, who: str, why: str, is_forced: bool = False
    ) -> tuple[JobRow, list[Unpublished]]:
        """Start nothing of it any more, from this moment on; cancel what has not started, ask what runs. Repeatable.

        It is cancelled when nothing of it runs any more; `is_forced`: at once. Answers what is to be hinted.
        """
        ...

    def throttle_job(
        self, job_id: str, *, rate_max: float | None, who: str, why: str
    ) -> tuple[JobRow, list[Unpublished]]:
        """At most so many items a second start from now on, on the average; None: as fast as it can."""
        ...

    def open_jobs(self, *, limit: int) -> list[str]:
        """The jobs that have not ended, or have left something to be cancelled."""
        ...

    def tend_job(self, job_id: str, *, dry_run: bool = False) -> Tended:
        """Do what others have left undone about a job. Repeatable."""
        ...

    def miscounts(self, job_id: str) -> dict[str, tuple[int, int]]:
        """Which counts of a job are not the sums of its subtasks: what the job says, and the sum."""
        ...

    def recount_job(self, job_id: str, *, by: Mapping[str, Any]) -> list[Unpublished]:
        """Put the sums of its subtasks in the place of a job's counts, where they differ; answers hints to send."""
        ...

    def prune_jobs(
        self, *, limit: int, retention_s: float, dead_retention_s: float, dry_run: bool = False
    ) -> PrunedJobs:
        """Remove jobs that ended so long ago (`dead_retention_s`: with failures); answers how many rows that were."""
        ...

    def job(self, job_id: str) -> JobRow | None:
        """One job, in one read, or None."""
        ...

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
        ...

    def recent_jobs(self, *, within_s: float, limit: int) -> list[JobRow]:
        """Jobs that have not ended, or did so since then; from the newest."""
        ...

    def failed_groups(self, job_id: str, *, limit: int) -> list[FailedGroup]:
        """What its items have failed of, the most frequent first."""
        ...

    def slowest_subtasks(self, job_id: str, *, limit: int) -> list[SlowSubtask]:
        """Those whose last attempt took longest, the slowest first. Reads all of the job's."""
        ...

    def failed_items(
        self, job_id: str, *, after: int = 0, limit: int = 1000, of_subtasks: bool = False
    ) -> list[tuple[int, FailedItem]]:
        """A page of the items that have failed for good, in the order in which they did, each with its number.

        `of_subtasks`: only those that a subtask could carry.
        """
        ...

    def job_results(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[tuple[int, Result]]:
        """A page of the results that are kept of its items, in the order in which they came, each with its number."""
        ...
