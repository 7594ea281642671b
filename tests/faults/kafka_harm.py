"""KafkaHarm: what is done to three nodes of Kafka, and to the topic and the workers of one queue, and how it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.faults.kafka_topic import Topic
from tests.system.fleet import Fleet, wait_until
from workq.lab.servers.kafka_cluster import KafkaCluster, KafkaNode
from workq.lab.servers.server import ServerFailed

LONG_S: Final = 60.0
MORE_PARTITIONS: Final = 4
STARTS_MAX: Final = 3
CARELESS: Final = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
_ALL: Final = -1
"""As an offset of `delete_records`: all that is there."""


class KafkaHarm:
    """Each harm is a context, named by `HARMS`: it strikes, and at the end what was down is up again."""

    def __init__(
        self, cluster: KafkaCluster, topic: Topic, group: str, *, fleet: Callable[[], Fleet], write: Callable[[], None]
    ) -> None:
        """`fleet`: the workers as they are now; `write`: enqueues some, and returns when their hints are confirmed."""
        self.cluster = cluster
        self.topic = topic
        self._group = group
        self._fleet = fleet
        self._write = write

    @contextlib.contextmanager
    def struck(self, what: str) -> Iterator[None]:
        """One of `HARMS`."""
        with HARMS[what](self):
            yield

    def wait_whole(self) -> None:
        """Until each node is there, and each partition has a leader and all its copies."""
        self.cluster.wait_together()

        def is_whole() -> bool:
            with contextlib.suppress(KafkaException):
                found = AdminClient(self.cluster.admin_conf).list_topics(timeout=LONG_S).topics
                parts = [part for name in (self.topic.name, "__consumer_offsets") for part in _parts(found, name)]
                return bool(parts) and all(one.leader >= 0 and set(one.isrs) == set(one.replicas) for one in parts)
            return False

        wait_until(is_whole, timeout_s=LONG_S, what="all leaders, and all copies in sync")

    def _leader(self) -> KafkaNode:
        return _found(lambda: self.cluster.leader(self.topic.name), "the partition has a leader")

    def _coordinator(self) -> KafkaNode:
        return _found(lambda: self.cluster.coordinator(self._group), "the group has a coordinator")

    @contextlib.contextmanager
    def _killed(self, *nodes: KafkaNode, wiped: bool = False) -> Iterator[None]:
        for node in nodes:
            node.kill()
        try:
            yield
        finally:
            for node in nodes:
                if not node.is_running:
                    if wiped:
                        node.wipe()
                    _start(node)

    @contextlib.contextmanager
    def _paused(self, node: KafkaNode) -> Iterator[None]:
        node.pause()
        try:
            yield
        finally:
            node.resume()

    def kill_leader(self) -> contextlib.AbstractContextManager[None]:
        return self._killed(self._leader())

    def pause_leader(self) -> contextlib.AbstractContextManager[None]:
        return self._paused(self._leader())

    def kill_coordinator(self) -> contextlib.AbstractContextManager[None]:
        return self._killed(self._coordinator())

    def pause_coordinator(self) -> contextlib.AbstractContextManager[None]:
        return self._paused(self._coordinator())

    def kill_two(self) -> contextlib.AbstractContextManager[None]:
        leader = self._leader()
        return self._killed(leader, next(node for node in self.cluster.nodes if node is not leader))

    def wipe(self) -> contextlib.AbstractContextManager[None]:
        return self._killed(self._leader(), wiped=True)

    @contextlib.contextmanager
    def too_few_in_sync(self) -> Iterator[None]:
        """A copy is missing of three that are demanded: no hint is confirmed."""
        self._set("min.insync.replicas", "3")
        try:
            with self._killed(self._leader()):
                yield
        finally:
            self._set("min.insync.replicas", "2")

    @contextlib.contextmanager
    def kill_worker(self) -> Iterator[None]:
        self._fleet().kill_one()
        yield

    @contextlib.contextmanager
    def grow(self) -> Iterator[None]:
        self.topic.grow(to=len(self._topic_parts()) + MORE_PARTITIONS)
        yield

    @contextlib.contextmanager
    def delete_records(self) -> Iterator[None]:
        admin: Any = AdminClient(self.cluster.admin_conf)
        places = [TopicPartition(self.topic.name, one, _ALL) for one in self._topic_parts()]
        for future in admin.delete_records(places, operation_timeout=LONG_S).values():
            future.result(LONG_S)
        yield

    @contextlib.contextmanager
    def delete_topic(self) -> Iterator[None]:
        """Somebody of workq makes it again, when it is missed."""
        self.topic.delete()
        yield
        wait_until(lambda: bool(self._topic_parts()), timeout_s=LONG_S, what="the topic is made again")

    @contextlib.contextmanager
    def make_anew(self) -> Iterator[None]:
        """Others delete it and make it again at once, and more is written than was there."""
        copies = len(self.cluster.nodes)
        self._replace({}, [[number + 1 for number in range(copies)]] * len(self._topic_parts()))
        self._write()
        yield

    @contextlib.contextmanager
    def unclean(self) -> Iterator[None]:
        """The one node that has the last hints dies, and one that was away takes over: the topic's settings allow it.

        Three nodes are a quorum of two, so the topic has two copies here, of which the third node has none.
        """
        first, second, _ = self.cluster.nodes
        self._replace(CARELESS, [[first.number, second.number], [second.number, first.number]] * 4)
        second.kill()
        wait_until(lambda: self._in_sync() == {first.number}, timeout_s=LONG_S, what="one copy is in sync")
        self._write()
        first.kill()
        _start(second)
        wait_until(lambda: self._elected() == {second.number}, timeout_s=LONG_S, what="the other copy leads")
        yield
        _start(first)

    def _elected(self) -> set[int]:
        """Who leads; those partitions that nobody leads are given to whoever has a copy."""
        parts = self._topic_parts()
        lost = [TopicPartition(self.topic.name, number) for number, one in parts.items() if one.leader < 0]
        if lost:
            admin: Any = AdminClient(self.cluster.admin_conf)
            with contextlib.suppress(KafkaException):
                admin.elect_leaders(ElectionType.UNCLEAN, lost, request_timeout=LONG_S).result(LONG_S)
        return {one.leader for one in self._topic_parts().values()}

    def _in_sync(self) -> set[int]:
        return {number for one in self._topic_parts().values() for number in one.isrs}

    def _topic_parts(self) -> Mapping[int, Any]:
        with contextlib.suppress(KafkaException):
            found: Any = AdminClient(self.cluster.admin_conf).list_topics(timeout=LONG_S).topics
            return dict(found[self.topic.name].partitions) if self.topic.name in found else {}
        return {}

    def _replace(self, settings: Mapping[str, str], replicas: Sequence[Sequence[int]]) -> None:
        """Delete the topic, and make it with copies on these nodes, before anybody else does."""
        assigned = [list(one) for one in replicas]
        wanted = NewTopic(self.topic.name, len(assigned), replica_assignment=assigned, config=dict(settings))

        def is_made() -> bool:
            self.topic.delete()
            admin: Any = AdminClient(self.cluster.admin_conf)
            with contextlib.suppress(KafkaException):  # a worker was faster, or it is still being deleted
                admin.create_topics([wanted], operation_timeout=LONG_S)[self.topic.name].result(LONG_S)
                return True
            return False

        wait_until(is_made, timeout_s=LONG_S, what="the topic is made as wanted")
        wait_until(
            lambda: bool(found := self._topic_parts()) and all(one.leader >= 0 for one in found.values()),
            timeout_s=LONG_S,
            what="leaders",
        )

    def _set(self, name: str, value: str) -> None:
        """Change one setting of the topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic.name, incremental_configs=[entry])

        def is_set() -> bool:
            admin: Any = AdminClient(self.cluster.admin_conf)
            with contextlib.suppress(KafkaException):
                admin.incremental_alter_configs([resource], request_timeout=LONG_S)[resource].result(LONG_S)
                return True
            return False

        wait_until(is_set, timeout_s=LONG_S, what=f"{name} is {value}")


