"""A Kafka of three nodes under a fleet: no task is lost. The long one is `make chaos-kafka`."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kafka_trial import try_chaos
from tests.system.conftest import OpenLeg
from workq.lab.servers import Kafka
from workq.lab.servers.kafka_cluster import start_kafka_cluster


def test_no_task_is_lost_and_what_is_missing_is_proved_while_a_coordinator_and_a_topic_are_gone(
    kafka_server: Kafka,  # where Kafka is missing, that one says so
    open_leg: OpenLeg,
    tmp_path: Path,
) -> None:
    """Kafka's coordinator dies under a fleet; the topic is deleted while no worker is there to find its tasks."""
    with start_kafka_cluster(tmp_path / "kafka") as cluster:
        leg = open_leg("servers", divide=10.0, broker=f"{cluster.url}?partitions=4")

        found = try_chaos(leg, cluster, ["kill coordinator", "alone: delete topic"], records=2000, held_s=0.0)

    assert found.findings == []
    [killed, deleted] = found.steps
    assert (killed.offsets_missing, found.recorded) == (0, 2000)
    assert deleted.missing >= 300  # all that was written before, but for what was under way
    assert deleted.proved > 0
