"""Whether `times.absence_s` has an effect with these settings: each store has to tell who is gone from it.

What only a server knows, such as a pooler before the ledger, is told where that server is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from workq.config import Settings
from workq.config.kafka import is_kafka
from workq.diagnose.doctor.check import Check, Level
from workq.worker.signs import SignsOfLife

if TYPE_CHECKING:
    from workq.ledger.engine.database import Database

_ALONE = "so a dead host is found by its leases alone"


def look(settings: Settings) -> Iterator[Check]:
    """A setting that does nothing is a finding."""
    why = why_unwatched(settings)
    if settings.times.absence_s > 0.0 and why is not None:
        absence = f"times.absence_s is {settings.times.absence_s:g} and has no effect"
        yield Check("settings", Level.WARNING, f"{absence}: {why}, {_ALONE}; or set it to 0")


def signs_given(tx: Connection, database: Database, settings: Settings) -> Iterator[Check]:
    """How many of the live workers are found by absence. The schema is ours."""
    w = database.tables.worker
    told = [SignsOfLife.read(text or "") for text in tx.scalars(select(w.c.signs).where(w.c.state == "live"))]
    stores = SignsOfLife.of(settings).stores
    known = sum(one is not None and one.stores == stores for one in told)
    rest = "" if known == len(told) else ": the others have other settings or URLs, a pooler, or take in messages"
    if told:
        yield Check("ledger", Level.OK, f"{known} of {len(told)} live workers give signs of life in these stores{rest}")


def why_unwatched(settings: Settings) -> str | None:
    """Why nobody is found by absence, and what would do; None where stores of these kinds tell who is gone."""
    times = settings.times
    if not times.is_absence_watched:
        return f"it has one from {times.absence_least_s:g} on, and below lease_s, which is {times.lease_s:g}"
    if not settings.ledger.startswith("postgres"):
        return "of all ledgers PostgreSQL alone tells who is gone"
    if is_kafka(settings.broker):
        return "Kafka does not tell who is gone, as RabbitMQ does"
    return None