HARMS: Final[Mapping[str, Callable[[KafkaHarm], contextlib.AbstractContextManager[None]]]] = {
    "kill leader": KafkaHarm.kill_leader,
    "pause leader": KafkaHarm.pause_leader,
    "kill coordinator": KafkaHarm.kill_coordinator,
    "pause coordinator": KafkaHarm.pause_coordinator,
    "too few in sync": KafkaHarm.too_few_in_sync,
    "kill two": KafkaHarm.kill_two,
    "kill a worker": KafkaHarm.kill_worker,
    "add partitions": KafkaHarm.grow,
    "delete records": KafkaHarm.delete_records,
    "delete topic": KafkaHarm.delete_topic,
    "make topic anew": KafkaHarm.make_anew,
    "wipe a node": KafkaHarm.wipe,
    "unclean election": KafkaHarm.unclean,
}


def _parts(topics: Mapping[str, Any], name: str) -> list[Any]:
    return list(topics[name].partitions.values()) if name in topics else []


def _start(node: KafkaNode) -> None:
    """Start a node; on a busy machine one has needed more than its time."""
    for _ in range(STARTS_MAX - 1):
        with contextlib.suppress(ServerFailed):
            return node.start()
    return node.start()


def _found(look: Callable[[], KafkaNode | None], what: str) -> KafkaNode:
    ends = time.monotonic() + LONG_S
    while (found := look()) is None:
        assert time.monotonic() < ends, what
        time.sleep(0.1)
    return found
