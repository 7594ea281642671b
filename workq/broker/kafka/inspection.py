"""Inspection: what Kafka tells of its nodes, of the topics of a namespace and of its group. Reads only.

No group is joined, and nothing is made: whether a topic could be made is asked, and it is not made. What this user may
not see is told as such, and not as missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from workq.broker.kafka.members import GroupFacts, lacking, left, look_at_group
from workq.broker.kafka.positions import Positions
from workq.broker.kafka.topics import MISSING, TopicNames, Topics

INSPECT_S: Final = 5.0
_WANTED: Final = (AclOperation.READ, AclOperation.WRITE)
_PROTOCOLS: Final = "group.coordinator.rebalance.protocols"
_SESSION: Final = "group.consumer.session.timeout.ms"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The nodes. `settings` are those of one of them; None: this user may not read them."""

    nodes: int
    settings: Mapping[str, str] | None

    @property
    def has_consumer_protocol(self) -> bool | None:
        """Whether it has the protocol `consumer` (KIP-848), as 4.0 has by default; None: it was not told."""
        return None if self.settings is None else "consumer" in self.settings.get(_PROTOCOLS, "").split(",")

    @property
    def session_s(self) -> float | None:
        """How long the partitions of a dead process wait for another; None: it was not told."""
        told = (self.settings or {}).get(_SESSION)
        return None if told is None else int(told) / 1000


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition. `waiting`: records that the group is not done with."""

    number: int
    has_leader: bool
    copies: int
    in_sync: int
    waiting: int = 0
    is_owned: bool = False


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. `settings` None: this user may not read them. `lacks`: what it may not do of READ and WRITE."""

    name: str
    partitions: tuple[PartitionFacts, ...]
    settings: Mapping[str, str] | None
    lacks: tuple[str, ...] = ()

    def setting(self, name: str, default: str = "") -> str:
        """One of its settings, as it is in force."""
        return (self.settings or {}).get(name, default)

    @property
    def copies(self) -> int:
        """Of the partition that has the fewest."""
        return min(one.copies for one in self.partitions)


class KafkaInspection:
    """Questions of somebody who looks after a Kafka. Each raises BrokerUnavailable where it does not answer."""

    def __init__(self, topics: Topics, positions: Positions, names: TopicNames) -> None:
        self.names = names
        self._topics = topics
        self._positions = positions

    def cluster(self) -> ClusterFacts:
        """The nodes, and the settings of one of them."""
        ends = time.monotonic() + INSPECT_S
        found = self._topics.ask(
            lambda admin: admin.describe_cluster(request_timeout=left(ends)), ends=ends, what="cluster"
        )
        settings = None
        if found.nodes:
            node = ConfigResource(ConfigResource.Type.BROKER, str(found.nodes[0].id))
            settings = self._settings([node], ends)[node]
        return ClusterFacts(len(found.nodes), settings)

    def group(self) -> GroupFacts:
        """The group of the workers.

        Raises:
            ConfigError: Kafka refuses to tell.
        """
        return look_at_group(self._topics, self.names.group, ends=time.monotonic() + INSPECT_S)

    def topics(self, queues: Sequence[str], group: GroupFacts) -> dict[str, TopicFacts]:
        """The topics of these queues; those that are missing are left out.

        Raises:
            ConfigError: Kafka refuses to tell of one.
        """
        ends = time.monotonic() + INSPECT_S
        names = {queue: self.names.topic(queue) for queue in queues}
        described = self._described(list(names.values()), ends)
        resources = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in described}
        settings = self._settings(list(resources.values()), ends)
        spans = self._positions.spans_of([one for one, name in names.items() if name in described], ends=ends)
        found = {}
        for queue, name in names.items():
            if name not in described:
                continue
            waiting = {number: span.end - span.next for number, span in spans[queue][1].items()}
            parts = tuple(
                PartitionFacts(
                    one.id,
                    one.leader is not None,
                    len(one.replicas),
                    len(one.isr),
                    waiting.get(one.id, 0),
                    (name, one.id) in group.owned,
                )
                for one in described[name].partitions
            )
            found[queue] = TopicFacts(name, parts, settings[resources[name]], lacking(described[name], _WANTED))
        return found

    def may_not_make(self) -> str | None:
        """Why the quarantine could not be made, if it is missing; None: it could, or it is there."""
        ends = time.monotonic() + INSPECT_S
        name = self.names.quarantine
        asked = self._topics.admin.create_topics([NewTopic(name, 1)], validate_only=True, request_timeout=left(ends))
        try:
            self._topics.result(asked[name], ends)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                return str(self._topics.failure(error.args[0], name))
        return None

    def _described(self, names: Sequence[str], ends: float) -> dict[str, Any]:
        asked: Any = self._topics.admin.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=left(ends)
        )
        found = {}
        for name, future in asked.items():
            try:
                found[name] = self._topics.result(future, ends)
            except KafkaException as error:
                if error.args[0].code() not in MISSING:
                    raise self._topics.failure(error.args[0], name) from None
        return found

    def _settings(self, resources: Sequence[ConfigResource], ends: float) -> dict[Any, Mapping[str, str] | None]:
        found: dict[Any, Mapping[str, str] | None] = dict.fromkeys(resources)
        asked = self._topics.admin.describe_configs(list(resources), request_timeout=left(ends)) if resources else {}
        for resource, future in asked.items():
            try:
                told = self._topics.result(future, ends)
            except KafkaException:  # a right of its own, which nobody needs to run the queue
                continue
            found[resource] = {name: str(one.value) for name, one in told.items()}
        return found
