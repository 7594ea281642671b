"""Three nodes of Kafka, of which one fails.

As the broker of a fleet they lose no task, and lost hints are sent again; as a way in, each record is recorded once.
`make chaos-kafka` and `make intake-kafka` do more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.intake_trial import SHORT, take_in
from tests.faults.kafka_trial import SHARE_MIN, try_chaos
from tests.system.conftest import OpenLeg
from workq.lab.servers import Kafka
from workq.lab.servers.kafka_cluster import KafkaCluster, start_kafka_cluster


@pytest.fixture(scope="module")
def nodes(
    kafka_server: Kafka,  # where Kafka is missing, that one says so
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KafkaCluster]:
    with start_kafka_cluster(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture
def cluster(nodes: KafkaCluster) -> KafkaCluster:
    """All nodes of it are there, whatever the test before did."""
    for node in nodes.nodes:
        if node.is_running:
            node.resume()
        else:
            node.start()
    nodes.wait_together()
    return nodes


def test_no_task_is_lost_while_the_groups_coordinator_hangs_and_when_all_hints_go_with_their_topic(
    cluster: KafkaCluster, open_leg: OpenLeg
) -> None:
    """The coordinator moves, and positions are asked for all the time. The topic is deleted while no worker is there to
    find tasks: the positions prove that their hints are lost."""
    leg = open_leg("servers", divide=10.0, broker=f"{cluster.url}?partitions=4")

    found = try_chaos(leg, cluster, ["pause coordinator", "alone: delete topic"], records=1000, held_s=4.0)

    assert found.findings == []
    [paused, deleted] = found.steps
    assert paused.offsets_missing == 0
    assert deleted.proved >= SHARE_MIN // 2


def test_each_record_is_recorded_once_while_a_member_and_a_node_die(cluster: KafkaCluster, tmp_path: Path) -> None:
    found = take_in(cluster, tmp_path, records=1200, steps=SHORT)

    assert found.written == 1200
    assert [one.partition(" ")[0] for one in found.events] == ["member", "kill", "start"]
    assert found.is_right, found
