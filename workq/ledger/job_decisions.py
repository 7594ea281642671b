"""Nesting: jobs in jobs. One that was begun in the handler of another ends before it, and obeys what that one is told.

It has the other's id as `parent_id`. A job ends when all of its subtasks and all that is nested in it have ended (see
job_counts.py), and has failures when one of those has. When a nested one ends, the other is looked at after the commit;
a sweep does it for whoever died in between.

A pause reaches the nested jobs one after the other: whoever dies on the way pauses again. A cancel reaches them when
the other's subtasks are withdrawn, which a sweep repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from workq.errors import NotFound, Refused
from workq.jobs.values import JOB_ENDED, JOB_PAUSES, JOB_UNWANTED, Begun, JobRow, JobState, NewJob
from workq.ledger import HintRows, Unpublished
from workq.ledger.history import BY_ITSELF
from workq.ledger.jobs import Running

_OPEN = tuple(state for state in JobState if state not in JOB_ENDED)
_MOST = 10_000
"""Of nested jobs in one go: a sweep goes on with the others."""


class Nesting(Running):
    """The part of the ledger that keeps nested jobs together."""

    def begin_job(self, job: NewJob, *, hints: HintRows | None = None, said: Mapping[str, str] | None = None) -> Begun:
        """Record a job with the task that reads its source, in one transaction. Repeatable.

        While another of its name and key has not ended, `job.if_running` says what becomes of it.

        Raises:
            Refused: the other one has not ended, and this one was to be refused then.
        """
        begun = super().begin_job(job, hints=hints, said=said)
        outer = None if job.parent_id is None or not begun.created else self.job(job.parent_id)
        if outer is not None and outer.state in JOB_PAUSES:
            self.pause_job(begun.id, who=outer.who or "", why=outer.why or "")
        return begun

    def pause_job(self, job_id: str, *, who: str, why: str, is_forced: bool = False) -> JobRow:
        """Start none of its subtasks any more, and split no further. What runs goes on. Repeatable.

        It is paused when nothing of it runs any more; `is_forced`: at once.
        Here as below: NotFound when there is no such job, Refused when it has ended.
        """
        paused = super().pause_job(job_id, who=who, why=why, is_forced=is_forced)
        for nested in self._nested_in(job_id):
            with suppress(Refused, NotFound):  # it has ended meanwhile
                self.pause_job(nested.id, who=who, why=why, is_forced=is_forced)
        return paused

    def resume_job(self, job_id: str, *, who: str, why: str) -> tuple[JobRow | None, list[Unpublished]]:
        """Let a paused job go on, or one whose source has failed, at its cursor; answers what is to be hinted.

        None: the job's row was removed, and what was parked of it runs as any other task.
        """
        resumed, hints = super().resume_job(job_id, who=who, why=why)
        for nested in self._nested_in(job_id):
            if nested.state in JOB_PAUSES:
                with suppress(Refused, NotFound):
                    hints += self.resume_job(nested.id, who=who, why=why)[1]
        return resumed, hints

    def cancel_job(
        self, job_id: str, *, who: str, why: str, is_forced: bool = False
    ) -> tuple[JobRow, list[Unpublished]]:
        """Start nothing of it any more, from this moment on; cancel what has not started, ask what runs. Repeatable.

        It is cancelled when nothing of it runs any more; `is_forced`: at once. Answers what is to be hinted.
        """
        job, hints = super().cancel_job(job_id, who=who, why=why, is_forced=is_forced)
        if is_forced and job.state is JobState.CANCELLING:
            hints += self._cancel_nested(job_id, who=who, why=why, is_forced=True)
            job = self.job(job_id) or job
        return job, hints

    def withdraw_job(self, job_id: str, *, limit: int) -> list[Unpublished]:
        hints = super().withdraw_job(job_id, limit=limit)
        job = self.job(job_id)
        if job is None or job.state not in JOB_UNWANTED:
            return hints
        return hints + self._cancel_nested(job_id, who=BY_ITSELF, why=f"it is nested in job {job_id}", is_forced=False)

    def _cancel_nested(self, job_id: str, *, who: str, why: str, is_forced: bool) -> list[Unpublished]:
        hints: list[Unpublished] = []
        for nested in self._nested_in(job_id):
            if is_forced or nested.state is not JobState.CANCELLING:
                with suppress(Refused, NotFound):
                    hints += self.cancel_job(nested.id, who=who, why=why, is_forced=is_forced)[1]
        return hints

    def _nested_in(self, job_id: str) -> list[JobRow]:
        """Those that have not ended."""
        return self.jobs(parent_id=job_id, states=_OPEN, limit=_MOST)
