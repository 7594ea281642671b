"""A Kafka of three nodes as a way in: each record is recorded once. The long one is `make intake-kafka`."""

from __future__ import annotations

from pathlib import Path

from tests.faults.intake_trial import SHORT, take_in
from workq.lab.servers import Kafka
from workq.lab.servers.kafka_cluster import start_kafka_cluster


def test_each_record_is_recorded_once_while_a_member_and_a_node_die(
    kafka_server: Kafka,  # where Kafka is missing, that one says so
    tmp_path: Path,
) -> None:
    with start_kafka_cluster(tmp_path / "kafka") as cluster:
        found = take_in(cluster, tmp_path, records=1200, steps=SHORT)

    assert found.written == 1200
    assert [one.partition(" ")[0] for one in found.events] == ["member", "kill", "start"]
    assert found.is_right, found
