"""Jobs: begun, split page by page, paused, cancelled, and looked at; and what is repaired of them.

A page of the source is recorded in one transaction with the cursor behind it, if the job stands where the splitter
saw it: two splitters of one job (one was paused past its lease, say) make no subtask twice, and whoever is killed
leaves the cursor where the subtasks end.

A decision of a person changes the job's row, and counts from then on: with each claim the ledger looks whether the job
still runs. What waits of a paused job is parked, due never, as it is met; a cancelled one's is cancelled, at once by
whoever asked for it, and otherwise by a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, and_, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from workq.errors import NotFound, Refused
from workq.jobs.values import (
    JOB_ENDED,
    JOB_PAUSES,
    JOB_STARTS,
    JOB_UNWANTED,
    Begun,
    IfRunning,
    JobOptions,
    JobRow,
    JobState,
    NewJob,
    Split,
    splitter,
)
from workq.ledger import HintRows, Unpublished
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import guarded
from workq.ledger.history import BY_ITSELF, who_and_why
from workq.ledger.job_care import AT_ONCE, Tending, job_live_key
from workq.ledger.job_counts import Change, JobLock, Rest, Wishes, too_many
from workq.ledger.job_questions import Showing
from workq.ledger.positions import NEVER_S
from workq.values import codec
from workq.values.task import FailedItem, NewSubtask, State


class Running(Tending, Showing):
    """The part of the ledger that begins, splits and steers jobs."""

    # -- begin

    def begin_job(self, job: NewJob, *, hints: HintRows | None = None, said: Mapping[str, str] | None = None) -> Begun:
        """Record a job with the task that splits it, in one transaction; or answer the one that has not ended.

        `said`: who wants the failed items of another job run again, and why.
        """
        cancelled: list[Unpublished] = []

        def write(tx: Connection) -> Begun:
            stands = tx.execute(
                select(self.database.tables.job.c.id).where(self.database.tables.job.c.id == job.id)
            ).first()
            if stands is not None:  # an earlier try, whose commit was lost; or, of a nested one, an earlier attempt
                return Begun(job.id, job.parent_id is None)
            if job.parent_id is not None:
                self._check_outer(tx, job.parent_id)
            other = self._live(tx, job)
            if other is not None and job.if_running is IfRunning.REPLACE:
                self.locked_job(tx, other)  # of two that replace it at once, one comes first
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
                    cancelled += self.cancel_job(other, who=BY_ITSELF, why=f"replaced by job {job.id}")[1]
        return replace(begun, hints=(*begun.hints, *cancelled))

    def _check_outer(self, tx: Connection, job_id: str) -> None:
        """The job that another is to be nested in has not ended, and does not before this transaction has."""
        outer = self.locked_job(tx, job_id)
        if outer is None or outer.state in JOB_UNWANTED | JOB_ENDED:
            state = "gone" if outer is None else outer.state.value
            raise Refused(f"job {job_id} is {state}; nothing is begun in it any more")

    def _live(self, tx: Connection, job: NewJob) -> str | None:
        j = self.database.tables.job
        found: str | None = tx.execute(select(j.c.id).where(j.c.live_key == job_live_key(job.name, job.key))).scalar()
        return found

    def _before(self, job: NewJob) -> list[str]:
        """The jobs of the same name and key that were begun before this one, and have not ended.

        Of several that replace each other at once, so the last one stays.
        """
        j = self.database.tables.job
        alike = j.c.job_key.is_(None) if job.key is None else j.c.job_key == job.key
        began = select(j.c.created_at).where(j.c.id == job.id).scalar_subquery()
        is_older = or_(j.c.created_at < began, and_(j.c.created_at == began, j.c.id < job.id))
        query = select(j.c.id).where(
            j.c.name == job.name, alike, is_older, j.c.state.not_in([state.value for state in JOB_ENDED])
        )
        return self.database.ask(lambda tx: list(tx.execute(query).scalars()))

    def _insert_job(self, tx: Connection, job: NewJob, *, waits: bool, hints: HintRows | None) -> None:
        """`waits`: for the one before it, without the right to its name, and with a splitter that is due never."""
        j, now = self.database.tables.job, self.database.now
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
        splitter = replace(job.splitter, job_id=job.id, delay_s=NEVER_S if waits else job.splitter.delay_s)
        self._insert(tx, [splitter], None if waits else hints)

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
        old = self.job(job_id)
        if old is None:
            raise NotFound(f"no job {job_id[:100]}; list them with: workq job ls")
        if old.state not in JOB_ENDED:
            raise Refused(f"job {job_id} is {old.state.value}; its failed items are run again when it has ended")
        f = self.database.tables.failed_item
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
        j, old = self.database.tables.job, self.locked_job(tx, job_id)
        if old is None:
            raise Refused(f"job {job_id} was removed a moment ago")
        if (other := old.options.retried_by) is not None:
            state = tx.execute(select(j.c.state).where(j.c.id == other)).scalar()
            if state not in (JobState.CANCELLED, JobState.FAILED):
                raise Refused(_retried(job_id, other, state))
        options = encoded(replace(old.options, retried_by=by))
        tx.execute(update(j).where(j.c.id == job_id).values(options=options))
        self.append(tx, "job", {"job": job_id, "what": "retried", "by": by, **said})

    # -- split

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
            row = self.locked_job(tx, job_id)
            if row is None or row.state not in JOB_STARTS:
                return Split(None, is_paused=row is not None and row.state in JOB_PAUSES)
            if row.read_subtasks != after:
                return self._split_again(tx, row, subtasks, after)
            if row.options.failed_of is not None:
                self._hand_over(tx, row, row.options.failed_of, cursor)
            if subtasks:
                self.insert_subtasks(tx, row, subtasks, hints)
                row.read_subtasks += len(subtasks)
            row.split += len(failed)
            row.failed += len(failed)
            self.write_failed(tx, row, None, failed)
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
            self.conclude(tx, row, wishes)
            return Split(room)

        split = self.database.run(write)
        return replace(split, hints=tuple(self.fulfil(wishes)))

    def _hand_over(self, tx: Connection, row: JobLock, job_id: str, cursor: int | None) -> None:
        """The subtasks whose failed items are in this page are dead no more: another job has these now.

        The lock of its row is held, and these tasks stood before: nobody who holds a dead task waits for a job.
        """
        t, f = self.database.tables.task, self.database.tables.failed_item
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
            self.append(tx, "cancelled", {"reason": reason}, task_ids=ids)

    def _split_again(self, tx: Connection, row: JobLock, subtasks: Sequence[NewSubtask], after: int) -> Split:
        """Whether this very page stands already: a commit of ours was lost."""
        s = self.database.tables.subtask
        elsewhere = Split(None, is_elsewhere=not row.is_split)
        if not subtasks or row.read_subtasks != after + len(subtasks):
            return elsewhere
        if tx.execute(select(s.c.task_id).where(s.c.task_id == subtasks[-1].task_id)).first() is None:
            return elsewhere
        return Split(max(0, row.options.window - row.open_subtasks))

    # -- people

    def pause_job(self, job_id: str, *, who: str, why: str, is_forced: bool = False) -> JobRow:
        """Start none of its subtasks any more, and split no further. What runs goes on. Repeatable.

        It is paused when nothing of it runs any more; `is_forced`: at once.
        """

        def write(tx: Connection, row: JobLock, wishes: Wishes) -> None:
            if row.state in (JobState.PAUSING, JobState.PAUSED):
                if is_forced and row.state is JobState.PAUSING:
                    row.move(JobState.PAUSED)
                    self.write_job(tx, row)
                return
            if row.state not in JOB_STARTS:
                raise _refused(row, "paused")
            row.move(JobState.PAUSING)
            row.paused_at = row.now
            self.conclude(tx, row, wishes)

        return self._obey(job_id, "paused", write, who=who, why=why)[0]

    def resume_job(self, job_id: str, *, who: str, why: str) -> tuple[JobRow | None, list[Unpublished]]:
        """Let a paused job go on, or one whose source has failed, at its cursor; answers what is to be hinted."""

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
                self.split_on(tx, row, wishes)
            row.move(JobState.RUNNING if row.subtasks else JobState.PLANNING)
            row.paused_at = row.rated_at = None
            self.conclude(tx, row, wishes)

        j = self.database.tables.job
        try:
            job, hints = self._obey(job_id, "resumed", write, who=who, why=why)
        except NotFound:  # somebody has removed its row: what was parked of it is to run as any other task
            if codec.is_task_id(job_id) and (hints := self.unpark(job_id)):
                self.note("job", detail={"job": job_id, "what": "unparked", "who": who, "why": why})
                return None, hints
            raise
        return job, hints + self.unpark(job.id)

    def _is_over(self, tx: Connection, task_id: str) -> bool:
        t = self.database.tables.task
        state = tx.execute(select(t.c.state).where(t.c.id == task_id)).scalar()
        return state is None or state == State.DEAD

    def cancel_job(
        self, job_id: str, *, who: str, why: str, is_forced: bool = False
    ) -> tuple[JobRow, list[Unpublished]]:
        """Start nothing of it any more, from this moment on; what has not started is cancelled, what runs is asked.

        It is cancelled when nothing of it runs any more; `is_forced`: at once, and what still runs is not waited for.
        Repeatable; what is not cancelled at once, a sweep cancels. Answers what is to be hinted of what follows.
        """

        def write(tx: Connection, row: JobLock, wishes: Wishes) -> None:
            if row.state in JOB_ENDED:
                raise _refused(row, "cancelled")
            if row.state is not JobState.CANCELLING:
                row.move(JobState.CANCELLING)
            elif not is_forced:
                return
            self.conclude(tx, row, wishes)

        job, hints = self._obey(job_id, "cancelled", write, who=who, why=why)
        if is_forced and job.state is JobState.CANCELLING:
            hints += self._give_up(job_id)
        return self.job(job_id) or job, hints

    def _give_up(self, job_id: str) -> list[Unpublished]:
        """What is open of a job that is to be cancelled counts as cancelled, whatever it still does."""
        s, wishes = self.database.tables.subtask, Wishes()
        is_open = select(s.c.task_id, s.c.attempt).where(s.c.job_id == job_id, s.c.ended_at.is_(None)).limit(AT_ONCE)

        def write(tx: Connection) -> bool:
            row = self.locked_job(tx, job_id)
            if row is None or row.state is not JobState.CANCELLING:
                return False
            rows = tx.execute(is_open).all()
            changes = [Change(one.task_id, one.attempt, rest=Rest.CANCELLED) for one in rows]
            self.count_locked(tx, row, changes, wishes)
            return len(rows) == AT_ONCE

        while self.database.run(write):
            pass
        return self.fulfil(wishes)

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
            self.conclude(tx, row, wishes)

        job, hints = self._obey(job_id, "throttled", write, who=who, why=why)
        return job, hints if job.state not in JOB_STARTS else hints + self.unpark(job_id)

    def _obey(
        self, job_id: str, what: str, write: Callable[[Connection, JobLock, Wishes], None], *, who: str, why: str
    ) -> tuple[JobRow, list[Unpublished]]:
        """One decision of a person, under the lock of the job's row, with an event; then what it asks for."""
        wishes = Wishes()

        def change(tx: Connection) -> None:
            wishes.clear()
            row = self.locked_job(tx, job_id) if codec.is_task_id(job_id) else None
            if row is None:
                raise NotFound(f"no job {job_id[:100]}; list them with: workq job ls")
            before = row.state, row.rate_max
            said = who_and_why(who, why)
            row.who, row.why = said["who"], said["why"]
            write(tx, row, wishes)
            if (row.state, row.rate_max) != before:
                self.append(tx, "job", {"job": job_id, "what": what, **said})

        self.database.run(change)
        hints = self.fulfil(wishes, limit=10 * AT_ONCE)
        job = self.job(job_id)
        if job is None:
            raise NotFound(f"no job {job_id}: it was removed a moment ago")
        return job, hints


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


def _refused(row: JobLock, what: str) -> Refused:
    return Refused(f"job {row.id} is {row.state.value}; it cannot be {what}")
