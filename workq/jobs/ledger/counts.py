"""Counting: what becomes of a job as its subtasks end. Under the lock of its row, in the transaction that settles.

So every item is counted once, whoever is killed, and however often a settlement is repeated: a subtask that has ended
is counted as ended in its own row (`subtask.ended_at`), and what an attempt has done of it before, by that attempt's
number. What is settled elsewhere (reaped, cancelled, expired) is counted by the next sweep in the same way.

When the last subtask has ended, the same transaction ends the job and records what follows it: once, because the state
moves once. A subtask whose job is not there any more counts for nothing, and is a task like any other.

Locks: tasks first, then jobs, in the order of their ids. Whoever holds a job's row touches no task that stood before:
what is to be done about those (wake the splitter, cancel what is open) is answered, and done afterwards; otherwise a
sweep does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select, update

from workq.jobs.ledger.changes import Change, JobLock, Rest, Wishes
from workq.jobs.ledger.tables import job_tables
from workq.jobs.progress import SAMPLE_S, smoothed
from workq.jobs.values import (
    JOB_ENDED,
    JOB_UNWANTED,
    SAMPLE_RESULTS,
    SOURCE_FAILED,
    Callback,
    Collect,
    Ending,
    JobOptions,
    JobState,
)
from workq.ledger import HintRows, Unpublished
from workq.ledger.engine import after_commit
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import guarded
from workq.ledger.history import History
from workq.ledger.tasks import Tasks
from workq.values import codec
from workq.values.fingerprint import fingerprint
from workq.values.plural import counted
from workq.values.task import FailedItem, NewSubtask, NewTask, State

ERROR_MAX: Final = 20_000
SAMPLE_ITEMS: Final = 1000
"""Where nobody knows how many items there are: a share of fewer than these says nothing."""


class JobCounts:
    """Counts what became of subtasks, and ends jobs."""

    def __init__(self, database: Database, *, tasks: Tasks, history: History) -> None:
        self.database = database
        self._tasks = tasks
        self._history = history

    def count(self, tx: Connection, changes: Mapping[str, Sequence[Change]], wishes: Wishes) -> None:
        """Count what became of subtasks, by job."""
        for job_id in sorted(changes):
            row = self.locked_job(tx, job_id)
            if row is not None:
                self.count_locked(tx, row, changes[job_id], wishes)

    def locked_job(self, tx: Connection, job_id: str) -> Any:
        """The row of a job, locked; `now` is the database's clock behind the lock. None: there is none."""
        j = job_tables(self.database).job
        row = tx.execute(select(j).where(j.c.id == job_id).with_for_update()).first()
        return None if row is None else JobLock(row, tx.execute(select(self.database.now())).scalar_one())

    def count_locked(self, tx: Connection, row: JobLock, changes: Sequence[Change], wishes: Wishes) -> None:
        s = job_tables(self.database).subtask
        ids = {change.task_id for change in changes}
        query = select(s).where(among(s.c.task_id, self.database.dialect))
        standing = {one.task_id: one for one in tx.execute(query, {"b_ids": in_order(ids)})}
        alike: dict[Rest, list[Any]] = {}
        added: list[NewSubtask] = []
        for change in sorted(changes, key=lambda change: change.task_id):
            subtask = standing.get(change.task_id)
            if subtask is None or subtask.ended_at is not None:
                continue
            if change.rest is None and subtask.attempt >= change.attempt:
                continue  # it is counted: this settlement is repeated
            added += change.added
            if change.rest in (Rest.SUCCEEDED, Rest.CANCELLED) and not change.is_told:
                alike.setdefault(change.rest, []).append(subtask)
            else:
                self._count_one(tx, row, subtask, change)
        for rest, subtasks in alike.items():
            self._count_alike(tx, row, subtasks, rest)
        if any(change.awaits_room and change.task_id == row.split_task for change in changes):
            row.awaits_room = 1  # what has ended meanwhile met a splitter that still ran, and woke nobody
        if added:
            self.insert_subtasks(tx, row, added, None)
            row.total = None if row.total is None else row.total + sum(one.items for one in added)
            wishes.hints += [Unpublished(one.task_id, row.options.queue, 0, 0.0) for one in added]
        if any(change.rest is Rest.FAILED and change.task_id == row.split_task for change in changes):
            self.fail_source(tx, row)
        self.conclude(tx, row, wishes)

    def fail_source(self, tx: Connection, row: JobLock) -> None:
        """Note that the splitter of a job is dead, or was removed: the job fails when what was read of it is done."""
        if row.is_split or row.error is not None or row.state in JOB_UNWANTED | JOB_ENDED:
            return
        t = self.database.tables.task
        dead = tx.execute(select(t.c.error, t.c.reason).where(t.c.id == row.split_task)).first()
        said = "its splitter was removed" if dead is None else dead.error or dead.reason
        after = counted(row.split, "item")
        row.error = codec.storable(f"{SOURCE_FAILED} after {after}: {said}", characters_max=ERROR_MAX)

    def _count_alike(self, tx: Connection, row: JobLock, subtasks: Sequence[Any], rest: Rest) -> None:
        """Subtasks of which all that was left has ended in one way: nearly all, and one statement."""
        s = job_tables(self.database).subtask
        column, change = s.c[rest.value], s.c[rest.value] + s.c.items_left
        left = sum(one.items_left for one in subtasks)
        row.open_subtasks -= len(subtasks)
        if row.options.is_partitioned and rest is Rest.SUCCEEDED:  # its steps have told its items: it is none itself
            column, change = s.c.size, s.c.size - s.c.items_left
            row.split -= left
        else:
            setattr(row, rest.value, getattr(row, rest.value) + left)
        # in this order: MySQL assigns one after the other
        ended = (column, change), (s.c.items_left, 0), (s.c.ended_at, self.database.now())
        statement = update(s).where(among(s.c.task_id, self.database.dialect)).ordered_values(*ended)
        tx.execute(statement, {"b_ids": in_order(one.task_id for one in subtasks)})

    def _count_one(self, tx: Connection, row: JobLock, subtask: Any, change: Change) -> None:
        s, now = job_tables(self.database).subtask, self.database.now
        left: int = subtask.items_left
        # somebody may have written another chunk into the task: no more is counted than the subtask has
        told = {"failed": min(left, len(change.failed))}
        for name, count in (("succeeded", change.succeeded), ("skipped", change.skipped)):
            told[name] = min(left - sum(told.values()), count)
        left -= sum(told.values())
        failed = list(change.failed[: told["failed"]])
        if change.rest is not None:
            if change.rest is Rest.FAILED and left:
                failed += self._items_of(tx, row, change.task_id)[:left]
            told[change.rest.value] = told.get(change.rest.value, 0) + left
            left = 0
        for name, count in told.items():
            setattr(row, name, getattr(row, name) + count)
        row.retried += left if change.is_retried else 0
        row.open_subtasks -= change.rest is not None
        tx.execute(
            update(s)
            .where(s.c.task_id == change.task_id)
            .values(
                items_left=left,
                attempt=change.attempt,
                **{name: getattr(subtask, name) + count for name, count in told.items()},
                **({} if change.rest is None else {"ended_at": now()}),
            )
        )
        self.write_failed(tx, row, change.task_id, failed)
        self._write_results(tx, row, change)

    def _write_results(self, tx: Connection, row: JobLock, change: Change) -> None:
        """What came of the items of a subtask, as its job keeps it."""
        room = {Collect.SAMPLE: max(0, SAMPLE_RESULTS - row.results), Collect.ALL: len(change.results)}
        kept = change.results[: room.get(row.options.collect, 0)]
        row.results += change.told
        if kept:
            facts = {"job_id": row.id, "task_id": change.task_id}
            rows = [{**facts, "item": one.item, "value": one.value, "note": one.note} for one in kept]
            tx.execute(insert(job_tables(self.database).job_result).values(at=self.database.now()), rows)

    def insert_subtasks(
        self, tx: Connection, row: JobLock, subtasks: Sequence[NewSubtask], hints: HintRows | None
    ) -> None:
        """Record subtasks of a job, from its splitter or from inside."""
        s = job_tables(self.database).subtask
        self._tasks.insert(tx, [_task_of(row, one) for one in subtasks], hints)
        tx.execute(
            insert(s),
            [
                {
                    "task_id": one.task_id,
                    "job_id": row.id,
                    "number": row.subtasks + number,
                    "size": one.items,
                    "items_left": one.items,
                    "step_cursor": one.cursor,
                    **dict.fromkeys(("succeeded", "failed", "skipped", "cancelled", "attempt", "steps"), 0),
                }
                for number, one in enumerate(subtasks, start=1)
            ],
        )
        row.subtasks += len(subtasks)
        row.open_subtasks += len(subtasks)
        row.split += sum(one.items for one in subtasks)

    def write_failed(self, tx: Connection, row: JobLock, task_id: str | None, failed: Sequence[FailedItem]) -> None:
        """Items that have failed for good, in a subtask or before they came into one."""
        if not failed:
            return
        f = job_tables(self.database).failed_item
        tx.execute(
            insert(f).values(at=self.database.now()),
            [
                {
                    "job_id": row.id,
                    "task_id": task_id,
                    "item": one.item,
                    "failures": one.failures,
                    "error": codec.storable(one.error, characters_max=ERROR_MAX),
                    "fingerprint": one.fingerprint,
                }
                for one in failed
            ],
        )

    def _items_of(self, tx: Connection, row: JobLock, task_id: str) -> list[FailedItem]:
        """The items of a subtask that is dead as a whole: each has failed, of the same."""
        t = self.database.tables.task
        dead = tx.execute(
            select(t.c.payload, t.c.error, t.c.reason, t.c.failures, t.c.crashes).where(t.c.id == task_id)
        ).first()
        if dead is None:
            return []
        error = dead.error or dead.reason or "its subtask is dead"
        alike = fingerprint(row.name, dead.reason or "", dead.error)
        try:
            arguments = codec.decode(dead.payload)["a"]
            items = arguments[:1] if row.options.is_partitioned else arguments[0]
        except Exception:  # somebody has written there
            return []
        tries = dead.failures + dead.crashes
        return [FailedItem(codec.encode(item, path="item"), tries, error, alike) for item in items]

    def conclude(self, tx: Connection, row: JobLock, wishes: Wishes) -> None:
        """Write a job's row as it stands now; end it, if nothing of it is left, and record what follows."""
        self._rate(row)
        waits_for_nested = self._judge(tx, row)
        options = row.options
        if row.state in JOB_UNWANTED and (row.open_subtasks or row.has_moved or waits_for_nested):
            wishes.withdraw.append(row.id)
        if row.awaits_room and row.state is JobState.RUNNING and row.open_subtasks <= options.window // 2:
            row.awaits_room = 0
            wishes.wake.append(row.split_task)
        if row.has_ended:
            wishes.hints += self._end(tx, row)
            wishes.ended.append((row.name, row.job_key))
            if row.parent_id is not None:
                wishes.outer.append(row.parent_id)
        self.write_job(tx, row)

    def _judge(self, tx: Connection, row: JobLock) -> bool:
        """Move it into the state that follows; answers whether all that it waits for is jobs that are nested in it."""
        options = row.options
        is_decided = row.state in JOB_UNWANTED or row.state in JOB_ENDED
        if not is_decided and (why := too_many(row, options)):
            row.error = why
            row.move(JobState.FAILING)
        if row.state is JobState.PAUSING and not self.running_subtasks(tx, row.id):
            row.move(JobState.PAUSED)
        is_over = row.state in JOB_UNWANTED or row.is_split or row.error is not None
        if row.open_subtasks or not is_over or row.state in JOB_ENDED:
            return False
        nested = self._nested(tx, row.id)
        if not nested <= JOB_ENDED:
            return True
        if row.state is JobState.CANCELLING:
            row.move(JobState.CANCELLED)
        elif row.state is JobState.FAILING:
            row.move(JobState.FAILED)
        elif row.error is not None and not row.is_split:
            row.move(JobState.FAILED)  # its source has failed, and what was read of it is done
        else:
            is_whole = not row.failed and not row.cancelled and nested <= {JobState.SUCCEEDED}
            row.move(JobState.SUCCEEDED if is_whole else JobState.COMPLETED_WITH_FAILURES)
        return False

    def _nested(self, tx: Connection, job_id: str) -> set[JobState]:
        """The states in which the jobs are that are nested in a job."""
        j = job_tables(self.database).job
        states = select(j.c.state).where(j.c.parent_id == job_id).distinct()
        return {JobState(state) for state in tx.execute(states).scalars()}

    def running_subtasks(self, tx: Connection, job_id: str) -> int:
        """How many of a job's subtasks run now."""
        s, t = job_tables(self.database).subtask, self.database.tables.task
        query = (
            select(func.count())
            .select_from(s)
            .join(t, t.c.id == s.c.task_id)
            .where(s.c.job_id == job_id, s.c.ended_at.is_(None), guarded(t.c.state, State.RUNNING))
        )
        return int(tx.execute(query).scalar_one())

    def _rate(self, row: JobLock) -> None:
        """How fast it is, measured at most once a second."""
        if row.state is not JobState.RUNNING:
            return
        if row.rated_at is None:
            row.rated_at, row.rated_done = row.now, row.done
            return
        seconds = (row.now - row.rated_at).total_seconds()
        if seconds >= SAMPLE_S:
            row.rate = smoothed(row.rate, row.done - row.rated_done, seconds)
            row.rated_at, row.rated_done = row.now, row.done

    def _end(self, tx: Connection, row: JobLock) -> list[Unpublished]:
        """It has ended: its name is free, and what follows is recorded."""
        row.live_key = None
        row.ended_at = row.now
        what = {
            "id": row.id,
            "name": row.name,
            "state": row.state.value,
            "params": codec.decode(row.params)["k"],
            "total": row.done,
            **{name: getattr(row, name) for name in ("succeeded", "failed", "skipped", "cancelled")},
        }
        self._history.append(tx, "job", {"job": row.id, "what": row.state.value, "error": row.error})
        if row.state in (JobState.FAILED, JobState.COMPLETED_WITH_FAILURES):
            counts = {name: getattr(row, name) for name in ("succeeded", "failed", "skipped", "cancelled")}
            told = {"job": row.id, "job_name": row.name, **counts} | ({"error": row.error} if row.error else {})
            after_commit.note(tx, [after_commit.Decision(f"job.{row.state.value}", told, of=row.name)])
        endings = _endings(row.state)
        tasks = [_task(one, what) for one in row.options.callbacks if one.when in endings]
        if tasks:
            self._tasks.all_at_once(tx, tasks, None)
        return [Unpublished(task.id, task.queue, 0, 0.0) for task in tasks]

    def write_job(self, tx: Connection, row: JobLock) -> None:
        if changed := row.changed():
            j = job_tables(self.database).job
            tx.execute(update(j).where(j.c.id == row.id).values(changed))


