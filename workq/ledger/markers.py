"""Markers: what is sent through a line to prove that hints before it were lost, and the tasks that need others.

All comparisons are between instants of the ledger's own clock. `published_at` of a task is written after its hint was
confirmed, `sent_at` of a marker before the marker is published: so `published_at < sent_at` says that the hint was in
the queue first. How a marker proves a loss is told in recovery/lost_hints.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from workq.ledger import Marker, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import CLAIMABLE, found, guarded, in_turn, not_before, unexpired, unpublished
from workq.ledger.scan_floor import Floor
from workq.values import codec

NAMED_MAX: Final = 10
"""Tasks that the event of a loss names."""


class Markers:
    """The markers of all lines. See the module."""

    def __init__(self, database: Database, *, floor: Floor, reserved_s: float) -> None:
        self.database = database
        self.floor = floor
        self._reserved = timedelta(seconds=reserved_s)

    def all(self) -> list[Marker]:
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
                position=row.position,
            )
            for row in self.database.ask(lambda tx: tx.execute(query).all())
        ]

    def sent(
        self,
        queue: str,
        band: int,
        marker_id: str,
        *,
        spacing_s: float,
        depth: int | None,
        overdue_s: float | None = None,
    ) -> bool:
        """Note that a marker is about to be published; False when the line's newest is younger than `spacing_s`.

        `overdue_s`: where delayed hints may be rows that a mover publishes, False too while one of the line is due for
        so long and still here: the marker would overtake it.

        Two at the same moment may both be noted: a marker too many is harmless.
        """
        m, h, now = self.database.tables.marker, self.database.tables.hint, self.database.now
        unmoved = select(h.c.id).where(h.c.queue == queue, h.c.due_at <= now(-(overdue_s or 0.0))).limit(1)
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
            if overdue_s is not None and tx.execute(unmoved).first() is not None:
                return False
            tx.execute(insert(m).values(id=marker_id, queue=queue, band=band, sent_at=now(), depth=depth))
            return True

        return self.database.run(add)

    def placed(self, marker_id: str, position: str) -> None:
        """Note where its line ended, which was asked for after the marker was noted. Repeatable; the first stands."""
        m = self.database.tables.marker
        place = update(m).where(m.c.id == marker_id, m.c.position.is_(None)).values(position=position)
        self.database.run(lambda tx: tx.execute(place))

    def returned(self, marker_ids: Sequence[str]) -> int:
        """Note that these markers have come out of their queues, or that their positions have passed.

        Answers how many of them were awaited. Repeatable.
        """
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
        are neither claimed nor among the `held`. They are reserved as by `Hints.take_unpublished`. With `dry_run`
        nothing changes.
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
            return unpublished(self.database.ask(lambda tx: tx.execute(columns.where(*still)).all()), None)

        def take(tx: Connection) -> list[Unpublished]:
            rows = list(tx.execute(columns.where(*still).order_by(t.c.id).with_for_update(skip_locked=True)))
            if not rows:
                return []
            mine, until = [row.id for row in rows], rows[0].now + self._reserved
            tx.execute(
                update(t)
                .where(t.c.id.in_(mine), guarded(t.c.state, *CLAIMABLE), t.c.published_at < sent_at)
                .values(published_at=None, relay_until=until)
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
            return in_turn(rows, until)

        return self.database.run(take)

    def closed(self, marker: Marker) -> None:
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

    def dropped(self, queue: str) -> int:
        """Forget the markers of a queue that are out: they will not come back. Answers how many. Repeatable."""
        m = self.database.tables.marker
        out = delete(m).where(m.c.queue == queue, m.c.returned_at.is_(None))
        dropped: int = self.database.run(lambda tx: tx.execute(out).rowcount)
        return dropped
