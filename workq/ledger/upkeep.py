"""Upkeep: what sweeps do as time passes: expire, promote, and remove what is beyond its retention.

Nobody leads, as with the workers (see workers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    Table,
    and_,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import Pruned
from workq.ledger.engine import after_commit
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, ENDED, found, guarded, not_before, queues_where, unexpired
from workq.ledger.history import History
from workq.ledger.log_lines import by_time
from workq.ledger.scan_floor import Floor
from workq.values.task import State

EVENTS_KEPT_S = 30 * 86400.0
WORKERS_KEPT_S = 86400.0
EXPIRED = "expired"
"""Why a task was cancelled that nobody started in its time."""


class Upkeep:
    """Expiry, promotion and retention, as a sweep asks for them."""

    def __init__(
        self,
        database: Database,
        *,
        history: History,
        floor: Floor,
        with_pruned: Sequence[Callable[[Connection, Database, Sequence[str]], None]] = (),
    ) -> None:
        """`with_pruned`: what goes with tasks that are removed (workq/slices.py names them)."""
        self.database = database
        self._with_pruned = tuple(with_pruned)
        self._history = history
        self.floor = floor

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

    def expire(self, *, limit: int, dry_run: bool = False) -> int:
        """Cancel ready and waiting tasks that have expired, for that reason. Answers how many."""
        t, now = self.database.tables.task, self.database.now
        # most passes find none, and take no lock
        candidates = self.database.ask(partial(_ids, self.expired(limit)), sorts=False)
        if dry_run or not candidates:
            return len(candidates)
        still = [t.c.id.in_(sorted(candidates)), guarded(t.c.state, *CLAIMABLE), t.c.expires_at <= now()]
        locked = select(t.c.id).where(*still).order_by(t.c.id).with_for_update(skip_locked=True)

        def cancel(tx: Connection) -> int:
            ids = list(tx.execute(locked).scalars())
            if ids:
                self.cancel_expired(tx, ids)
            return len(ids)

        return self.database.run(cancel)

    def expired(self, limit: int) -> Select[Any]:
        c = self.database.tables.task.c
        is_open = found(c.state, *CLAIMABLE)
        query = select(c.id).where(c.expires_at.is_not(None), is_open, c.expires_at <= self.database.now())
        return query.order_by(c.expires_at).limit(limit)

    def cancel_expired(self, tx: Connection, ids: Sequence[str]) -> None:
        t = self.database.tables.task
        ended = {"state": State.CANCELLED, "reason": EXPIRED, "settled_at": self.database.now(), "live_key": None}
        tx.execute(update(t).where(t.c.id.in_(ids), guarded(t.c.state, *CLAIMABLE)).values(ended))
        self._history.append(tx, "cancelled", {"reason": EXPIRED}, task_ids=ids)
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
            queues = (
                list(tx.execute(queues_where(t, CLAIMABLE, (State.WAITING,))).scalars())
                if since is None
                else self.floor.queues_known(tx)
            )
            if not queues:
                return []
            chosen = select(t.c.id).where(*waits, t.c.queue.in_(queues), *is_due)
            return list(tx.execute(not_before(chosen, t, since).order_by(t.c.due_at).limit(limit)).scalars())

        ids = self.floor.ask("promotable", choose)
        if dry_run or not ids:
            return len(ids)
        return self.database.written(
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
            self._pruned(t, tasks, limit, dry_run=dry_run, also=self._go_with_tasks),
            self._pruned(e, events, limit, dry_run=dry_run),
            self._pruned(k, ticks, limit, dry_run=dry_run),
            self._pruned(o, windows, limit, dry_run=dry_run),
            self._pruned(w, workers, limit, dry_run=dry_run),
        )

    def _go_with_tasks(self, tx: Connection, still: ColumnElement[bool], ids: Sequence[str]) -> None:
        """What the slices keep of these tasks, which are about to be removed, goes in the same transaction."""
        if not self._with_pruned:
            return
        t = self.database.tables.task
        locked = select(t.c.id).where(t.c.id.in_(ids), still).order_by(t.c.id).with_for_update()
        if going := list(tx.execute(locked).scalars()):
            self.forget_parts(tx, going)

    def forget_parts(self, tx: Connection, going: Sequence[str]) -> None:
        """Drop what the slices keep of these tasks, whose rows are locked, and which this transaction removes."""
        for forget in self._with_pruned:
            forget(tx, self.database, going)

    def _pruned(
        self,
        table: Table,
        choices: Sequence[tuple[Select[Any], ColumnElement[bool]]],
        limit: int,
        *,
        dry_run: bool,
        also: Callable[[Connection, ColumnElement[bool], Sequence[str]], None] = lambda *_: None,
    ) -> int:
        """Remove up to `limit` rows: found by the first of each pair, guarded by the second (a task may be revived).

        `also`: called before, in the same transaction.
        """
        removed = 0
        for choice, still in choices:
            bounded = choice.limit(limit - removed)
            ids = self.database.ask(partial(_ids, bounded))
            if ids:
                removed += len(ids) if dry_run else self.database.run(partial(_remove, table, still, ids, also))
            if removed >= limit:
                break
        return removed


def _remove(
    table: Table,
    still: ColumnElement[bool],
    ids: Sequence[Any],
    also: Callable[[Connection, ColumnElement[bool], Sequence[str]], None],
    tx: Connection,
) -> int:
    also(tx, still, ids)
    return tx.execute(delete(table).where(table.c.id.in_(ids), still)).rowcount


def _ids(choice: Select[Any], tx: Connection) -> list[Any]:
    return list(tx.execute(choice).scalars())
