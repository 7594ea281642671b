"""Hints: which tasks need one, and that one was sent. The proof that one was lost is in markers.py.

All comparisons are between instants of the ledger's own clock. `published_at` is written after a hint was confirmed. Of
one that comes later than its task is due, it is the instant at which the hint has come (see `Hints.rehinted`). A
rebuild is told in recovery/rebuild.py.

A page of a rebuild is read in the order of the index `task_open`, once for each state, so that a backlog of a million
rows is read once. Waiting rows are read first: a task that is promoted between the two reads is found by the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Select, Update, and_, bindparam, func, not_, or_, select, update
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float

from workq.ledger import Fence, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import (
    CLAIMABLE,
    found,
    guarded,
    in_turn,
    not_before,
    queues_where,
    unexpired,
    unpublished,
)
from workq.ledger.pauses import in_force
from workq.ledger.plan_guard import fence_of
from workq.ledger.scan_floor import Floor
from workq.values import codec
from workq.values.task import State

RESERVED_S: Final = 15.0
"""How long a relay may take before another sweep may publish the same rows, where `opening` says nothing else."""
OLDEST_LOOKED_AT = 1000
"""How many of a queue's oldest due tasks are looked at for one with a hint."""


class Hints:
    """Which tasks have a hint, and which need one."""

    def __init__(self, database: Database, *, floor: Floor, reserved_s: float) -> None:
        self.database = database
        self.floor = floor
        self._reserved = timedelta(seconds=reserved_s)

    # -- the relay

    def take_unpublished(
        self,
        *,
        limit: int,
        grace_s: float,
        horizon_s: float,
        dry_run: bool = False,
        but: Collection[str] = (),
    ) -> list[Unpublished]:
        """Tasks that need a hint: unpublished for longer than the grace and due within the horizon; oldest first.

        None of the queues in `but`.

        They are reserved for a while, so that ten sweeps together publish each once. A relay that dies lets go of them.
        """
        t, now = self.database.tables.task, self.database.now
        needs_a_hint = [
            t.c.published_at.is_(None),
            t.c.due_at <= now(min(horizon_s, 3.2e8)),
            t.c.queued_at <= now(-grace_s),
            or_(t.c.relay_until.is_(None), t.c.relay_until <= now()),
            unexpired(t.c.expires_at, now()),
            *([t.c.queue.not_in(sorted(but))] if but else []),
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
            return in_turn(candidates, None)
        ids = [row.id for row in candidates]
        still = [guarded(t.c.state, *CLAIMABLE), *needs_a_hint]
        locked = columns.where(t.c.id.in_(ids), *still).with_for_update(skip_locked=True)

        def reserve(tx: Connection) -> list[Unpublished]:
            # on PostgreSQL, sweeps at the same time share the rows
            is_shared = self.database.dialect == "postgresql"
            rows: Sequence[Any] = look(tx, since, locks=True) if is_shared else tx.execute(locked).all()
            if not rows:
                return []
            until = rows[0].now + self._reserved
            mine = update(t).where(t.c.id.in_([row.id for row in rows]), *still)
            tx.execute(mine.values(relay_until=until))
            return in_turn(rows, until)

        return self.database.run(reserve)

    def mark_published(self, sent: Iterable[Unpublished]) -> None:
        """Note that these tasks' hints are confirmed, for those that still stand at the same attempt.

        A task that another has reserved since then is not marked: it may have been moved, so that this hint comes too
        late, or was dropped; whoever moved it sends its own, or a sweep does.

        With `arrives_in_s`, the instant that is noted is the one at which the hint has come: see `rehinted`.
        """
        alike: defaultdict[tuple[datetime | None, int, float], list[str]] = defaultdict(list)
        for one in sent:
            alike[one.reserved_until, one.attempt, one.arrives_in_s].append(one.task_id)
        if not alike:
            return
        unreserved = self.database.kept("mark", partial(self._mark_statement, is_reserved=False))
        reserved = self.database.kept("mark what was reserved", partial(self._mark_statement, is_reserved=True))

        def mark(tx: Connection) -> None:
            for (until, attempt, arrives_in_s), ids in alike.items():
                given = {"b_ids": in_order(ids), "b_attempt": attempt, "b_arrives_in_s": arrives_in_s}
                if until is None:
                    unreserved.write(tx, given)
                else:
                    reserved.write(tx, given | {"b_until": until})

        self.database.run(mark, is_single=len(alike) == 1)

    def _mark_statement(self, *, is_reserved: bool) -> Update:
        t = self.database.tables.task
        until = t.c.relay_until
        return (
            update(t)
            .where(
                among(t.c.id, self.database.dialect),
                t.c.attempt == bindparam("b_attempt"),
                guarded(t.c.state, *CLAIMABLE),
                until == bindparam("b_until", type_=until.type) if is_reserved else until.is_(None),
            )
            .values(
                published_at=self.database.now(bindparam("b_arrives_in_s", type_=Float())),
                relay_until=None,
            )
        )

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
            return unpublished(self.database.ask(lambda tx: tx.execute(chosen).all()), None)

        def clear(tx: Connection) -> list[Unpublished]:
            rows = tx.execute(chosen.with_for_update()).all()
            if not rows:
                return []
            until = rows[0].now + self._reserved
            mine = update(t).where(t.c.id.in_([row.id for row in rows]), guarded(t.c.state, *CLAIMABLE))
            tx.execute(mine.values(published_at=None, relay_until=until))
            return unpublished(rows, until)

        return self.database.run(clear)

    def rehinted(self, task_ids: Sequence[str], *, delay_s: float = 0.0) -> None:
        """Note that tasks which are still to be claimed have a new hint, which reaches its queue in `delay_s` seconds.

        Call it after the new hint is confirmed, whenever one takes the place of another: a marker that was sent before
        would otherwise prove the new hint lost. Without it, at worst a hint too many is sent.
        """
        ids = in_order(task_id for task_id in task_ids if codec.is_task_id(task_id))
        if ids:
            self.database.run(lambda tx: rehint(tx, self.database, ids, delay_s=delay_s), is_single=True)

    # -- markers

    def lines(self, *, slack_s: float) -> list[str]:
        """The queues with tasks that have a hint, are due for `slack_s`, and unclaimed: their hints may be lost.

        Without those that are paused: no marker comes back from them.
        """
        t, p, now = self.database.tables.task, self.database.tables.pause, self.database.now
        waits = found(t.c.state, *CLAIMABLE)

        def look(tx: Connection, since: datetime | None) -> list[str]:
            queues = (
                self.floor.queues_known(tx)
                if since is not None
                else list(tx.execute(queues_where(t, CLAIMABLE)).scalars())
            )
            clock: datetime = tx.execute(select(now())).scalar_one()
            paused = set(tx.execute(select(p.c.queue).where(in_force(self.database))).scalars())
            hinted: list[str] = []
            seen: list[datetime] = []
            for queue in queues:
                found_here = [tx.execute(oldest(queue, state, since)).one() for state in CLAIMABLE]
                seen += [due_at for due_at, _ in found_here if due_at is not None]
                if queue not in paused and any(hints for _, hints in found_here):
                    hinted.append(queue)
            if since is None:
                self.floor.queues = frozenset(queues)
            self.floor.rise(min(seen, default=None), now=clock)
            return hinted

        def oldest(queue: str, state: State, since: datetime | None) -> Select[Any, int]:
            """When the oldest that is due was due, and how many of the oldest have a hint."""
            # one state at a time: one range of the index
            chosen = select(t.c.due_at, t.c.published_at).where(
                waits, found(t.c.state, state), t.c.queue == queue, t.c.due_at <= now(-slack_s)
            )
            few = not_before(chosen, t, since).order_by(t.c.due_at).limit(OLDEST_LOOKED_AT).subquery()
            return select(func.min(few.c.due_at), func.count(few.c.published_at))

        return self.floor.ask("lines", look)

    # -- a rebuild

    def open_queues(self) -> list[str]:
        """The queues with tasks that are ready or waiting."""
        t = self.database.tables.task
        query = queues_where(t, CLAIMABLE)
        return self.database.ask(lambda tx: sorted(tx.execute(query).scalars()))

    def unclaimed(self, queue: str, *, before: datetime) -> int:
        """How many tasks of a queue are ready or waiting since `before`, without a hint that was confirmed later."""
        t = self.database.tables.task
        query = (
            select(func.count())
            .select_from(t)
            .where(found(t.c.state, *CLAIMABLE), t.c.queue == queue, *self._unhinted(before))
        )
        return self.database.ask(lambda tx: int(tx.execute(query).scalar_one()))

    def unclaimed_page(
        self, queue: str, *, before: datetime, after: tuple[datetime, str] | None, limit: int
    ) -> list[Fence]:
        """Those tasks in the order in which they are due, a page at a time: `after` is the last of the page before."""
        t = self.database.tables.task
        columns = select(
            t.c.id,
            t.c.queue,
            t.c.state,
            t.c.attempt,
            t.c.token,
            t.c.worker,
            t.c.due_at,
            t.c.queued_at,
            t.c.published_at,
        )

        def of(state: State) -> Select[Any]:
            chosen = columns.where(
                found(t.c.state, *CLAIMABLE), found(t.c.state, state), t.c.queue == queue, *self._unhinted(before)
            )
            if after is not None:
                due_at, task_id = after
                chosen = chosen.where(
                    t.c.due_at >= due_at, or_(t.c.due_at > due_at, and_(t.c.due_at == due_at, t.c.id > task_id))
                )
            return chosen.order_by(t.c.due_at, t.c.id).limit(limit)

        def look(tx: Connection) -> list[Any]:
            waiting = tx.execute(of(State.WAITING)).all()
            return [*waiting, *tx.execute(of(State.READY)).all()]

        by_id = {row.id: row for row in self.database.ask(look)}
        rows = sorted(by_id.values(), key=lambda row: (row.due_at, row.id))
        return [fence_of(row) for row in rows[:limit]]

    def renew(self, task_ids: Sequence[str], *, before: datetime) -> list[Unpublished]:
        """Those of these tasks that are still unclaimed, and have no hint that was confirmed after `before`.

        They are unpublished, and reserved as by `take_unpublished`; answered in the order in which they are due.
        """
        ids = sorted({one for one in task_ids if codec.is_task_id(one)})
        if not ids:
            return []
        t, now = self.database.tables.task, self.database.now
        still = [
            t.c.id.in_(ids),
            guarded(t.c.state, *CLAIMABLE),
            *self._unhinted(before),
            or_(t.c.relay_until.is_(None), t.c.relay_until <= now()),
        ]
        locked = (
            select(t.c.id, t.c.queue, t.c.attempt, t.c.due_at, now().label("now"))
            .where(*still)
            .order_by(t.c.id)
            .with_for_update(skip_locked=True)
        )

        def take(tx: Connection) -> list[Unpublished]:
            rows = list(tx.execute(locked))
            if not rows:
                return []
            until = rows[0].now + self._reserved
            mine = update(t).where(t.c.id.in_([row.id for row in rows]), *still[1:])
            tx.execute(mine.values(published_at=None, relay_until=until))
            return in_turn(rows, until)

        return self.database.run(take)

    def _unhinted(self, before: datetime) -> list[ColumnElement[bool]]:
        """It waits since then, and no hint was confirmed later. A hint that was sent with a delay has a later stamp."""
        t, now = self.database.tables.task, self.database.now
        is_sent_since = and_(t.c.published_at > before, t.c.published_at <= now())
        return [t.c.queued_at <= before, or_(t.c.published_at.is_(None), not_(is_sent_since))]


def rehint(tx: Connection, database: Database, task_ids: Iterable[str], *, delay_s: float) -> None:
    """See `Hints.rehinted`, in a transaction of the caller's."""
    t = database.tables.task
    statement = (
        update(t)
        .where(
            among(t.c.id, database.dialect),
            guarded(t.c.state, *CLAIMABLE),
            t.c.published_at < database.now(delay_s),
        )
        .values(published_at=database.now(delay_s))
    )
    tx.execute(statement, {"b_ids": in_order(task_ids)})
