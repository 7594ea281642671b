"""One membership in a consumer group: a consumer, and the partitions that it has taken in the ledger.

Each has partitions of its own. One that is closed may need long, while Kafka's coordinator is away, and what it is told
by then must not touch those that its successor has taken.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from workq.messages.intake import TakePartition

CLOSE_S: Final = 5.0
ABSENT_S: Final = 45.0
"""Who does not poll for so long, or does not give back a partition, is put out of the group: as long as Kafka waits for
a process that is dead. With librdkafka's default the partition would wait five minutes."""


@dataclass(slots=True)
class OwnedPartition:
    """The epoch in which it was taken, and the offset of the next record of it."""

    epoch: int
    next_offset: int


class GroupMembership:
    """See the head of this file. `topic_id`: that of the topic whose partitions are taken."""

    def __init__(self, conf: Mapping[str, Any], topic: str, topic_id: str | None, take: TakePartition) -> None:
        self.owned: dict[int, OwnedPartition] = {}
        self.failure: BaseException | None = None
        """What has kept a partition from being taken. Nothing may be raised where that happens."""
        self._topic_id = topic_id
        self._take = take
        self._is_over = False
        self.consumer = Consumer({**conf, "max.poll.interval.ms": int(ABSENT_S * 1000)})
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def close(self) -> None:
        """Leave the group: within some seconds, or in the background."""
        self._is_over = True
        self.owned.clear()
        ending = threading.Thread(target=self.consumer.close, name="workq-kafka-end", daemon=True)
        ending.start()
        ending.join(CLOSE_S)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        placed = []
        for one in [] if self._is_over else partitions:
            offset = OFFSET_BEGINNING
            try:
                position = self._take(one.topic, one.partition, self._topic_id)
            except BaseException as error:  # raised here, librdkafka would read from where it likes
                self.failure = error
            else:
                self.owned[one.partition] = OwnedPartition(position.epoch, position.next_offset or 0)
                offset = OFFSET_BEGINNING if position.next_offset is None else position.next_offset
            placed.append(TopicPartition(one.topic, one.partition, offset))
        consumer.incremental_assign(placed)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self.owned.pop(one.partition, None)
        with contextlib.suppress(KafkaException):  # it is lost, or being closed
            consumer.incremental_unassign(partitions)
