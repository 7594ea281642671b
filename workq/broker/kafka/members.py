"""Members: who is in the group of the workers, which partitions each has, and what this user may not do with it.

For people alone, and never on the path of a worker: only an admin client can ask it, and librdkafka may end the process
when the connection breaks just then (see positions.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka._model import ConsumerGroupState
from confluent_kafka.admin._acl import AclOperation

from workq.broker.kafka.positions import IN_A_MOMENT, REST_S, Place
from workq.broker.kafka.topics import Topics

_AT_REST: Final = (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The group of the workers. `owned`: the partitions that its members have now. `lacks`: what this user may not."""

    members: int
    is_moving: bool
    """Partitions are being dealt out anew: who owns which is not told for certain."""
    owned: frozenset[Place] = frozenset()
    consumers: Mapping[str, int] = field(default_factory=dict)
    """How many members have a partition of a topic."""
    lacks: tuple[str, ...] = ()


def look_at_group(topics: Topics, group: str, *, ends: float) -> GroupFacts:
    """The group as it is now; one that is not there has no members.

    Raises:
        BrokerUnavailable: Kafka did not answer. ConfigError: it refuses to tell.
    """
    while True:
        asked = topics.admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=left(ends)
        )
        try:
            found = topics.result(asked[group], ends)
            break
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                return GroupFacts(0, is_moving=False)
            if code not in IN_A_MOMENT or time.monotonic() >= ends:
                raise topics.failure(error.args[0], f"group {group}") from None
            time.sleep(REST_S)
    owned: set[Place] = set()
    consumers: dict[str, int] = {}
    for member in found.members:
        places = {(one.topic, one.partition) for one in member.assignment.topic_partitions}
        owned |= places
        for topic in {topic for topic, _ in places}:
            consumers[topic] = consumers.get(topic, 0) + 1
    return GroupFacts(
        len(found.members),
        found.state not in _AT_REST,
        frozenset(owned),
        consumers,
        lacking(found, (AclOperation.READ,)),
    )


def lacking(described: Any, wanted: Sequence[AclOperation]) -> tuple[str, ...]:
    """What is not permitted, as far as Kafka tells: it names the operations that are, or none at all."""
    allowed = described.authorized_operations
    return tuple(one.name for one in wanted if allowed and one not in allowed)


def left(ends: float) -> float:
    """How long a question may still take, in seconds."""
    return max(0.1, ends - time.monotonic())
