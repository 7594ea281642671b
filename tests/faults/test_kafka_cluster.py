"""Kafka of three nodes as the broker: what keeps the group's offsets is killed, and comes back."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.contract.broker import hints, ids
from tests.system.fleet import wait_until
from workq.broker.kafka import KafkaBroker
from workq.errors import BrokerUnavailable
from workq.lab.servers import Kafka
from workq.lab.servers.kafka_cluster import KafkaCluster, KafkaNode, start_kafka_cluster

QUEUE = "mail"


def coordinator(cluster: KafkaCluster, group: str) -> KafkaNode:
    """The node that keeps the offsets of a group."""
    found: list[int] = []

    def is_told() -> bool:
        admin: Any = AdminClient(cluster.admin_conf)
        try:
            found.append(admin.describe_consumer_groups([group])[group].result(60).coordinator.id)
        except KafkaException:  # it is moving
            return False
        return True

    wait_until(is_told, timeout_s=60, what="the group has a coordinator")
    return cluster.nodes[found[-1] - 1]


def has_passed(broker: KafkaBroker, position: str) -> bool:
    try:
        return broker.has_passed(QUEUE, position)
    except BrokerUnavailable:  # its coordinator moves: to be asked again, and this process lives
        return False


def test_every_hint_comes_and_is_proved_to_have_come_while_its_coordinator_is_killed(
    kafka_server: Kafka,  # where Kafka is missing, that one says so
    tmp_path: Path,
) -> None:
    namespace = f"t{secrets.token_hex(4)}"
    with start_kafka_cluster(tmp_path / "kafka") as cluster:
        broker = KafkaBroker(f"{cluster.url}?partitions=4", namespace=namespace)
        try:
            consumer = broker.consumer([QUEUE], name="one", prefetch=1000)
            came: set[str] = set()

            def carry(count: int) -> None:
                """So many more hints are confirmed, come, and are passed; what was not confirmed is sent again."""
                sent = hints(QUEUE, count)
                left = list(sent)

                def is_confirmed() -> bool:
                    answers = broker.publish(left, deadline_s=10.0)
                    left[:] = [hint for hint, is_stored in zip(left, answers, strict=True) if not is_stored]
                    return not left

                wait_until(is_confirmed, timeout_s=60, what="all are confirmed")
                marked: list[str] = []

                def is_marked() -> bool:
                    try:
                        marked.append(broker.position(QUEUE) or "")
                    except BrokerUnavailable:
                        return False
                    return True

                wait_until(is_marked, timeout_s=60, what="the ends are told")

                def has_come() -> bool:
                    page = consumer.fetch(ids_max=1000, wait_s=0.2)
                    came.update(ids(page))
                    consumer.ack(page)
                    return came >= set(ids(sent))

                wait_until(has_come, timeout_s=60, what="all have come")
                wait_until(lambda: has_passed(broker, marked[-1]), timeout_s=60, what="the position is passed")

            carry(100)
            killed = coordinator(cluster, namespace)
            killed.kill()
            carry(100)
            killed.start()
            carry(100)
            assert broker.depths([QUEUE])[QUEUE].ready == 0
        finally:
            broker.close()
    assert len(came) == 300
