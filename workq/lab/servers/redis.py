"""A private Redis, and a private Redis Cluster: some masters that share the slots evenly, and replicas of the first.

    with start_redis_cluster(3) as cluster:
        store = RedisInFlight(cluster.url, namespace=...)
        cluster.node_of(namespace).kill()      # whoever else is on the other nodes goes on

A node is a private server like any other: it can be killed, paused, wiped and started again. What a `wipe()` takes is
its data; that it is a member of the cluster, and which slots it serves, is in a file beside them, as an operator would
have it who keeps the configuration and loses the disk with the data.

A cluster whose nodes do not come together in time: ServerFailed; nothing is left behind.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from workq.lab.servers.programs import find_program, is_chosen
from workq.lab.servers.server import Server, ServerFailed

SLOTS: Final = 16384
NODE_TIMEOUT_MS: Final = 1000
"""After which silence the others count a node as failed. Also how long one that comes back waits before it serves."""
_TOGETHER_S: Final = 30.0


class Redis(Server):
    """A private Redis that appends to a file (fsync once a second) and never evicts, as production should.

    A Valkey where the environment says so (programs.py).
    `kill()` keeps what was written before; `wipe()` and `start()` give the empty Redis that a lost disk leaves.
    """

    name = "Redis"

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        product = "valkey" if is_chosen("valkey") else "redis"
        self.name = product.capitalize()
        self._server = find_program(f"{product}-server", package=f"{product}-server")
        self._cli = find_program(f"{product}-cli", package=f"{product}-tools")
        super().__init__(folder, options)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        self._data.mkdir(exist_ok=True)

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._data),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "databases": "16",
        }
        return [self._server, *(word for key, value in settings.items() for word in (f"--{key}", value)), *self.options]

    def _answer(self) -> str | None:
        # Without PING first: INFO is answered while the data is still being loaded, `loading` says so.
        told = self._ask([self._cli, "-h", "127.0.0.1", "-p", str(self.port), *self._login(), "INFO"])
        facts = dict(line.split(":", 1) for line in (told or "").splitlines() if ":" in line)
        if facts.get("process_id") != str(self.pid) or not self._is_loaded(facts):
            return None
        return facts.get("valkey_version") or facts["redis_version"]  # Valkey says 7.2.4 for the second

    def tell(self, *words: str | int) -> str:
        """Run one command on this server and return what redis-cli prints.

        Raises:
            ServerFailed: the server refused it, or did not answer; with its own words.
        """
        port = str(self.port)
        return self._tell([self._cli, "-e", "-h", "127.0.0.1", "-p", port, *self._login(), *map(str, words)]).strip()

    def replication(self) -> str:
        """What it says of its role and its replicas; nothing while its role changes: it then closes its clients.

        Raises:
            ServerFailed: as `tell`.
        """
        try:
            return self.tell("INFO", "replication")
        except ServerFailed as error:
            if "Server closed the connection" not in str(error):
                raise
            return ""

    def _is_loaded(self, facts: Mapping[str, str]) -> bool:
        return facts.get("loading") == "0"

    def _login(self) -> list[str]:
        """A password among the options must not lock us out."""
        words = dict(zip(self.options, self.options[1:], strict=False))
        return ["--no-auth-warning", "-a", words["--requirepass"]] if "--requirepass" in words else []


def start_redis(folder: Path | None = None, *, options: Sequence[str] = ()) -> Redis:
    """Start a private Redis; as `start_rabbitmq`, but `options` are arguments of redis-server, and win over ours."""
    return Redis(folder, options).first_start()


class RedisNode(Redis):
    """One node. Its slots are served by nobody while it is down, and those of the others go on."""

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        self.bus_port = 0
        super().__init__(folder, options)

    def facts(self) -> dict[str, str]:
        """What CLUSTER INFO says."""
        return dict(line.split(":", 1) for line in self.tell("CLUSTER", "INFO").splitlines() if ":" in line)

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.bus_port = self.port
        super()._choose_ports()

    def _command(self) -> list[str]:
        cluster = {
            "cluster-enabled": "yes",
            "cluster-config-file": str(self.folder / "nodes.conf"),
            "cluster-port": str(self.bus_port),
            "cluster-announce-ip": "127.0.0.1",
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            "cluster-require-full-coverage": "no",
        }
        return [*super()._command(), *(word for key, value in cluster.items() for word in (f"--{key}", value))]


class RedisCluster:
    """Some nodes that serve all slots together. As a context manager it stops at the block's end."""

    def __init__(self, nodes: Sequence[RedisNode], replicas: Sequence[RedisNode] = ()) -> None:
        """Use `start_redis_cluster()`. Each of `replicas` follows the node of the same number."""
        self.nodes = tuple(nodes)
        self.replicas = tuple(replicas)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """What a client is given: every node."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def version(self) -> str:
        return self.nodes[0].version

    def node_of(self, namespace: str) -> RedisNode:
        """The node that served a namespace when the cluster was made."""
        slot = slot_of(namespace)
        owned = zip(self.nodes, self._shares(), strict=True)
        return next(node for node, (first, last) in owned if first <= slot <= last)

    def wait_whole(self) -> None:
        """Return when every node says that all nodes are there and all slots are served.

        Raises:
            ServerFailed: they do not say so in time.
        """
        wanted = {
            "cluster_state": "ok",
            "cluster_known_nodes": str(len(self._all)),
            "cluster_slots_ok": str(SLOTS),
        }
        self._wait_for(lambda: all(wanted.items() <= node.facts().items() for node in self._all), "is not whole")

    def stop(self) -> None:
        """End all nodes and remove their folders. Repeatable."""
        for node in self._all:
            node.stop()

    def _come_together(self) -> None:
        for number, (node, (first, last)) in enumerate(zip(self.nodes, self._shares(), strict=True), 1):
            node.tell("CLUSTER", "SET-CONFIG-EPOCH", number)
            node.tell("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self._all[1:]:
            self.nodes[0].tell("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        self.wait_whole()
        for node, replica in zip(self.nodes, self.replicas, strict=False):
            replica.tell("CLUSTER", "REPLICATE", node.tell("CLUSTER", "MYID"))
        self._wait_for(lambda: all(map(self._may_take_over, self.replicas)), "has a replica that cannot take over")

    def _may_take_over(self, replica: RedisNode) -> bool:
        """Whether it has its master's data, and every node counts it as a replica: else nobody would vote for it."""
        name = replica.tell("CLUSTER", "MYID")
        lists = [node.tell("CLUSTER", "NODES").splitlines() for node in self._all]
        is_known = all("slave" in line for lines in lists for line in lines if line.startswith(name))
        return is_known and "master_link_status:up" in replica.replication()

    def _shares(self) -> list[tuple[int, int]]:
        """The first and last slot of each node."""
        ends = [SLOTS * number // len(self.nodes) for number in range(len(self.nodes) + 1)]
        return [(first, end - 1) for first, end in itertools.pairwise(ends)]

    @property
    def _all(self) -> tuple[RedisNode, ...]:
        return self.nodes + self.replicas

    def _wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _TOGETHER_S
        while not is_so():
            if time.monotonic() > deadline:
                told = self._alive().tell("CLUSTER", "NODES")
                raise ServerFailed(f"Redis Cluster {what} within {_TOGETHER_S:.0f} s:\n{told}")
            time.sleep(0.02)

    def _alive(self) -> RedisNode:
        return next(node for node in self.nodes if node.is_running)


def slot_of(namespace: str) -> int:
    """The slot of all keys of a namespace. No node is asked: the one that serves it may be dead or paused."""
    from redis.crc import key_slot  # of the extra, which a plain server does not need

    return key_slot(f"{{{namespace}}}".encode())


def start_redis_cluster(nodes: int = 3, replicas: int = 0, folder: Path | None = None) -> RedisCluster:
    """Start a private Redis Cluster of so many masters, the first of which have a replica each; all at once.

    Raises:
        ServerMissing: Redis is not installed.
        ServerFailed: it could not be started.
    """
    made = [RedisNode(folder, ()) for _ in range(nodes + replicas)]
    cluster = RedisCluster(made[:nodes], made[nodes:])
    try:
        with ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(RedisNode.first_start, made))
        cluster._come_together()
    except BaseException:  # an interrupt too: no server is left behind
        cluster.stop()
        raise
    return cluster
