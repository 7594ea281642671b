"""Whether `times.absence_s` has an effect with these settings: each store has to tell who is gone from it.

What only a server knows, such as a pooler before the ledger, is told where that server is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from workq.config import Settings
from workq.config.kafka import is_kafka
from workq.diagnose.doctor.check import Check, Level

_ALONE = "so a dead host is found by its leases alone"


def look(settings: Settings) -> Iterator[Check]:
    """A setting that does nothing is a finding."""
    why = why_unwatched(settings)
    if settings.times.absence_s > 0.0 and why is not None:
        absence = f"times.absence_s is {settings.times.absence_s:g} and has no effect"
        yield Check("settings", Level.WARNING, f"{absence}: {why}, {_ALONE}; or set it to 0")


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
