"""The job's start gate: whether the job of a task lets it start now. Decided at the claim (see ledger/start.py).

A task of a job is recorded, hinted and fetched as any other. When it is claimed, its job is looked at:

    it runs              the task starts; with a rate, as soon as its slot has come, which it gets when it is met first
    it is paused, or waits for another of its name
                         the task is parked until the job goes on
    it is over, or about to be
                         the task is cancelled
    it is not there any more
                         it is a task like any other
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Select, bindparam, literal, literal_column, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import JOB_PAUSES, JOB_STARTS, JobState
from workq.ledger import waiting
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.instants import Instant
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.ledger.start import StartCandidate
from workq.values.task import State

WAITS: Final = "job"
"""What a task waits for whose job is paused or has not begun."""
EARLY: Final = timedelta(milliseconds=5)
"""A slot that comes so soon has come."""


def is_open(database: Database) -> ColumnElement[bool]:
    """In a statement that claims: no job, or one that lets its tasks start."""
    t, j = database.tables.task, job_tables(database).job
    starts = or_(*(j.c.state == literal_column(f"'{state.value}'") for state in sorted(JOB_STARTS)))
    runs = select(j.c.id).where(j.c.id == t.c.job_id, starts, j.c.live_key.is_not(None))
    gone = ~select(j.c.id).where(j.c.id == t.c.job_id).exists()
    return or_(t.c.job_id.is_(None), runs.exists(), gone)


class JobGate:
    """What a job has to say."""

    name = WAITS

    def concerns(self, database: Database) -> ColumnElement[bool]:
        return database.tables.task.c.job_id.is_not(None)

    def columns(self, database: Database) -> Sequence[ColumnElement[Any]]:
        tables = job_tables(database)
        t, j, s = database.tables.task, tables.job, tables.subtask
        job_id = as_text(t.c.job_id, database.dialect)
        return (job_id, j.c.state, j.c.live_key, j.c.rate_max, s.c.items_left, s.c.slot_at)

    def joined(self, database: Database, rows: Select[Any]) -> Select[Any]:
        tables = job_tables(database)
        t, j, s = database.tables.task, tables.job, tables.subtask
        return rows.outerjoin(j, j.c.id == t.c.job_id).outerjoin(s, s.c.task_id == t.c.id)

    def is_open(self, database: Database) -> ColumnElement[bool]:
        return is_open(database)

    def ask(
        self, tx: Connection, database: Database, candidates: Sequence[StartCandidate]
    ) -> Mapping[str, float | None]:
        rows = [TaskOfJob(one.id, *one.knows[self.name]) for one in candidates]
        return dict.fromkeys((row.id for row in ask(tx, database, rows)), None)


class TaskOfJob(NamedTuple):
    """A claimable task of a job; and the job, and its part of that, as far as they are there."""

    id: str
    job_id: str
    state: str | None
    live_key: str | None
    rate_max: float | None
    items_left: int | None
    slot_at: datetime | None


def ask(tx: Connection, database: Database, rows: Sequence[TaskOfJob]) -> list[TaskOfJob]:
    """Of these, what no job holds back."""
    t = database.tables.task
    passed: list[TaskOfJob] = []
    over: list[str] = []
    held: dict[str, list[TaskOfJob]] = {}
    paced: dict[str, list[TaskOfJob]] = {}
    for row in rows:
        state = None if row.state is None else JobState(row.state)
        if state in JOB_STARTS and row.live_key is None:  # it waits for another of its name
            held.setdefault(row.job_id, []).append(row)
        elif state is None or (state in JOB_STARTS and (row.rate_max is None or row.items_left is None)):
            passed.append(row)
        elif state in JOB_STARTS:
            paced.setdefault(row.job_id, []).append(row)
        elif state in JOB_PAUSES:
            held.setdefault(row.job_id, []).append(row)
        else:
            over.append(row.id)
    if held or paced:  # tasks before jobs: so does whoever settles
        waits = (row.id for by_job in (held, paced) for rows_of_job in by_job.values() for row in rows_of_job)
        locks = select(t.c.id).where(among(t.c.id, database.dialect)).order_by(t.c.id).with_for_update()
        tx.execute(locks, {"b_ids": in_order((*over, *waits))}).all()
    if over:
        _cancel(tx, database, over)
    for job_id in sorted({*held, *paced}):
        if job_id in held:
            passed += _held_back(tx, database, job_id, held[job_id])
        else:
            passed += _paced(tx, database, job_id, paced[job_id])
    return passed


def _held_back(tx: Connection, database: Database, job_id: str, rows: Sequence[TaskOfJob]) -> list[TaskOfJob]:
    """Park them, if their job holds them back still; answers those that start.

    That is seen under its lock: whoever lets the job go on has to wait for this, and finds them parked afterwards.
    """
    j = job_tables(database).job
    job = tx.execute(select(j.c.state, j.c.live_key).where(j.c.id == job_id).with_for_update()).first()
    ids = [row.id for row in rows]
    if job is not None and job.state not in JOB_STARTS | JOB_PAUSES:
        _cancel(tx, database, ids)
    elif job is not None and (job.state in JOB_PAUSES or job.live_key is None):
        _set(tx, database, ids, waiting.parked(database, WAITS))
    else:  # a moment ago it did
        subtasks = [row for row in rows if row.items_left is not None]
        splitters = [row for row in rows if row.items_left is None]
        return splitters + (_paced(tx, database, job_id, subtasks) if subtasks else [])
    return []


def _paced(tx: Connection, database: Database, job_id: str, rows: Sequence[TaskOfJob]) -> list[TaskOfJob]:
    """Those whose slot has come; the others are due then."""
    tables = job_tables(database)
    t, j, s = database.tables.task, tables.job, tables.subtask
    job = tx.execute(select(j.c.rate_max, j.c.slot_at).where(j.c.id == job_id).with_for_update()).first()
    if job is None or job.rate_max is None:  # a moment ago it had a rate
        return list(rows)
    now: datetime = tx.execute(select(database.now())).scalar_one()
    next_at = max(now, job.slot_at or now)
    passed: list[TaskOfJob] = []
    given: list[dict[str, Any]] = []
    wait: list[dict[str, Any]] = []
    for row in rows:
        slot_at = row.slot_at
        if slot_at is None:
            slot_at = next_at
            next_at += timedelta(seconds=row.items_left / job.rate_max)
            given.append({"b_id": row.id, "b_at": slot_at})
        if slot_at <= now + EARLY:
            passed.append(row)
        else:
            wait.append({"b_id": row.id, "b_at": slot_at})
    at = bindparam("b_at", type_=Instant())
    if given:
        tx.execute(update(s).where(s.c.task_id == bindparam("b_id")).values(slot_at=at), given)
        tx.execute(update(j).where(j.c.id == job_id).values(slot_at=literal(next_at, Instant())))
    if wait:
        later = update(t).where(t.c.id == bindparam("b_id"), guarded(t.c.state, *CLAIMABLE))
        tx.execute(later.values(state=State.WAITING, due_at=at), wait)
    return passed


def _cancel(tx: Connection, database: Database, task_ids: Sequence[str]) -> None:
    values = {"state": State.CANCELLED, "settled_at": database.now(), "live_key": None, "reason": "its job is over"}
    _set(tx, database, task_ids, values)


def _set(tx: Connection, database: Database, task_ids: Sequence[str], values: Any) -> None:
    t = database.tables.task
    mine = update(t).where(among(t.c.id, database.dialect), guarded(t.c.state, *CLAIMABLE))
    tx.execute(mine.values(**values), {"b_ids": in_order(task_ids)})
