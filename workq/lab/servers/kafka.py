"""A private Kafka from jars: one node that is its own controller, or one of some (kafka_cluster.py)."""

from __future__ import annotations

import base64
import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workq.lab.servers import server
from workq.lab.servers.jars import LOGGING, find_jars, java
from workq.lab.servers.programs import KAFKA_VERSION, ServerMissing
from workq.lab.servers.server import Server, ServerFailed

DEFAULT_VERSION: Final = "4.4.0"
HEAP_MB: Final = 320
LEADERS_S: Final = 60.0
META: Final = "meta.properties"
"""In a data folder that is formatted: whose it is. What else is there has the features that a new cluster begins with,
and nothing of the cluster or the node."""
_FORMATTED_BY: Final = (
    *("controller.quorum.bootstrap.servers", "controller.quorum.voters", "log.dir", "metadata.log.dir"),
    *("process.roles", "unstable."),
)
"""What options begin with that would have a folder formatted in another way."""
_SILENT: Final = logging.getLogger("workq.lab.kafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class Kafka(Server):
    """A private Kafka of one node (KRaft). Topics are not made by themselves; everything of it has one copy.

    Clients come to `port`, in the clear or as `options` say (the listener's name is CLIENT). A second listener, in the
    clear, is for the node itself and for `admin_conf`, whatever the first one wants. Its groups notice a dead member
    after 6 s. What it acknowledged survives `kill()`; it does not wait for the disk, so not a machine that fails.

    `advertised`, `advertised_host`: where clients are told to come to, for a proxy before it. By default to itself.
    """

    name = "Kafka"
    _is_packaged = False
    _end_limit_s = 15.0

    def __init__(
        self,
        folder: Path | None,
        options: Sequence[str],
        *,
        port: int = 0,
        advertised: int = 0,
        advertised_host: str = "127.0.0.1",
    ) -> None:
        self._its_version = chosen_version()
        self._jars = find_jars(f"kafka-{self._its_version}")
        self._java = java(HEAP_MB, self._jars)
        try:
            import confluent_kafka.admin  # noqa: F401 - it has to be there before anything is started
        except ImportError:
            raise ServerMissing("Kafka is asked by confluent-kafka: install the extra [kafka]") from None
        self._wanted_port = port
        self._advertised = advertised
        self._advertised_host = advertised_host
        self._inner_port = self._controller_port = 0
        self._node_id = 1
        self._cluster_id = new_id()
        super().__init__(folder, options)
        (self.folder / "log4j2.properties").write_text(LOGGING)

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self._advertised or self.port}"

    @property
    def admin_conf(self) -> dict[str, Any]:
        """What a client of confluent-kafka needs to come in by the second listener, as anybody and in the clear."""
        return {"bootstrap.servers": f"127.0.0.1:{self._inner_port}", "log_level": 0, "logger": _SILENT}

    def create_topic(self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Make a topic, and return when it has leaders."""
        make_topic(self.admin_conf, name, partitions=partitions, settings=settings)

    def _choose_ports(self) -> None:
        self.port = self._wanted_port or server.free_port()
        self._inner_port, self._controller_port = server.free_port(), server.free_port()

    def _voters(self) -> str:
        return f"{self._node_id}@127.0.0.1:{self._controller_port}"

    def _listeners(self) -> dict[str, tuple[int, str]]:
        """Where clients come in, by the listener's name: its port, and the address that they are told to come to."""
        return {
            "CLIENT": (self.port, f"{self._advertised_host}:{self._advertised or self.port}"),
            "INNER": (self._inner_port, f"127.0.0.1:{self._inner_port}"),
        }

    def _prepare(self) -> None:
        listeners = [f"{name}://127.0.0.1:{port}" for name, (port, _) in self._listeners().items()]
        advertised = [f"{name}://{address}" for name, (_, address) in self._listeners().items()]
        own = [
            "process.roles=broker,controller",
            f"node.id={self._node_id}",
            f"controller.quorum.voters={self._voters()}",
            f"listeners={','.join(listeners)},CONTROLLER://127.0.0.1:{self._controller_port}",
            f"advertised.listeners={','.join(advertised)}",
            "controller.listener.names=CONTROLLER",
            "inter.broker.listener.name=INNER",
            "listener.security.protocol.map=CLIENT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"log.dirs={self._data}",
            "auto.create.topics.enable=false",
            "num.network.threads=2",
            "num.io.threads=2",
            "log.cleaner.dedupe.buffer.size=4194304",
            *(f"{one}.replication.factor=1" for one in ("offsets.topic", "transaction.state.log")),
            *(f"{one}.num.partitions=3" for one in ("offsets.topic", "transaction.state.log")),
            "transaction.state.log.min.isr=1",
            "share.coordinator.state.topic.replication.factor=1",
            "share.coordinator.state.topic.min.isr=1",
            "share.coordinator.state.topic.num.partitions=3",
            "broker.session.timeout.ms=2000",  # after a kill, so long its own controller takes it for alive
            "broker.heartbeat.interval.ms=400",
            "metadata.max.idle.interval.ms=5000",  # a record that says nothing, by default twice a second
            "group.initial.rebalance.delay.ms=0",
            "group.consumer.min.session.timeout.ms=5000",
            "group.consumer.session.timeout.ms=6000",
            "group.consumer.min.heartbeat.interval.ms=500",
            "group.consumer.heartbeat.interval.ms=1000",
        ]
        settings = dict(line.split("=", 1) for line in [*own, *self.options])  # those of the caller win
        (self.folder / "node.properties").write_text(_properties(settings))
        if not (self._data / META).exists():
            self._format()

    def _format(self) -> None:
        """Give the node its data folder: from `format_of`, or by Kafka's own program, which is a start of Java."""
        kept = format_of(self._jars, self._its_version)
        if not kept.exists() or any(option.startswith(_FORMATTED_BY) for option in self.options):
            node = ("-c", "node.properties")
            self._prepare_with([*self._program("kafka.tools.StorageTool"), "format", "-t", self._cluster_id, *node])
            return
        shutil.copytree(kept, self._data, dirs_exist_ok=True)
        who = {"cluster.id": self._cluster_id, "node.id": self._node_id, "directory.id": new_id()}
        (self._data / META).write_text(_properties({"version": 1, **who}))  # the last: with it, the folder is whole

    def _command(self) -> list[str]:
        return [*self._program("kafka.Kafka"), "node.properties"]

    def _program(self, name: str) -> list[str]:
        return [*self._java, "-Dlog4j2.configurationFile=log4j2.properties", "-cp", f"{self._jars}/*", name]

    def _answer(self) -> str | None:
        """It names its cluster, and that one is ours alone; and it leads itself."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        if not server.listens(self._inner_port, self.pid):
            return None
        admin = AdminClient(self.admin_conf)  # one that is collected meanwhile never answers
        try:
            told = admin.describe_cluster(request_timeout=2.0).result(3.0)
        except (KafkaException, TimeoutError):
            return None
        is_there = any((one.id, one.port) == (self._node_id, self._inner_port) for one in told.nodes)
        return self._its_version if told.cluster_id == self._cluster_id and is_there else None


def chosen_version() -> str:
    """Which version is started: the one that `KAFKA_VERSION` of the environment names, by default `DEFAULT_VERSION`."""
    return os.environ.get(KAFKA_VERSION) or DEFAULT_VERSION


def format_of(jars: Path, version: str) -> Path:
    """A folder as this version of Kafka formats it, without its `META`, if somebody has kept one.

    Beside the jars that made it, and with their version in its name: another version has other features.
    """
    return jars / f"format-{version}"


def _properties(settings: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def new_id() -> str:
    """A name that no other cluster and no other folder has. No "-" stands first: it would be taken for an option."""
    return base64.urlsafe_b64encode(b"q" + secrets.token_bytes(15)).decode().rstrip("=")


def make_topic(
    admin_conf: Mapping[str, Any],
    name: str,
    *,
    partitions: int,
    copies: int = 1,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Make a topic of so many copies, and return when each partition has a leader.

    Raises:
        ServerFailed: it has none within a minute.
    """
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient(dict(admin_conf))
    topic = NewTopic(name, partitions, copies, config=dict(settings or {}))
    admin.create_topics([topic], operation_timeout=30.0)[name].result(60.0)
    deadline = time.monotonic() + LEADERS_S
    while True:  # a node learns what its controller has decided a moment later
        found = admin.list_topics(timeout=30.0).topics.get(name)
        parts = found.partitions.values() if found is not None else ()
        if len(parts) == partitions and all(one.leader >= 0 for one in parts):
            return
        if time.monotonic() > deadline:
            raise ServerFailed(f"Kafka has no leaders of the topic {name!r}")
        time.sleep(0.02)


def start_kafka(
    folder: Path | None = None,
    *,
    options: Sequence[str] = (),
    port: int = 0,
    advertised: int = 0,
    advertised_host: str = "127.0.0.1",
) -> Kafka:
    """Start a private Kafka; as `start_rabbitmq`, but `options` are lines of its properties, and win over ours.

    `port`: the one that it listens on, where a proxy had to know it before; a free one by default.
    """
    made = Kafka(folder, options, port=port, advertised=advertised, advertised_host=advertised_host)
    return made.first_start()
