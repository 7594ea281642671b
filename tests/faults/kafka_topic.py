"""A topic of one test: what is in it, what becomes of it, and its quarantine."""

from __future__ import annotations

import secrets
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.faults.ways_in import LONG_S
from tests.system.fleet import wait_until
from workq.lab.servers import Kafka
from workq.lab.servers.kafka_cluster import KafkaCluster

Headers = dict[str, str]
ANY = -1
AUTHORIZED = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS;User:workq",
    "listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN",
    "listener.name.client.plain.sasl.jaas.config="
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_workq="workq" user_ann="ann";',
)
"""`workq` may do everything, `ann` what a test gives her, whoever comes in by the second listener everything."""


class Topic:
    """A topic of one test, made with so many partitions; or one of this name, which others make."""

    def __init__(self, kafka: Kafka | KafkaCluster, *, partitions: int = 0, name: str | None = None) -> None:
        self.kafka = kafka
        self.name = name or f"in-{secrets.token_hex(6)}"
        if name is None:
            kafka.create_topic(self.name, partitions=partitions)

    def produce(self, *records: tuple[bytes | None, Headers], part: int = ANY) -> None:
        producer = confluent_kafka.Producer(self.kafka.admin_conf)
        for body, headers in records:
            producer.produce(self.name, body, headers=dict(headers), partition=part)
        assert producer.flush(LONG_S) == 0

    def leader(self, part: int) -> int:
        """The number of the node that leads a partition; -1: none does."""
        admin: Any = AdminClient(self.kafka.admin_conf)
        return int(admin.list_topics(self.name, timeout=LONG_S).topics[self.name].partitions[part].leader)

    def grow(self, *, to: int) -> None:
        """Let it have so many partitions, and return when each has a leader."""
        admin: Any = AdminClient(self.kafka.admin_conf)
        wanted = NewPartitions(self.name, to)
        admin.create_partitions([wanted], operation_timeout=LONG_S)[self.name].result(LONG_S)

        def is_led() -> bool:
            found = admin.list_topics(self.name, timeout=LONG_S).topics[self.name].partitions.values()
            return len(found) == to and all(one.leader >= 0 for one in found)

        wait_until(is_led, timeout_s=LONG_S, what="leaders")

    def make_anew(self) -> None:
        """Delete it, and make another one of its name."""
        admin: Any = AdminClient(self.kafka.admin_conf)
        self.delete()
        wait_until(lambda: self.name not in admin.list_topics(timeout=LONG_S).topics, timeout_s=LONG_S, what="deleted")
        self.kafka.create_topic(self.name)

    def delete(self) -> None:
        """Delete it, if it is there."""
        admin: Any = AdminClient(self.kafka.admin_conf)
        try:
            admin.delete_topics([self.name], operation_timeout=LONG_S)[self.name].result(LONG_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise

    def ends(self) -> dict[int, int]:
        """The end offset of each partition, once each has a leader."""
        found: list[dict[int, int]] = []

        def are_told() -> bool:
            try:
                found.append(self._ends())
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
            return bool(found)

        wait_until(are_told, timeout_s=LONG_S, what="each partition has a leader")
        return found[-1]

    def _ends(self) -> dict[int, int]:
        reader = self._reader()
        parts = reader.list_topics(self.name, timeout=LONG_S).topics[self.name].partitions
        found = {one: reader.get_watermark_offsets(confluent_kafka.TopicPartition(self.name, one))[1] for one in parts}
        reader.close()
        return {one: offset for one, offset in found.items() if offset}

    def quarantined(self, count: int) -> list[dict[str, Any]]:
        """So many records of the quarantine, each as its body and headers."""
        reader = self._reader()
        reader.assign([confluent_kafka.TopicPartition(f"{self.name}.quarantine", 0, 0)])
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            for one in reader.consume(100, 0.2):
                assert one.error() is None
                headers: Any = one.headers()
                found.append({"body": one.value(), **{name: value.decode() for name, value in headers}})
            return len(found) >= count

        wait_until(is_there, timeout_s=LONG_S, what=f"{count} records in quarantine")
        reader.close()
        return found

    def _reader(self) -> confluent_kafka.Consumer:
        conf = {"group.id": secrets.token_hex(4), "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return confluent_kafka.Consumer({**self.kafka.admin_conf, **conf})
