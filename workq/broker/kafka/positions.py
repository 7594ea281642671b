"""Positions: how far a topic reaches, and how far the group is done with it. No group is joined.

Where a topic begins and ends is asked by an admin client. What is committed is asked by a consumer without a
subscription: an admin client would ask the group's coordinator, and ends the process (librdkafka 2.16) when that
answers that it is none, as it does while it moves, or when the connection breaks or the time is up just then (#4605).

This is the proof of loss on Kafka (rule 6): the ends of all partitions are written down, and once the group is done
with all before them, a hint that was confirmed earlier and is held by nobody is lost. Retention, `delete_records`, a
log that was cut off, a topic that was deleted, and offsets that have expired all end in "done with": then the hints are
sent again. A wrong answer costs a duplicate, never a loss. An offset beyond the end tells nothing: a process may commit
one of a topic that was deleted into the one that was made in its place, and all that waits there would be sent again
with each mark, until somebody commits. Whoever reads on from such an offset is told so, and begins anew.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from workq.broker.kafka.topics import MISSING, TopicNames, Topics
from workq.errors import BrokerUnavailable

REST_S: Final = 0.05
IN_A_MOMENT: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
)
"""Errors that pass: a coordinator or leader is just moving, or the group's topic is just made."""
Place = tuple[str, int]
"""Topic and partition."""
_NO_GROUP: Final = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID)


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """What a partition holds: from `low` up to before `end`; and what the group is done with, up to before `done`."""

    low: int
    end: int
    done: int

    @property
    def next(self) -> int:
        """The offset of the first record that the group is not done with."""
        return max(self.done, self.low) if self.done <= self.end else self.low


class Positions:
    """Questions about the topics of one namespace."""

    def __init__(self, topics: Topics, names: TopicNames, settings: Mapping[str, Any]) -> None:
        """`settings`: of a member of the group, which this never becomes."""
        self._topics = topics
        self._names = names
        self._settings = {**settings, "error_cb": topics.refusal.heed}
        self._lock = threading.Lock()
        self._asker: Consumer | None = None
        self._is_closed = False

    def spans(self, queue: str, *, ends: float) -> tuple[str, dict[int, PartitionSpan]]:
        """The id of the topic of a queue, and its partitions; without any where it is missing.

        Raises:
            BrokerUnavailable: Kafka did not answer. ConfigError: it refuses.
        """
        return self.spans_of([queue], ends=ends)[queue]

    def spans_of(self, queues: Sequence[str], *, ends: float) -> dict[str, tuple[str, dict[int, PartitionSpan]]]:
        """The same of some queues, by as many questions as for one.

        Raises:
            BrokerUnavailable: Kafka did not answer. ConfigError: it refuses.
        """
        topics = {self._names.topic(queue): queue for queue in queues}
        while True:
            seen = self._topics.look_at(list(topics), ends=ends)
            places = [TopicPartition(topic, one) for topic, (_, parts) in seen.items() for one in parts]
            try:
                spans = self._spans(places, ends)
                break
            except KafkaException as error:  # a topic may have been deleted meanwhile
                if error.args[0].code() not in (*IN_A_MOMENT, *MISSING) or time.monotonic() >= ends:
                    raise self._topics.failure(error.args[0], "offsets") from None
                time.sleep(REST_S)
        found: dict[str, tuple[str, dict[int, PartitionSpan]]] = {queue: ("", {}) for queue in queues}
        for topic, (topic_id, parts) in seen.items():
            if parts:
                found[topics[topic]] = topic_id, {one: spans[topic, one] for one in parts}
        return found

    def _spans(self, places: list[TopicPartition], ends: float) -> dict[Place, PartitionSpan]:
        if not places:
            return {}
        spec: Any = OffsetSpec
        done = self._done(places, ends)
        lows = self._bounds(places, spec.earliest(), ends)
        tops = self._bounds(places, spec.latest(), ends)
        return {place: PartitionSpan(lows[place], tops[place], done.get(place, -1)) for place in lows}

    def position(self, queue: str, *, ends: float) -> str:
        """The ends of all partitions now, as text.

        Raises:
            BrokerUnavailable: Kafka did not answer. ConfigError: it refuses.
        """
        topic_id, spans = self.spans(queue, ends=ends)
        return json.dumps({"id": topic_id, "p": {str(one): span.end for one, span in spans.items()}})

    def has_passed(self, queue: str, position: str, *, ends: float) -> bool:
        """Whether the group is done with all that stood before a position, or it is gone.

        Raises:
            BrokerUnavailable: Kafka did not answer. ConfigError: it refuses.
            ValueError: the position is none of ours.
        """
        told = json.loads(position)
        marked: Mapping[str, int] = told["p"]
        topic_id, spans = self.spans(queue, ends=ends)
        if topic_id != told["id"]:
            return True  # deleted, and made again perhaps: nothing of then is there
        return all(span.next >= min(marked[str(one)], span.end) for one, span in spans.items() if str(one) in marked)

    def _bounds(self, places: Sequence[TopicPartition], which: OffsetSpec, ends: float) -> dict[Place, int]:
        asked = self._topics.admin.list_offsets(
            dict.fromkeys(places, which),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=_left(ends),
        )
        return {(one.topic, one.partition): self._topics.result(future, ends).offset for one, future in asked.items()}

    def _done(self, places: list[TopicPartition], ends: float) -> dict[Place, int]:
        """The committed offsets; a partition without one is left out."""
        asker = self._group()
        try:
            found = asker.committed(places, timeout=_left(ends))
        except KafkaException as error:
            if error.args[0].code() in _NO_GROUP:
                return {}
            raise
        finally:
            asker.poll(0.0)  # what it tells of its connections; nothing else ever comes
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}

    def _group(self) -> Consumer:
        with self._lock:
            if self._is_closed:
                raise BrokerUnavailable("broker: it is closed")
            if self._asker is None:
                self._asker = Consumer(self._settings)
            return self._asker

    def close(self) -> None:
        """Let go of the consumer; it ends with its last call. Repeatable."""
        with self._lock:
            self._is_closed, self._asker = True, None

    def handles(self) -> list[object]:
        """What belongs to threads of librdkafka: a child of a fork must never free it."""
        return [] if self._asker is None else [self._asker]


def _left(ends: float) -> float:
    return max(0.1, ends - time.monotonic())
