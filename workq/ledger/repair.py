"""What the sweep, the supervisor and people change: relay reservations, reaping, promotion, retention, cancel, revive.

Nobody leads: ten sweeps may run at once. A row that is about to be decided is locked by the transaction that decides
(`FOR UPDATE SKIP LOCKED`; SQLite has one writer), and the write repeats the condition. MySQL locks every row that a
search reads before it sorts them: there, and where a join decides, rows are searched first, then locked by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import (
    Connection,
    Delete,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float, Integer

from workq import codec
from workq.errors import NotFound, Refused
from workq.evidence import (
    Certificate,
    Kind,
    text_of,
)
from workq.incarnation import Incarnation
from workq.ledger import CancelAnswer, Evidence, Foresight, Pruned, Reaped, Unpublished
from workq.ledger.claims import ERROR_MAX, REASON_MAX
from workq.ledger.database import Database
from workq.ledger.fences import are_claims_moved
from workq.ledger.record import live_key
from workq.ledger.states import CLAIMABLE, ENDED, found, guarded
from workq.ledger.verdicts import Verdict, certificate_of, in_history, reaped_as, verdicts_of
from workq.task import State

RESERVED_S = 15.0
"""How long a relay may take before another sweep may publish the same rows."""
EVENTS_KEPT_S = 30 * 86400.0
WORKERS_KEPT_S = 86400.0


class Repairing:
    """The part of the ledger that repairs."""

    database: Database
    reserved_s: float = RESERVED_S

    # -- relay

    def take_unpublished(
        self, *, limit: int, grace_s: float, horizon_s: float, dry_run: bool = False
    ) -> list[Unpublished]:
        t, now = self.database.tables.task, self.database.now
        needs_a_hint = [
            t.c.published_at.is_(None),
            t.c.due_at <= now(min(horizon_s, 3.2e8)),
            t.c.queued_at <= now(-grace_s),
            or_(t.c.relay_until.is_(None), t.c.relay_until <= now()),
        ]
        columns = select(t.c.id, t.c.queue, t.c.attempt, t.c.due_at, now().label("now"))
        chosen = columns.where(found(t.c.state, *CLAIMABLE), *needs_a_hint).order_by(t.c.due_at, t.c.id).limit(limit)
        candidates = self.database.ask(lambda tx: tx.execute(chosen).all())  # most passes find none, and take no lock
        if dry_run or not candidates:
            return unpublished(candidates)
        ids = [row.id for row in candidates]
        still = [guarded(t.c.state, *CLAIMABLE), *needs_a_hint]
        if self.database.dialect == "postgresql":  # sweeps at the same time share the rows
            locked = chosen.with_for_update(skip_locked=True)
        else:
            locked = columns.where(t.c.id.in_(ids), *still).with_for_update(skip_locked=True)

        def reserve(tx: Connection) -> list[Any]:
            rows = list(tx.execute(locked))
            if rows:
                tx.execute(
                    update(t)
                    .where(t.c.id.in_([row.id for row in rows]), *still)
                    .values(relay_until=now(self.reserved_s))
                )
            return rows

        return unpublished(sorted(self.database.run(reserve), key=lambda row: (row.due_at, row.id)))

    def unhint(self, task_ids: Sequence[str], *, dry_run: bool = False) -> list[Unpublished]:
        ids = [task_id for task_id in task_ids if codec.is_task_id(task_id)]
        if not ids:
            return []
        t, now = self.database.tables.task, self.database.now

        chosen = (
            select(t.c.id, t.c.queue, t.c.attempt, t.c.due_at, now().label("now"))
            .where(t.c.id.in_(ids), guarded(t.c.state, *CLAIMABLE))
            .order_by(t.c.id)
        )
        if dry_run:
            return unpublished(self.database.ask(lambda tx: tx.execute(chosen).all()))

        def clear(tx: Connection) -> list[Unpublished]:
            rows = tx.execute(chosen.with_for_update()).all()
            if rows:
                tx.execute(
                    update(t)
                    .where(t.c.id.in_([row.id for row in rows]), guarded(t.c.state, *CLAIMABLE))
                    .values(published_at=None, relay_until=now(self.reserved_s))
                )
            return unpublished(rows)

        return self.database.run(clear)

    # -- workers

    def join(self, worker: Incarnation, *, queues: Sequence[str], threads: int) -> None:
        w, now = self.database.tables.worker, self.database.now

        def add(tx: Connection) -> None:
            if tx.execute(select(w.c.id).where(w.c.id == worker.id)).first() is None:
                tx.execute(
                    insert(w).values(
                        id=worker.id,
                        state="live",
                        host=worker.host,
                        pid=worker.pid,
                        queues=codec.encode(list(queues), path="queues"),
                        threads=threads,
                        started_at=now(),
                        beat_at=now(),
                        machine=worker.machine,
                        parent=worker.parent,
                    )
                )

        try:
            self.database.run(add)
        except IntegrityError:  # an id is one life of one process: whoever was faster wrote the same row
            return

    def beat(self, worker: str, *, memory_bytes: int | None = None) -> bool:
        w, now = self.database.tables.worker, self.database.now
        values: dict[str, Any] = {"beat_at": now(), "suspected_at": None}
        if memory_bytes is not None:
            values["memory_bytes"] = memory_bytes
        statement = update(w).where(w.c.id == worker, w.c.state == "live").values(values)
        return self.database.run(lambda tx: tx.execute(statement).rowcount) == 1

    def leave(self, worker: str) -> None:
        w, now = self.database.tables.worker, self.database.now
        statement = update(w).where(w.c.id == worker, w.c.state == "live").values(state="left", ended_at=now())
        self.database.run(lambda tx: tx.execute(statement))

    # -- reap

    def suspect(self, missing: Iterable[str], *, beat_s: float, lease_s: float, dry_run: bool = False) -> list[str]:
        w, now = self.database.tables.worker, self.database.now
        gone = list(missing)
        is_live = w.c.state == "live"
        long_since = select(w.c.id).where(is_live, w.c.id.in_(gone), w.c.suspected_at <= now(-beat_s))
        if dry_run:
            return self.database.ask(lambda tx: list(tx.execute(long_since).scalars()))

        def look(tx: Connection) -> list[str]:
            tx.execute(
                update(w).where(is_live, w.c.suspected_at.is_not(None), w.c.id.not_in(gone)).values(suspected_at=None)
            )
            tx.execute(
                update(w)
                .where(is_live, w.c.suspected_at.is_(None), w.c.id.in_(gone), w.c.beat_at <= now(-lease_s))
                .values(suspected_at=now())
            )
            return list(tx.execute(long_since).scalars())

        anybody = select(w.c.id).where(is_live, w.c.suspected_at.is_not(None)).limit(1)
        if not gone and self.database.ask(lambda tx: tx.execute(anybody).first()) is None:
            return []  # the usual pass finds everybody well, and writes nothing
        return self.database.run(look)

    def reap(
        self,
        worker: str,
        evidence: Evidence,
        *,
        suspected_for_s: float | None = None,
        lease_s: float = 0.0,
        dry_run: bool = False,
        planned: Foresight | None = None,
        by: Mapping[str, Any] | None = None,
    ) -> Reaped | None:
        t, w, now = self.database.tables.task, self.database.tables.worker, self.database.now
        decided = [w.c.id == worker, w.c.state == "live"]
        if suspected_for_s is not None:
            decided += [w.c.suspected_at <= now(-suspected_for_s), w.c.beat_at <= now(-lease_s)]
        if planned is not None:
            decided.append(w.c.beat_at == planned.beat_at)
            if planned.suspected_at is not None:
                decided.append(w.c.suspected_at == planned.suspected_at)

        claims = self._running().where(found(t.c.state, State.RUNNING), t.c.worker == worker).order_by(t.c.id)

        def look(tx: Connection) -> Reaped | None:
            if tx.execute(select(w.c.id).where(*decided)).first() is None:
                return None
            return reaped_as(worker, verdicts_of(tx.execute(claims).all(), evidence))

        if dry_run:
            return self.database.ask(look)

        last = select(w.c.host, w.c.pid, w.c.beat_at, w.c.memory_bytes, now().label("now")).where(w.c.id == worker)

        def end(tx: Connection) -> Reaped | None:
            ended = tx.execute(update(w).where(*decided).values(state="reaped", ended_at=now())).rowcount
            if not ended:
                return None
            rows = tx.execute(claims.with_for_update()).all()
            if planned is not None and are_claims_moved(planned.claims, rows):
                tx.rollback()  # it has claimed or settled something since: it lives
                return None
            verdicts = verdicts_of(rows, evidence)
            certificate = certificate_of(tx.execute(last).one(), evidence, verdicts)
            tx.execute(update(w).where(w.c.id == worker).values(evidence=text_of(certificate)))
            for task_id in [] if by is None else [None, *(row.id for row in rows)]:
                self._event(tx, "manual", by or {}, task_id=task_id, worker=worker)
            return self._reclaim(tx, verdicts, worker, certificate)

        return self.database.run(end)

    def orphans(self, *, limit: int, dry_run: bool = False) -> list[Unpublished]:
        t, w = self.database.tables.task, self.database.tables.worker
        evidence = Evidence("it ran under an incarnation that is not live any more", kind=Kind.ORPHAN)
        chosen = (
            self._running()
            .outerjoin(w, w.c.id == t.c.worker)
            .where(found(t.c.state, State.RUNNING), or_(w.c.id.is_(None), w.c.state != "live"))
            .order_by(t.c.id)
            .limit(limit)
        )
        candidates = self.database.ask(lambda tx: tx.execute(chosen).all())
        if dry_run or not candidates:
            verdicts = [
                verdict
                for worker in dict.fromkeys(row.worker for row in candidates)
                for verdict in verdicts_of([row for row in candidates if row.worker == worker], evidence, is_all=False)
            ]
            return [hint for verdict in verdicts if (hint := verdict.hint) is not None]
        tokens = {
            row.token for row in candidates
        }  # an incarnation that is not live never becomes so: these stay orphans
        locked = (
            self._running()
            .where(t.c.id.in_([row.id for row in candidates]), guarded(t.c.state, State.RUNNING))
            .order_by(t.c.id)
            .with_for_update(skip_locked=True)
        )

        def reclaim(tx: Connection) -> list[Unpublished]:
            rows = [row for row in tx.execute(locked).all() if row.token in tokens]
            hints: list[Unpublished] = []
            for worker in dict.fromkeys(row.worker for row in rows):
                verdicts = verdicts_of([row for row in rows if row.worker == worker], evidence, is_all=False)
                hints.extend(self._reclaim(tx, verdicts, worker, certificate_of(None, evidence, verdicts)).hints)
            return hints

        return self.database.run(reclaim)

    def _running(self) -> Select[Any]:
        c = self.database.tables.task.c
        return select(
            c.id,
            c.name,
            c.queue,
            c.attempt,
            c.token,
            c.worker,
            c.failures,
            c.failures_max,
            c.crashes,
            c.crashes_max,
            c.is_suspect,
            c.cancel_requested_at,
            c.due_at,
            self.database.now().label("now"),
        )

    def _reclaim(self, tx: Connection, verdicts: Sequence[Verdict], worker: str, certificate: Certificate) -> Reaped:
        """End claims of one incarnation. The rows are locked; every write carries the fence all the same."""
        if not verdicts:
            return Reaped(worker, 0, 0, ())
        t, now = self.database.tables.task, self.database.now
        is_cancel_asked = t.c.cancel_requested_at.is_not(None)
        settles = or_(is_cancel_asked, bindparam("b_state") == State.DEAD)
        tx.execute(
            update(t)
            .where(
                t.c.id == bindparam("b_id"),
                t.c.attempt == bindparam("b_attempt"),
                t.c.token == bindparam("b_token"),
                guarded(t.c.state, State.RUNNING),
            )
            .values(
                state=case((is_cancel_asked, State.CANCELLED), else_=bindparam("b_state")),
                settled_at=case((settles, now()), else_=null()),
                live_key=case((settles, null()), else_=t.c.live_key),
                reason=case((is_cancel_asked, t.c.reason), else_=bindparam("b_reason")),
                token=None,
                due_at=case(
                    (bindparam("b_delay_s", type_=Float()) > 0.0, now(bindparam("b_delay_s", type_=Float()))),
                    else_=t.c.due_at,
                ),
                queued_at=now(),
                published_at=None,
                relay_until=now(self.reserved_s),
                failures=t.c.failures + bindparam("b_failed"),
                crashes=t.c.crashes + bindparam("b_crashed"),
                is_suspect=case(
                    (bindparam("b_suspect", type_=Integer()) > t.c.is_suspect, bindparam("b_suspect", type_=Integer())),
                    else_=t.c.is_suspect,
                ),
                error=func.coalesce(bindparam("b_error"), t.c.error),
            ),
            [verdict.parameters for verdict in verdicts],
        )
        tx.execute(
            insert(self.database.tables.event).values(at=now(), kind="reaped", worker=worker),
            [
                {
                    "task_id": verdict.row.id,
                    "attempt": verdict.row.attempt,
                    "detail": codec.encode(in_history(certificate, verdict), path="event", max_bytes=1 << 20),
                }
                for verdict in verdicts
            ],
        )
        return reaped_as(worker, verdicts)

    def swept(self, *, every_s: float) -> None:
        m, now = self.database.tables.meta, self.database.now
        of_sweeps = m.c.name == "swept"
        lately = self.database.ask(lambda tx: tx.execute(select(m.c.at > now(-every_s)).where(of_sweeps)).scalar())
        if lately:
            return

        def stamp(tx: Connection) -> None:
            stamped = tx.execute(update(m).where(of_sweeps, m.c.at <= now(-every_s)).values(at=now())).rowcount
            if not stamped and lately is None:
                tx.execute(insert(m).values(name="swept", value="{}", at=now()))

        with suppress(IntegrityError):  # another sweep was faster to write the first one
            self.database.run(stamp)

    # -- promote and prune

    def promote(self, *, limit: int, dry_run: bool = False) -> int:
        t, now = self.database.tables.task, self.database.now
        is_due = [t.c.due_at <= now()]
        waits = [
            found(t.c.state, *CLAIMABLE),
            found(t.c.state, State.WAITING),
        ]  # both: SQLite proves the index by the first

        def choose(tx: Connection) -> list[str]:
            queues = list(tx.execute(queues_where(t, *waits)).scalars())
            if not queues:
                return []
            chosen = select(t.c.id).where(*waits, t.c.queue.in_(queues), *is_due).order_by(t.c.due_at).limit(limit)
            return list(tx.execute(chosen).scalars())

        ids = self.database.ask(choose)
        if dry_run or not ids:
            return len(ids)
        return self._changed(
            update(t)
            .where(t.c.id.in_(sorted(ids)), guarded(t.c.state, State.WAITING), *is_due)
            .values(state=State.READY)
        )

    def prune(self, *, limit: int, retention_s: float, dead_retention_s: float, dry_run: bool = False) -> Pruned:
        tables, now = self.database.tables, self.database.now
        t, e, w = tables.task, tables.event, tables.worker
        kept_s = {State.SUCCEEDED: retention_s, State.CANCELLED: retention_s, State.DEAD: dead_retention_s}
        ended = found(t.c.state, *ENDED)
        tasks = [
            (
                select(t.c.id)
                .where(ended, found(t.c.state, state), t.c.settled_at <= now(-age_s))
                .order_by(t.c.settled_at),
                and_(guarded(t.c.state, state), t.c.settled_at <= now(-age_s)),
            )
            for state, age_s in kept_s.items()
        ]
        is_old_event = e.c.at <= now(-EVENTS_KEPT_S)
        events = [(select(e.c.id).where(is_old_event).order_by(e.c.at), is_old_event)]
        is_old_worker = and_(w.c.state.in_(["left", "reaped"]), w.c.ended_at <= now(-WORKERS_KEPT_S))
        workers = [(select(w.c.id).where(is_old_worker), is_old_worker)]
        return Pruned(
            self._pruned(t, tasks, limit, dry_run=dry_run),
            self._pruned(e, events, limit, dry_run=dry_run),
            self._pruned(w, workers, limit, dry_run=dry_run),
        )

    def _pruned(
        self, table: Table, choices: Sequence[tuple[Select[Any], ColumnElement[bool]]], limit: int, *, dry_run: bool
    ) -> int:
        """Remove up to `limit` rows: found by the first of each pair, guarded by the second (a task may be revived)."""
        removed = 0
        for choice, still in choices:
            bounded = choice.limit(limit - removed)
            ids = self.database.ask(partial(_ids, bounded))
            if ids:
                removed += len(ids) if dry_run else self._changed(delete(table).where(table.c.id.in_(ids), still))
            if removed >= limit:
                break
        return removed

    # -- people

    def cancel(self, task_id: str, *, reason: str) -> CancelAnswer:
        if not codec.is_task_id(task_id):
            raise _unknown(task_id)
        t, now = self.database.tables.task, self.database.now
        kept = _kept(reason, REASON_MAX)

        def decide(tx: Connection) -> CancelAnswer | None:
            at_once = tx.execute(
                update(t)
                .where(t.c.id == task_id, guarded(t.c.state, *CLAIMABLE))
                .values(state=State.CANCELLED, reason=kept, settled_at=now(), live_key=None)
            ).rowcount
            if at_once:
                self._event(tx, "cancelled", {"reason": kept}, task_id=task_id)
                return CancelAnswer.CANCELLED
            asked = tx.execute(
                update(t)
                .where(t.c.id == task_id, guarded(t.c.state, State.RUNNING), t.c.cancel_requested_at.is_(None))
                .values(cancel_requested_at=now(), reason=kept)
            ).rowcount
            if asked:
                self._event(tx, "cancelled", {"reason": kept, "asked": True}, task_id=task_id)
                return CancelAnswer.REQUESTED
            state = tx.execute(select(t.c.state).where(t.c.id == task_id)).scalar()
            if state is None:
                raise _unknown(task_id)
            if state in CLAIMABLE:
                return None
            if state == State.RUNNING:
                return CancelAnswer.REQUESTED
            return CancelAnswer.ALREADY_CANCELLED if state == State.CANCELLED else CancelAnswer.ALREADY_FINISHED

        while (answer := self.database.run(decide)) is None:
            continue  # it was handed back or reaped between two of our statements: it can be cancelled at once now
        return answer

    def revive(self, task_id: str, *, why: str) -> Unpublished:
        if not codec.is_task_id(task_id):
            raise _unknown(task_id)
        t, now = self.database.tables.task, self.database.now
        tries = 0

        def send_back(tx: Connection) -> Unpublished:
            nonlocal tries
            tries += 1
            row = tx.execute(
                select(t.c.state, t.c.name, t.c.queue, t.c.attempt, t.c.task_key).where(t.c.id == task_id)
            ).first()
            if row is None:
                raise _unknown(task_id)
            revived = tx.execute(
                update(t)
                .where(t.c.id == task_id, guarded(t.c.state, State.DEAD, State.CANCELLED))
                .values(
                    state=State.READY,
                    settled_at=None,
                    due_at=now(),
                    queued_at=now(),
                    published_at=None,
                    relay_until=None,
                    cancel_requested_at=None,
                    reason=None,
                    failures=0,
                    crashes=0,
                    is_suspect=0,
                    live_key=live_key(row.name, row.task_key),
                )
            ).rowcount
            if not revived:
                if tries > 1 and row.state in CLAIMABLE:  # the answer of our first try was lost: it stands
                    return Unpublished(task_id, row.queue, row.attempt, 0.0)
                raise Refused(f"task {task_id} is {row.state}; only dead and cancelled tasks are revived")
            self._event(tx, "revived", {"why": _kept(why)}, task_id=task_id)
            return Unpublished(task_id, row.queue, row.attempt, 0.0)

        try:
            return self.database.run(send_back)
        except IntegrityError as error:
            raise Refused(f"task {task_id}: its key is held by a live task; cancel that one first") from error

    def note(
        self, kind: str, *, detail: Mapping[str, Any], task_id: str | None = None, worker: str | None = None
    ) -> None:
        self.database.run(lambda tx: self._event(tx, kind, detail, task_id=task_id, worker=worker))

    def _changed(self, statement: Update | Delete) -> int:
        return self.database.run(lambda tx: tx.execute(statement).rowcount)

    def _event(
        self,
        tx: Connection,
        kind: str,
        detail: Mapping[str, Any],
        *,
        task_id: str | None = None,
        worker: str | None = None,
    ) -> None:
        tx.execute(
            insert(self.database.tables.event).values(
                at=self.database.now(),
                kind=kind,
                task_id=task_id,
                worker=worker,
                detail=codec.encode(dict(detail), path="event", max_bytes=1 << 20),
            )
        )


def queues_where(t: Table, *waits: ColumnElement[bool]) -> Select[Any]:
    """The queues of these tasks, one index probe for each: the next name after the last, until there is none."""
    first = select(func.min(t.c.queue).label("queue")).where(*waits)
    queues = first.cte("queues", recursive=True)
    following = select(func.min(t.c.queue)).where(*waits, t.c.queue > queues.c.queue).scalar_subquery()
    queues = queues.union_all(select(following).where(queues.c.queue.is_not(None)))
    return select(queues.c.queue).where(queues.c.queue.is_not(None))


def _kept(text: str, characters_max: int = ERROR_MAX) -> str:
    return codec.storable(text, characters_max=characters_max)


def _unknown(task_id: str) -> NotFound:
    return NotFound(f"no task {task_id[:100]}; list them with: workq task ls")


def _ids(choice: Select[Any], tx: Connection) -> list[Any]:
    return list(tx.execute(choice).scalars())


def unpublished(rows: Iterable[Any]) -> list[Unpublished]:
    """Rows with id, queue, attempt, due_at and now, as what is to be published."""
    return [
        Unpublished(row.id, row.queue, row.attempt, max(0.0, (row.due_at - row.now).total_seconds())) for row in rows
    ]
