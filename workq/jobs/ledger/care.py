"""Tending: what jobs need after a commit, and what others have left undone about them.

When subtasks end, their job may have room for more, may have failed, may be over, and another may wait for its name.
Whoever has settled does that at once, after its commit; a sweep does it for whoever died in between, counts what was
settled by others than a handler, and judges a job whose splitter is dead. Everything here is repeatable.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import (
    Connection,
    Delete,
    Select,
    and_,
    case,
    delete,
    func,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from workq.errors import Unavailable
from workq.jobs.ledger.changes import Change, JobLock, Rest, Wishes
from workq.jobs.ledger.counts import JobCounts
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import JOB_ENDED, JOB_STARTS, JOB_UNWANTED, Collect, JobState, PrunedJobs, Tended, splitter
from workq.ledger import Retention, Unpublished
from workq.ledger.bulk import BulkDecisions
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import CLAIMABLE, ENDED, guarded
from workq.ledger.history import BY_ITSELF, History
from workq.ledger.keys import live_key
from workq.ledger.tasks import Tasks
from workq.ledger.waiting import let_go
from workq.ledger.waiting import waits as waits_for_others
from workq.limits.ledger.tables import limit_tables
from workq.values import codec
from workq.values.task import State

CANCELLED_WITH_JOB: Final = "its job was cancelled"
FAILED_WITH_JOB: Final = "its job has failed"
log = logging.getLogger("workq.ledger")

AT_ONCE: Final = 1000
WITHDRAW_S: Final = 0.4
"""So long one call cancels what has not started; the rest is refused at its claim, and cancelled by the next sweeps."""
_REST: Final = {
    State.SUCCEEDED.value: Rest.SUCCEEDED,
    State.CANCELLED.value: Rest.CANCELLED,
}
"""Of a subtask that is dead, or was removed by hand, what was left has failed."""


class JobCare:
    """What is left to do about a job after its subtasks have ended."""

    def __init__(
        self,
        database: Database,
        *,
        tasks: Tasks,
        job_counts: JobCounts,
        bulk: BulkDecisions,
        history: History,
        reserved_s: float,
        cancel_nested: Callable[[str], list[Unpublished]],
    ) -> None:
        self.database = database
        self._tasks = tasks
        self._job_counts = job_counts
        self._bulk = bulk
        self._history = history
        self._reserved = timedelta(seconds=reserved_s)
        self._cancel_nested = cancel_nested

    def fulfil(self, wishes: Wishes, *, limit: int = AT_ONCE) -> list[Unpublished]:
        """What jobs want after a commit; answers what is to be hinted. What cannot be done now, a sweep does."""
        hints = list(wishes.hints)
        try:
            hints += self.wake(wishes.wake)
            for job_id in wishes.withdraw:
                hints += self.withdraw_job(job_id, limit=limit)
            for name, key in wishes.ended:
                hints += self.begin_queued(name, key)
            for job_id in wishes.outer:
                hints += self.fulfil(self.tally(job_id)[1], limit=limit)
        except Unavailable as error:
            log.warning("job.unfulfilled: %s", error)
        return hints

    def begin_queued(self, name: str, key: str | None) -> list[Unpublished]:
        """The oldest job that waits for this name and key begins, if they are free; answers what is to be hinted."""
        j, t = job_tables(self.database).job, self.database.tables.task
        alike = j.c.job_key.is_(None) if key is None else j.c.job_key == key
        waiting = select(j.c.id, j.c.split_task).where(
            j.c.name == name, alike, j.c.live_key.is_(None), j.c.state == JobState.PLANNING.value
        )

        def write(tx: Connection) -> list[Unpublished]:
            found = tx.execute(waiting.order_by(j.c.id).limit(1)).first()
            if found is None or tx.execute(select(j.c.id).where(j.c.live_key == job_live_key(name, key))).first():
                return []
            mine = select(t.c.queue, t.c.attempt, self.database.now().label("now"))
            is_its = [t.c.id == found.split_task, guarded(t.c.state, *CLAIMABLE)]
            splitter = tx.execute(mine.where(*is_its).with_for_update()).first()  # tasks before jobs
            row = self._job_counts.locked_job(tx, found.id)
            if row is None or row.state is not JobState.PLANNING or row.live_key is not None:
                return []
            row.live_key = job_live_key(name, key)
            self._job_counts.write_job(tx, row)
            if splitter is None:
                return []
            until = splitter.now + self._reserved
            tx.execute(update(t).where(*is_its).values(let_go(self.database, until)))
            return [Unpublished(found.split_task, splitter.queue, splitter.attempt, 0.0, reserved_until=until)]

        try:
            return self.database.run(write)
        except IntegrityError:  # another has just taken them
            return []

    def unpark(self, job_id: str) -> list[Unpublished]:
        """What waits of a job because it did not run, or for a slot, is due now; answers its hints, reserved.

        A slot that was given before is given up. Not what waits for the limit of its handler, which stands in a line of
        its own, nor what has failed and waits for its next attempt.
        """
        return self._let_go(job_id, true(), true())

    def _unpark_left(self, job_id: str) -> list[Unpublished]:
        """The same of a job that runs: what whoever resumed or throttled it was to let go, and died before it did.

        A slot is of a rate that is not there any more when the next one to be given is not behind it.
        """
        tables = job_tables(self.database)
        j, s = tables.job, tables.subtask
        runs = select(j.c.id).where(
            j.c.id == job_id, j.c.state.in_([state.value for state in JOB_STARTS]), j.c.live_key.is_not(None)
        )
        is_now = or_(j.c.rate_max.is_(None), j.c.slot_at.is_(None), s.c.slot_at >= j.c.slot_at)
        is_old = select(j.c.id).where(j.c.id == job_id, is_now).correlate(s).exists()
        return self._let_go(job_id, runs.exists(), is_old)

    def _let_go(self, job_id: str, where: ColumnElement[bool], of_slots: ColumnElement[bool]) -> list[Unpublished]:
        tables, t = job_tables(self.database), self.database.tables.task
        s, j, k = tables.subtask, tables.job, limit_tables(self.database).parked
        is_in_no_line = or_(t.c.limit_key.is_(None), t.c.id.not_in(select(k.c.task_id)))
        is_waiting = and_(where, guarded(t.c.state, State.WAITING))
        is_parked, is_paced = waits_for_others(t, self.database), and_(s.c.slot_at == t.c.due_at, of_slots)
        # from the few of the job to their tasks: for all in one condition, a planner would go through the whole table
        subtasks = (
            select(t.c.id)
            .join(s, s.c.task_id == t.c.id)
            .where(s.c.job_id == job_id, s.c.ended_at.is_(None), is_waiting, or_(is_parked, is_paced))
        )
        splitter = select(j.c.split_task).where(j.c.id == job_id, j.c.live_key.is_not(None)).scalar_subquery()
        parked = union_all(subtasks, select(t.c.id).where(t.c.id == splitter, is_waiting, is_parked))
        is_of_slot = select(s.c.task_id).where(s.c.task_id == t.c.id, is_paced).correlate(t).exists()
        still_parked = (
            select(t.c.id, t.c.queue, t.c.attempt, self.database.now().label("now"))
            .where(among(t.c.id, self.database.dialect), is_waiting, or_(is_parked, is_of_slot), is_in_no_line)
            .order_by(t.c.id)
            .with_for_update()
        )
        slots = update(s).where(among(s.c.task_id, self.database.dialect)).values(slot_at=null())
        waiting = update(t).where(among(t.c.id, self.database.dialect), guarded(t.c.state, State.WAITING))

        def change(tx: Connection) -> list[Unpublished]:
            come_now: list[Unpublished] = []
            for start in range(0, len(found), AT_ONCE):
                rows = tx.execute(still_parked, {"b_ids": found[start : start + AT_ONCE]}).all()
                if not rows:
                    continue
                until = rows[0].now + self._reserved
                ids = {"b_ids": [row.id for row in rows]}
                tx.execute(waiting.values(let_go(self.database, until)), ids)
                tx.execute(slots, ids)
                come_now += [Unpublished(row.id, row.queue, row.attempt, 0.0, reserved_until=until) for row in rows]
            return come_now

        found = in_order(self.database.ask(lambda tx: list(tx.execute(parked).scalars())))
        return self.database.run(change) if found else []

    def wake(self, task_ids: Sequence[str]) -> list[Unpublished]:
        """Splitters that wait for room have some: they are due now. Answers their hints, reserved. Repeatable."""
        if not task_ids:
            return []
        t = self.database.tables.task
        sleeps = select(t.c.id, t.c.queue, t.c.attempt, self.database.now().label("now")).where(
            among(t.c.id, self.database.dialect),
            guarded(t.c.state, State.WAITING),
            ~waits_for_others(t, self.database),
        )
        waiting = update(t).where(among(t.c.id, self.database.dialect), guarded(t.c.state, State.WAITING))

        def change(tx: Connection) -> list[Unpublished]:
            rows = tx.execute(sleeps.with_for_update(), {"b_ids": in_order(task_ids)}).all()
            if not rows:
                return []
            until = rows[0].now + self._reserved
            tx.execute(waiting.values(let_go(self.database, until)), {"b_ids": [row.id for row in rows]})
            return [Unpublished(row.id, row.queue, row.attempt, 0.0, reserved_until=until) for row in rows]

        return self.database.run(change)

    def withdraw_job(self, job_id: str, *, limit: int) -> list[Unpublished]:
        """Cancel what has not started of a job that is over, ask what runs to stop; answers hints to send."""
        tables = job_tables(self.database)
        t, s, j = self.database.tables.task, tables.subtask, tables.job
        job = self.database.ask(
            lambda tx: tx.execute(select(j.c.state, j.c.split_task).where(j.c.id == job_id)).first()
        )
        if job is None or job.state not in JOB_UNWANTED:
            return []
        was_cancelled = job.state in (JobState.CANCELLING, JobState.CANCELLED)
        reason = CANCELLED_WITH_JOB if was_cancelled else FAILED_WITH_JOB
        open_ones = (
            select(t.c.id)
            .join(s, s.c.task_id == t.c.id)
            .where(
                s.c.job_id == job_id,
                s.c.ended_at.is_(None),
                or_(guarded(t.c.state, *CLAIMABLE), t.c.cancel_requested_at.is_(None)),
                guarded(t.c.state, *CLAIMABLE, State.RUNNING),
            )
            .limit(limit)
        )
        found = [job.split_task, *self.database.ask(lambda tx: tx.execute(open_ones).scalars().all())]
        hints: list[Unpublished] = []
        until = monotonic() + WITHDRAW_S
        for start in range(0, len(found), AT_ONCE):
            if start and monotonic() > until:
                break
            waits, _ = self._bulk.cancel_all(
                found[start : start + AT_ONCE], states=(*CLAIMABLE, State.RUNNING), who=BY_ITSELF, why=reason
            )
            _, wishes = self.tally(job_id, waits)
            wishes.withdraw.clear()  # that is what we do
            hints += self.fulfil(wishes)
        return hints + self._cancel_nested(job_id)

    def tally(self, job_id: str, task_ids: Sequence[str] = ()) -> tuple[int, Wishes]:
        """Count subtasks of a job that were settled by others than their handler; of these, or of all. Repeatable."""
        ended = self._uncounted(job_id)
        if task_ids:
            ended = ended.where(job_tables(self.database).subtask.c.task_id.in_(task_ids))
        counted, wishes = 0, Wishes()

        def change(tx: Connection) -> tuple[int, Wishes]:
            mine = Wishes()
            row = self._job_counts.locked_job(tx, job_id)
            if row is None:
                return 0, mine
            rows = tx.execute(ended.limit(AT_ONCE)).all()
            changes = [Change(one.task_id, one.attempt or 0, rest=_REST.get(one.state, Rest.FAILED)) for one in rows]
            self._job_counts.count_locked(tx, row, changes, mine)
            return len(rows), mine

        while True:
            count, new = self.database.run(change)
            counted += count
            wishes.add(new)
            if count < AT_ONCE:
                return counted, wishes

    def _uncounted(self, job_id: str) -> Select[Any]:
        t, s = self.database.tables.task, job_tables(self.database).subtask
        has_ended = or_(t.c.id.is_(None), guarded(t.c.state, *ENDED))
        return (
            select(s.c.task_id, t.c.state, t.c.attempt)
            .outerjoin(t, t.c.id == s.c.task_id)
            .where(s.c.job_id == job_id, s.c.ended_at.is_(None), has_ended)
        )

    def open_jobs(self, *, limit: int) -> list[str]:
        """The jobs that have not ended, or that nobody wants and whose splitter is open, the longest unmoved first."""
        j, t = job_tables(self.database).job, self.database.tables.task
        is_left = select(t.c.id).where(t.c.id == j.c.split_task, guarded(t.c.state, *CLAIMABLE)).correlate(j).exists()
        is_open = j.c.state.in_([state.value for state in JobState if state not in JOB_ENDED])
        query = (
            select(j.c.id)
            .where(
                or_(is_open, and_(j.c.state.in_(sorted(state.value for state in JOB_ENDED & JOB_UNWANTED)), is_left))
            )
            .order_by(j.c.rated_at, j.c.id)
            .limit(limit)
        )
        return self.database.ask(lambda tx: list(tx.execute(query).scalars()))

    def tend_job(self, job_id: str, *, dry_run: bool = False) -> Tended:
        """Do what others have left undone about a job. Repeatable.

        Counts what was settled elsewhere, ends it if nothing of it is left, cancels what it does not want any more,
        wakes its splitter, fails it when that is dead, lets go what is parked though it runs, and begins it when it has
        waited for another.
        """
        if dry_run:
            uncounted = self._uncounted(job_id).limit(AT_ONCE)
            return Tended(len(self.database.ask(lambda tx: tx.execute(uncounted).all())))
        j = job_tables(self.database).job
        counted, wishes = self.tally(job_id)
        hints = self.fulfil(wishes, limit=10 * AT_ONCE) + self.fulfil(self._judged(job_id), limit=10 * AT_ONCE)
        if self.database.ask(lambda tx: tx.execute(select(j.c.ended_at).where(j.c.id == job_id)).scalar()) is not None:
            hints += self.withdraw_job(job_id, limit=10 * AT_ONCE)  # whoever ended it could not do so any more
        waiting = select(j.c.name, j.c.job_key).where(
            j.c.id == job_id, j.c.live_key.is_(None), j.c.state == JobState.PLANNING.value
        )
        waits = self.database.ask(lambda tx: tx.execute(waiting).first())
        if waits is not None:  # for another of its name and key, which may have ended
            hints += self.begin_queued(waits.name, waits.job_key)
        hints += self._unpark_left(job_id)
        return Tended(counted, tuple(hints))

    def _judged(self, job_id: str) -> Wishes:
        """A job whose splitter is dead fails when what was read is done; one whose splitter was cancelled is, too."""
        t, wishes = self.database.tables.task, Wishes()

        def change(tx: Connection) -> None:
            wishes.clear()
            row = self._job_counts.locked_job(tx, job_id)
            if row is None or row.is_split or row.error is not None or row.state in JOB_UNWANTED | JOB_ENDED:
                return
            task = tx.execute(select(t.c.state, t.c.reason).where(t.c.id == row.split_task)).first()
            if task is None or task.state == State.DEAD:
                self._job_counts.fail_source(tx, row)
            elif task.state == State.SUCCEEDED and row.state in JOB_STARTS and not row.options.is_fed:
                self.split_on(tx, row, wishes)  # it has left off before its end, however that came
            elif task.state == State.CANCELLED:
                row.why = row.why or task.reason
                row.move(JobState.CANCELLING)
            else:
                return
            self._job_counts.conclude(tx, row, wishes)

        self.database.run(change)
        return wishes

    def split_on(self, tx: Connection, row: JobLock, wishes: Wishes) -> None:
        """Another splitter goes on at the cursor."""
        again = splitter(codec.new_task_id(), row.name, row.options.queue, row.id)
        self._tasks.insert(tx, [replace(again, job_id=row.id)], None)
        row.split_task = again.id
        wishes.hints.append(Unpublished(again.id, again.queue, 0, 0.0))

    # -- do the counts add up?

    def miscounts(self, job_id: str) -> dict[str, tuple[int, int]]:
        """Which counts of a job are not the sums of its subtasks, or of its results: what the job says, and the sum."""
        return self.database.run(lambda tx: self._miscounts(tx, job_id, self._job_counts.locked_job(tx, job_id)))

    def recount_job(self, job_id: str, *, by: Mapping[str, Any]) -> list[Unpublished]:
        """Put the sums of its subtasks in the place of a job's counts, where they differ; answers hints to send."""
        wishes = Wishes()

        def change(tx: Connection) -> None:
            wishes.clear()
            row = self._job_counts.locked_job(tx, job_id)
            if found := self._miscounts(tx, job_id, row):
                for name, (_, right) in found.items():
                    setattr(row, name, right)
                self._history.append(tx, "job", {"job": job_id, "what": "recounted", **by, "were": _firsts(found)})
                self._job_counts.conclude(tx, row, wishes)

        self.database.run(change)
        return self.fulfil(wishes)

    def _miscounts(self, tx: Connection, job_id: str, row: Any) -> dict[str, tuple[int, int]]:
        """All that changes either holds the row of the job: nothing moves between two questions."""
        if row is None:
            return {}
        tables = job_tables(self.database)
        s, f, r = tables.subtask, tables.failed_item, tables.job_result
        names = ("succeeded", "failed", "skipped", "cancelled")
        sums = [func.coalesce(func.sum(s.c[name]), 0).label(name) for name in ("size", *names)]
        is_open = func.coalesce(func.sum(case((s.c.ended_at.is_(None), 1), else_=0)), 0).label("open_subtasks")
        of_subtasks = select(func.count().label("subtasks"), is_open, *sums).where(s.c.job_id == job_id)
        unfit = select(func.count()).select_from(f).where(f.c.job_id == job_id, f.c.task_id.is_(None))
        found = tx.execute(of_subtasks).one()._mapping
        outside = int(tx.execute(unfit).scalar_one())
        right = {name: int(found[name]) for name in ("subtasks", "open_subtasks", *names)}
        right["failed"] += outside
        right["split"] = int(found["size"]) + outside
        if row.options.collect is Collect.ALL:
            kept = select(func.count()).select_from(r).where(r.c.job_id == job_id)
            right["results"] = int(tx.execute(kept).scalar_one())
        return {name: (getattr(row, name), value) for name, value in right.items() if getattr(row, name) != value}

    # -- what nobody asks for any more

    def prune_jobs(
        self, *, limit: int, retention_s: float, dead_retention_s: float, dry_run: bool = False
    ) -> PrunedJobs:
        """Remove jobs that ended so long ago, each after its subtasks, failed items and results; answers how many.

        `dead_retention_s`: of those with failures. At most `limit` rows: what is left, the next one removes. A dry run
        counts jobs alone.
        """
        j = job_tables(self.database).job
        is_old = old_jobs(self.database, retention_s=retention_s, dead_retention_s=dead_retention_s)
        old = self.database.ask(
            lambda tx: list(tx.execute(select(j.c.id).where(is_old).order_by(j.c.id).limit(limit)).scalars())
        )
        if dry_run:
            return PrunedJobs(len(old), 0, 0, 0)
        jobs, parts = 0, Counter[str]()
        for job_id in old:
            parts.update(self._forget_parts(job_id, limit=limit - parts.total()))
            if parts.total() >= limit:
                break
            jobs += self.database.run(partial(_done, delete(j).where(j.c.id == job_id, is_old)))
        return PrunedJobs(jobs, parts["subtask"], parts["failed_item"], parts["job_result"])

    def prunable_rows(self, retention: Retention) -> dict[str, int]:
        """How many rows of jobs are beyond their retention, by table."""
        tables = job_tables(self.database)
        is_old = old_jobs(self.database, retention_s=retention.tasks_s, dead_retention_s=retention.dead_s)
        jobs = select(tables.job.c.id).where(is_old)
        counted = {"job": select(func.count()).select_from(tables.job).where(is_old)}
        of_jobs = {"subtask": tables.subtask, "failed_item": tables.failed_item, "job_result": tables.job_result}
        for name, table in of_jobs.items():
            counted[name] = select(func.count()).select_from(table).where(table.c.job_id.in_(jobs))
        return self.database.ask(lambda tx: {name: tx.execute(query).scalar_one() for name, query in counted.items()})

    def _forget_parts(self, job_id: str, *, limit: int) -> Counter[str]:
        """Remove rows that hang on a job; answers how many of each table."""
        tables, removed = job_tables(self.database), Counter[str]()
        for name, column in (
            ("subtask", tables.subtask.c.task_id),
            ("failed_item", tables.failed_item.c.id),
            ("job_result", tables.job_result.c.id),
        ):
            of_it = select(column).where(column.table.c.job_id == job_id).limit(limit - removed.total())
            ids = self.database.ask(partial(_firsts_of, of_it))
            for start in range(0, len(ids), AT_ONCE):
                part = delete(column.table).where(column.in_(ids[start : start + AT_ONCE]))
                removed[name] += self.database.run(partial(_done, part))
            if removed.total() >= limit:
                break
        return removed


def old_jobs(database: Database, *, retention_s: float, dead_retention_s: float) -> ColumnElement[bool]:
    """Whether a job has ended so long ago that it is removed."""
    j, now = job_tables(database).job, database.now
    with_failures = [JobState.FAILED.value, JobState.COMPLETED_WITH_FAILURES.value]
    without = [JobState.SUCCEEDED.value, JobState.CANCELLED.value]
    return or_(
        and_(j.c.state.in_(without), j.c.ended_at <= now(-retention_s)),
        and_(j.c.state.in_(with_failures), j.c.ended_at <= now(-dead_retention_s)),
    )


def _firsts_of(query: Select[Any], tx: Connection) -> list[Any]:
    return list(tx.execute(query).scalars())


def _done(statement: Delete, tx: Connection) -> int:
    return tx.execute(statement).rowcount


def _firsts(found: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    return {name: was for name, (was, _) in found.items()}


def job_live_key(name: str, key: str | None) -> str:
    """What no two jobs that have begun and not ended share."""
    return live_key(name, key) or name
