"""The stages of ways in: a topic or a queue of one test, what is written to it, and what became of that."""

from __future__ import annotations

import secrets
from typing import Any

import pika
from confluent_kafka.admin import AdminClient

from tests.contract.ways_in.suite import IntakeStage
from tests.faults.kafka_topic import Topic
from tests.faults.rabbitmq import ask
from tests.faults.ways_in import LONG_S, WayIn
from workq.lab.servers import Kafka, RabbitMQ


class KafkaTopicStage(IntakeStage):
    """A topic of one partition. Its records have no name but their offset."""

    kind = "kafka"
    missing = "no topic"

    def __init__(self, kafka: Kafka) -> None:
        self.topic = Topic(kafka, partitions=1)

    def options(self) -> dict[str, Any]:
        return {"url": self.topic.kafka.url, "topic": self.topic.name, "group": self.topic.name}

    def publish(self, *records: tuple[bytes, dict[str, str]]) -> None:
        self.topic.produce(*records)

    def quarantined(self, count: int) -> list[dict[str, Any]]:
        return self.topic.quarantined(count)

    def is_empty(self, way_in: WayIn) -> bool:
        return way_in.offsets() == self.topic.ends()

    def remove(self) -> None:
        admin: Any = AdminClient(self.topic.kafka.admin_conf)
        admin.delete_topics([self.topic.name], operation_timeout=LONG_S)[self.topic.name].result(LONG_S)

    def make(self) -> None:
        self.topic.kafka.create_topic(self.topic.name)


class RabbitQueueStage(IntakeStage):
    """A quorum queue. Each message has a message id."""

    kind = "amqp"
    missing = "no queue"

    def __init__(self, server: RabbitMQ) -> None:
        self._server = server
        self.name = f"in-{secrets.token_hex(6)}"
        self.make()

    def options(self) -> dict[str, Any]:
        return {"url": self._server.url, "queue": self.name}

    def publish(self, *records: tuple[bytes, dict[str, str]]) -> None:
        def send(channel: Any) -> None:
            channel.confirm_delivery()
            for body, headers in records:
                about = pika.BasicProperties(
                    headers=dict(headers), message_id=f"own-{secrets.token_hex(8)}", delivery_mode=2
                )
                channel.basic_publish("", self.name, body, about, mandatory=True)

        ask(self._server, send)

    def quarantined(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        def read(channel: Any) -> None:
            while True:
                method, properties, body = channel.basic_get(f"{self.name}.quarantine", auto_ack=True)
                if method is None:
                    return
                found.append({"body": body, **properties.headers})

        ask(self._server, read)
        assert len(found) >= count, found
        return found

    def is_empty(self, way_in: WayIn) -> bool:
        found: list[int] = []

        def count(channel: Any) -> None:
            found.append(int(channel.queue_declare(self.name, passive=True).method.message_count))

        ask(self._server, count)
        return found == [0]

    def remove(self) -> None:
        ask(self._server, lambda channel: channel.queue_delete(self.name))

    def make(self) -> None:
        kind = {"x-queue-type": "quorum"}
        ask(self._server, lambda channel: channel.queue_declare(self.name, durable=True, arguments=kind))
