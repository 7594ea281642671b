"""Workers: incarnations that join, beat and leave; and how one that has died, and what it had claimed, is ended.

Nobody leads: ten sweeps may run at once. A row that is about to be decided is locked by the transaction that decides
(`FOR UPDATE SKIP LOCKED`; SQLite has one writer), and the write repeats the condition. MySQL locks every row that a
search reads before it sorts them: there, and where a join decides, rows are searched first, then locked by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    Delete,
    Select,
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
from sqlalchemy.types import Float, Integer

from workq.ledger import Absence, Evidence, Foresight, Reaped, Unpublished
from workq.ledger.charge import ClaimVerdict, certificate_of, in_history, reaped_as, verdicts_of
from workq.ledger.engine import after_commit
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import found, guarded
from workq.ledger.history import History
from workq.ledger.log_lines import by_death
from workq.ledger.plan_guard import are_claims_moved
from workq.ledger.scan_floor import Floor
from workq.ledger.signs import NONE, absent_by
from workq.values import codec
from workq.values.certificate import (
    Certificate,
    ProofOfEnd,
    text_of,
)
from workq.values.incarnation import Incarnation
from workq.values.task import State

FORGOTTEN = Evidence("its worker lives and does not have it", kind=ProofOfEnd.FORGOTTEN, is_bystander=True)
"""The ledger was restored, the process was, or an answer was lost: it may have begun, and no process died."""


class Workers:
    """The worker processes; what a dead one had is returned."""

    def __init__(self, database: Database, *, history: History, floor: Floor, reserved_s: float) -> None:
        self.database = database
        self._history = history
        self.floor = floor
        self._reserved = timedelta(seconds=reserved_s)

    def join(self, worker: Incarnation, *, queues: Sequence[str], threads: int, signs: str | None = None) -> None:
        """Record a new incarnation as live, and the signs of life that it gives. Repeatable."""
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
                        signs=None if signs == NONE else signs,
                    )
                )

        try:
            self.database.run(add)
        except IntegrityError:  # an id is one life of one process: whoever was faster wrote the same row
            return

    def beat(self, worker: str, *, memory_bytes: int | None = None, signs: str | None = None) -> bool:
        """Note that an incarnation lives, its resident memory, and the signs of life that it gives (None: as before).

        False when it was reaped: it must stop claiming.
        """
        w, now = self.database.tables.worker, self.database.now
        values: dict[str, Any] = {"beat_at": now(), "suspected_at": None}
        if memory_bytes is not None:
            values["memory_bytes"] = memory_bytes
        if signs is not None:
            values["signs"] = None if signs == NONE else signs
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

    # -- their deaths

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
        absence: Absence | None = None,
        dry_run: bool = False,
        planned: Foresight | None = None,
        by: Mapping[str, Any] | None = None,
    ) -> Reaped | None:
        """End one incarnation and its claims in one transaction; None when somebody did already, or it lives after all.

        With `suspected_for_s`, only if it is still suspected for that long and has not beaten within `lease_s`. With
        `dry_run` nothing changes: what would be answered now. With `absence`, only if it has not beaten since, if no
        session of it is there, and if the look that decided was a moment ago.

        The attempt that was running, if it was the only one, is charged with the crash; several become suspects: nobody
        knows yet who it was. Where nobody saw a crash, or a handler had ended already, presence is noted, which is
        free. Whoever was suspected or noted before is charged. A task whose budget is used up is dead as `worker_lost`.

        With `planned`, only if neither its row nor its claims have moved since (see recovery/plan.py); `by` is then
        appended as an event `manual` for the incarnation and for each claim.

        The certificate of its death is kept with the incarnation, and its essentials in the history of each task.
        """
        t, w, now = self.database.tables.task, self.database.tables.worker, self.database.now
        decided = [w.c.id == worker, w.c.state == "live"]
        if suspected_for_s is not None:
            decided += [w.c.suspected_at <= now(-suspected_for_s), w.c.beat_at <= now(-lease_s)]
        if absence is not None:
            decided += absent_by(self.database, absence)
        if planned is not None:
            decided.append(w.c.beat_at == planned.beat_at)
            if planned.suspected_at is not None:
                decided.append(w.c.suspected_at == planned.suspected_at)

        claims = self.running_claims().where(found(t.c.state, State.RUNNING), t.c.worker == worker).order_by(t.c.id)

        def look(tx: Connection) -> Reaped | None:
            if tx.execute(select(w.c.id).where(*decided)).first() is None:
                return None
            return reaped_as(worker, verdicts_of(tx.execute(claims).all(), evidence), None)

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
                self._history.append(tx, "manual", by, task_ids=[None, *(row.id for row in rows)], worker=worker)
            return self.reclaim(tx, verdicts, worker, certificate)

        return self.database.run(end)

    def orphans(self, *, limit: int, dry_run: bool = False) -> list[Unpublished]:
        """Return tasks that run under an incarnation which is not live any more."""
        t, w = self.database.tables.task, self.database.tables.worker
        evidence = Evidence("it ran under an incarnation that is not live any more", kind=ProofOfEnd.ORPHAN)
        chosen = (
            self.running_claims()
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
            return [hint for verdict in verdicts if (hint := verdict.hint(None)) is not None]
        tokens = {
            row.token for row in candidates
        }  # an incarnation that is not live never becomes so: these stay orphans
        locked = (
            self.running_claims()
            .where(t.c.id.in_([row.id for row in candidates]), guarded(t.c.state, State.RUNNING))
            .order_by(t.c.id)
            .with_for_update(skip_locked=True)
        )

        def reclaim(tx: Connection) -> list[Unpublished]:
            rows = [row for row in tx.execute(locked).all() if row.token in tokens]
            hints: list[Unpublished] = []
            for worker in dict.fromkeys(row.worker for row in rows):
                verdicts = verdicts_of([row for row in rows if row.worker == worker], evidence, is_all=False)
                hints.extend(self.reclaim(tx, verdicts, worker, certificate_of(None, evidence, verdicts)).hints)
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
            self.running_claims()
            .where(c.id.in_(sorted(tokens)), c.worker == by, guarded(c.state, State.RUNNING))
            .order_by(c.id)
            .with_for_update()
        )

        def reclaim(tx: Connection) -> list[Unpublished]:
            rows = [row for row in tx.execute(locked).all() if row.token == tokens[row.id]]
            verdicts = verdicts_of(rows, FORGOTTEN, is_all=False)
            return list(self.reclaim(tx, verdicts, by, certificate_of(None, FORGOTTEN, verdicts)).hints)

        return self.database.run(reclaim)

    def running_claims(self) -> Select[Any]:
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

    def reclaim(
        self, tx: Connection, verdicts: Sequence[ClaimVerdict], worker: str, certificate: Certificate
    ) -> Reaped:
        """End claims of one incarnation. The rows are locked; every write carries the fence all the same."""
        if not verdicts:
            return Reaped(worker, 0, 0, ())
        t, now = self.database.tables.task, self.database.now
        until = verdicts[0].row.now + self._reserved
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
                relay_until=until,
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
        return reaped_as(worker, verdicts, until)
