"""Hosts of their own for workers: network namespaces, with one wire to each store, which can be cut apart.

Each store listens on a bridge of its own. A host has an address on each bridge, and processes that nobody outside sees
as its own: their namespace of processes is another one. What is made here is removed at the end. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import select

from tests.system.fleet import Fleet
from tests.system.legs import Leg
from workq.lab.servers.databases import start_postgres
from workq.lab.servers.rabbitmq import start_rabbitmq
from workq.lab.servers.redis import start_redis
from workq.lab.servers.server import free_port
from workq.ledger import WorkerRow

STORES: Final = ("ledger", "broker", "inflight")
APP: Final = "tests.faults.far_witness:wq"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)


@dataclass
class FarHost:
    """One host. `wires` are the ends of its wires outside of it, by store."""

    name: str
    wires: dict[str, str]
    fleet: Fleet | None = None

    def start(self, leg: Leg, *, queues: str) -> Fleet:
        """One process that runs one task at once."""
        prefix = ("ip", "netns", "exec", self.name, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        self.fleet = leg.fleet(processes=1, threads=1, queues=queues, prefix=prefix, app=APP)
        return self.fleet

    def cut(self, *stores: str) -> None:
        for store in stores or STORES:
            ip("link", "set", self.wires[store], "down")

    def mend(self) -> None:
        for store in STORES:
            ip("link", "set", self.wires[store], "up")

    def die(self) -> None:
        """It is cut off, and its processes are gone: they say goodbye to nobody."""
        self.cut()
        self.end()

    def end(self) -> None:
        """Kill its processes, once: a pid may soon be another's."""
        fleet, self.fleet = self.fleet, None
        if fleet is not None:
            fleet.kill()

    def remove(self) -> None:
        self.end()
        for wire in self.wires.values():  # at once: a namespace goes when its last process has gone
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", wire)
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("netns", "del", self.name)


@dataclass
class FarNetwork:
    """Bridges and hosts, with names that begin with `mark`."""

    mark: str
    subnets: dict[str, str]
    hosts: list[FarHost] = field(default_factory=list)

    def address(self, store: str) -> str:
        return f"{self.subnets[store]}.1"

    def host(self) -> FarHost:
        """One more."""
        number = len(self.hosts)
        host = FarHost(f"{self.mark}h{number}", {})
        self.hosts.append(host)
        ip("netns", "add", host.name)
        ip("-n", host.name, "link", "set", "lo", "up")
        for at, store in enumerate(STORES):
            outside, inside = f"{self.mark}h{number}o{at}", f"{self.mark}h{number}i{at}"
            ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", host.name)
            host.wires[store] = outside
            ip("link", "set", outside, "master", f"{self.mark}b{at}", "up")
            ip("-n", host.name, "addr", "add", f"{self.subnets[store]}.{number + 2}/24", "dev", inside)
            ip("-n", host.name, "link", "set", inside, "up")
        return host

    def remove(self) -> None:
        for host in self.hosts:
            host.remove()
        for at in range(len(STORES)):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", f"{self.mark}b{at}")


@contextlib.contextmanager
def far_network() -> Iterator[FarNetwork]:
    """Three bridges, in a network that is this process's alone."""
    number = os.getpid() % 4096
    network = FarNetwork(
        f"wq{number:x}", {store: f"10.{100 + number // 64}.{number % 64 * 4 + at}" for at, store in enumerate(STORES)}
    )
    try:
        for at, store in enumerate(STORES):
            bridge = f"{network.mark}b{at}"
            ip("link", "add", bridge, "type", "bridge")
            # one of its own: it would take the least of its ports', and where that port is down when a lesser one
            # comes, whoever knows the old address hears nothing for a minute
            ip("link", "set", bridge, "address", f"02:00:00:00:00:{at + 1:02x}")
            ip("addr", "add", f"{network.address(store)}/24", "dev", bridge)
            ip("link", "set", bridge, "up")
        yield network
    finally:
        network.remove()


def found(leg: Leg, worker: str) -> WorkerRow:
    """What the ledger says of one worker, live or not."""
    [row] = leg.app.stores.ledger.questions.workers(live_only=False, prefix=worker)
    return row


def signed(leg: Leg) -> list[WorkerRow]:
    """The live workers that say of themselves that they give signs of life."""
    ledger = leg.app.stores.ledger
    w = ledger.database.tables.worker
    ids = ledger.database.ask(lambda tx: set(tx.execute(select(w.c.id).where(w.c.signs.is_not(None))).scalars()))
    return [row for row in ledger.questions.workers() if row.id in ids]


def _start(start: Callable[..., Any], **given: Any) -> Any:
    return start(**given)


@contextlib.contextmanager
def far_leg(network: FarNetwork, folder: Path, start: Callable[..., Any] = _start) -> Iterator[Leg]:
    """Private servers, each on its bridge, and a fresh namespace on them. `start` starts one of them."""
    at = {store: network.address(store) for store in STORES}
    amqp = free_port()
    listener = (f"listeners.tcp.2 = {at['broker']}:{amqp}", "loopback_users = none")
    with ExitStack() as stack:
        rabbitmq = stack.enter_context(start(start_rabbitmq, options=listener))
        redis = stack.enter_context(
            start(start_redis, options=("--bind", f"127.0.0.1 {at['inflight']}", "--protected-mode", "no"))
        )
        postgres = stack.enter_context(
            start(start_postgres, options=("-c", f"listen_addresses=127.0.0.1,{at['ledger']}"))
        )
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            [[rules]] = connection.execute("SHOW hba_file").fetchall()
            with Path(rules).open("a") as file:
                file.write(f"host all all {network.subnets['ledger']}.0/24 trust\n")
            connection.execute("SELECT pg_reload_conf()")
        assert rabbitmq.port != amqp
        leg = Leg.open(
            "far",
            folder,
            ledger=postgres.url.replace("127.0.0.1", at["ledger"]),
            broker=f"amqp://guest:guest@{at['broker']}:{amqp}/",
            inflight=redis.url.replace("127.0.0.1", at["inflight"]),
        )
        stack.callback(leg.close)
        yield leg
