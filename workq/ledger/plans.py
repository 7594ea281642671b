"""The ledger's part of plan and apply (recovery/plan.py): where rows stand, and writes that refuse what moved since.

A decision locks the row, compares its fence with the planned one, and changes it, in one transaction, together with the
event that says who asked for it. So a row is changed once, however many apply the same plan at the same time, and
nothing is changed without a trace. When the answer of a commit was lost and the transaction runs again, its rows have
moved by its own doing: they are reported as refused, and a sweep publishes their hints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from typing import Any, Final, assert_never

from sqlalchemy import Connection, Row, Select, Table, and_, delete, func, insert, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import Applied, Evidence, Fence, Foreseen, Foresight, Prunable, Prunes, Retention, Unpublished
from workq.ledger.charge import ClaimVerdict, certificate_of, verdicts_of
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, ENDED, found, guarded, in_turn, queues_where, unexpired
from workq.ledger.history import History
from workq.ledger.plan_guard import fence_of, moved
from workq.ledger.upkeep import EVENTS_KEPT_S, WORKERS_KEPT_S, Upkeep
from workq.ledger.workers import Workers
from workq.values import codec
from workq.values.certificate import ProofOfEnd
from workq.values.task import State

AT_ONCE = 500
"""How many rows one transaction decides."""
_NUMBERED = frozenset({Prunes.EVENTS, Prunes.TICKS})
"""Whose ids are numbers."""
_TABLES: Final = {
    Prunes.SUCCEEDED: "task",
    Prunes.CANCELLED: "task",
    Prunes.DEAD: "task",
    Prunes.EVENTS: "event",
    Prunes.TICKS: "tick",
    Prunes.WINDOWS: "window",
    Prunes.WORKERS: "worker",
}
ORPHANED = Evidence("it ran under an incarnation that is not live any more", kind=ProofOfEnd.ORPHAN)


class Plans:
    """Foresees what a sweep would do, and applies a plan of that."""

    def __init__(
        self, database: Database, *, upkeep: Upkeep, workers: Workers, history: History, reserved_s: float
    ) -> None:
        self.database = database
        self._upkeep = upkeep
        self._workers = workers
        self._history = history
        self._reserved = timedelta(seconds=reserved_s)

    # -- where things stand

    def began_at(self) -> datetime:
        """When this ledger was made: tells it from others with the same URL."""
        m = self.database.tables.meta
        query = select(m.c.at).where(m.c.name == "schema_version")
        at: datetime | None = self.database.ask(lambda tx: tx.execute(query).scalar())
        return datetime(1970, 1, 1, tzinfo=UTC) if at is None else at

    def fences(self, task_ids: Iterable[str]) -> dict[str, Fence]:
        """Where these tasks stand; an id that the ledger does not know is missing in the answer."""
        ids = sorted({one for one in task_ids if codec.is_task_id(one)})
        found_now: dict[str, Fence] = {}
        for page in _pages(ids):
            query = self._fenced().where(self.database.tables.task.c.id.in_(page))
            found_now |= {row.id: fence_of(row) for row in self.database.ask(partial(_all, query))}
        return found_now

    def foresee(self, worker: str, evidence: Evidence) -> Foresight | None:
        """What `reap` would do to a live incarnation; None when it is not live."""
        t, w = self.database.tables.task, self.database.tables.worker
        its_row = select(w.c.beat_at, w.c.suspected_at).where(w.c.id == worker, w.c.state == "live")
        claims = self.claims().where(found(t.c.state, State.RUNNING), t.c.worker == worker).order_by(t.c.id)

        def look(tx: Connection) -> Foresight | None:
            row = tx.execute(its_row).first()
            if row is None:
                return None
            verdicts = verdicts_of(tx.execute(claims).all(), evidence)
            return Foresight(worker, row.beat_at, row.suspected_at, tuple(_foreseen(one) for one in verdicts))

        return self.database.ask(look)

    def orphaned(self, *, limit: int) -> list[Foreseen]:
        """What `orphans` would return."""
        t, w = self.database.tables.task, self.database.tables.worker
        query = (
            self.claims()
            .outerjoin(w, w.c.id == t.c.worker)
            .where(found(t.c.state, State.RUNNING), or_(w.c.id.is_(None), w.c.state != "live"))
            .order_by(t.c.id)
            .limit(limit)
        )
        rows = self.database.ask(partial(_all, query))
        return [_foreseen(one) for _, of_one in _by_worker(rows) for one in verdicts_of(of_one, ORPHANED, is_all=False)]

    def expirable(self, *, limit: int) -> list[str]:
        """Whom `expire` would cancel."""
        return self.database.ask(partial(_ids, self._upkeep.expired(limit)), sorts=False)

    def promotable(self, *, limit: int) -> list[str]:
        """Whom `promote` would make ready."""
        t, now = self.database.tables.task, self.database.now
        waits = [found(t.c.state, *CLAIMABLE), found(t.c.state, State.WAITING)]

        def look(tx: Connection) -> list[str]:
            queues = list(tx.execute(queues_where(t, CLAIMABLE, (State.WAITING,))).scalars())
            if not queues:
                return []
            due = select(t.c.id).where(*waits, t.c.queue.in_(queues), t.c.due_at <= now())
            due = due.where(unexpired(t.c.expires_at, now()))
            return list(tx.execute(due.order_by(t.c.due_at).limit(limit)).scalars())

        return self.database.ask(look)

    def prunable(self, *, limit: int, retention_s: float, dead_retention_s: float) -> list[Prunable]:
        """What `prune` would remove, at most `limit` rows of each kind."""

        def look(tx: Connection) -> list[Prunable]:
            rows = []
            left = limit  # of the three kinds of tasks together, as `prune` counts them
            for what in Prunes:
                table, old, at, age_s = self._old(what, retention_s, dead_retention_s)
                before: datetime = tx.execute(select(self.database.now(-age_s))).scalar_one()
                is_task = table is self.database.tables.task
                query = select(table.c.id).where(*old, at <= before).order_by(at).limit(left if is_task else limit)
                ids = tuple(str(one) for one in tx.execute(query).scalars())
                left -= len(ids) if is_task else 0
                if ids:
                    rows.append(Prunable(what, before, ids))
            return rows

        return self.database.ask(look)

    # -- apply

    def relay_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that stand where they stood are unpublished, reserved for a relay, and answered for publishing.

        Each of these five writes decides row by row, in one transaction that locks the row, and appends an event
        `manual` with `by` for each that it changed. Whoever comes second is refused.
        """
        t = self.database.tables.task

        def why_not(planned: Fence, row: Any) -> str | None:
            if (why := moved(planned, fence_of(row))) is not None:
                return why
            if row.relay_until is not None and row.relay_until > row.now:
                return "somebody is sending its hint just now"
            return None if row.state in CLAIMABLE else f"it is {row.state}"

        def change(tx: Connection, rows: Sequence[Any]) -> list[Unpublished]:
            until = rows[0].now + self._reserved
            is_still = t.c.id.in_([row.id for row in rows]) & guarded(t.c.state, *CLAIMABLE)
            tx.execute(update(t).where(is_still).values(published_at=None, relay_until=until))
            return in_turn(rows, until)

        return self.decide(self._fenced(), fences, why_not, change, by)

    def expire_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that stand where they stood, and have expired, are cancelled."""

        def why_not(planned: Fence, row: Any) -> str | None:
            if (why := moved(planned, fence_of(row), is_hint_free=True)) is not None:
                return why
            if row.state not in CLAIMABLE:
                return f"it is {row.state}"
            return None if row.expires_at is not None and row.expires_at <= row.now else "it has not expired"

        def change(tx: Connection, rows: Sequence[Any]) -> list[Unpublished]:
            self._upkeep.cancel_expired(tx, [row.id for row in rows])
            return []

        return self.decide(self._fenced(), fences, why_not, change, by)

    def promote_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that wait where they waited, and are due, become ready."""
        t = self.database.tables.task

        def why_not(planned: Fence, row: Any) -> str | None:
            if (why := moved(planned, fence_of(row), is_hint_free=True)) is not None:
                return why
            if row.state != State.WAITING:
                return f"it is {row.state}"
            return "it is not due yet" if row.due_at > row.now else None

        def change(tx: Connection, rows: Sequence[Any]) -> list[Unpublished]:
            is_still = t.c.id.in_([row.id for row in rows]) & guarded(t.c.state, State.WAITING)
            tx.execute(update(t).where(is_still).values(state=State.READY))
            return []

        return self.decide(self._fenced(), fences, why_not, change, by)

    def return_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that still run under the same claim of an incarnation which is not live are returned."""
        w = self.database.tables.worker

        def why_not(planned: Fence, row: Any) -> str | None:
            if (why := moved(planned, fence_of(row))) is not None:
                return why
            return None if row.state == State.RUNNING else f"it is {row.state}"

        def are_gone(tx: Connection, rows: Sequence[Any]) -> dict[str, str]:
            names = {row.worker for row in rows}
            live = set(tx.execute(select(w.c.id).where(w.c.id.in_(names), w.c.state == "live")).scalars())
            return {row.id: f"its worker {row.worker} is live" for row in rows if row.worker in live}

        def change(tx: Connection, rows: Sequence[Any]) -> list[Unpublished]:
            hints: list[Unpublished] = []
            for worker, of_one in _by_worker(rows):
                verdicts = verdicts_of(of_one, ORPHANED, is_all=False)
                hints.extend(
                    self._workers.reclaim(tx, verdicts, worker, certificate_of(None, ORPHANED, verdicts)).hints
                )
            return hints

        return self.decide(self.claims(), fences, why_not, change, by, are_refused=are_gone)

    def prune_planned(
        self, rows: Prunable, *, retention_s: float, dead_retention_s: float, by: Mapping[str, Any]
    ) -> Applied:
        """Rows that are still beyond their retention, and were when the plan was made, are removed."""
        table, old, at, age_s = self._old(rows.what, retention_s, dead_retention_s)
        is_old = [*old, at <= self.database.now(-age_s), at <= rows.before]
        keys: list[Any] = [int(one) if rows.what in _NUMBERED else one for one in rows.ids if _is_key(one, rows.what)]
        pruned: list[str] = []
        for page in _pages(sorted(keys)):

            def remove(tx: Connection, page: Sequence[Any] = page) -> list[str]:
                sound = select(table.c.id).where(table.c.id.in_(page), *is_old).with_for_update()
                ids = list(tx.execute(sound).scalars())
                if ids:
                    if table is self.database.tables.task:
                        self._upkeep.forget_parts(tx, ids)
                    tx.execute(delete(table).where(table.c.id.in_(ids), *is_old))
                    self._history.append(tx, "manual", {**by, "removed": rows.what.value, "count": len(ids)})
                return [str(one) for one in ids]

            pruned.extend(self.database.run(remove))
        gone = set(pruned)
        why = "it is not there any more, or not beyond its retention"
        return Applied(tuple(pruned), (), {one: why for one in rows.ids if one not in gone})

    # -- parts

    def decide(
        self,
        columns: Select[Any],
        fences: Sequence[Fence],
        why_not: Callable[[Fence, Any], str | None],
        change: Callable[[Connection, Sequence[Row[Any]]], list[Unpublished]],
        by: Mapping[str, Any],
        *,
        are_refused: Callable[[Connection, Sequence[Row[Any]]], dict[str, str]] = lambda _tx, _rows: {},
    ) -> Applied:
        """Lock rows, refuse what has moved, change the rest and say who asked for it: one transaction for each page."""
        t = self.database.tables.task
        planned = {fence.task_id: fence for fence in fences if codec.is_task_id(fence.task_id)}
        changed: list[str] = []
        hints: list[Unpublished] = []
        refused: dict[str, str] = {}
        for page in _pages(sorted(planned)):
            locked = columns.where(t.c.id.in_(page)).order_by(t.c.id).with_for_update()

            def decide(
                tx: Connection, page: Sequence[str] = page, locked: Select[Any] = locked
            ) -> tuple[list[str], list[Unpublished], dict[str, str]]:
                rows = {row.id: row for row in tx.execute(locked).all()}
                no: dict[str, str] = {}
                for task_id in page:
                    row = rows.get(task_id)
                    why = moved(planned[task_id], None) if row is None else why_not(planned[task_id], row)
                    if why is not None:
                        no[task_id] = why
                no |= are_refused(tx, [row for row in rows.values() if row.id not in no])
                sound = [row for row in rows.values() if row.id not in no]
                if not sound:
                    return [], [], no
                self._say(tx, sound, by)
                return [row.id for row in sound], change(tx, sound), no

            of_page = self.database.run(decide)
            changed.extend(of_page[0])
            hints.extend(of_page[1])
            refused |= of_page[2]
        return Applied(tuple(changed), tuple(hints), refused)

    def _say(self, tx: Connection, rows: Sequence[Row[Any]], by: Mapping[str, Any]) -> None:
        """One event `manual` for each task."""
        detail = codec.encode(dict(by), path="event")
        tx.execute(
            insert(self.database.tables.event).values(at=self.database.now(), kind="manual", detail=detail),
            [{"task_id": row.id, "attempt": row.attempt} for row in rows],
        )

    def _fenced(self) -> Select[Any]:
        c = self.database.tables.task.c
        return select(
            c.id,
            c.queue,
            c.state,
            c.attempt,
            c.token,
            c.worker,
            c.due_at,
            c.queued_at,
            c.published_at,
            c.relay_until,
            c.expires_at,
            self.database.now().label("now"),
        )

    def claims(self) -> Select[Any]:
        """What a verdict needs, and what a fence needs."""
        c = self.database.tables.task.c
        return self._workers.running_claims().add_columns(c.state, c.queued_at, c.published_at)

    def prunable_rows(self, retention: Retention) -> dict[str, int]:
        """How many rows of the core are beyond their retention, by table."""
        counts: Counter[str] = Counter()
        for what in Prunes:
            table, old, at, age_s = self._old(what, retention.tasks_s, retention.dead_s)
            query = select(func.count()).select_from(table).where(*old, at <= self.database.now(-age_s))
            counts[_TABLES[what]] += self.database.ask(partial(_count, query))
        return dict(counts)

    def _old(
        self, what: Prunes, retention_s: float, dead_retention_s: float
    ) -> tuple[Table, list[ColumnElement[bool]], ColumnElement[Any], float]:
        """One kind of rows that retention removes: the table, which rows, what their age counts from, how old."""
        t, e, w = self.database.tables.task, self.database.tables.event, self.database.tables.worker
        k, o = self.database.tables.tick, self.database.tables.window
        match what:
            case Prunes.SUCCEEDED | Prunes.CANCELLED | Prunes.DEAD:
                state = State(what.value)
                age_s = dead_retention_s if state is State.DEAD else retention_s
                return t, [found(t.c.state, *ENDED), found(t.c.state, state)], t.c.settled_at, age_s
            case Prunes.EVENTS:
                return e, [], e.c.at, EVENTS_KEPT_S
            case Prunes.TICKS:
                return k, [], k.c.made_at, EVENTS_KEPT_S
            case Prunes.WINDOWS:
                return o, [], o.c.ends_at, 0.0
            case Prunes.WORKERS:
                return w, [and_(w.c.state.in_(["left", "reaped"]))], w.c.ended_at, WORKERS_KEPT_S
            case _:
                assert_never(what)


def _is_key(text: str, what: Prunes) -> bool:
    match what:
        case Prunes.SUCCEEDED | Prunes.CANCELLED | Prunes.DEAD:
            return codec.is_task_id(text)
        case Prunes.EVENTS | Prunes.TICKS:
            return text.isascii() and text.isdecimal() and len(text) < 19
        case Prunes.WINDOWS:
            return 0 < len(text) <= 401
        case Prunes.WORKERS:
            return 0 < len(text) <= 120
        case _:
            assert_never(what)


def _foreseen(verdict: ClaimVerdict) -> Foreseen:
    return Foreseen(fence_of(verdict.row), verdict.state, verdict.charge.value)


def _by_worker(rows: Iterable[Row[Any]]) -> list[tuple[str, list[Row[Any]]]]:
    ordered = sorted(rows, key=lambda row: (row.worker, row.id))
    return [(worker, list(of_one)) for worker, of_one in groupby(ordered, key=lambda row: str(row.worker))]


def _pages(keys: Sequence[Any]) -> list[Sequence[Any]]:
    return [keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE)]


def _ids(query: Select[Any], tx: Connection) -> list[str]:
    return list(tx.execute(query).scalars())


def _all(query: Select[Any], tx: Connection) -> list[Row[Any]]:
    return list(tx.execute(query).all())


def _count(query: Select[Any], tx: Connection) -> int:
    return int(tx.execute(query).scalar_one())
