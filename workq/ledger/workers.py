"""What the sweep and the supervisor change: relay reservations, reaping, expiry, promotion, retention.

Nobody leads: ten sweeps may run at once. A row that is about to be decided is locked by the transaction that decides
(`FOR UPDATE SKIP LOCKED`; SQLite has one writer), and the write repeats the condition. MySQL locks every row that a
search reads before it sorts them: there, and where a join decides, rows are searched first, then locked by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
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

from workq.ledger import Evidence, Foresight, Pruned, Reaped, Unpublished
from workq.ledger.charge import ClaimVerdict, certificate_of, in_history, reaped_as, verdicts_of
from workq.ledger.engine import after_commit
from workq.ledger.engine.states import CLAIMABLE, ENDED, found, guarded, unexpired
from workq.ledger.history import Appending
from workq.ledger.log_lines import by_death, by_time
from workq.ledger.plan_guard import are_claims_moved
from workq.ledger.scan_floor import Floor
from workq.values import codec
from workq.values.certificate import (
    Certificate,
    ProofOfEnd,
    text_of,
)
from workq.values.incarnation import Incarnation
from workq.values.task import State

RESERVED_S = 15.0
"""How long a relay may take before another sweep may publish the same rows."""
EVENTS_KEPT_S = 30 * 86400.0
WORKERS_KEPT_S = 86400.0
FORGOTTEN = Evidence("its worker lives and does not have it", kind=ProofOfEnd.FORGOTTEN, is_bystander=True)
"""The ledger was restored, the process was, or an answer was lost: it may have begun, and no process died."""


EXPIRED = "expired"
"""Why a task was cancelled that nobody started in its time."""


class Repairing(Appending):
    """The part of the ledger that repairs."""

    floor: Floor
    reserved_s: float = RESERVED_S

    # -- relay

    def take_unpublished(
        self, *, limit: int, grace_s: float, horizon_s: float, dry_run: bool = False
    ) -> list[Unpublished]:
        """Tasks that need a hint: unpublished for longer than the grace and due within the horizon; oldest first.

        They are reserved for a while, so that ten sweeps together publish each once. A relay that dies lets go of them.
        """
        t, now = self.database.tables.task, self.database.now
        needs_a_hint = [
            t.c.published_at.is_(None),
            t.c.due_at <= now(min(horizon_s, 3.2e8)),
            t.c.queued_at <= now(-grace_s),
            or_(t.c.relay_until.is_(None), t.c.relay_until <= now()),
            unexpired(t.c.expires_at, now()),
        ]
        columns = select(t.c.id, t.c.queue, t.c.attempt, t.c.due_at, now().label("now"))

        def look(tx: Connection, since: datetime | None, *, locks: bool = False) -> list[Any]:
            rows: list[Any] = []
            for state in CLAIMABLE:  # one after the other: each is one range of the index
                chosen = columns.where(found(t.c.state, *CLAIMABLE), found(t.c.state, state), *needs_a_hint)
                chosen = not_before(chosen, t, since).order_by(t.c.due_at, t.c.id).limit(limit - len(rows))
                rows += tx.execute(chosen.with_for_update(skip_locked=True) if locks else chosen)
                if len(rows) >= limit:
                    break
            return rows

        def found_since(tx: Connection, since: datetime | None) -> tuple[list[Any], datetime | None]:
            return look(tx, since), since

        candidates, since = self.floor.ask("unpublished", found_since)  # most passes find none, and take no lock
        if dry_run or not candidates:
            return in_turn(candidates)
        ids = [row.id for row in candidates]
        still = [guarded(t.c.state, *CLAIMABLE), *needs_a_hint]
        locked = columns.where(t.c.id.in_(ids), *still).with_for_update(skip_locked=True)

        def reserve(tx: Connection) -> Sequence[Any]:
            # on PostgreSQL, sweeps at the same time share the rows
            is_shared = self.database.dialect == "postgresql"
            rows: Sequence[Any] = look(tx, since, locks=True) if is_shared else tx.execute(locked).all()
            if rows:
                tx.execute(
                    update(t)
                    .where(t.c.id.in_([row.id for row in rows]), *still)
                    .values(relay_until=now(self.reserved_s))
                )
            return rows

        return in_turn(self.database.run(reserve))

    def unhint(self, task_ids: Sequence[str], *, dry_run: bool = False) -> list[Unpublished]:
        """Ready or waiting tasks whose hint died with its holder: unpublished again, and answered for publishing.

        With `dry_run` nothing changes.
        """
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
        """Record a new incarnation as live. Repeatable."""
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
        """Note that an incarnation lives, and its resident memory; False when it was reaped: it must stop claiming."""
        w, now = self.database.tables.worker, self.database.now
        values: dict[str, Any] = {"beat_at": now(), "suspected_at": None}
        if memory_bytes is not None:
            values["memory_bytes"] = memory_bytes
        statement = update(w).where(w.c.id == worker, w.c.state == "live").values(values)
        return self.database.run(lambda tx: tx.execute(statement).rowcount) == 1

    def leave(self, worker: str) -> None:
        """The incarnation has left in order and runs nothing. Repeatable."""
        w, now = self.database.tables.worker, self.database.now
        statement = update(w).where(w.c.id == worker, w.c.state == "live").values(state="left", ended_at=now())
        pardon = self._pardon(worker)

        def end(tx: Connection) -> None:
            tx.execute(statement)
            tx.execute(pardon)

        self.database.run(end)

    def _pardon(self, worker: str) -> Delete:
        """Nothing of it runs any more that could be killed."""
        k = self.database.tables.kill
        return delete(k).where(k.c.worker == worker)

    # -- reap

    def suspect(self, missing: Iterable[str], *, beat_s: float, lease_s: float, dry_run: bool = False) -> list[str]:
        """Note who has no live lease; answers those who are suspected for at least a beat: looked at twice.

        Only a live incarnation whose own heartbeat in the ledger is older than a lease can be suspected. Whoever has a
        lease again is no longer suspected. With `dry_run` nothing is noted: who would be answered now.
        """
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
        """End one incarnation and its claims in one transaction; None when somebody did already, or it lives after all.

        With `suspected_for_s`, only if it is still suspected for that long and has not beaten within `lease_s`. With
        `dry_run` nothing changes: what would be answered now.

        The attempt that was running, if it was the only one, is charged with the crash; several become suspects: nobody
        knows yet who it was. Where nobody saw a crash, or a handler had ended already, presence is noted, which is
        free. Whoever was suspected or noted before is charged. A task whose budget is used up is dead as `worker_lost`.

        With `planned`, only if neither its row nor its claims have moved since (see plan.py); `by` is then appended as
        an event `manual` for the incarnation and for each claim.

        The certificate of its death is kept with the incarnation, and its essentials in the history of each task.
        """
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
            tx.execute(self._pardon(worker))
            if by is not None:
                self.append(tx, "manual", by, task_ids=[None, *(row.id for row in rows)], worker=worker)
            return self._reclaim(tx, verdicts, worker, certificate)

        return self.database.run(end)

    def orphans(self, *, limit: int, dry_run: bool = False) -> list[Unpublished]:
        """Return tasks that run under an incarnation which is not live any more."""
        t, w = self.database.tables.task, self.database.tables.worker
        evidence = Evidence("it ran under an incarnation that is not live any more", kind=ProofOfEnd.ORPHAN)
        chosen = (
            self._running()
            .outerjoin(w, w.c.id == t.c.worker)
            .where(found(t.c.state, State.RUNNING), or_(w.c.id.is_(None), w.c.state != "live"))
            .order_by(t.c.id)
            .limit(limit)
        )
        ended = select(w.c.id).where(w.c.state != "live")

        def look(tx: Connection, since: datetime | None) -> Sequence[Any]:
            if since is None:
                return tx.execute(chosen).all()
            # by name, each a range of the index: joined, all that ever ran would be read first
            names = list(tx.execute(ended).scalars())
            return tx.execute(chosen.where(t.c.worker.in_(names))).all() if names else []

        candidates = self.floor.ask("orphans", look)
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

    def claimed_by(self, worker: str) -> dict[str, str]:
        """What runs under an incarnation: the tokens of its claims, by task."""
        c = self.database.tables.task.c
        query = select(c.id, c.token).where(found(c.state, State.RUNNING), c.worker == worker)
        return self.database.ask(lambda tx: {row.id: row.token for row in tx.execute(query)})

    def return_forgotten(self, tokens: Mapping[str, str], *, by: str) -> list[Unpublished]:
        """Claims that stand under `by`, which lives and does not have them: their tasks are reaped, charged nothing.

        Each only if it runs under that very token. Answers the hints that are to be published; they are reserved as by
        `take_unpublished`. A task whose crash is a person's question (`OnCrash.ASK`) is dead: it may have begun. If one
        runs all the same, its result comes late. Repeatable.
        """
        c = self.database.tables.task.c
        locked = (
            self._running()
            .where(c.id.in_(sorted(tokens)), c.worker == by, guarded(c.state, State.RUNNING))
            .order_by(c.id)
            .with_for_update()
        )

        def reclaim(tx: Connection) -> list[Unpublished]:
            rows = [row for row in tx.execute(locked).all() if row.token == tokens[row.id]]
            verdicts = verdicts_of(rows, FORGOTTEN, is_all=False)
            return list(self._reclaim(tx, verdicts, by, certificate_of(None, FORGOTTEN, verdicts)).hints)

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
            c.on_crash,
            c.cancel_requested_at,
            c.due_at,
            self.database.now().label("now"),
        )

    def _reclaim(
        self, tx: Connection, verdicts: Sequence[ClaimVerdict], worker: str, certificate: Certificate
    ) -> Reaped:
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
                fingerprint=bindparam("b_fingerprint"),
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
        after_commit.note(tx, by_death(verdicts, worker, certificate))
        return reaped_as(worker, verdicts)

    def queues_known(self, tx: Connection) -> list[str]:
        """The queues that are served now, and those that had open tasks at the last look that went all the way."""
        w = self.database.tables.worker
        served = tx.execute(select(w.c.queues).where(w.c.state == "live")).scalars()
        return sorted(self.floor.queues.union(*(codec.decode(one) for one in served)))

    def swept(self, *, every_s: float) -> None:
        """Note that a pass of the sweep has ended; at most once in `every_s` seconds, however many sweep."""
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

    # -- expire, promote and prune

    def expire(self, *, limit: int, dry_run: bool = False) -> int:
        """Cancel ready and waiting tasks that have expired, for that reason. Answers how many."""
        t, now = self.database.tables.task, self.database.now
        # most passes find none, and take no lock
        candidates = self.database.ask(partial(_ids, self._expired(limit)), sorts=False)
        if dry_run or not candidates:
            return len(candidates)
        still = [t.c.id.in_(sorted(candidates)), guarded(t.c.state, *CLAIMABLE), t.c.expires_at <= now()]
        locked = select(t.c.id).where(*still).order_by(t.c.id).with_for_update(skip_locked=True)

        def cancel(tx: Connection) -> int:
            ids = list(tx.execute(locked).scalars())
            if ids:
                self._cancel_expired(tx, ids)
            return len(ids)

        return self.database.run(cancel)

    def _expired(self, limit: int) -> Select[Any]:
        c = self.database.tables.task.c
        is_open = found(c.state, *CLAIMABLE)
        query = select(c.id).where(c.expires_at.is_not(None), is_open, c.expires_at <= self.database.now())
        return query.order_by(c.expires_at).limit(limit)

    def _cancel_expired(self, tx: Connection, ids: Sequence[str]) -> None:
        t = self.database.tables.task
        ended = {"state": State.CANCELLED, "reason": EXPIRED, "settled_at": self.database.now(), "live_key": None}
        tx.execute(update(t).where(t.c.id.in_(ids), guarded(t.c.state, *CLAIMABLE)).values(ended))
        self.append(tx, "cancelled", {"reason": EXPIRED}, task_ids=ids)
        rows = select(t.c.id, t.c.name, t.c.queue, t.c.attempt).where(t.c.id.in_(ids), t.c.state == State.CANCELLED)
        after_commit.note(tx, by_time(tx.execute(rows)))

    def promote(self, *, limit: int, dry_run: bool = False) -> int:
        """Waiting tasks whose time has come become ready. Answers how many."""
        t, now = self.database.tables.task, self.database.now
        is_due = [t.c.due_at <= now(), unexpired(t.c.expires_at, now())]
        waits = [
            found(t.c.state, *CLAIMABLE),
            found(t.c.state, State.WAITING),
        ]  # both: SQLite proves the index by the first

        def choose(tx: Connection, since: datetime | None) -> list[str]:
            queues = list(tx.execute(queues_where(t, *waits)).scalars()) if since is None else self.queues_known(tx)
            if not queues:
                return []
            chosen = select(t.c.id).where(*waits, t.c.queue.in_(queues), *is_due)
            return list(tx.execute(not_before(chosen, t, since).order_by(t.c.due_at).limit(limit)).scalars())

        ids = self.floor.ask("promotable", choose)
        if dry_run or not ids:
            return len(ids)
        return self._changed(
            update(t)
            .where(t.c.id.in_(sorted(ids)), guarded(t.c.state, State.WAITING), *is_due)
            .values(state=State.READY)
        )

    def prune(self, *, limit: int, retention_s: float, dead_retention_s: float, dry_run: bool = False) -> Pruned:
        """Remove settled tasks, old events and ended workers beyond their retention, at most `limit` of each."""
        tables, now = self.database.tables, self.database.now
        t, e, k, w = tables.task, tables.event, tables.tick, tables.worker
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
        is_old_tick = k.c.made_at <= now(-EVENTS_KEPT_S)
        ticks = [(select(k.c.id).where(is_old_tick).order_by(k.c.made_at), is_old_tick)]
        o = tables.window
        is_over = o.c.ends_at <= now()
        windows = [(select(o.c.id).where(is_over).order_by(o.c.ends_at), is_over)]
        is_old_worker = and_(w.c.state.in_(["left", "reaped"]), w.c.ended_at <= now(-WORKERS_KEPT_S))
        workers = [(select(w.c.id).where(is_old_worker), is_old_worker)]
        return Pruned(
            self._pruned(t, tasks, limit, dry_run=dry_run),
            self._pruned(e, events, limit, dry_run=dry_run),
            self._pruned(k, ticks, limit, dry_run=dry_run),
            self._pruned(o, windows, limit, dry_run=dry_run),
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

    def _changed(self, statement: Update | Delete) -> int:
        return self.database.run(lambda tx: tx.execute(statement).rowcount)


def queues_where(t: Table, *waits: ColumnElement[bool]) -> Select[Any]:
    """The queues of these tasks, one index probe for each: the next name after the last, until there is none."""
    first = select(func.min(t.c.queue).label("queue")).where(*waits)
    queues = first.cte("queues", recursive=True)
    following = select(func.min(t.c.queue)).where(*waits, t.c.queue > queues.c.queue).scalar_subquery()
    queues = queues.union_all(select(following).where(queues.c.queue.is_not(None)))
    return select(queues.c.queue).where(queues.c.queue.is_not(None))


def _ids(choice: Select[Any], tx: Connection) -> list[Any]:
    return list(tx.execute(choice).scalars())


def not_before(chosen: Select[Any], t: Table, since: datetime | None) -> Select[Any]:
    """Of these, what is due since then; None: all."""
    return chosen if since is None else chosen.where(t.c.due_at >= since)


def in_turn(rows: Iterable[Any]) -> list[Unpublished]:
    """As `unpublished`, in the order in which they are due."""
    return unpublished(sorted(rows, key=lambda row: (row.due_at, row.id)))


def unpublished(rows: Iterable[Any]) -> list[Unpublished]:
    """Rows with id, queue, attempt, due_at and now, as what is to be published."""
    return [
        Unpublished(row.id, row.queue, row.attempt, max(0.0, (row.due_at - row.now).total_seconds())) for row in rows
    ]
