"""Topics of a scratch namespace on Kafka: emptied, deleted, counted, and removed at its end with their group."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from workq.broker.kafka.positions import IN_A_MOMENT
from workq.broker.kafka.topics import MISSING, TopicNames
from workq.config.kafka import KafkaUrl
from workq.errors import BrokerUnavailable

ASK_S: Final = 30.0
REST_S: Final = 0.1
_NO_GROUP: Final = (KafkaError.GROUP_ID_NOT_FOUND,)
_IN_USE: Final = (KafkaError.NON_EMPTY_GROUP, *IN_A_MOMENT)


class ScratchTopics:
    """What a run does to its own topics, as somebody who knows nothing of workq would.

    Each method raises BrokerUnavailable where Kafka does not answer.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self._names = TopicNames(namespace)
        self._prefix = f"{namespace}."
        self._admin: Any = AdminClient(KafkaUrl.parse(url).settings())

    def purge(self, queue: str) -> int:
        """Delete all records of a queue; how many were not deleted before."""
        ends = time.monotonic() + ASK_S
        while True:  # the topic may have been made a moment ago, and have no leaders yet
            try:
                return self._purge(self._names.topic(queue))
            except _Failed as error:
                if error.code not in IN_A_MOMENT or time.monotonic() > ends:
                    raise
                time.sleep(REST_S)

    def delete(self, queue: str) -> None:
        """Delete the topic of a queue, whoever reads it."""
        self._delete([self._names.topic(queue)])

    def quarantined(self) -> int:
        """How many messages nobody could read."""
        return sum(end - low for low, end in self._spans(self._names.quarantine).values())

    def remove(self) -> None:
        """Delete the topics and the group of the namespace. Its members may be leaving still."""
        ends = time.monotonic() + ASK_S
        self._delete([one for one in self._listed().topics if one.startswith(self._prefix)])
        while True:
            asked = self._admin.delete_consumer_groups([self._names.group], request_timeout=ASK_S)
            try:
                _result(asked[self._names.group], ignored=_NO_GROUP)
            except _Failed as error:
                if error.code not in _IN_USE or time.monotonic() > ends:
                    raise
                time.sleep(REST_S)
            else:
                return

    def _purge(self, topic: str) -> int:
        spans = self._spans(topic)
        ends = [TopicPartition(topic, part, end) for part, (low, end) in spans.items() if low < end]
        for future in self._admin.delete_records(ends, request_timeout=ASK_S).values() if ends else ():
            _result(future, ignored=MISSING)
        return sum(end - low for low, end in spans.values())

    def _delete(self, topics: Iterable[str]) -> None:
        names = list(topics)
        asked = self._admin.delete_topics(names, operation_timeout=ASK_S, request_timeout=ASK_S) if names else {}
        for future in asked.values():
            _result(future, ignored=MISSING)

    def _listed(self) -> Any:
        try:
            return self._admin.list_topics(timeout=ASK_S)
        except KafkaException as error:
            raise _Failed(error.args[0]) from None

    def _spans(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first offset of each partition, and the one after its last; none of a topic that is missing."""
        found = self._listed().topics.get(topic)
        places = [TopicPartition(topic, part) for part in found.partitions] if found is not None else []
        spec: Any = OffsetSpec
        lows, tops = (self._offsets(places, which) for which in (spec.earliest(), spec.latest()))
        return {part: (lows[part], tops[part]) for part in lows if part in tops}

    def _offsets(self, places: list[TopicPartition], which: OffsetSpec) -> dict[int, int]:
        asked = self._admin.list_offsets(
            dict.fromkeys(places, which), isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ASK_S
        )
        found = {one.partition: _result(future, ignored=MISSING) for one, future in asked.items()}
        return {part: told.offset for part, told in found.items() if told is not None}


class _Failed(BrokerUnavailable):
    """What Kafka said."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(f"broker: Kafka says: {error.str()}")
        self.code = error.code()


def _result(future: Any, *, ignored: Iterable[int] = ()) -> Any:
    """What an answer holds; None of an error that is ignored."""
    try:
        return future.result(2 * ASK_S)
    except TimeoutError:
        raise BrokerUnavailable(f"broker: Kafka did not answer within {2 * ASK_S:.0f} s") from None
    except KafkaException as error:
        if error.args[0].code() in ignored:
            return None
        raise _Failed(error.args[0]) from None
