"""The application's own data: a row for each move of an order, which is sent as a webhook in the same transaction.

Who decides what has to arrive: the rows that are there at the end. Of what was rolled back there is no row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from workq.webhooks.outbox import Outbox

_BUSY_S: Final = 30.0
"""The workers write to the same SQLite file."""
MOVES: Final = Table(
    "order_move",
    MetaData(),
    Column("order_number", Integer, primary_key=True, autoincrement=False),
    Column("event_type", String(40), primary_key=True),
)


@dataclass(frozen=True, slots=True)
class Move:
    """Something that has happened to an order."""

    order_number: int
    event_type: str

    @property
    def event_id(self) -> str:
        """What receivers know it by."""
        return f"{self.event_type.replace('.', '_')}_{self.order_number}"


class _Refused(Exception):
    """Whatever an application rolls back for."""


class Shop:
    """The application."""

    def __init__(self, url: URL, outbox: Outbox) -> None:
        """`url`: the ledger's own database."""
        own: dict[str, Any] = {"timeout": _BUSY_S} if url.get_backend_name() == "sqlite" else {}
        self._engine = create_engine(url, connect_args=own)
        self._outbox = outbox
        self.sent_at: dict[str, float] = {}
        """When each event was sent, by the monotonic clock, by its id."""

    def __enter__(self) -> Shop:
        MOVES.metadata.create_all(self._engine)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._engine.dispose()

    def record(self, moves: Sequence[Move]) -> None:
        """Record these, and send them: all, or nothing."""
        sent_at: dict[str, float] = {}
        with self._engine.begin() as connection:
            connection.execute(insert(MOVES), [_row(one) for one in moves])
            for one in moves:
                sent_at[one.event_id] = time.monotonic()
                self._outbox.send(
                    one.event_type, {"order": one.order_number}, event_id=one.event_id, connection=connection
                )
        self.sent_at |= sent_at

    def record_and_roll_back(self, moves: Sequence[Move]) -> None:
        """The same, and then something goes wrong."""
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(MOVES), [_row(one) for one in moves])
                for one in moves:
                    self._outbox.send(
                        one.event_type, {"order": one.order_number}, event_id=one.event_id, connection=connection
                    )
                raise _Refused
        except _Refused:
            pass

    def recorded(self) -> list[Move]:
        """What has happened, as the table says."""
        with self._engine.connect() as connection:
            return [Move(*row) for row in connection.execute(select(MOVES.c.order_number, MOVES.c.event_type))]


def moves_of(events: int, event_types: Sequence[str], *, first_order: int = 1) -> Iterator[Move]:
    """So many moves: each order goes through all of them, one order after the other."""
    for number in range(events):
        order, place = divmod(number, len(event_types))
        yield Move(first_order + order, event_types[place])


def _row(move: Move) -> dict[str, Any]:
    return {"order_number": move.order_number, "event_type": move.event_type}
