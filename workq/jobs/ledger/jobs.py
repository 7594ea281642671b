"""Jobs: begun, and split page by page.

A page of the source is recorded in one transaction with the cursor behind it, if the job stands where the splitter
saw it: two splitters of one job (one was paused past its lease, say) make no subtask twice, and whoever is killed
leaves the cursor where the subtasks end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, and_, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from workq.errors import NotFound, Refused
from workq.jobs.ledger.care import JobCare, job_live_key
from workq.jobs.ledger.changes import JobLock, Wishes
from workq.jobs.ledger.counts import JobCounts
from workq.jobs.ledger.decisions import JobDecisions
from workq.jobs.ledger.gate import WAITS
from workq.jobs.ledger.questions import JobQuestions
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import (
    JOB_ENDED,
    JOB_PAUSES,
    JOB_STARTS,
    JOB_UNWANTED,
    Begun,
    IfRunning,
    JobOptions,
    JobState,
    NewJob,
    Split,
    splitter,
)
from workq.ledger import HintRows, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import guarded
from workq.ledger.history import BY_ITSELF, History, who_and_why
from workq.ledger.tasks import Tasks
from workq.values import codec
from workq.values.task import FailedItem, NewSubtask, State


class Jobs:
    """Begins jobs, runs them again, and splits them."""

    def __init__(
        self,
        database: Database,
        *,
        job_counts: JobCounts,
        tasks: Tasks,
        job_questions: JobQuestions,
        history: History,
        job_decisions: JobDecisions,
        job_care: JobCare,
    ) -> None:
        self.database = database
        self._job_counts = job_counts
        self._tasks = tasks
        self._job_questions = job_questions
        self._history = history
        self._job_decisions = job_decisions
        self._job_care = job_care

    def begin_job(self, job: NewJob, *, hints: HintRows | None = None, said: Mapping[str, str] | None = None) -> Begun:
        """Record a job with the task that reads its source, in one transaction. Repeatable.

        While another of its name and key has not ended, `job.if_running` says what becomes of it.

        Raises:
            Refused: the other one has not ended, and this one was to be refused then.

        `said`: who wants the failed items of another job run again, and why.
        """
        cancelled: list[Unpublished] = []

        def write(tx: Connection) -> Begun:
            stands = tx.execute(
                select(job_tables(self.database).job.c.id).where(job_tables(self.database).job.c.id == job.id)
            ).first()
            if stands is not None:  # an earlier try, whose commit was lost; or, of a nested one, an earlier attempt
                return Begun(job.id, job.parent_id is None)
            if job.parent_id is not None:
                self._check_outer(tx, job.parent_id)
            other = self._live(tx, job)
            if other is not None and job.if_running is IfRunning.REPLACE:
                self._job_counts.locked_job(tx, other)  # of two that replace it at once, one comes first
            if other is not None and job.if_running is IfRunning.REFUSE:
                raise Refused(
                    f"job {job.name!r}: {other} has not ended; see: workq job show {other}; "
                    "or say what should become of it: --if-running join, queue or replace"
                )
            if other is not None and job.if_running is IfRunning.JOIN:
                return Begun(other, False)
            if job.options.failed_of is not None:
                self._begin_retry(tx, job.options.failed_of, by=job.id, said=said or {})
            self._insert_job(tx, job, waits=other is not None, hints=hints)
            is_hinted = other is not None or hints is not None
            return Begun(job.id, True, () if is_hinted else (Unpublished(job.splitter.id, job.splitter.queue, 0, 0.0),))

        try:
            begun = self.database.run(write)
        except IntegrityError:  # another has just begun: it is there now
            begun = self.database.run(write)
        if begun.created and job.if_running is IfRunning.REPLACE:
            for other in self._before(job):
                with suppress(Refused):  # it has just ended by itself
                    cancelled += self._job_decisions.cancel_job(other, who=BY_ITSELF, why=f"replaced by job {job.id}")[
                        1
                    ]
        outer = None if job.parent_id is None or not begun.created else self._job_questions.job(job.parent_id)
        if outer is not None and outer.state in JOB_PAUSES:
            self._job_decisions.pause_job(begun.id, who=outer.who or "", why=outer.why or "")
        return replace(begun, hints=(*begun.hints, *cancelled))

    def _check_outer(self, tx: Connection, job_id: str) -> None:
        """The job that another is to be nested in has not ended, and does not before this transaction has."""
        outer = self._job_counts.locked_job(tx, job_id)
        if outer is None or outer.state in JOB_UNWANTED | JOB_ENDED:
            state = "gone" if outer is None else outer.state.value
            raise Refused(f"job {job_id} is {state}; nothing is begun in it any more")

    def _live(self, tx: Connection, job: NewJob) -> str | None:
        j = job_tables(self.database).job
        found: str | None = tx.execute(select(j.c.id).where(j.c.live_key == job_live_key(job.name, job.key))).scalar()
        return found

    def _before(self, job: NewJob) -> list[str]:
        """The jobs of the same name and key that were begun before this one, and have not ended.

        Of several that replace each other at once, so the last one stays.
        """
        j = job_tables(self.database).job
        alike = j.c.job_key.is_(None) if job.key is None else j.c.job_key == job.key
        began = select(j.c.created_at).where(j.c.id == job.id).scalar_subquery()
        is_older = or_(j.c.created_at < began, and_(j.c.created_at == began, j.c.id < job.id))
        query = select(j.c.id).where(
            j.c.name == job.name, alike, is_older, j.c.state.not_in([state.value for state in JOB_ENDED])
        )
        return self.database.ask(lambda tx: list(tx.execute(query).scalars()))

    def _insert_job(self, tx: Connection, job: NewJob, *, waits: bool, hints: HintRows | None) -> None:
        """`waits`: for the one before it, without the right to its name, and with a splitter that is due never."""
        j, now = job_tables(self.database).job, self.database.now
        tx.execute(
            insert(j).values(
                id=job.id,
                name=job.name,
                live_key=None if waits else job_live_key(job.name, job.key),
                job_key=job.key,
                state=JobState.PLANNING.value,
                state_at=now(),
                params=job.params,
                options=encoded(job.options),
                split_task=job.splitter.id,
                is_split=0,
                awaits_room=0,
                total=job.total,
                **dict.fromkeys(("split", "succeeded", "failed", "skipped", "cancelled", "retried", "results"), 0),
                **dict.fromkeys(("subtasks", "read_subtasks", "open_subtasks"), 0),
                rate_max=job.rate_max,
                rated_done=0,
                created_at=now(),
                paused_s=0.0,
                parent_id=job.parent_id,
            )
        )
        splitter = replace(job.splitter, job_id=job.id, waits_for=WAITS if waits else None)
        self._tasks.insert(tx, [splitter], None if waits else hints)

    def retry_job(
        self,
        job_id: str,
        *,
        chunk: int | None,
        rate_max: float | None,
        if_running: IfRunning,
        who: str,
        why: str,
        hints: HintRows | None,
    ) -> Begun:
        """Begin a job over the failed items of one that has ended, with its parameters, and what follows its end.

        `chunk`: other than that one's. Items that no subtask could carry are left out.

        Raises:
            NotFound: there is no such job.
            Refused: it has not ended, nothing of it has failed, or another job runs these items again or has done so
                (not one that was cancelled or has failed); or as `begin_job`.
        """
        old = self._job_questions.job(job_id)
        if old is None:
            raise NotFound(f"no job {job_id[:100]}; list them with: workq job ls")
        if old.state not in JOB_ENDED:
            raise Refused(f"job {job_id} is {old.state.value}; its failed items are run again when it has ended")
        f = job_tables(self.database).failed_item
        count = select(func.count()).select_from(f).where(f.c.job_id == job_id, f.c.task_id.is_not(None))
        total = self.database.ask(lambda tx: int(tx.execute(count).scalar_one()))
        if not total:
            raise Refused(f"job {job_id} has no failed items that could run again")
        new_id = codec.new_task_id()
        if chunk is None or old.options.is_partitioned:
            chunk = old.options.chunk
        options = replace(old.options, failed_of=job_id, retried_by=None, chunk=chunk, is_fed=False, spread_s=None)
        again = NewJob(
            id=new_id,
            name=old.name,
            params=old.params,
            options=options,
            splitter=splitter(codec.new_task_id(), old.name, options.queue, new_id),
            key=old.key,
            total=None if options.is_partitioned else total,
            rate_max=rate_max,
            if_running=if_running,
        )
        return self.begin_job(again, hints=hints, said=who_and_why(who, why))

    def _begin_retry(self, tx: Connection, job_id: str, *, by: str, said: Mapping[str, str]) -> None:
        """Note in a job that another runs its failed items again; of two that want to, one does.

        One that was cancelled or has failed itself left some of them undone: there may be another.
        """
        j, old = job_tables(self.database).job, self._job_counts.locked_job(tx, job_id)
        if old is None:
            raise Refused(f"job {job_id} was removed a moment ago")
        if (other := old.options.retried_by) is not None:
            state = tx.execute(select(j.c.state).where(j.c.id == other)).scalar()
            if state not in (JobState.CANCELLED, JobState.FAILED):
                raise Refused(_retried(job_id, other, state))
        options = encoded(replace(old.options, retried_by=by))
        tx.execute(update(j).where(j.c.id == job_id).values(options=options))
        self._history.append(tx, "job", {"job": job_id, "what": "retried", "by": by, **said})

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
        recorded, when the job stands elsewhere, is paused, or is over.
        `is_last`: its source is read to the end. Repeatable: what was recorded by this very call is answered again.
        """
        wishes = Wishes()

        def write(tx: Connection) -> Split:
            wishes.clear()
            row = self._job_counts.locked_job(tx, job_id)
            if row is None or row.state not in JOB_STARTS:
                return Split(None, is_paused=row is not None and row.state in JOB_PAUSES)
            if row.read_subtasks != after:
                return self._split_again(tx, row, subtasks, after)
            if row.options.failed_of is not None:
                self._hand_over(tx, row, row.options.failed_of, cursor)
            if subtasks:
                self._job_counts.insert_subtasks(tx, row, subtasks, hints)
                row.read_subtasks += len(subtasks)
            row.split += len(failed)
            row.failed += len(failed)
            self._job_counts.write_failed(tx, row, None, failed)
            row.source_cursor = codec.encode(cursor, path="cursor")
            row.is_split = int(is_last)
            if not row.options.is_partitioned:  # how many items partitions have, only their steps know
                row.total = row.split if is_last else row.total if total is None else total
            if row.state is JobState.PLANNING:
                row.move(JobState.RUNNING)
                row.started_at = row.now
                if row.options.spread_s is not None and row.total:
                    row.rate_max = row.total / row.options.spread_s
            room = max(0, row.options.window - row.open_subtasks)
            row.awaits_room = int(room == 0 and not is_last)
            self._job_counts.conclude(tx, row, wishes)
            return Split(room)

        split = self.database.run(write)
        return replace(split, hints=tuple(self._job_care.fulfil(wishes)))

    def _hand_over(self, tx: Connection, row: JobLock, job_id: str, cursor: int | None) -> None:
        """The subtasks whose failed items are in this page are dead no more: another job has these now.

        The lock of its row is held, and these tasks stood before: nobody who holds a dead task waits for a job.
        """
        t, f = self.database.tables.task, job_tables(self.database).failed_item
        before = 0 if row.source_cursor is None else codec.decode(row.source_cursor) or 0
        if cursor is None or cursor <= before:
            return
        of_page = select(f.c.task_id).where(f.c.job_id == job_id, f.c.id > before, f.c.id <= cursor)
        dead = select(t.c.id).where(t.c.id.in_(of_page), guarded(t.c.state, State.DEAD)).order_by(t.c.id)
        ids = list(tx.execute(dead.with_for_update()).scalars())
        if ids:
            reason = f"run again by job {row.id}"
            gone = {"state": State.CANCELLED, "reason": reason, "settled_at": self.database.now(), "fingerprint": None}
            tx.execute(update(t).where(among(t.c.id, self.database.dialect)).values(gone), {"b_ids": in_order(ids)})
            self._history.append(tx, "cancelled", {"reason": reason}, task_ids=ids)

    def _split_again(self, tx: Connection, row: JobLock, subtasks: Sequence[NewSubtask], after: int) -> Split:
        """Whether this very page stands already: a commit of ours was lost."""
        s = job_tables(self.database).subtask
        elsewhere = Split(None, is_elsewhere=not row.is_split)
        if not subtasks or row.read_subtasks != after + len(subtasks):
            return elsewhere
        if tx.execute(select(s.c.task_id).where(s.c.task_id == subtasks[-1].task_id)).first() is None:
            return elsewhere
        return Split(max(0, row.options.window - row.open_subtasks))


def encoded(options: JobOptions) -> str:
    """As they are kept."""
    return msgspec.json.encode(options).decode()


def _retried(job_id: str, by: str, state: str | None) -> str:
    """Why the failed items of a job are not run again once more."""
    if state is None:
        return f"job {job_id}: job {by}, which was removed since, has run its failed items again"
    if state in JOB_ENDED:
        return (
            f"job {job_id}: job {by} has run its failed items again ({state}); those that failed again: "
            f"workq job retry {by}"
        )
    return f"job {job_id}: job {by} ({state}) runs its failed items again; see: workq job show {by}"
