"""Kafka as the broker: who answers. What its topics are made of is not looked at yet."""

from __future__ import annotations

from collections.abc import Iterator

from workq.config import Settings, masked
from workq.diagnose.doctor.check import Check, Level
from workq.diagnose.doctor.host import require


def look(settings: Settings) -> Iterator[Check]:
    """Whether Kafka answers.

    Raises:
        BrokerUnavailable, ConfigError: it cannot be looked at.
    """
    url = settings.broker or ""
    require("kafka", url)
    from workq.broker.kafka import KafkaBroker

    broker = KafkaBroker(url, namespace=settings.namespace, confirm_s=settings.times.confirm_s)
    try:
        server = broker.check()
    finally:
        broker.close()
    yield Check("broker", Level.OK, f"{masked(url)}: {server}")
