"""Named instants: what is due at an instant is due then by the ledger's clock, whatever the clock of a host says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection, case, literal, select
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database


class _Dated(Protocol):
    @property
    def at(self) -> datetime | None: ...
    @property
    def delay_s(self) -> float: ...


D = TypeVar("D", bound=_Dated)


class LedgerClock:
    """The ledger's clock, asked for once, by a statement of its own; how much later it is, this machine counts."""

    def __init__(self, tx: Connection, database: Database) -> None:
        self._asked: datetime = tx.execute(select(database.now())).scalar_one()
        self._asked_at = time.monotonic()

    def now(self) -> datetime:
        """What it says."""
        return self._asked + timedelta(seconds=time.monotonic() - self._asked_at)


def left_at(given: Sequence[D], now: datetime) -> list[D]:
    """The same, where those of a named instant say how long it is until then: their sender may know another time."""
    return [one if one.at is None else replace(one, delay_s=left_s(one.at, now)) for one in given]  # type: ignore[type-var]


def left_s(at: datetime, now: datetime) -> float:
    """Seconds until an instant; 0 when it is past."""
    return max(0.0, (at - now).total_seconds())


def then_or_now(database: Database, at: datetime) -> ColumnElement[datetime]:
    """An instant, or the ledger's clock, if it is past."""
    now, exact = database.now, literal(at, database.tables.task.c.due_at.type)
    return case((exact > now(), exact), else_=now())
