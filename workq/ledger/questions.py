"""Read-only questions about the ledger: one task, lists, histories, counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, case, func, select

from workq.errors import ConfigError
from workq.ledger import Counts, QueueCount, WorkerRow, unhandled
from workq.ledger.decisions import is_of_a_job
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, found, guarded, unexpired
from workq.ledger.paused import in_force, is_paused
from workq.ledger.tasks import limit_of
from workq.values import codec
from workq.values.certificate import certificate_in, sentence_in
from workq.values.lane import meant, split
from workq.values.task import Event, OnCrash, State, Task

OPEN = (State.READY, State.WAITING, State.RUNNING)


class Asking:
    """The part of the ledger that only reads."""

    database: Database

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
        of_jobs = select(func.count()).select_from(t).where(found(t.c.state, State.DEAD), is_of_a_job(self.database))
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
        """Whether any task of these queues could be claimed now, or waits for its limit. None of a paused one can."""
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
        k, p, t = self.database.tables.parked, self.database.tables.permit, self.database.tables.task
        theirs = guarded(t.c.state, State.WAITING), t.c.queue.in_(queues)
        h = self.database.tables.throttle
        is_closed = select(h.c.id).where(h.c.id == k.c.limit_key, h.c.closed_until > now).exists()
        parked = select(k.c.task_id).join(t, t.c.id == k.c.task_id).where(*theirs, ~is_closed).limit(1)
        promised = select(p.c.task_id).join(t, t.c.id == p.c.task_id).where(p.c.attempt.is_(None), *theirs).limit(1)
        return self.database.ask(lambda tx: any(tx.execute(one).first() is not None for one in (due, parked, promised)))

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
        started_at=row.started_at,
        settled_at=row.settled_at,
        expires_at=row.expires_at,
        on_crash=OnCrash(row.on_crash or OnCrash.AGAIN),
        order_key=row.order_key,
        limit=limit_of(row),
        priority=priority,
    )
