"""A private RabbitMQ of some nodes: any one of three may die, and quorum queues go on."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from workq.lab.servers.place import NetworkPlace
from workq.lab.servers.rabbitmq import RabbitMQ
from workq.lab.servers.server import ServerFailed

NET_TICK_S: Final = 8
"""After about so long a node that is silent is given up by the others. RabbitMQ's own default is 60 s."""
_TOGETHER_S: Final = 300.0
_ASKED_S: Final = 60.0
_SEEN: Final = "case rabbit:is_running() of true -> length(rabbit_nodes:all_running()); _ -> 0 end."
_HOME: Final = (
    'case rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{}">>)) of '
    "{{ok, Queue}} -> node(amqqueue:get_pid(Queue)); _ -> none end."
)
_SETTINGS: Final = (
    "cluster_partition_handling = pause_minority",
    f"net_ticktime = {NET_TICK_S}",
    "queue_leader_locator = balanced",
    # a node that starts while most others are away ends soon, instead of after five minutes
    "mnesia_table_loading_retry_limit = 60",
    "mnesia_table_loading_retry_timeout = 2000",
)


class RabbitMQNode(RabbitMQ):
    """One of the nodes. `kill()`, `start()`, `pause()` and `resume()` are as of each server; its port stays."""

    _start_limit_s = 180.0

    def __init__(
        self,
        folder: Path | None,
        *,
        cookie: str,
        first: RabbitMQNode | None,
        options: Sequence[str],
        place: NetworkPlace,
    ) -> None:
        """`first`: the node that it joins, and whose epmd it uses on the same host. None: it is that node."""
        peers = () if first is None else _peers(first)
        super().__init__(folder, [*_SETTINGS, *peers, *options], cookie=cookie, place=place)
        self._first = first

    def wait_sees(self, count: int) -> None:
        """Return when it sees so many nodes that run, itself among them.

        Raises:
            ServerFailed: it has not seen them in time.
        """
        deadline = time.monotonic() + _TOGETHER_S
        while True:
            try:
                told = self.evaluate(_SEEN, limit_s=_ASKED_S)
            except (ServerFailed, subprocess.TimeoutExpired):  # one that comes back may answer nobody for a while
                told = "0"
            if int(told) == count:
                return
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.node} sees {told.strip()} of {count} nodes after {_TOGETHER_S:.0f} s")
            time.sleep(0.2)

    def _choose_ports(self) -> None:
        super()._choose_ports()
        if self._first is not None:
            self._epmd_port = self._first._epmd_port

    def _start_epmd(self) -> None:
        """One for all nodes of a host: it belongs to the first."""
        if self._first is None or self._first.place != self.place:
            super()._start_epmd()

    def _greets(self, greeting: bytes) -> bool:
        """Each node greets with the name of the cluster: only this one listens on its port."""
        return b"cluster_name" in greeting and self.place.listens(self.port, self.pid)


class RabbitMQCluster:
    """Some nodes together. As a context manager it stops at the block's end."""

    def __init__(self, nodes: Sequence[RabbitMQNode]) -> None:
        """Use `start_rabbitmq_cluster()`."""
        self.nodes = tuple(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """What a client is given: every node."""
        return self.url_of(self.nodes)

    def url_of(self, nodes: Sequence[RabbitMQNode]) -> str:
        """What a client is given that shall know these alone."""
        return f"amqp://guest:guest@{','.join(f'{node.place.address}:{node.port}' for node in nodes)}/"

    @property
    def version(self) -> str:
        """As the first node tells it."""
        return self.nodes[0].version

    def home_of(self, queue: str) -> RabbitMQNode | None:
        """The node that has a classic queue of the default virtual host, as a node that runs knows it."""
        asked = next(node for node in self.nodes if node.is_running)
        told = asked.evaluate(_HOME.format(queue))
        return next((node for node in self.nodes if node.node in told), None)

    def leader_of(self, queue: str) -> RabbitMQNode | None:
        """The node that leads a quorum queue of the default virtual host, as a node that runs knows it."""
        asked = next(node for node in self.nodes if node.is_running)
        told = asked.evaluate(f'ra_leaderboard:lookup_leader(list_to_atom("%2F_{queue}")).')
        return next((node for node in self.nodes if node.node in told), None)

    def stop(self) -> None:
        """End all nodes and remove their folders. Repeatable."""
        for node in self.nodes:
            node.kill()  # one that ends in order would wait for others that have ended
        for node in reversed(self.nodes):  # the first has the epmd
            node.stop()

    def wait_together(self) -> None:
        """Return when a node that runs sees all that run.

        Raises:
            ServerFailed: they have not come together.
        """
        running = [node for node in self.nodes if node.is_running]
        running[0].wait_sees(len(running))


def _peers(first: RabbitMQNode) -> list[str]:
    return [
        "cluster_formation.peer_discovery_backend = classic_config",
        f"cluster_formation.classic_config.nodes.1 = {first.node}",
    ]


def start_rabbitmq_cluster(
    folder: Path | None = None, *, options: Sequence[str] = (), places: Sequence[NetworkPlace] = (NetworkPlace(),) * 3
) -> RabbitMQCluster:
    """Start a private RabbitMQ of three nodes. The first starts alone, the others join it together.

    Args:
        folder: where their own folders are made; the system's temporary folder by default.
        options: more lines for the rabbitmq.conf of each; they win over ours.
        places: where each node is, and so how many there are.

    Raises:
        ServerMissing: it is not installed.
        ServerFailed: it could not be started.
    """
    cookie = secrets.token_hex(16)
    first = RabbitMQNode(folder, cookie=cookie, first=None, options=options, place=places[0]).first_start()
    made = [first]
    try:
        made += (RabbitMQNode(folder, cookie=cookie, first=first, options=options, place=place) for place in places[1:])
        with ThreadPoolExecutor(max(1, len(places) - 1)) as pool:
            list(pool.map(RabbitMQNode.first_start, made[1:]))
        cluster = RabbitMQCluster(made)
        cluster.wait_together()
    except BaseException:  # an interrupt too: no server is left behind
        RabbitMQCluster(made).stop()
        raise
    return cluster
