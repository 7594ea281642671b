"""Three nodes of Kafka under a fleet: no task is lost, and lost hints are sent again. `make chaos-kafka` does more."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kafka_trial import SHARE_MIN, try_chaos
from tests.system.conftest import OpenLeg
from workq.lab.servers import Kafka
from workq.lab.servers.kafka_cluster import start_kafka_cluster


def test_no_task_is_lost_while_the_groups_coordinator_hangs_and_when_all_hints_go_with_their_topic(
    kafka_server: Kafka,  # where Kafka is missing, that one says so
    open_leg: OpenLeg,
    tmp_path: Path,
) -> None:
    """The coordinator moves, and positions are asked for all the time. The topic is deleted while no worker is there to
    find tasks: the positions prove that their hints are lost."""
    with start_kafka_cluster(tmp_path / "kafka") as cluster:
        leg = open_leg("servers", divide=10.0, broker=f"{cluster.url}?partitions=4")

        found = try_chaos(leg, cluster, ["pause coordinator", "alone: delete topic"], records=1000, held_s=4.0)

    assert found.findings == []
    [paused, deleted] = found.steps
    assert paused.offsets_missing == 0
    assert deleted.proved >= SHARE_MIN // 2
