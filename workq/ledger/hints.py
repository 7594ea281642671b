"""The ledger's part of the proof of loss: the markers, and which tasks a returned marker has overtaken (lost_hints.py).

All comparisons are between instants of the ledger's own clock. `published_at` is written after a hint was confirmed,
`sent_at` before the marker is published: so `published_at < sent_at` says that the hint was in the queue first. Of one
that comes later than its task is due, `published_at` is the instant at which it has come (see `Ledger.rehinted`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, update

from workq.ledger import Marker, Unpublished
from workq.ledger.engine.id_lists import in_order
from workq.ledger.engine.states import CLAIMABLE, found, guarded, unexpired
from workq.ledger.paused import in_force
from workq.ledger.rehint import rehint
from workq.ledger.workers import Repairing, not_before, queues_where, unpublished
from workq.values import codec
from workq.values.task import State

OLDEST_LOOKED_AT = 1000
"""How many of a queue's oldest due tasks are looked at for one with a hint."""
NAMED_MAX = 10
"""How many of the tasks that lost their hints an event names."""


class Marking(Repairing):
    """The part of the ledger that proves the loss of hints."""

    def rehinted(self, task_ids: Sequence[str], *, delay_s: float = 0.0) -> None:
        """Note that tasks which are still to be claimed have a new hint, which reaches its queue in `delay_s` seconds.

        Call it after the new hint is confirmed, whenever one takes the place of another: a marker that was sent before
        would otherwise prove the new hint lost. Without it, at worst a hint too many is sent.
        """
        ids = in_order(task_id for task_id in task_ids if codec.is_task_id(task_id))
        if ids:
            self.database.run(lambda tx: rehint(tx, self.database, ids, delay_s=delay_s), is_single=True)

    def lines(self, *, slack_s: float) -> list[str]:
        """The queues with tasks that have a hint, are due for `slack_s`, and unclaimed: their hints may be lost.

        Without those that are paused: no marker comes back from them.
        """
        t, p, now = self.database.tables.task, self.database.tables.pause, self.database.now
        waits = found(t.c.state, *CLAIMABLE)

        def look(tx: Connection, since: datetime | None) -> list[str]:
            queues = self.queues_known(tx) if since is not None else list(tx.execute(queues_where(t, waits)).scalars())
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

    def markers(self) -> list[Marker]:
        """The markers of all lines, the newest of a line first: those that are out, and the last one that came back."""
        m = self.database.tables.marker
        query = select(m, self.database.now().label("now")).order_by(m.c.queue, m.c.band, m.c.sent_at.desc(), m.c.id)

        def age_s(now: datetime, at: datetime | None) -> float | None:
            return None if at is None else (now - at).total_seconds()

        return [
            Marker(
                id=row.id,
                queue=row.queue,
                band=row.band,
                sent_for_s=(row.now - row.sent_at).total_seconds(),
                returned_for_s=age_s(row.now, row.returned_at),
                closed_for_s=age_s(row.now, row.closed_at),
                depth=row.depth,
                lost=row.lost,
            )
            for row in self.database.ask(lambda tx: tx.execute(query).all())
        ]

    def marker_sent(self, queue: str, band: int, marker_id: str, *, spacing_s: float, depth: int | None) -> bool:
        """Note that a marker is about to be published; False when the line's newest is younger than `spacing_s`.

        Two at the same moment may both be noted: a marker too many is harmless.
        """
        m, now = self.database.tables.marker, self.database.now
        newest = (
            select(m.c.id, m.c.sent_at > now(-spacing_s))
            .where(m.c.queue == queue, m.c.band == band)
            .order_by(m.c.sent_at.desc())
            .limit(1)
        )

        def add(tx: Connection) -> bool:
            if tx.execute(select(m.c.id).where(m.c.id == marker_id)).first() is not None:
                return True  # the answer of our first try was lost: it stands
            before = tx.execute(newest).first()
            if before is not None and before[1]:
                return False
            tx.execute(insert(m).values(id=marker_id, queue=queue, band=band, sent_at=now(), depth=depth))
            return True

        return self.database.run(add)

    def marker_returned(self, marker_ids: Sequence[str]) -> int:
        """Note that these markers have come out of their queues. Answers how many of them were awaited. Repeatable."""
        m = self.database.tables.marker
        ids = sorted({one for one in marker_ids if codec.is_task_id(one)})
        if not ids:
            return 0
        back = update(m).where(m.c.id.in_(ids), m.c.returned_at.is_(None)).values(returned_at=self.database.now())
        returned: int = self.database.run(lambda tx: tx.execute(back).rowcount)
        return returned

    def lost(
        self, marker: Marker, *, held: Iterable[str], slack_s: float, limit: int, dry_run: bool = False
    ) -> list[Unpublished]:
        """Tasks whose hint a returned marker has overtaken: unpublished again, and answered for publishing.

        Those with a hint that was confirmed before the marker was sent, that were due for `slack_s` then, and that
        are neither claimed nor among the `held`. They are reserved as by `take_unpublished`. With `dry_run` nothing
        changes.
        """
        t, m, now = self.database.tables.task, self.database.tables.marker, self.database.now
        kept = set(held)
        proof = select(m.c.sent_at).where(m.c.id == marker.id, m.c.returned_at.is_not(None), m.c.closed_at.is_(None))
        columns = select(t.c.id, t.c.queue, t.c.attempt, t.c.due_at, now().label("now"))

        def look(tx: Connection, since: datetime | None) -> tuple[datetime, list[str]] | None:
            sent_at = tx.execute(proof).scalar()
            if sent_at is None:
                return None  # another sweep has closed it
            chosen = select(t.c.id).where(
                found(t.c.state, *CLAIMABLE),
                t.c.queue == marker.queue,
                t.c.due_at <= sent_at - timedelta(seconds=slack_s),
                t.c.published_at < sent_at,
                unexpired(t.c.expires_at, now()),
            )
            overtaken = not_before(chosen, t, since).order_by(t.c.due_at, t.c.id).limit(limit + len(kept))
            return sent_at, [task_id for task_id in tx.execute(overtaken).scalars() if task_id not in kept][:limit]

        found_now = self.floor.ask("lost", look)
        if found_now is None or not found_now[1]:
            return []
        sent_at, ids = found_now
        still = [t.c.id.in_(ids), guarded(t.c.state, *CLAIMABLE), t.c.published_at < sent_at]
        if dry_run:
            return unpublished(self.database.ask(lambda tx: tx.execute(columns.where(*still)).all()))

        def take(tx: Connection) -> list[Any]:
            rows = list(tx.execute(columns.where(*still).order_by(t.c.id).with_for_update(skip_locked=True)))
            if rows:
                mine = [row.id for row in rows]
                tx.execute(
                    update(t)
                    .where(t.c.id.in_(mine), guarded(t.c.state, *CLAIMABLE), t.c.published_at < sent_at)
                    .values(published_at=None, relay_until=now(self.reserved_s))
                )
                tx.execute(update(m).where(m.c.id == marker.id).values(lost=m.c.lost + len(rows)))
                detail = {
                    "queue": marker.queue,
                    "band": marker.band,
                    "marker": marker.id,
                    "tasks": len(rows),
                    "first": mine[:NAMED_MAX],
                }
                tx.execute(
                    insert(self.database.tables.event).values(
                        at=now(), kind="hints_lost", detail=codec.encode(detail, path="event")
                    )
                )
            return rows

        return unpublished(sorted(self.database.run(take), key=lambda row: (row.due_at, row.id)))

    def marker_closed(self, marker: Marker) -> None:
        """Note that all that this marker proved lost has been answered by `lost`; older ones of its line are dropped.

        Repeatable.
        """
        m = self.database.tables.marker
        its_line = [m.c.queue == marker.queue, m.c.band == marker.band]

        def close(tx: Connection) -> None:
            sent_at = tx.execute(select(m.c.sent_at).where(m.c.id == marker.id)).scalar()
            if sent_at is None:
                return
            tx.execute(
                update(m)
                .where(m.c.id == marker.id, m.c.returned_at.is_not(None), m.c.closed_at.is_(None))
                .values(closed_at=self.database.now())
            )
            tx.execute(delete(m).where(*its_line, m.c.sent_at <= sent_at, m.c.id != marker.id))

        self.database.run(close)
