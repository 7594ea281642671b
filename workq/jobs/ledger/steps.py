"""Steps of a partition: a handler's own writes, the cursor and the count of items stand together, or not.

A partition goes on in transactions of its handler, each with the cursor behind it. The fence comes last, as in any
transaction of a handler (ledger/transactions.py). A step says how many stood before it: so one that is repeated, or
made twice at once, is refused the second time.

Locks: the task, its subtask, and last the job, nearly always for one statement and the commit, because many partitions
of a job take their steps at once. Whoever cancels by force has the job before its subtasks: of the two that meet there,
the database ends one. If that is the step, nobody wants it any more.

The last step (nothing is behind it) is also the success of its task. Any other gives the task its whole budget again:
only failures and crashes without a step between them count.

When the connection breaks in COMMIT, the number of steps tells how that ended, once the task's row is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Update, bindparam, select, update

from workq.errors import Refused
from workq.jobs.ledger.care import JobCare
from workq.jobs.ledger.changes import Change, JobLock, Rest, Wishes
from workq.jobs.ledger.counts import JobCounts
from workq.jobs.ledger.tables import job_tables
from workq.jobs.progress import SAMPLE_S
from workq.jobs.values import Bookmark, JobState, NewStep, Stepped
from workq.ledger.engine.states import guarded
from workq.ledger.transactions import taken_away
from workq.values import codec
from workq.values.failpoints import reach
from workq.values.task import Claim, State

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


class CommittedSteps:
    """The steps of partitions, each in a transaction of its handler."""

    def __init__(self, ledger: Ledger, *, job_counts: JobCounts, job_care: JobCare) -> None:
        self.database = ledger.database
        self._ledger = ledger
        self._job_counts = job_counts
        self._job_care = job_care

    def bookmark(self, claim: Claim) -> Bookmark:
        """Where the partition of a claim goes on. Refused: nobody knows, because its subtask was removed."""
        s = job_tables(self.database).subtask
        query = select(s.c.step_cursor, s.c.steps).where(s.c.task_id == claim.task_id)
        row = self.database.ask(lambda tx: tx.execute(query).first())
        if row is None:
            raise _removed(claim)
        return Bookmark(None if row.step_cursor is None else codec.decode(row.step_cursor), row.steps)

    @contextmanager
    def step(self, claim: Claim, new: NewStep, *, on_stood: Callable[[Stepped], None]) -> Iterator[Connection]:
        """A transaction as of any handler, of a partition: the block's writes, the cursor and the count of items stand.

        The task keeps running, with its whole budget again; or it has succeeded, if nothing is behind the cursor.
        `on_stood` is told after the commit. Fenced. Once: Refused, if another number of steps stands than it says, or
        the job does not wait for this partition any more (it was cancelled by force).
        """
        said: list[Stepped] = []
        wishes = Wishes()

        def conclude(tx: Connection) -> None:
            if not self._go_on(tx, claim, is_last=new.cursor is None):
                raise taken_away(claim)
            said.append(self._count_step(tx, claim, new, wishes))
            reach("step.before_commit")

        with self._ledger.transactions.within(
            claim, conclude, has_stood=partial(self._has_stepped, claim=claim, new=new)
        ) as connection:
            yield connection
        reach("step.after_commit")
        on_stood(said[0])
        self._ledger.outcomes.follow_later([partial(self._job_care.fulfil, wishes)])

    def _go_on(self, tx: Connection, claim: Claim, *, is_last: bool) -> bool:
        """Under its fence, the task succeeds, or has its whole budget again; False: the attempt does not run."""
        if is_last:
            return self._ledger.outcomes.succeed_in(tx, claim)
        fence = {"b_id": claim.task_id, "b_attempt": claim.attempt, "b_token": claim.token}
        return bool(self.database.kept("step", self._fenced_statement).write(tx, fence))

    def _fenced_statement(self) -> Update:
        t = self.database.tables.task
        mine = update(t).where(
            t.c.id == bindparam("b_id"),
            t.c.attempt == bindparam("b_attempt"),
            t.c.token == bindparam("b_token"),
            guarded(t.c.state, State.RUNNING),
        )
        return mine.values(failures=0, crashes=0)

    def _count_step(self, tx: Connection, claim: Claim, new: NewStep, wishes: Wishes) -> Stepped:
        s = job_tables(self.database).subtask
        ahead = {} if new.cursor is None else {"step_cursor": new.cursor}
        behind = s.c.task_id == claim.task_id, s.c.steps == new.steps, s.c.ended_at.is_(None)
        made: dict[str, Any] = {
            "steps": s.c.steps + 1,
            "size": s.c.size + new.items,
            "succeeded": s.c.succeeded + new.items,
        }
        if not tx.execute(update(s).where(*behind).values(**made, **ahead)).rowcount:
            raise self._unwanted(tx, claim, new)
        if claim.job_id is None:
            return Stepped(None)
        if new.cursor is not None and self._add_items(tx, claim.job_id, new.items):
            return Stepped(JobState.RUNNING)
        row = self._job_counts.locked_job(tx, claim.job_id)
        if row is None:
            return Stepped(None)
        if wait_s := _slot_s(row, new.items):
            tx.execute(update(s).where(s.c.task_id == claim.task_id).values(slot_at=row.slot_at))
        row.split += new.items
        row.succeeded += new.items
        if new.cursor is None:
            self._job_counts.count_locked(tx, row, [Change(claim.task_id, claim.attempt, rest=Rest.SUCCEEDED)], wishes)
        else:
            self._job_counts.conclude(tx, row, wishes)
        return Stepped(row.state, wait_s)

    def _add_items(self, tx: Connection, job_id: str, items: int) -> bool:
        """Count them in one statement, as nearly always; False: more is to be done about the job, under its lock."""
        j, now = job_tables(self.database).job, self.database.now
        runs = j.c.state == JobState.RUNNING.value, j.c.rate_max.is_(None), j.c.rated_at > now(-SAMPLE_S)
        counted = update(j).where(j.c.id == job_id, *runs)
        return bool(tx.execute(counted.values(split=j.c.split + items, succeeded=j.c.succeeded + items)).rowcount)

    def _unwanted(self, tx: Connection, claim: Claim, new: NewStep) -> Refused:
        s = job_tables(self.database).subtask
        row = tx.execute(select(s.c.steps, s.c.ended_at).where(s.c.task_id == claim.task_id)).first()
        if row is None:
            return _removed(claim)
        if row.ended_at is not None:
            return Refused(f"task {claim.task_id}: its job does not wait for it any more; nothing of this step stands")
        return Refused(
            f"task {claim.task_id}: this step was to be the {new.steps + 1}. of its partition, and {row.steps} stand "
            "already: it was made twice; nothing of this one stands"
        )

    def _has_stepped(self, tx: Connection, claim: Claim, new: NewStep) -> bool:
        """Whether a step whose commit was lost stands.

        Another attempt may have made it since. Then this one is not the newest, and its next step is refused.
        """
        if new.cursor is None:
            return self._ledger.transactions.stands(tx, claim, State.SUCCEEDED)
        s = job_tables(self.database).subtask
        steps = tx.execute(select(s.c.steps).where(s.c.task_id == claim.task_id)).scalar()
        return steps is not None and steps > new.steps


def _slot_s(row: JobLock, items: int) -> float:
    """After a step of so many items, in a job with a rate, the next one has a slot so many seconds from now."""
    if row.rate_max is None:
        return 0.0
    row.slot_at = max(row.now, row.slot_at or row.now) + timedelta(seconds=items / row.rate_max)
    return (row.slot_at - row.now).total_seconds()


def _removed(claim: Claim) -> Refused:
    return Refused(f"task {claim.task_id}: its row in the table of subtasks was removed; nobody knows where it stood")
