"""A private Kafka of some nodes, each broker and controller: any one of three may die, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from workq.lab.servers import server
from workq.lab.servers.kafka import Kafka, make_topic, new_id
from workq.lab.servers.server import ServerFailed

_TOGETHER_S: Final = 90.0
_ASK_S: Final = 5.0
_OFFSETS: Final = "__consumer_offsets"
_OFFSETS_PARTITIONS: Final = 3
"""As kafka.py sets it."""


class KafkaNode(Kafka):
    """One of the nodes. `kill()` and `start()` are as of each server; its port stays."""

    def __init__(self, folder: Path | None, *, number: int, controllers: Mapping[int, int], cluster_id: str) -> None:
        """`controllers`: the port of each node's controller."""
        copies = len(controllers)
        options = [
            f"default.replication.factor={copies}",
            f"offsets.topic.replication.factor={copies}",
            f"transaction.state.log.replication.factor={copies}",
            f"share.coordinator.state.topic.replication.factor={copies}",
            f"min.insync.replicas={copies // 2 + 1}",
            "replica.lag.time.max.ms=3000",
            "broker.session.timeout.ms=3000",
            "controller.quorum.election.timeout.ms=500",
            "controller.quorum.fetch.timeout.ms=1000",
        ]
        super().__init__(folder, options)
        self._node_id = number
        self._controllers = dict(controllers)
        self._cluster_id = cluster_id

    @property
    def number(self) -> int:
        """As Kafka names it, the leader of a partition for instance."""
        return self._node_id

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._controller_port = self._controllers[self._node_id]  # the others have been told

    def _voters(self) -> str:
        return ",".join(f"{number}@127.0.0.1:{port}" for number, port in self._controllers.items())


class KafkaCluster:
    """Some nodes together; every topic has a copy on each. As a context manager it stops at the block's end."""

    def __init__(self, nodes: Sequence[KafkaNode]) -> None:
        """Use `start_kafka_cluster()`."""
        self.nodes = tuple(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """What a client is given: every node."""
        return "kafka://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def admin_conf(self) -> dict[str, Any]:
        """As that of one node, with all of them."""
        one = self.nodes[0].admin_conf
        return {**one, "bootstrap.servers": ",".join(node.admin_conf["bootstrap.servers"] for node in self.nodes)}

    def create_topic(self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Make a topic with a copy on each node, and return when it has leaders."""
        make_topic(self.admin_conf, name, partitions=partitions, copies=len(self.nodes), settings=settings)

    def leader(self, topic: str, part: int = 0) -> KafkaNode | None:
        """The node that leads a partition; None: none does, or it is not told just now."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.admin_conf)
        try:
            found = admin.list_topics(topic, timeout=_ASK_S).topics[topic].partitions.get(part)
        except KafkaException:
            return None
        return next((node for node in self.nodes if found is not None and node.number == found.leader), None)

    def coordinator(self, group: str) -> KafkaNode | None:
        """The node that keeps the offsets of a group; None: none does just now, or no group has committed any yet.

        An admin client could be asked for it, and may end the process by that while the coordinator moves.
        """
        number = 0
        for one in group:  # as Java's String.hashCode
            number = (31 * number + ord(one)) & 0xFFFF_FFFF
        number -= 1 << 32 if number >> 31 else 0
        return self.leader(_OFFSETS, abs(number) % _OFFSETS_PARTITIONS)

    def stop(self) -> None:
        """End all nodes and remove their folders. Repeatable."""
        for node in self.nodes:
            node.kill()  # one that ends in order would wait for others that have ended
        for node in self.nodes:
            node.stop()

    def wait_together(self) -> None:
        """Return when all nodes are there.

        Raises:
            ServerFailed: one is not, after a minute and a half.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.admin_conf)
        deadline = time.monotonic() + _TOGETHER_S
        found = 0
        while found != len(self.nodes):
            if time.monotonic() > deadline:
                raise ServerFailed(f"Kafka has {found} of {len(self.nodes)} nodes after {_TOGETHER_S:.0f} s")
            try:
                found = len(admin.describe_cluster(request_timeout=2.0).result(3.0).nodes)
            except (KafkaException, TimeoutError):
                continue


def start_kafka_cluster(folder: Path | None = None, *, nodes: int = 3) -> KafkaCluster:
    """Start a private Kafka of so many nodes; all at once, as none answers before most of them are there.

    Raises:
        ServerMissing: the jars, Java or the client are not there.
        ServerFailed: it could not be started.
    """
    controllers = {number: server.free_port() for number in range(1, nodes + 1)}
    cluster_id = new_id()
    made = [KafkaNode(folder, number=one, controllers=controllers, cluster_id=cluster_id) for one in controllers]
    cluster = KafkaCluster(made)
    try:
        with ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(KafkaNode.first_start, made))
        cluster.wait_together()
    except BaseException:  # an interrupt too: no server is left behind
        cluster.stop()
        raise
    return cluster
