"""Records of a Kafka topic as values, and what its readers and those who look at it both have to know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, Message, TopicCollection
from confluent_kafka.admin import AdminClient

from workq.messages.intake.values import BrokerRecord
from workq.messages.kinds.reach import left
from workq.outbound.kafka_headers import headers_of


def group_of(name: str, options: Mapping[str, Any]) -> str:
    """The consumer group of a way in."""
    return str(options.get("group", f"workq.{name}"))


def id_of_topic(admin: AdminClient, topic: str, ends: float) -> str | None:
    """None: this Kafka has no such ids, or does not tell just now."""
    try:
        within_s = left(ends)
        asked = admin.describe_topics(TopicCollection([topic]), request_timeout=within_s)[topic]
        found = asked.result(within_s)
    except (KafkaException, TimeoutError):
        return None
    return str(found.topic_id) if found.topic_id is not None else None


def record_of(one: Message, *, topic_id: str | None, group: str) -> BrokerRecord:
    """A record as it was read. Its own name is made of the topic's id, the partition, the offset and the time, and of
    the group: what two ways in read of one topic are two messages."""
    topic, part, offset = str(one.topic()), one.partition(), one.offset()
    headers = headers_of(one)
    return BrokerRecord(
        body=_raw(one.value()),
        headers={name: value or b"" for name, value in headers or ()},
        key=_raw(one.key()),
        own_id=f"{_short(group)[:8]}-{topic_id or _short(topic)}-{part}-{offset}-{one.timestamp()[1]}",
        where=f"{topic}[{part}]@{offset}",
        fault=None if headers is not None else "the name of a header is no text in UTF-8: none of them can be read",
    )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:22]


def _raw(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
