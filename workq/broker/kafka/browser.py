"""Browsing: what waits in a topic, read beside the group. Nothing is committed, moved or removed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from workq.broker import Browsed, Hint, See
from workq.broker.kafka.positions import Positions
from workq.broker.kafka.topics import MISSING, TopicNames, Topics
from workq.values.codec import decode_hint

PIECE_S: Final = 0.2
AT_ONCE: Final = 500
ASK_S: Final = 5.0


def browse_topic(
    queue: str,
    see: See,
    *,
    settings: Mapping[str, Any],
    names: TopicNames,
    topics: Topics,
    positions: Positions,
    deadline_s: float,
) -> Browsed:
    """Show all that the group is not done with, up to where the topic ends now; partition by partition in its order.

    Raises:
        BrokerUnavailable: Kafka did not answer.
    """
    ends = time.monotonic() + deadline_s
    topic = names.topic(queue)
    _, spans = positions.spans(queue, ends=max(ends, time.monotonic() + ASK_S))
    left = {one: span.end for one, span in spans.items() if span.next < span.end}
    hints = foreign = 0
    if not left:
        return Browsed(0, 0, is_whole=True)
    reader = Consumer({**settings, "group.id": names.group, "enable.partition.eof": True, "error_cb": lambda _: None})
    try:
        reader.assign([TopicPartition(topic, one, spans[one].next) for one in left])
        while left and time.monotonic() < ends:
            first = reader.poll(PIECE_S)  # `consume` waits for as many as it is asked for
            for message in [] if first is None else [first, *reader.consume(AT_ONCE, 0.0)]:
                part, error = message.partition() or 0, message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF or error.code() in MISSING:
                        left.pop(part, None)
                    elif not error.retriable():
                        raise topics.failure(error, topic)
                    continue
                offset = message.offset() or 0
                if offset >= left.get(part, 0):
                    left.pop(part, None)
                    continue
                if offset + 1 >= left[part]:
                    del left[part]
                found = decode_hint(message.value() or b"")
                if isinstance(found, str):
                    foreign += 1
                else:
                    hints += 1
                    see(Hint(queue, found.task_ids, 0.0, found.looks, found.marker))
    except KafkaException as error:
        raise topics.failure(error.args[0], topic) from None
    finally:
        reader.close()
    return Browsed(hints, foreign, is_whole=not left)
