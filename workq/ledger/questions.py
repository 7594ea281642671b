"""Read-only questions: one task, lists, histories, counts; where exactly a task stands, and what happened lately.

None of the last two is asked on the path of a task. Each question has a bound of its own, so that asking about a
backlog of millions costs no more than about one of a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, or_, select

from workq.errors import ConfigError
from workq.ledger import Company, Counts, QueueCount, Standing, WorkerRow, unhandled
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, ENDED, SUSPECT, found, unexpired
from workq.ledger.entry import EntryRules
from workq.ledger.pauses import in_force, is_paused
from workq.ledger.waiting import what_for
from workq.values import codec
from workq.values.certificate import certificate_in, sentence_in
from workq.values.lane import meant, split
from workq.values.options import SHOWN, of_row
from workq.values.task import Event, State, Task

OPEN = (State.READY, State.WAITING, State.RUNNING)
OLDER_MAX = 100_000
"""How many older tasks are counted at most."""
IDS_AT_ONCE = 500
_NOT_ASKED = ("token", "payload", "result")


class Questions:
    """Read-only questions about tasks and workers."""

    def __init__(self, database: Database, *, rules: EntryRules) -> None:
        self.database = database
        self._rules = rules

    def get(self, task_id: str) -> Task | None:
        """One task, or None."""
        if not codec.is_task_id(task_id):
            return None
        query = self._task_columns().where(self.database.tables.task.c.id == task_id)
        row = self.database.ask(lambda tx: tx.execute(query).first())
        return None if row is None else _task(row)

    def tasks(
        self,
        *,
        state: State | None = None,
        queue: str | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        """Tasks by id from the newest, a page at a time: `after` is the last id of the page before.

        `queue`: here and in `Which` and `WhichOpen`, all bands of a queue, or one of them.
        """
        c = self.database.tables.task.c
        query = self._task_columns().order_by(c.id.desc()).limit(limit)
        for column, value in ((c.state, state), (c.name, name)):
            if value is not None:
                query = query.where(column == value)
        if queue is not None:
            query = query.where(c.queue.in_(meant(queue)))
        if after is not None:
            if not codec.is_task_id(after):
                raise ConfigError(f"after: {after[:100]!r} is not a task id")
            query = query.where(c.id < after)
        return [_task(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def running(self, worker: str, *, limit: int = 1000) -> list[Task]:
        """What an incarnation has claimed and not settled, by id."""
        c = self.database.tables.task.c
        query = self._task_columns().where(found(c.state, State.RUNNING), c.worker == worker).limit(limit)
        tasks = [_task(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]
        return sorted(tasks, key=lambda task: task.id)

    def history(self, task_id: str) -> list[Event]:
        """The events of one task, oldest first."""
        if not codec.is_task_id(task_id):
            return []
        c = self.database.tables.event.c
        query = (
            select(c.at, c.kind, c.task_id, c.attempt, c.worker, c.detail).where(c.task_id == task_id).order_by(c.id)
        )
        return [
            Event(row.at, row.kind, row.task_id, row.attempt, row.worker, codec.decode(row.detail))
            for row in self.database.ask(lambda tx: tx.execute(query).all())
        ]

    def counts(self) -> Counts:
        """How many tasks are where."""
        t, w, now = self.database.tables.task, self.database.tables.worker, self.database.now
        is_waiting = (t.c.state == State.WAITING) & (t.c.due_at > now())
        place = case((is_waiting, "waiting"), (t.c.state == State.RUNNING, "running"), else_="ready")
        open_by_place = (
            select(t.c.queue, place.label("place"), func.count().label("n"))
            .where(t.c.state.in_(OPEN))
            .group_by(t.c.queue, place)
        )
        by_state = select(t.c.state, func.count().label("n")).group_by(t.c.state)
        oldest_due = (
            select(t.c.queue, func.min(t.c.due_at).label("due_at"), now().label("now"))
            .where(found(t.c.state, *CLAIMABLE), t.c.due_at <= now())
            .group_by(t.c.queue)
        )
        p = self.database.tables.pause
        live = select(func.count()).select_from(w).where(w.c.state == "live")
        of_jobs = select(func.count()).select_from(t).where(found(t.c.state, State.DEAD), self._rules.barred())
        places, states, oldest, paused, workers, dead_of_jobs, unknown = self.database.ask(
            lambda tx: (
                tx.execute(open_by_place).all(),
                tx.execute(by_state).all(),
                tx.execute(oldest_due).all(),
                set(tx.execute(select(p.c.queue).where(in_force(self.database))).scalars()),
                tx.execute(live).scalar_one(),
                tx.execute(of_jobs).scalar_one(),
                unhandled.waiting(tx, self.database),
            )
        )
        queues: dict[str, dict[str, int]] = {}
        for row in places:
            queues.setdefault(row.queue, {"ready": 0, "waiting": 0, "running": 0})[row.place] = row.n
        by_name = {row.state: row.n for row in states}
        # by place, as in the queues, and so the sums of these: what is due, and not promoted yet, is ready in both
        by_name |= {
            place: sum(counts[place] for counts in queues.values()) for place in ("ready", "waiting", "running")
        }
        ages = {row.queue: max(0.0, (row.now - row.due_at).total_seconds()) for row in oldest}
        return Counts(
            queues={name: QueueCount(**counts) for name, counts in sorted(queues.items())},
            states={state: by_name.get(state, 0) for state in State},
            oldest_ready_s=max((age_s for queue, age_s in ages.items() if queue not in paused), default=None),
            workers=workers,
            dead_of_jobs=dead_of_jobs,
            unknown=unknown,
            oldest_paused_s={queue: age_s for queue, age_s in ages.items() if queue in paused},
        )

    def has_due(self, queues: Sequence[str]) -> bool:
        """Whether any task of these queues can be claimed now, or soon without a person. None of a paused one can."""
        c, now = self.database.tables.task.c, self.database.now()
        due = (
            select(c.id)
            .where(
                found(c.state, *CLAIMABLE),
                c.queue.in_(queues),
                c.due_at <= now,
                unexpired(c.expires_at, now),
                ~is_paused(c.queue, self.database),
            )
            .order_by(
                c.state, c.queue, c.due_at
            )  # the index's order: PostgreSQL would rather read the table until it meets one
            .limit(1)
        )
        wanted = (due, *(query.limit(1) for query in self._rules.goes_on(queues)))
        return self.database.ask(lambda tx: any(tx.execute(one).first() is not None for one in wanted))

    def workers(self, *, live_only: bool = True, prefix: str = "") -> list[WorkerRow]:
        """The incarnations whose id begins with `prefix`, newest first."""
        w = self.database.tables.worker
        query = select(w, self.database.now().label("now")).order_by(w.c.started_at.desc(), w.c.id)
        if prefix:
            query = query.where(func.substr(w.c.id, 1, len(prefix)) == prefix)
        if live_only:
            query = query.where(w.c.state == "live")
        return [
            WorkerRow(
                id=row.id,
                state=row.state,
                host=row.host,
                pid=row.pid,
                queues=tuple(codec.decode(row.queues)),
                threads=row.threads,
                started_at=row.started_at,
                beat_at=row.beat_at,
                beat_age_s=(row.now - row.beat_at).total_seconds(),
                ended_at=row.ended_at,
                evidence=sentence_in(row.evidence),
                machine=row.machine,
                parent=row.parent,
                memory_bytes=row.memory_bytes,
                certificate=certificate_in(row.evidence),
            )
            for row in self.database.ask(lambda tx: tx.execute(query).all())
        ]

    def clock(self) -> datetime:
        """The database's clock. Also the cheapest proof that the ledger answers."""
        now: datetime = self.database.ask(lambda tx: tx.execute(select(self.database.now())).scalar_one())
        return now

    def _task_columns(self) -> Select[Any]:
        t = self.database.tables.task
        return select(*(column for column in t.c if column.name not in ("token", "live_key", "relay_until")))

    def standings(self, task_ids: Iterable[str]) -> dict[str, Standing]:
        """Where these tasks stand in every detail; an id that the ledger does not know is missing in the answer."""
        wanted = sorted({one for one in task_ids if codec.is_task_id(one)})
        t = self.database.tables.task
        columns = select(*(column for column in t.c if column.name not in _NOT_ASKED), self.database.now().label("now"))
        answer: dict[str, Standing] = {}
        for start in range(0, len(wanted), IDS_AT_ONCE):
            query = columns.where(t.c.id.in_(wanted[start : start + IDS_AT_ONCE]))
            answer |= {row.id: _standing(row) for row in self.database.ask(partial(_all, query))}
        return answer

    def older(self, than: Standing) -> int:
        """How many tasks of the same queue could be claimed and were due before this one; counted up to 100,000."""
        t = self.database.tables.task
        is_before = or_(t.c.due_at < than.due_at, (t.c.due_at == than.due_at) & (t.c.id < than.task_id))
        before = (
            select(t.c.id)
            .where(found(t.c.state, *CLAIMABLE), t.c.queue == than.queue, t.c.due_at <= than.due_at, is_before)
            .limit(OLDER_MAX)
            .subquery()
        )
        count = select(func.count()).select_from(before)
        return self.database.ask(lambda tx: int(tx.execute(count).scalar_one()))

    def company(self, of: Standing) -> Company:
        """Which other tasks the same worker has claimed and not settled."""
        t = self.database.tables.task
        query = (
            select(func.count(), func.coalesce(func.sum(case((t.c.is_suspect >= SUSPECT, 1), else_=0)), 0))
            .select_from(t)
            .where(found(t.c.state, State.RUNNING), t.c.worker == of.worker, t.c.id != of.task_id)
        )
        others, suspects = self.database.ask(lambda tx: tx.execute(query).one())
        return Company(int(others), int(suspects))

    def occupied(self, workers: Iterable[str]) -> dict[str, int]:
        """How many tasks each of these workers has claimed and not settled; a worker without any is missing."""
        t = self.database.tables.task
        query = (
            select(t.c.worker, func.count().label("tasks"))
            .where(found(t.c.state, State.RUNNING), t.c.worker.in_(sorted(set(workers))))
            .group_by(t.c.worker)
        )
        return {row.worker: int(row.tasks) for row in self.database.ask(partial(_all, query))}

    def happened(self, kinds: Collection[str], *, within_s: float, limit: int) -> list[Event]:
        """The newest events of these kinds, at most `limit` and `within_s` seconds old; the oldest first."""
        e = self.database.tables.event
        query = (
            select(e.c.at, e.c.kind, e.c.task_id, e.c.attempt, e.c.worker, e.c.detail)
            .where(e.c.at >= self.database.now(-within_s), e.c.kind.in_(sorted(kinds)))
            .order_by(e.c.at.desc(), e.c.id.desc())
            .limit(limit)
        )
        return [
            Event(row.at, row.kind, row.task_id, row.attempt, row.worker, codec.decode(row.detail))
            for row in reversed(self.database.ask(partial(_all, query)))
        ]

    def begun(self, *, within_s: float) -> int:
        """How many tasks have succeeded within these seconds, or run now: attempts of which no event tells."""
        t = self.database.tables.task
        of_tasks = select(func.count()).select_from(t)
        # both: SQLite proves the index by the first
        succeeded = of_tasks.where(
            found(t.c.state, *ENDED), found(t.c.state, State.SUCCEEDED), t.c.settled_at >= self.database.now(-within_s)
        )
        running = of_tasks.where(found(t.c.state, State.RUNNING))
        return self.database.ask(
            lambda tx: int(tx.execute(succeeded).scalar_one()) + int(tx.execute(running).scalar_one())
        )

    def swept_for_s(self) -> float | None:
        """How long ago a sweep last finished a pass; None when it is not known."""
        m = self.database.tables.meta
        query = select(m.c.at, self.database.now().label("now")).where(m.c.name == "swept")
        row = self.database.ask(lambda tx: tx.execute(query).first())
        return None if row is None else float((row.now - row.at).total_seconds())


