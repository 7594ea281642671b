"""Ways in: topics and queues of others, as people keep them, and how they fare."""

from __future__ import annotations

from operator import eq
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from workq.errors import NotFound, Refused
from workq.ledger.engine.database import Database
from workq.ledger.history import History
from workq.messages.intake.values import IntakeOffset, IntakeRow, NewIntake
from workq.messages.ledger.known_destinations import IsSame, document_in
from workq.messages.ledger.tables import message_tables
from workq.values import codec

_ERROR_MAX: Final = 500
_LATELY_S: Final = 86_400.0


class KnownIntakes:
    """The ways in of messages."""

    def __init__(self, database: Database, *, history: History) -> None:
        self.database = database
        self._history = history

    def add_intake(self, new: NewIntake, *, who: str, why: str, is_same: IsSame = eq) -> IntakeRow:
        """Record a way in. Repeatable with the same values. `is_same`: whether two are sealed of the same.

        Raises:
            Refused: there is another one of that name.
        """
        i, m = message_tables(self.database).intake, message_tables(self.database).message
        standing = select(func.count()).select_from(m).where(m.c.intake == new.name)
        values = {
            "kept": standing.scalar_subquery(),  # of one of this name that was removed
            "name": new.name,
            "kind": new.kind,
            "options": codec.encode(new.options, path="options"),
            "sealed": new.sealed,
            "destination": new.destination,
            **dict.fromkeys(("recorded", "repeated", "cancelled", "quarantined"), 0),
            "created_at": self.database.now(),
        }

        def write(tx: Connection) -> None:
            tx.execute(insert(i).values(values))
            self._history.decided(tx, f"intake {new.name} added", who=who, why=why)

        try:
            self.database.run(write)
        except IntegrityError:
            there = self.intake(new.name)
            mine = new.kind, new.options, new.destination
            is_there = there is not None and (there.kind, there.options, there.destination) == mine
            if there is None or not is_there or not is_same(there.sealed, new.sealed):
                raise Refused(f"intake {new.name!r} is there already; see: workq intake show {new.name}") from None
        return self.required(new.name)

    def intake(self, name: str) -> IntakeRow | None:
        """One way in, or None."""
        i = message_tables(self.database).intake
        row = self.database.ask(lambda tx: tx.execute(select(i).where(i.c.name == name)).first())
        return None if row is None else _row(row)

    def required(self, name: str) -> IntakeRow:
        """One way in that has to be there.

        Raises:
            NotFound: it is not.
        """
        found = self.intake(name)
        if found is None:
            raise _unknown(name)
        return found

    def all(self, *, limit: int = 100, after: str | None = None) -> list[IntakeRow]:
        """Ways in by their names, a page at a time: `after` is the last name of the page before."""
        i = message_tables(self.database).intake
        query = select(i).order_by(i.c.name).limit(limit)
        if after is not None:
            query = query.where(i.c.name > after)
        return [_row(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def in_trouble(self, *, limit: int = 100) -> list[IntakeRow]:
        """Those that cannot be read, or have put records into quarantine within a day, by their names."""
        i, now = message_tables(self.database).intake, self.database.now
        is_out = or_(i.c.failing_since.is_not(None), i.c.quarantined_at > now(-_LATELY_S))
        query = select(i).where(is_out).order_by(i.c.name).limit(limit)
        return [_row(row) for row in self.database.ask(lambda tx: tx.execute(query).all())]

    def reseal(self, name: str, *, before: str | None, sealed: str | None) -> None:
        """Write what is sealed anew, if it is still what it was before."""
        i = message_tables(self.database).intake
        self.database.written(update(i).where(i.c.name == name, i.c.sealed == before).values(sealed=sealed))

    def offsets(self, name: str) -> list[IntakeOffset]:
        """How far each partition of a way in was taken in."""
        o = message_tables(self.database).intake_offset
        query = select(o).where(o.c.intake == name).order_by(o.c.topic, o.c.part)
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [
            IntakeOffset(row.topic, row.part, row.next_offset, row.owner, row.epoch, row.changed_at, row.topic_id)
            for row in rows
        ]

    def remove(self, name: str, *, who: str, why: str) -> None:
        """Forget a way in, and how far it was taken in: one of the same name begins anew. Its messages stay.

        Raises:
            NotFound: there is none of that name.
        """
        tables = message_tables(self.database)
        i, o = tables.intake, tables.intake_offset

        def forget(tx: Connection) -> None:
            if not tx.execute(delete(i).where(i.c.name == name)).rowcount:
                raise _unknown(name)
            tx.execute(delete(o).where(o.c.intake == name))
            self._history.decided(tx, f"intake {name} removed", who=who, why=why)

        self.database.run(forget)

    def failed(self, name: str, error: str) -> None:
        """Nothing can be read just now, and why. Repeatable: since when is noted once."""
        i, now = message_tables(self.database).intake, self.database.now
        values = {
            "error": codec.storable(error, characters_max=_ERROR_MAX),
            "failing_since": func.coalesce(i.c.failing_since, now()),
        }
        self.database.written(update(i).where(i.c.name == name).values(values))

    def well(self, name: str) -> None:
        """It can be read. Repeatable."""
        i = message_tables(self.database).intake
        mine = update(i).where(i.c.name == name, i.c.failing_since.is_not(None))
        self.database.written(mine.values(error=None, failing_since=None))


def _unknown(name: str) -> NotFound:
    return NotFound(f"no intake {name[:100]!r}; see: workq intake ls")


def _row(row: Row[Any]) -> IntakeRow:
    return IntakeRow(
        name=row.name,
        kind=row.kind,
        options=document_in(row.options),
        sealed=row.sealed,
        destination=row.destination,
        recorded=row.recorded,
        repeated=row.repeated,
        cancelled=row.cancelled,
        quarantined=row.quarantined,
        quarantined_why=row.quarantined_why,
        quarantined_at=row.quarantined_at,
        error=row.error,
        failing_since=row.failing_since,
        taken_at=row.taken_at,
        created_at=row.created_at,
    )
