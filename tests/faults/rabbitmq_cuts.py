"""`make cluster-rabbitmq`, second part: cuts of the network between three nodes of RabbitMQ, each in its own namespace.

    python -m tests.faults.rabbitmq_cuts --queues quorum,classic --handling pause_minority

Who is cut off is the node that has the queue. Nothing is cut between workq and the nodes: workers of each phase know
the one node, or the two others, or there are some of both. Tasks are enqueued all the time, by a producer that knows
all three. Each cut lasts at least `HELD_S`, so that RabbitMQ has noticed it; then it is healed, and the nodes must be
one cluster again. Printed: how long tasks waited, what the workers said and what `workq doctor` found meanwhile.

It starts itself again in a network of its own: root is needed, and nothing of the machine's network is touched.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final, get_args

from tests.faults.cut_network import CutNetwork, alone
from tests.faults.rabbitmq_trial import HEAD, LONG_S, ClusterFigures, Trial, write_figures
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from workq.config.settings import QueueType
from workq.diagnose.doctor import examine
from workq.diagnose.doctor.check import Level
from workq.lab.servers import start_postgres, start_redis
from workq.lab.servers.rabbitmq_cluster import RabbitMQCluster, RabbitMQNode, start_rabbitmq_cluster

HELD_S: Final = 20.0
"""RabbitMQ gives a silent node up after about 8 s here (`NET_TICK_S`)."""
DOCTOR_S: Final = 14.0
"""So long after the cut `workq doctor` looks."""
HOSTS: Final = ("one", "two", "three")
AT_IT: Final = "one cut off, workers at it"
AT_THE_OTHERS: Final = "one cut off, workers at the others"
AT_BOTH: Final = "one cut off, workers at both"
ALL: Final = "all cut off"
ONE_WIRE: Final = "one wire cut"
PHASES: Final = (AT_IT, AT_THE_OTHERS, AT_BOTH, ALL, ONE_WIRE)
_SAID: Final = re.compile(r"(?:WARNING|ERROR|INFO) +(?:\d+ )?((?:[a-z_]+\.)+[a-z_]+\b.*)")


class CutTrial:
    """A leg on a cluster whose network can be cut, and its producer. Each phase has workers of its own."""

    def __init__(self, leg: Leg, cluster: RabbitMQCluster, network: CutNetwork, queue_type: QueueType) -> None:
        self.trial = Trial(leg, cluster, _tell)
        self._leg = leg
        self._cluster = cluster
        self._network = network
        self._is_quorum = queue_type == "quorum"
        self._queue = f"{leg.app.settings.namespace}.q.witness"

    def run(self, phase: str, *, is_mended_by_hand: bool) -> None:
        """One cut, from its beginning until all is well again."""
        begun = time.time()
        self._wait_declared()
        node = self._home()
        others = [one for one in self._cluster.nodes if one is not node]
        with ExitStack() as stack:
            fleets = [stack.enter_context(fleet) for fleet in self._fleets(phase, node, others)]
            for fleet in fleets:
                wait_until(lambda of=fleet: "worker.started" in of.text(), timeout_s=LONG_S, what="they have started")  # type: ignore[misc]  # a lambda's default has no type
            self.trial.wait_for_start(begun)
            said = [len(fleet.text()) for fleet in fleets]
            began = time.time()
            for pair in _pairs(phase, node, others):
                self._network.cut(*(one.place.host for one in pair))
            try:
                time.sleep(DOCTOR_S)
                found = self._doctor(self._urls(phase, node, others))
                self.trial.wait_for_start(began)
                time.sleep(max(0.0, began + HELD_S - time.time()))
            finally:
                self._network.heal()
            healed = time.time()
            if is_mended_by_hand:
                for one in [node] if phase != ALL else [node, others[0]]:
                    one.restart()
            for one in self._cluster.nodes:
                one.wait_sees(len(self._cluster.nodes))
            wait_until(lambda: self._home_or_none() is not None, timeout_s=LONG_S, what="the queue has a home")
            whole = time.time()
            self.trial.wait_for_start(whole)
            self.trial.note(phase, began, time.time())
            _tell(f"    whole again {whole - healed:.1f} s after it was healed")
            for fleet, start in zip(fleets, said, strict=True):
                for line in _lines(fleet.text()[start:]):
                    _tell(f"    worker: {line}")
            for line in found:
                _tell(f"    doctor: {line}")

    def _wait_declared(self) -> None:
        """The producer has declared the queue, and it has a leader."""
        wait_until(lambda: self._home_or_none() is not None, timeout_s=LONG_S, what="the queue has a home")

    def _home(self) -> RabbitMQNode:
        found = self._home_or_none()
        assert found is not None
        return found

    def _home_or_none(self) -> RabbitMQNode | None:
        return (self._cluster.leader_of if self._is_quorum else self._cluster.home_of)(self._queue)

    def _urls(self, phase: str, node: RabbitMQNode, others: Sequence[RabbitMQNode]) -> list[str]:
        """What the workers of each fleet know."""
        at_it, at_others = self._cluster.url_of([node]), self._cluster.url_of(others)
        return {AT_IT: [at_it], AT_THE_OTHERS: [at_others], AT_BOTH: [at_it, at_others]}.get(phase, [self._cluster.url])

    def _fleets(self, phase: str, node: RabbitMQNode, others: Sequence[RabbitMQNode]) -> Iterator[Fleet]:
        urls = self._urls(phase, node, others)
        for url in urls:
            yield self._leg.fleet(processes=2 // len(urls), threads=4, environ={"WORKQ_BROKER_URL": url})

    def _doctor(self, urls: Sequence[str]) -> list[str]:
        """What it finds about the broker, for whoever has these URLs."""
        found = []
        for url in urls:
            checks = examine(replace(self._leg.app.settings, broker=url), queues=("witness",))
            found += [f"{one.level}: {one.message}" for one in checks if one.area == "broker"]
        return [line for line in found if not line.startswith((Level.OK, Level.UNCHECKED)) and "as guest" not in line]


def _pairs(
    phase: str, node: RabbitMQNode, others: Sequence[RabbitMQNode]
) -> Iterator[tuple[RabbitMQNode, RabbitMQNode]]:
    """Between whom the network is cut."""
    if phase == ALL:
        yield from combinations([node, *others], 2)
    else:
        yield from ((node, other) for other in (others[:1] if phase == ONE_WIRE else others))


def _lines(text: str) -> list[str]:
    """What was said, each kind of line once, with how often."""
    kinds: dict[str, list[str]] = {}
    for line in text.splitlines():
        if found := _SAID.search(line):
            kinds.setdefault(re.sub(r"[0-9a-f-]{12,}|\d+", "#", found[1])[:60], []).append(found[1])
    return [f"{len(said)} x {said[0][:200]}" for said in kinds.values()]


def _tell(text: str) -> None:
    print(text, flush=True)


def cut(
    leg: Leg, cluster: RabbitMQCluster, network: CutNetwork, queue_type: QueueType, handling: str, phases: Sequence[str]
) -> ClusterFigures:
    """Run these phases on a leg, and judge it."""
    told = CutTrial(leg, cluster, network, queue_type)
    try:
        for phase in phases:
            told.run(phase, is_mended_by_hand=handling == "ignore")
    finally:
        with suppress(Exception):  # `end` raises it, where nothing else was raised
            told.trial.producer.close()
    with leg.fleet(processes=1, threads=4):
        return told.trial.end()


def main() -> int:
    """Each phase once for each kind of queue, and print the figures. Exits with 3 if they are not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", default=",".join(get_args(QueueType)))
    parser.add_argument("--handling", default="pause_minority", help="cluster_partition_handling of RabbitMQ")
    parser.add_argument("--phases", default=",".join(map(str, range(len(PHASES)))), help="their numbers")
    parser.add_argument("--output", type=Path, help="a file for the figures as JSON")
    asked = parser.parse_args()
    alone("tests.faults.rabbitmq_cuts", sys.argv[1:])
    phases = [PHASES[int(number)] for number in asked.phases.split(",")]
    figures: dict[str, ClusterFigures] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ledger, redis = stack.enter_context(start_postgres()), stack.enter_context(start_redis())
        network = stack.enter_context(CutNetwork(HOSTS))
        began = time.monotonic()
        options = [f"cluster_partition_handling = {asked.handling}", "loopback_users = none"]
        cluster = stack.enter_context(
            start_rabbitmq_cluster(options=options, places=[network.place(host) for host in HOSTS])
        )
        up_s = time.monotonic() - began
        _tell(f"RabbitMQ {cluster.version}, {asked.handling}, three hosts, up after {up_s:.1f} s; the default times")
        for queue_type in get_args(QueueType):
            if queue_type not in asked.queues.split(","):
                continue
            (folder / queue_type).mkdir()
            leg = Leg.open(
                "cluster",
                folder / queue_type,
                ledger=ledger.url,
                broker=cluster.url,
                inflight=redis.url,
                queue_type=queue_type,
            )
            _tell(f"{queue_type} queues\n{HEAD}")
            figures[queue_type] = cut(leg, cluster, network, queue_type, asked.handling, phases)
            leg.close()
            _tell(str(figures[queue_type]))
    if asked.output:
        write_figures(asked.output, cluster.version, figures)
    return 0 if figures and all(one.is_right for one in figures.values()) else 3


if __name__ == "__main__":
    os.environ.pop("WORKQ_CONFIG", None)
    sys.exit(main())
