"""Chaos on real servers: the engine of `workq certify`, with private servers and the faults that only they allow.

    python -m tests.system.chaos --leg servers --minutes 10 --seed 7

A server is killed and started again, killed and wiped, or paused; and at last everything at once. `make chaos` runs it
on each leg; test_chaos.py runs it for a short time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from workq.config import Settings
from workq.lab.certify import report, trial
from workq.lab.certify.faults import Fault
from workq.lab.certify.faults.processes import KillEverything
from workq.lab.certify.nemesis import Draw
from workq.lab.certify.report import CertifyWishes, new_seed
from workq.lab.certify.stage import DuplicateCause, Stage
from workq.lab.certify.witness import QUEUE
from workq.lab.namespace import Store
from workq.lab.servers import (
    RabbitMQ,
    Server,
    start_kafka,
    start_mariadb,
    start_postgres,
    start_rabbitmq,
    start_redis,
)

LEGS = ("sqlite", "servers", "mariadb", "kafka")
Servers = Mapping[Store, Server]


@dataclass
class _OfServers(Fault):
    """Common to the faults of servers. What is promised counts from when they answer again."""

    servers: tuple[tuple[Store, Server], ...]
    lasts_s: float
    is_timed_from_heal = True

    @property
    def targets(self) -> frozenset[str]:
        stores = {f"store {store}" for store, _ in self.servers}
        return frozenset(stores | {"hints", "holds"})  # who purges or wipes needs them

    def bound_s(self, stage: Stage) -> float:
        return stage.bounds().everything_s

    def names(self) -> str:
        return ", ".join(server.name for _, server in self.servers)


class KillServers(_OfServers):
    """kill -9 of servers, and a new start with what they had on disk."""

    kind = "kill-server"

    def strike(self, stage: Stage) -> str:
        kill(self.servers, stage)
        return f"{self.names()} for {self.lasts_s:.1f} s"

    def heal(self, stage: Stage) -> None:
        start(self.servers)


class WipeServers(_OfServers):
    """kill -9 of servers, and a new start with nothing on disk."""

    kind = "wipe-server"

    def strike(self, stage: Stage) -> str:
        stage.pile_up()
        kill(self.servers, stage)
        for _, server in self.servers:
            server.wipe()
        return f"{self.names()} for {self.lasts_s:.1f} s"

    def heal(self, stage: Stage) -> None:
        start(self.servers)


class PauseServers(_OfServers):
    """SIGSTOP of servers: connections stay open, nobody answers."""

    kind = "pause-server"

    def strike(self, stage: Stage) -> str:
        for _, server in self.servers:
            server.pause()
        return f"{self.names()} for {self.lasts_s:.1f} s"

    def heal(self, stage: Stage) -> None:
        for _, server in self.servers:
            server.resume()


class EverythingAtOnce(_OfServers):
    """Every server and every process killed; RabbitMQ and Redis come back with nothing."""

    kind = "everything"

    @property
    def targets(self) -> frozenset[str]:
        return super().targets | KillEverything.targets

    def strike(self, stage: Stage) -> str:
        at = time.monotonic()
        pids = [pid for host in stage.hosts for pid in host.kill()]
        kill(self.servers, stage)
        for store, server in self.servers:
            if store is not Store.LEDGER:
                server.wipe()
        stage.note(DuplicateCause.KILLED, self.kind, at, pids)
        return f"{self.names()} and all workers for {self.lasts_s:.1f} s"

    def heal(self, stage: Stage) -> None:
        start(self.servers)
        for host in stage.hosts:
            host.start()


def kill(servers: tuple[tuple[Store, Server], ...], stage: Stage) -> None:
    """kill -9 of each. A quorum queue that was declared in the last second would come back dead (see RabbitMQ)."""
    for _, server in servers:
        if isinstance(server, RabbitMQ):
            server.wait_registered(f"{stage.scratch.settings.namespace}.q.{QUEUE}")
    for _, server in servers:
        server.kill()


def start(servers: tuple[tuple[Store, Server], ...]) -> None:
    """Start each; the ledger first."""
    for _, server in servers:
        server.start()


def server_faults(servers: Servers) -> Callable[[Stage], dict[str, Draw]]:
    """The faults that these servers allow."""

    def found(stage: Stage) -> dict[str, Draw]:
        lease_s = stage.times.lease_s
        draws: dict[str, Draw] = {}
        for store, server in servers.items():
            one = ((store, server),)
            name = server.name.lower()
            draws[f"kill-{name}"] = _drawn(KillServers, one, 0.2, 0.5 * lease_s)
            draws[f"pause-{name}"] = _drawn(PauseServers, one, 0.2, 1.5 * lease_s)
            if store is not Store.LEDGER:
                draws[f"wipe-{name}"] = _drawn(WipeServers, one, 0.2, 0.5 * lease_s)
        if servers:
            draws["everything"] = _drawn(EverythingAtOnce, tuple(servers.items()), 0.2, 0.5 * lease_s)
        return draws

    return found


def _drawn(
    kind: type[KillServers | WipeServers | PauseServers | EverythingAtOnce],
    servers: tuple[tuple[Store, Server], ...],
    least_s: float,
    most_s: float,
) -> Draw:
    def draw(rng: Random) -> KillServers | WipeServers | PauseServers | EverythingAtOnce:
        return kind(servers, rng.uniform(least_s, most_s))

    return draw


@contextmanager
def private_servers(leg: str) -> Iterator[Servers]:
    """The servers of one leg, started for it and ended after it."""
    with ExitStack() as stack:
        match leg:
            case "sqlite":
                yield {}
            case "mariadb":
                yield {Store.LEDGER: stack.enter_context(start_mariadb())}
            case "kafka":
                yield {
                    Store.LEDGER: stack.enter_context(start_postgres()),
                    Store.BROKER: stack.enter_context(start_kafka()),
                    Store.INFLIGHT: stack.enter_context(start_redis()),
                }
            case _:
                yield {
                    Store.LEDGER: stack.enter_context(start_postgres()),
                    Store.BROKER: stack.enter_context(start_rabbitmq()),
                    Store.INFLIGHT: stack.enter_context(start_redis()),
                }


def settings_of(servers: Servers, folder: Path) -> Settings:
    """Where the stores are; without servers, one file."""
    urls = {store: server.url for store, server in servers.items()}
    return Settings(
        ledger=urls.get(Store.LEDGER, f"sqlite:///{folder / 'workq.db'}"),
        broker=urls.get(Store.BROKER),
        inflight=urls.get(Store.INFLIGHT),
    )


def main() -> int:
    """Run the legs one after the other, and print the figures of each. Exit 3 with findings, as `workq certify`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leg", choices=[*LEGS, "both"], default="both")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--divide", type=float, default=None)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json", type=Path, help="write the document there too")
    asked = parser.parse_args()
    seed = new_seed() if asked.seed is None else asked.seed
    is_clean = True
    for leg in ("sqlite", "servers") if asked.leg == "both" else (asked.leg,):
        wishes = CertifyWishes(
            minutes=asked.minutes,
            seed=seed,
            rate=asked.rate,
            processes=asked.processes,
            threads=asked.threads,
            divide=asked.divide,
            only=frozenset(filter(None, asked.only.split(","))),
            keep=asked.keep,
        )
        with private_servers(leg) as servers, tempfile.TemporaryDirectory() as folder:
            found = trial.run(settings_of(servers, Path(folder)), wishes, tell=_say, more=server_faults(servers))
        print(report.page(found).replace("workq certify", f"python -m tests.system.chaos --leg {leg}"), flush=True)
        if asked.json is not None:
            with asked.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"leg": leg} | report.document(found), default=str) + "\n")
        if found.kept is not None:
            print(f"kept: {found.kept}")
        is_clean = is_clean and found.verdict.is_clean
    return 0 if is_clean else 3


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.pop("WORKQ_CONFIG", None)
    sys.exit(main())
