"""Queues that a person has paused: a row each, which every claim looks at. So a pause holds from its commit on.

One that has an end ends by the database's clock, in each statement that asks; its row stays until the queue is paused
or resumed again.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from workq import codec
from workq.ledger import Pause
from workq.ledger.claims import REASON_MAX
from workq.ledger.events import Appending
from workq.ledger.paused import in_force


class Pausing(Appending):
    """The part of the ledger that knows which queues are paused."""

    def pause(self, queue: str, *, who: str, why: str, for_s: float | None = None) -> Pause:
        p, now = self.database.tables.pause, self.database.now
        said = _kept(who, why)
        values = {"paused_at": now(), "ends_at": None if for_s is None else now(for_s), **said}

        def write(tx: Connection) -> Pause:
            if not tx.execute(update(p).where(p.c.queue == queue).values(values)).rowcount:
                tx.execute(insert(p).values(queue=queue, **values))
            self.append(tx, "paused", {"queue": queue, **said, "for_s": for_s})
            return Pause(*tx.execute(select(*p.c).where(p.c.queue == queue)).one())

        try:
            return self.database.run(write)
        except IntegrityError:  # another person paused it at the same moment: its row is there now
            return self.database.run(write)

    def resume(self, queue: str, *, who: str, why: str) -> bool:
        p = self.database.tables.pause

        def write(tx: Connection) -> bool:
            was_paused = (
                tx.execute(select(p.c.queue).where(p.c.queue == queue, in_force(self.database))).first() is not None
            )
            if tx.execute(delete(p).where(p.c.queue == queue)).rowcount and was_paused:
                self.append(tx, "resumed", {"queue": queue, **_kept(who, why)})
                return True
            return False

        return self.database.run(write)

    def pauses(self) -> dict[str, Pause]:
        p = self.database.tables.pause
        query = select(*p.c).where(in_force(self.database)).order_by(p.c.queue)
        return {row.queue: Pause(*row) for row in self.database.ask(lambda tx: tx.execute(query).all())}


def _kept(who: str, why: str) -> dict[str, str]:
    return {name: codec.storable(one, characters_max=REASON_MAX) for name, one in (("who", who), ("why", why))}
