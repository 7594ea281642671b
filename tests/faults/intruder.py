"""Somebody else who can write to the broker: a client of its own on RabbitMQ, or rows in the table of hints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pika
import pytest
from sqlalchemy import insert, select

from tests.stores import database_of
from tests.system.legs import Leg


@dataclass(frozen=True)
class Quarantined:
    """One message of the quarantine."""

    reason: str
    kept: int
    bytes: int
    sha256: str


class Intruder(Protocol):
    """Somebody else who can write to the broker."""

    def put(self, bodies: Sequence[bytes]) -> None:
        """Put messages into the queue `witness`."""

    def quarantined(self) -> list[Quarantined]:
        """What is in the quarantine now."""

    def depth(self) -> int:
        """How many messages are in the queue."""

    def close(self) -> None:
        """Leave."""


class OnRabbitMQ:
    def __init__(self, leg: Leg) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(leg.environ["WORKQ_BROKER_URL"]))
        self.channel = self.connection.channel()
        self.queue = f"{leg.environ['WORKQ_NAMESPACE']}.q.witness"
        self.quarantine = f"{leg.environ['WORKQ_NAMESPACE']}.quarantine"
        leg.app.stores.broker.publish([], deadline_s=1.0)

    def put(self, bodies: Sequence[bytes], **properties: Any) -> None:
        for body in bodies:
            self.channel.basic_publish("", self.queue, body, pika.BasicProperties(delivery_mode=2, **properties))
        self.channel.queue_declare(self.queue, passive=True)  # answered after all of them

    def quarantined(self) -> list[Quarantined]:
        found: list[Quarantined] = []
        while True:
            method, properties, body = self.channel.basic_get(self.quarantine)
            if method is None or properties is None or body is None:
                self.channel.basic_nack(0, multiple=True, requeue=True)
                return found
            headers: dict[str, Any] = dict(properties.headers or {})
            size, digest = headers["workq-bytes"], headers["workq-sha256"]
            found.append(Quarantined(headers["workq-reason"], len(body), size, digest))

    def depth(self) -> int:
        return int(self.channel.queue_declare(self.queue, passive=True).method.message_count)

    def close(self) -> None:
        self.connection.close()


class OnTheLedger:
    def __init__(self, leg: Leg) -> None:
        self.database = database_of(leg.app)

    def put(self, bodies: Sequence[bytes]) -> None:
        hint = self.database.tables.hint
        rows = [{"queue": "witness", "body": body, "size": 1} for body in bodies]
        self.database.run(lambda tx: tx.execute(insert(hint).values(due_at=self.database.now()), rows))

    def quarantined(self) -> list[Quarantined]:
        event = self.database.tables.event
        with self.database.read() as tx:
            found = tx.execute(select(event.c.detail).where(event.c.kind == "quarantined")).scalars().all()
        details = [json.loads(text) for text in found]
        bodies = [one for one in details if "body" in one]
        return [Quarantined(one["reason"], len(one["body"]), one["bytes"], one["sha256"]) for one in bodies]

    def depth(self) -> int:
        hint = self.database.tables.hint
        with self.database.read() as tx:
            return len(tx.execute(select(hint.c.id)).all())

    def close(self) -> None:
        return


@pytest.fixture
def intruder(fast_leg: Leg) -> Iterator[Intruder]:
    """Comes when the queues are there."""
    fast_leg["note"].enqueue(0)
    fast_leg.app.producer.relay.flush(timeout_s=10)
    found: Intruder = OnRabbitMQ(fast_leg) if fast_leg.name == "servers" else OnTheLedger(fast_leg)
    yield found
    found.close()
