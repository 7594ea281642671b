"""Questions about the ends of topics while what a client knows of the leaders is old."""

from __future__ import annotations

import time
from collections.abc import Collection

import pytest
from confluent_kafka import KafkaError

from tests.faults.kafka_raw import ENDS, mock_kafka
from workq.broker.kafka.positions import PartitionSpan, Positions
from workq.broker.kafka.topics import TopicNames, Topics
from workq.config.kafka import KafkaUrl

QUEUE = "mail"
LONG_S = 60.0


class SeenTopics(Topics):
    """They are there. The mock describes none."""

    def look_at(self, topics: Collection[str], *, ends: float) -> dict[str, tuple[str, list[int]]]:
        return dict.fromkeys(topics, ("an id", [0]))


@pytest.mark.parametrize(
    "code",
    [KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION],
)
def test_a_leader_that_is_not_the_one_that_was_known_is_asked_again(code: int) -> None:
    names = TopicNames("t")
    with mock_kafka(names.topic(QUEUE)) as kafka:
        url = KafkaUrl.parse(f"kafka://{kafka.servers}")
        topics = SeenTopics(url.place, url.settings(), names, partitions=1)
        positions = Positions(topics, names, {**url.settings(), "group.id": names.group})
        kafka.refuse(ENDS, code, code)

        found = positions.spans(QUEUE, ends=time.monotonic() + LONG_S)

        positions.close()
        topics.close()
    assert found == ("an id", {0: PartitionSpan(0, 0, -1)})
