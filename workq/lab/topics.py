"""Topics of a scratch namespace on Kafka: emptied, deleted, counted, and removed at its end with their group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from workq.broker.kafka.members import lacking
from workq.broker.kafka.positions import IN_A_MOMENT
from workq.broker.kafka.topics import MISSING, TopicNames
from workq.config.kafka import KafkaUrl
from workq.errors import BrokerUnavailable, ConfigError

ASK_S: Final = 30.0
REST_S: Final = 0.1
_NO_GROUP: Final = (KafkaError.GROUP_ID_NOT_FOUND,)
_IN_USE: Final = (KafkaError.NON_EMPTY_GROUP, *IN_A_MOMENT)
_YOUNG: Final = (*IN_A_MOMENT, *MISSING)
_NO_RIGHT: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_WANTED: Final = (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE)


class ScratchTopics:
    """What a run does to its own topics, as somebody who knows nothing of workq would.

    Each method raises BrokerUnavailable where Kafka does not answer, and ConfigError, which says what to grant, where
    this user may not do it.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self._names = TopicNames(namespace)
        self._prefix = f"{namespace}."
        self._admin: Any = AdminClient(KafkaUrl.parse(url).settings())
        self._grant = (
            "Grant this user READ, WRITE, CREATE and DELETE on topics, and READ and DELETE on groups, that begin with "
            f"{namespace.partition('_')[0]}_ (kafka-acls.sh --resource-pattern-type prefixed)"
        )

    def try_rights(self) -> None:
        """Do once what a run does, to a topic and a group of its namespace, so that no run fails in its middle."""
        topic = f"{self._prefix}rights"
        self._result(self._admin.create_topics([NewTopic(topic, 1)], operation_timeout=ASK_S)[topic])
        ends = time.monotonic() + ASK_S
        if missing := self._lacking(topic, ends):
            left = f", and {topic} stays there" if AclOperation.DELETE.name in missing else ""
            why = f"broker: this user may not {' and '.join(missing)} the topic {topic}{left}"
            raise ConfigError(f"{why}. {self._grant}")
        while not self._commit(topic):
            if time.monotonic() > ends:
                raise BrokerUnavailable(f"broker: Kafka kept no offset of the group {self._names.group}")
            time.sleep(REST_S)
        self.remove()

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
                self._result(asked[self._names.group], ignored=_NO_GROUP)
            except _Failed as error:
                if error.code not in _IN_USE or time.monotonic() > ends:
                    raise
                time.sleep(REST_S)
            else:
                return

    def _lacking(self, topic: str, ends: float) -> Sequence[str]:
        """What this user may not do with a topic that was made just now: a moment later all nodes know of it."""
        while True:
            asked = self._admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
            found = self._result(asked[topic], ignored=MISSING)
            if found is not None:
                return lacking(found, _WANTED)
            if time.monotonic() > ends:
                raise BrokerUnavailable(f"broker: Kafka has made the topic {topic}, and knows nothing of it")
            time.sleep(REST_S)

    def _commit(self, topic: str) -> bool:
        """Commit an offset as the group; False: Kafka has not heard of the topic, or has no coordinator, yet."""
        done = ConsumerGroupTopicPartitions(self._names.group, [TopicPartition(topic, 0, 0)])
        asked = self._admin.alter_consumer_group_offsets([done], request_timeout=ASK_S)
        found = self._result(asked[self._names.group], ignored=_YOUNG)
        for one in () if found is None else found.topic_partitions:
            if one.error is not None and one.error.code() not in _YOUNG:
                raise self._failed(one.error)
        return found is not None and all(one.error is None for one in found.topic_partitions)

    def _purge(self, topic: str) -> int:
        spans = self._spans(topic)
        ends = [TopicPartition(topic, part, end) for part, (low, end) in spans.items() if low < end]
        for future in self._admin.delete_records(ends, request_timeout=ASK_S).values() if ends else ():
            self._result(future, ignored=MISSING)
        return sum(end - low for low, end in spans.values())

    def _delete(self, topics: Iterable[str]) -> None:
        names = list(topics)
        asked = self._admin.delete_topics(names, operation_timeout=ASK_S, request_timeout=ASK_S) if names else {}
        for future in asked.values():
            self._result(future, ignored=MISSING)

    def _listed(self) -> Any:
        try:
            return self._admin.list_topics(timeout=ASK_S)
        except KafkaException as error:
            raise self._failed(error.args[0]) from None

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
        found = {one.partition: self._result(future, ignored=MISSING) for one, future in asked.items()}
        return {part: told.offset for part, told in found.items() if told is not None}

    def _result(self, future: Any, *, ignored: Iterable[int] = ()) -> Any:
        """What an answer holds; None of an error that is ignored."""
        try:
            return future.result(2 * ASK_S)
        except TimeoutError:
            raise BrokerUnavailable(f"broker: Kafka did not answer within {2 * ASK_S:.0f} s") from None
        except KafkaException as error:
            if error.args[0].code() in ignored:
                return None
            raise self._failed(error.args[0]) from None

    def _failed(self, error: KafkaError) -> _Failed | ConfigError:
        if error.code() in _NO_RIGHT:
            said = error.str().rstrip(".")
            return ConfigError(f"broker: namespace {self._names.group}: Kafka says: {said}. {self._grant}")
        return _Failed(error)


class _Failed(BrokerUnavailable):
    """What Kafka said."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(f"broker: Kafka says: {error.str()}")
        self.code = error.code()
