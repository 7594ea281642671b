"""`make cluster-rabbitmq`: tasks through three nodes of RabbitMQ, while nodes die, stand still and are restarted.

Tasks are enqueued all the time: plain ones, delayed ones, and some that fail once. A fleet runs them. Each fault lasts
until a task that was enqueued under it has started, and at least `HELD_S`; then it ends, and the queue must have its
leader again. At the end each task has succeeded, and each start beyond the first is charged to something.
`test_rabbitmq_cluster.py` runs a short one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults.steady_producer import SteadyProducer
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State
from workq.lab.servers import start_postgres, start_redis
from workq.lab.servers.rabbitmq_cluster import RabbitMQCluster, RabbitMQNode, start_rabbitmq_cluster

HELD_S = 2.0
LONG_S = 120.0


@dataclass(frozen=True)
class Step:
    """One fault, and what was seen under it. Seconds."""

    what: str
    lasted_s: float
    started_after_s: float
    """How long after the fault the first task started that was enqueued under it and had no delay."""
    waited_max_s: float
    """The longest that such a task waited for its start."""
    enqueue_max_s: float
    """The longest that a call of `enqueue()` took."""


@dataclass
class ClusterFigures:
    """What came of it."""

    recorded: int = 0
    succeeded: int = 0
    unexplained: list[str] = field(default_factory=list)
    """Tasks that started more often than something was charged for."""
    again: int = 0
    """Starts beyond the first, the planned failures left out."""
    steps: list[Step] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Nothing is lost, and each second start has its reason."""
        return self.recorded == self.succeeded > 0 and not self.unexplained

    def __str__(self) -> str:
        return (
            f"{self.recorded} recorded, {self.succeeded} succeeded, {self.recorded - self.succeeded} lost; "
            f"{self.again} second starts, {len(self.unexplained)} without a reason {self.unexplained[:5] or ''}\n"
            f"{'right' if self.is_right else 'WRONG'}"
        )


class Trial:
    """A leg on the cluster, its producer and its fleet."""

    def __init__(self, leg: Leg, cluster: RabbitMQCluster, tell: Callable[[str], None]) -> None:
        self.figures = ClusterFigures()
        self.producer = SteadyProducer(leg)
        self._leg = leg
        self._cluster = cluster
        self._tell = tell
        self._queue = f"{leg.app.settings.namespace}.q.witness"

    def run(self, step: str) -> None:
        """One fault, from its beginning until all is well again."""
        nodes = self._fewer_than_all(step)
        began = time.time()
        with self._fault(step, nodes):
            self.wait_for_start(began)
            time.sleep(max(0.0, began + HELD_S - time.time()))
        if step != "pause":  # whatever was down is up: the cluster is whole again
            self._cluster.wait_together()
        wait_until(lambda: self._cluster.leader_of(self._queue) is not None, timeout_s=LONG_S, what="a leader")
        self.wait_for_start(time.time())
        self.note(step, began, time.time())

    def end(self) -> ClusterFigures:
        """Wait for everything, and judge it."""
        self.producer.close()
        self._leg.wait_settled(timeout_s=LONG_S)
        starts, figures = self._leg.starts(), self.figures
        figures.recorded, figures.succeeded = len(self.producer.enqueued), self._leg.states()[State.SUCCEEDED]
        for one in self.producer.enqueued:
            if starts[one.task_id] > 1 + one.fails:
                figures.again += starts[one.task_id] - 1 - one.fails
            if starts[one.task_id] == 0 or starts[one.task_id] > 1:
                charges = self._leg.charges(one.task_id).total()
                if not 1 <= starts[one.task_id] <= 1 + charges:
                    figures.unexplained.append(one.task_id)
        return figures

    def wait_registered(self) -> None:
        """The queue is on the disk of each node: see `RabbitMQ.wait_registered`."""
        for node in self._cluster.nodes:
            node.wait_registered(self._queue)

    def _fewer_than_all(self, step: str) -> Sequence[RabbitMQNode]:
        """Whom it meets: the leader first, and for a majority another node, too."""
        leader = self._cluster.leader_of(self._queue) or self._cluster.nodes[0]
        others = [node for node in self._cluster.nodes if node is not leader]
        match step.split():
            case [_, "majority"]:
                return [leader, others[0]]
            case ["restart"]:
                return [*others, leader]
        return [leader]

    @contextlib.contextmanager
    def _fault(self, step: str, nodes: Sequence[RabbitMQNode]) -> Iterator[None]:
        for node in nodes:
            match step.split()[0]:
                case "kill":
                    node.kill()
                case "pause":
                    node.pause()
                case "restart":
                    node.restart()
                    self._cluster.wait_together()
        try:
            yield
        finally:
            for node in nodes:
                if not node.is_running:
                    continue
                node.resume()
        for node in nodes:
            if not node.is_running:
                node.start()

    def wait_for_start(self, since: float) -> None:
        """Until a plain task has started that was enqueued since then."""

        def has_started() -> bool:
            starts = self._leg.starts()
            return any(one.at >= since and one.is_plain and starts[one.task_id] for one in self.producer.enqueued[:])

        wait_until(has_started, timeout_s=LONG_S, what="a task that was enqueued since has started")

    def note(self, what: str, began: float, ended: float) -> None:
        under = [one for one in self.producer.enqueued[:] if began <= one.at <= ended]
        first = {line.task_id: line.at for line in reversed(self._leg.testimony()) if line.what == "start"}
        plain = [one for one in under if one.is_plain and one.task_id in first]
        step = Step(
            what,
            lasted_s=ended - began,
            started_after_s=min(first[one.task_id] for one in plain) - began,
            waited_max_s=max(first[one.task_id] - one.at for one in plain),
            enqueue_max_s=max(one.took_s for one in under),
        )
        self.figures.steps.append(step)
        self._tell(row(step))