def too_many(row: JobLock, options: JobOptions) -> str | None:
    """Why it has failed: more items did than it may have."""
    if options.failed_max is not None and row.failed > options.failed_max:
        return f"{counted(row.failed, 'item has', 'items have')} failed, and max_failures is {options.failed_max}"
    share = options.failed_share_max
    tried, made, what = row.succeeded + row.failed, row.split, "items"
    if options.is_partitioned:
        tried, made, what = row.subtasks - row.open_subtasks, row.subtasks, "partitions"
    known = row.total if row.total is not None else made if row.is_split else max(tried, SAMPLE_ITEMS)
    if share is not None and row.failed > share * max(known, tried):
        return f"{row.failed} of {tried} {what} have failed, and max_failures is {share:.0%}"
    return None


def _endings(state: JobState) -> set[Ending]:
    match state:
        case JobState.SUCCEEDED:
            return {Ending.COMPLETE, Ending.SUCCESS}
        case JobState.CANCELLED:
            return {Ending.COMPLETE, Ending.CANCEL}
        case _:
            return {Ending.COMPLETE, Ending.FAILURE}


def _task_of(row: JobLock, one: NewSubtask) -> NewTask:
    options = row.options
    return NewTask(
        id=one.task_id,
        name=row.name,
        queue=options.queue,
        payload=one.payload,
        limit=options.limit,
        job_id=row.id,
        **options.carried(),
    )


def _task(callback: Callback, what: Mapping[str, Any]) -> NewTask:
    return NewTask(
        id=codec.new_task_id(),
        name=callback.name,
        queue=callback.queue,
        payload=codec.encode({"a": [dict(what)], "k": {}}, path="callback"),
        **callback.carried(),
    )