def _task(row: Row[Any]) -> Task:
    arguments = codec.decode(row.payload)
    queue, priority = split(row.queue)
    return Task(
        id=row.id,
        name=row.name,
        queue=queue,
        state=State(row.state),
        attempt=row.attempt,
        failures=row.failures,
        crashes=row.crashes,
        failures_max=row.failures_max,
        crashes_max=row.crashes_max,
        args=tuple(arguments.get("a", ())),
        kwargs=arguments.get("k", {}),
        key=row.task_key,
        job_id=row.job_id,
        result=None if row.result is None else codec.decode(row.result),
        error=row.error,
        reason=row.reason,
        worker=row.worker,
        is_cancel_requested=row.cancel_requested_at is not None,
        created_at=row.created_at,
        due_at=row.due_at,
        waits_for=what_for(row.waits_for, row.due_at, datetime.now(UTC)),  # any clock: it is off by less than years
        started_at=row.started_at,
        settled_at=row.settled_at,
        expires_at=row.expires_at,
        priority=priority,
        **of_row(row, SHOWN),
    )


def _all(query: Select[Any], tx: Connection) -> list[Row[Any]]:
    return list(tx.execute(query).all())


def _standing(row: Row[Any]) -> Standing:
    return Standing(
        task_id=row.id,
        name=row.name,
        queue=row.queue,
        state=State(row.state),
        attempt=row.attempt,
        failures=row.failures,
        failures_max=row.failures_max,
        is_suspect=row.is_suspect >= SUSPECT,
        worker=row.worker,
        error=row.error,
        reason=row.reason,
        now=row.now,
        due_at=row.due_at,
        waits_for=what_for(row.waits_for, row.due_at, row.now),
        queued_at=row.queued_at,
        published_at=row.published_at,
        reserved_until=row.relay_until,
        started_at=row.started_at,
        settled_at=row.settled_at,
        cancel_requested_at=row.cancel_requested_at,
        expires_at=row.expires_at,
        order_key=row.order_key,
        limit_key=row.limit_key,
        job_id=row.job_id,
    )
