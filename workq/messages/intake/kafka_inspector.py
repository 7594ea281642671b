"""KafkaInspector: what can be asked of a topic beside its readers, by admin or a consumer without a group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
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

from workq.config.addresses import Allowed
from workq.config.kafka import kafka_place
from workq.messages.intake import IntakeInspector
from workq.messages.intake.kafka_records import group_of, record_of
from workq.messages.intake.values import BrokerRecord, IntakeBacklog, IntakeOffset
from workq.messages.kinds import DestinationAddress, SendFault, Unsent
from workq.messages.kinds.kafka_reach import KafkaReach
from workq.messages.kinds.reach import Lookup, ReachFailed, left

_NO_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_REFUSED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_PIECE_S: Final = 0.5


class KafkaInspector(IntakeInspector):
    """No group is joined, and no offset committed."""

    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._options = address.options
        self._place = kafka_place(address.url)
        self._reach = KafkaReach(self._place, address.options, allowed=allowed, lookup=lookup)
        self._topic: str = address.options["topic"]
        self._group = group_of(address.name, address.options)

    def backlog(self, offsets: Sequence[IntakeOffset], *, timeout_s: float) -> IntakeBacklog:
        """See the port. They are counted by their offsets, those of Kafka's own marks among them."""
        ends = time.monotonic() + timeout_s
        admin = self._admin(ends)
        starts = self._starts(self._described(admin, self._topic, ends), offsets)
        spec: Any = OffsetSpec
        lows = self._bounds(admin, starts, spec.earliest(), ends)
        highs = self._bounds(admin, starts, spec.latest(), ends)
        waiting = lost = 0
        for part, start in starts.items():
            if start is None or start > highs[part]:  # it would be read from the beginning
                waiting += highs[part] - lows[part]
            else:
                waiting += highs[part] - max(start, lows[part])
                lost += max(0, lows[part] - start)
        return IntakeBacklog(waiting, lost)

    def faults(self, *, timeout_s: float) -> list[str]:
        """See the port. Whether a quarantine that is missing could be made is asked, and it is not made."""
        ends = time.monotonic() + timeout_s
        admin = self._admin(ends)
        found = []
        if not _may(self._described(admin, self._topic, ends), AclOperation.READ):
            found.append(f"this user may not read the topic {self._topic!r}")
        if (trouble := self._group_fault(admin, ends)) is not None:
            found.append(trouble)
        if (trouble := self._quarantine_fault(admin, ends)) is not None:
            found.append(trouble)
        return found

    def peek(self, offsets: Sequence[IntakeOffset], *, limit: int, timeout_s: float) -> list[BrokerRecord]:
        """See the port."""
        ends = time.monotonic() + timeout_s
        described = self._described(self._admin(ends), self._topic, ends)
        starts = self._starts(described, offsets)
        topic_id = None if described.topic_id is None else str(described.topic_id)
        consumer = Consumer(
            {
                **self._reach.conf(),
                "group.id": self._group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "queued.min.messages": limit,
                "queued.max.messages.kbytes": 2048,
                "error_cb": lambda _: None,
            }
        )
        try:
            consumer.assign(
                [
                    TopicPartition(self._topic, part, OFFSET_BEGINNING if start is None else start)
                    for part, start in starts.items()
                ]
            )
            found: list[tuple[int, int, BrokerRecord]] = []
            left_parts = set(starts)
            while left_parts and len(found) < limit and time.monotonic() < ends:
                for one in consumer.consume(limit - len(found), min(_PIECE_S, left(ends))):
                    error, part = one.error(), one.partition()
                    if error is None:
                        record = record_of(one, topic_id=topic_id, group=self._group)
                        found.append((part or 0, one.offset() or 0, record))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left_parts.discard(-1 if part is None else part)
                    else:
                        raise self._failed(error)
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        finally:
            consumer.close()
        if not found and left_parts:
            raise ReachFailed(Unsent(SendFault.AWAY, f"Kafka gave nothing of {self._topic!r} in time"))
        return [record for *_, record in sorted(found, key=lambda one: one[:2])]

    def _admin(self, ends: float) -> AdminClient:
        self._reach.look(ends)
        return AdminClient(self._reach.conf())

    def _described(self, admin: AdminClient, topic: str, ends: float) -> Any:
        within_s = left(ends)
        asked = admin.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=within_s
        )
        return self._result(asked[topic], ends)

    def _starts(self, described: Any, offsets: Sequence[IntakeOffset]) -> dict[int, int | None]:
        """Where each partition would be read on; None: from its beginning."""
        topic_id = None if described.topic_id is None else str(described.topic_id)
        known = {
            one.part: one.next_offset
            for one in offsets
            if one.topic == self._topic and (topic_id is None or one.topic_id in (None, topic_id))
        }
        return {one.id: known.get(one.id) for one in described.partitions}

    def _bounds(self, admin: AdminClient, parts: Mapping[int, Any], which: OffsetSpec, ends: float) -> dict[int, int]:
        asked = admin.list_offsets(
            {TopicPartition(self._topic, part): which for part in parts},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=left(ends),
        )
        return {one.partition: self._result(future, ends).offset for one, future in asked.items()}

    def _group_fault(self, admin: AdminClient, ends: float) -> str | None:
        asked = admin.describe_consumer_groups(
            [self._group], include_authorized_operations=True, request_timeout=left(ends)
        )
        try:
            described = asked[self._group].result(left(ends))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                return f"this user has no right to the group {self._group!r}"
            return None  # it is not there yet, or its coordinator is just moving
        except TimeoutError:
            return None
        return None if _may(described, AclOperation.READ) else f"this user may not read with the group {self._group!r}"

    def _quarantine_fault(self, admin: AdminClient, ends: float) -> str | None:
        name = self._options["quarantine"]
        try:
            described = self._described(admin, name, ends)
        except ReachFailed as error:
            if error.unsent.fault is not SendFault.NO_TARGET:
                return f"its quarantine {name!r} cannot be used: {error}"
        else:
            return (
                None if _may(described, AclOperation.WRITE) else f"this user may not write to its quarantine {name!r}"
            )
        asked = admin.create_topics([NewTopic(name, 1)], validate_only=True, request_timeout=left(ends))
        try:
            self._result(asked[name], ends)
        except ReachFailed as error:
            return f"its quarantine {name!r} is missing, and cannot be made: {error}"
        return None

    def _result(self, future: Any, ends: float) -> Any:
        try:
            return future.result(left(ends))
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        except TimeoutError:
            raise ReachFailed(Unsent(SendFault.AWAY, "Kafka did not answer in time")) from None

    def _failed(self, error: KafkaError) -> ReachFailed:
        code = error.code()
        fault = SendFault.NO_TARGET if code in _NO_TOPIC else SendFault.REFUSED if code in _REFUSED else SendFault.AWAY
        return ReachFailed(Unsent(fault, self._place.clean(f"Kafka: {error.str()}")))


def _may(described: Any, operation: AclOperation) -> bool:
    """Whether it is permitted, as far as Kafka tells."""
    allowed = described.authorized_operations
    return not allowed or operation in allowed
