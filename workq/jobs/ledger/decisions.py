"""What people decide about jobs: paused, resumed, cancelled, throttled, and all that is nested in them with them.

A decision of a person changes the job's row, and counts from then on: with each claim the ledger looks whether the job
still runs. What waits of a paused job is parked, due never, as it is met; a cancelled one's is cancelled, at once by
whoever asked for it, and otherwise by a sweep.

A job that was begun in the handler of another ends before it, and obeys what that one is told. It has the other's id as
`parent_id`. A job ends when all of its subtasks and all that is nested in it have ended (see counts.py), and has
failures when one of those has. When a nested one ends, the other is looked at after the commit; a sweep does it for
whoever died in between. A pause reaches the nested jobs one after the other: whoever dies on the way pauses again. A
cancel reaches them when the other's subtasks are withdrawn, which a sweep repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Connection, select

from workq.errors import NotFound, Refused
from workq.jobs.ledger.care import AT_ONCE, JobCare, job_live_key
from workq.jobs.ledger.changes import Change, JobLock, Rest, Wishes
from workq.jobs.ledger.counts import JobCounts, too_many
from workq.jobs.ledger.questions import JobQuestions
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import (
    JOB_ENDED,
    JOB_PAUSES,
    JOB_STARTS,
    JOB_UNWANTED,
    JobRow,
    JobState,
)
from workq.ledger import Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.history import BY_ITSELF, History, who_and_why
from workq.values import codec
from workq.values.task import State

_OPEN = tuple(state for state in JobState if state not in JOB_ENDED)
_MOST = 10_000
"""Of nested jobs in one go: a sweep goes on with the others."""


class JobDecisions:
    """Steers jobs as people want."""

    def __init__(
        self,
        database: Database,
        *,
        job_care: JobCare,
        job_questions: JobQuestions,
        job_counts: JobCounts,
        history: History,
    ) -> None:
        self.database = database
        self._job_care = job_care
        self._job_questions = job_questions
        self._job_counts = job_counts
        self._history = history

    def pause_job(self, job_id: str, *, who: str, why: str, is_forced: bool = False) -> JobRow:
        """Start none of its subtasks any more, and split no further. What runs goes on. Repeatable.

        It is paused when nothing of it runs any more; `is_forced`: at once.
        Here as below: NotFound when there is no such job, Refused when it has ended.
        """
        paused = self._pause_one(job_id, who=who, why=why, is_forced=is_forced)
        for nested in self._nested_in(job_id):
            with suppress(Refused, NotFound):  # it has ended meanwhile
                self.pause_job(nested.id, who=who, why=why, is_forced=is_forced)
        return paused

    def _pause_one(self, job_id: str, *, who: str, why: str, is_forced: bool) -> JobRow:
        """As `pause_job`, of this job alone."""

        def write(tx: Connection, row: JobLock, wishes: Wishes) -> None:
            if row.state in (JobState.PAUSING, JobState.PAUSED):
                if is_forced and row.state is JobState.PAUSING:
                    row.move(JobState.PAUSED)
                    self._job_counts.write_job(tx, row)
                return
            if row.state not in JOB_STARTS:
                raise _refused(row, "paused")
            row.move(JobState.PAUSING)
            row.paused_at = row.now
            self._job_counts.conclude(tx, row, wishes)

        return self._obey(job_id, "paused", write, who=who, why=why)[0]

    def resume_job(self, job_id: str, *, who: str, why: str) -> tuple[JobRow | None, list[Unpublished]]:
        """Let a paused job go on, or one whose source has failed, at its cursor; answers what is to be hinted.

        None: the job's row was removed, and what was parked of it runs as any other task.
        """
        resumed, hints = self._resume_one(job_id, who=who, why=why)
        for nested in self._nested_in(job_id):
            if nested.state in JOB_PAUSES:
                with suppress(Refused, NotFound):
                    hints += self.resume_job(nested.id, who=who, why=why)[1]
        return resumed, hints

    def _resume_one(self, job_id: str, *, who: str, why: str) -> tuple[JobRow | None, list[Unpublished]]:
        """As `resume_job`, of this job alone."""

        def write(tx: Connection, row: JobLock, wishes: Wishes) -> None:
            has_failed = row.error is not None and not row.is_split and row.state is not JobState.FAILING
            if row.state in JOB_STARTS and not has_failed:
                return
            if row.state is JobState.FAILED and has_failed and (why_not := too_many(row, row.options)):
                raise Refused(f"job {row.id} has failed: {why_not}; run those again: workq job retry {row.id} --failed")
            if row.state is JobState.FAILED and has_failed and self._is_over(tx, row.split_task):
                other = tx.execute(select(j.c.id).where(j.c.live_key == job_live_key(row.name, row.job_key))).scalar()
                if other is not None:
                    raise Refused(f"job {row.id}: {other}, of the same name and key, has begun since and has not ended")
                row.live_key, row.ended_at = job_live_key(row.name, row.job_key), None
            elif row.state in (JobState.PAUSING, JobState.PAUSED):
                row.paused_s += (row.now - row.paused_at).total_seconds() if row.paused_at else 0.0
            elif row.state not in JOB_STARTS:
                raise _refused(row, "resumed")
            if has_failed:
                row.error = None
                self._job_care.split_on(tx, row, wishes)
            row.move(JobState.RUNNING if row.subtasks else JobState.PLANNING)
            row.paused_at = row.rated_at = None
            self._job_counts.conclude(tx, row, wishes)

        j = job_tables(self.database).job
        try:
            job, hints = self._obey(job_id, "resumed", write, who=who, why=why)
        except NotFound:  # somebody has removed its row: what was parked of it is to run as any other task
            if codec.is_task_id(job_id) and (hints := self._job_care.unpark(job_id)):
                self._history.note("job", detail={"job": job_id, "what": "unparked", **who_and_why(who, why)})
                return None, hints
            raise
        return job, hints + self._job_care.unpark(job.id)

    def _is_over(self, tx: Connection, task_id: str) -> bool:
        t = self.database.tables.task
        state = tx.execute(select(t.c.state).where(t.c.id == task_id)).scalar()
        return state is None or state == State.DEAD

    def cancel_job(
        self, job_id: str, *, who: str, why: str, is_forced: bool = False
    ) -> tuple[JobRow, list[Unpublished]]:
        """Start nothing of it any more, from this moment on; cancel what has not started, ask what runs. Repeatable.

        It is cancelled when nothing of it runs any more; `is_forced`: at once, and what still runs is not waited for.
        What is not cancelled at once, a sweep cancels. Answers what is to be hinted of what follows.
        """
        job, hints = self._cancel_one(job_id, who=who, why=why, is_forced=is_forced)
        if is_forced and job.state is JobState.CANCELLING:
            hints += self._cancel_nested(job_id, who=who, why=why, is_forced=True)
            job = self._job_questions.job(job_id) or job
        return job, hints

    def _cancel_one(self, job_id: str, *, who: str, why: str, is_forced: bool) -> tuple[JobRow, list[Unpublished]]:
        """As `cancel_job`, of this job alone."""

        def write(tx: Connection, row: JobLock, wishes: Wishes) -> None:
            if row.state in JOB_ENDED:
                raise _refused(row, "cancelled")
            if row.state is not JobState.CANCELLING:
                row.move(JobState.CANCELLING)
            elif not is_forced:
                return
            self._job_counts.conclude(tx, row, wishes)

        job, hints = self._obey(job_id, "cancelled", write, who=who, why=why)
        if is_forced and job.state is JobState.CANCELLING:
            hints += self._give_up(job_id)
        return self._job_questions.job(job_id) or job, hints

    def _give_up(self, job_id: str) -> list[Unpublished]:
        """What is open of a job that is to be cancelled counts as cancelled, whatever it still does."""
        s, wishes = job_tables(self.database).subtask, Wishes()
        is_open = select(s.c.task_id, s.c.attempt).where(s.c.job_id == job_id, s.c.ended_at.is_(None)).limit(AT_ONCE)

        def write(tx: Connection) -> bool:
            row = self._job_counts.locked_job(tx, job_id)
            if row is None or row.state is not JobState.CANCELLING:
                return False
            rows = tx.execute(is_open).all()
            changes = [Change(one.task_id, one.attempt, rest=Rest.CANCELLED) for one in rows]
            self._job_counts.count_locked(tx, row, changes, wishes)
            return len(rows) == AT_ONCE

        while self.database.run(write):
            pass
        return self._job_care.fulfil(wishes)

    def throttle_job(
        self, job_id: str, *, rate_max: float | None, who: str, why: str
    ) -> tuple[JobRow, list[Unpublished]]:
        """At most so many items a second start from now on, on the average; None: as fast as it can.

        What waits for the slot that it had gets another one.
        """

        def write(tx: Connection, row: JobLock, wishes: Wishes) -> None:
            if row.state in JOB_ENDED:
                raise _refused(row, "throttled")
            row.rate_max, row.slot_at = rate_max, None
            self._job_counts.conclude(tx, row, wishes)

        job, hints = self._obey(job_id, "throttled", write, who=who, why=why)
        return job, hints if job.state not in JOB_STARTS else hints + self._job_care.unpark(job_id)

    def cancel_nested(self, job_id: str) -> list[Unpublished]:
        """What is nested in a job that nobody wants any more is cancelled, too; answers what is to be hinted."""
        job = self._job_questions.job(job_id)
        if job is None or job.state not in JOB_UNWANTED:
            return []
        return self._cancel_nested(job_id, who=BY_ITSELF, why=f"it is nested in job {job_id}", is_forced=False)

    def _cancel_nested(self, job_id: str, *, who: str, why: str, is_forced: bool) -> list[Unpublished]:
        hints: list[Unpublished] = []
        for nested in self._nested_in(job_id):
            if is_forced or nested.state is not JobState.CANCELLING:
                with suppress(Refused, NotFound):
                    hints += self.cancel_job(nested.id, who=who, why=why, is_forced=is_forced)[1]
        return hints

    def _nested_in(self, job_id: str) -> list[JobRow]:
        """Those that have not ended."""
        return self._job_questions.jobs(parent_id=job_id, states=_OPEN, limit=_MOST)

    def _obey(
        self, job_id: str, what: str, write: Callable[[Connection, JobLock, Wishes], None], *, who: str, why: str
    ) -> tuple[JobRow, list[Unpublished]]:
        """One decision of a person, under the lock of the job's row, with an event; then what it asks for."""
        wishes = Wishes()

        def change(tx: Connection) -> None:
            wishes.clear()
            row = self._job_counts.locked_job(tx, job_id) if codec.is_task_id(job_id) else None
            if row is None:
                raise NotFound(f"no job {job_id[:100]}; list them with: workq job ls")
            before = row.state, row.rate_max
            said = who_and_why(who, why)
            row.who, row.why = said["who"], said["why"]
            write(tx, row, wishes)
            if (row.state, row.rate_max) != before:
                self._history.append(tx, "job", {"job": job_id, "what": what, **said})

        self.database.run(change)
        hints = self._job_care.fulfil(wishes, limit=10 * AT_ONCE)
        job = self._job_questions.job(job_id)
        if job is None:
            raise NotFound(f"no job {job_id}: it was removed a moment ago")
        return job, hints


def _refused(row: JobLock, what: str) -> Refused:
    return Refused(f"job {row.id} is {row.state.value}; it cannot be {what}")