HEAD = f"{'fault':<35} {'lasted':>8} {'tasks again':>12} {'longest wait':>13} {'longest enqueue':>16}"


def row(step: Step) -> str:
    """A line below `HEAD`."""
    return (
        f"{step.what:<35} {step.lasted_s:>6.1f} s {step.started_after_s:>10.2f} s {step.waited_max_s:>11.2f} s "
        f"{step.enqueue_max_s:>14.2f} s"
    )


def try_cluster(
    leg: Leg, cluster: RabbitMQCluster, steps: Iterator[str], *, tell: Callable[[str], None] = lambda _: None
) -> ClusterFigures:
    """Run these faults, one after the other.

    `steps`: `kill` and `pause` (the node that leads the queue), `kill majority` and `pause majority` (it and another:
    the queue has no leader, and the third node, when it notices, stops itself), `restart` (each node, in order).
    """
    with leg.fleet(processes=2, threads=4):
        trial = Trial(leg, cluster, tell)
        try:
            trial.wait_for_start(0.0)
            trial.wait_registered()
            for step in steps:
                trial.run(step)
        finally:
            with contextlib.suppress(Exception):  # `end` raises it, where nothing else was raised
                trial.producer.close()
        return trial.end()


def main() -> int:
    """As many faults as fit, each kind at least once, and print the figures. Exits with 3 if they are not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--output", type=Path, help="a file for the figures as JSON")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ledger, redis = stack.enter_context(start_postgres()), stack.enter_context(start_redis())
        began = time.monotonic()
        cluster = stack.enter_context(start_rabbitmq_cluster())
        up_s = time.monotonic() - began
        leg = Leg.open("cluster", folder, ledger=ledger.url, broker=cluster.url, inflight=redis.url)
        print(f"RabbitMQ {cluster.version}, three nodes, up after {up_s:.1f} s; the default times\n{HEAD}", flush=True)
        found = try_cluster(leg, cluster, _for_minutes(asked.minutes), tell=lambda text: print(text, flush=True))
        leg.close()
    print(found)
    if asked.output:
        write_figures(asked.output, cluster.version, {"faults": found})
    return 0 if found.is_right else 3


def write_figures(output: Path, version: str, found: Mapping[str, ClusterFigures]) -> None:
    """What a trial met and what came of it, as `tests.tried` reads it."""
    output.write_text(json.dumps({"version": version, "found": {name: asdict(one) for name, one in found.items()}}))


KINDS = ("kill", "pause", "restart", "kill majority", "pause majority")


def _for_minutes(minutes: float) -> Iterator[str]:
    ends = time.monotonic() + 60 * minutes
    yield from KINDS
    while time.monotonic() < ends:
        for kind in KINDS:
            if time.monotonic() < ends:
                yield kind


if __name__ == "__main__":
    os.environ.pop("WORKQ_CONFIG", None)
    sys.exit(main())
