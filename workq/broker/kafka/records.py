"""Records of Kafka as deliveries: what a record says, and which record a delivery was. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message

from workq.broker import QUARANTINE_BODY_MAX, Delivery
from workq.broker.kafka.publisher import KafkaRecord
from workq.broker.kafka.tracker import PartitionLife
from workq.outbound.kafka_headers import headers_of
from workq.values.codec import HINT_MAX_BYTES, decode_hint

RETURNS_HEADER: Final = "workq-returns"


@dataclass(slots=True)
class RecordTag:
    """Which record a delivery was, in which life of its partition, and its body for the quarantine."""

    life: PartitionLife
    offset: int
    body: bytes
    size: int
    sha256: str
    is_aside: bool = False
    """It is on its way to another place, and counts no more against the prefetch."""


def delivery_of(life: PartitionLife, *, offset: int, message: Message) -> Delivery:
    """A record as a delivery of this life of its partition."""
    body = message.value() or b""
    hint = decode_hint(body)
    size, sha256 = len(body), ""
    if size > HINT_MAX_BYTES:  # keep no more of it than the quarantine does
        sha256, body = hashlib.sha256(body).hexdigest(), body[:QUARANTINE_BODY_MAX]
    tag = RecordTag(life, offset, body, size, sha256)
    if isinstance(hint, str):
        return Delivery(tag, life.queue, (), 0, fault=hint, returns=_returns(message))
    return Delivery(
        tag,
        life.queue,
        hint.task_ids,
        hint.looks,
        returns=_returns(message),
        marker=hint.marker,
        waits_s=tuple(one / 1000 for one in hint.waits_ms),
    )


def to_quarantine(delivery: Delivery, topic: str, *, reason: str) -> KafkaRecord:
    """What the quarantine keeps of a record: its reason, its hash, its body up to `QUARANTINE_BODY_MAX`."""
    tag: RecordTag = delivery.tag
    headers = {
        "workq-reason": reason,
        "workq-queue": delivery.queue,
        "workq-bytes": str(tag.size),
        "workq-sha256": tag.sha256 or hashlib.sha256(tag.body).hexdigest(),
    }
    return KafkaRecord(topic, tag.body, headers)


def put_back(delivery: Delivery) -> KafkaRecord:
    """A record as it is, with one more of `returns`."""
    tag: RecordTag = delivery.tag
    return KafkaRecord(tag.life.place[0], tag.body, {RETURNS_HEADER: str(delivery.returns + 1)})


def _returns(message: Message) -> int:
    """How often this record was put back. Anybody may have written anything there."""
    told = dict(headers_of(message) or ()).get(RETURNS_HEADER) or b""
    return int(told) if told.isdigit() and len(told) <= 6 else 0
