"""`make intake-kafka`: a topic on three nodes of Kafka, through three intake members, while members and nodes die.

Records are written while it runs. Members die by SIGKILL, one comes and goes, each node dies and comes back, a
partition is added. At the end the ledger is counted: each record of each partition stands there once, and the offsets
are those of Kafka. `test_kafka_cluster.py` runs a short one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka

from tests.faults.kafka_topic import Topic
from tests.faults.ways_in import LONG_S, WayIn, children_of, end
from tests.system.fleet import PATIENCE, wait_until
from workq import WorkQueue
from workq.lab.servers import start_postgres
from workq.lab.servers.kafka_cluster import KafkaCluster, start_kafka_cluster
from workq.ledger.engine import migrate

MEMBERS = 3
PARTITIONS = 6
ALL_S = 300.0
"""So long, on a quiet machine, the records may take once all are written."""


@dataclass
class IntakeFigures:
    """What was written, what the ledger has, and what was done meanwhile. `twice`, `missing`: of the written ones."""

    written: int = 0
    rows: int = 0
    twice: int = 0
    missing: int = 0
    strange: int = 0
    """Rows of records that nobody wrote."""
    counted: int = 0
    """As the way in counts them."""
    repeated: int = 0
    offsets: dict[int, int | None] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    epochs: int = 0
    """How often a partition was taken."""
    took_s: float = 0.0

    @property
    def is_right(self) -> bool:
        """Each record is recorded once, and offsets and rows agree."""
        is_once = not (self.twice or self.missing or self.strange or self.repeated)
        is_counted = self.rows == self.counted == self.written == sum(self.ends.values())
        return is_once and is_counted and self.offsets == self.ends


class Writer:
    """Writes numbered records on a thread of its own, as far as it is told; it goes on through deaths of nodes."""

    def __init__(self, topic: Topic) -> None:
        self.written = 0
        """Confirmed."""
        self.wanted = 0
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, after everything that was wanted is confirmed or given up."""
        self._is_over.set()
        self._thread.join()

    def _write(self) -> None:
        producer = confluent_kafka.Producer(
            {**self._topic.kafka.admin_conf, "enable.idempotence": True, "topic.metadata.refresh.interval.ms": 2000}
        )
        sent = 0
        while not self._is_over.is_set() or sent < self.wanted:
            if sent == self.wanted:
                producer.poll(0.05)
                continue
            headers: list[tuple[str, str | bytes | None]] = [("n", str(sent))]
            try:
                producer.produce(self._topic.name, b"x", key=str(sent), headers=headers, on_delivery=self._confirmed)
                sent += 1
            except BufferError:
                producer.poll(0.5)
        producer.flush(PATIENCE * ALL_S)

    def _confirmed(self, error: confluent_kafka.KafkaError | None, _message: confluent_kafka.Message) -> None:
        self.written += error is None


def take_in(
    cluster: KafkaCluster,
    folder: Path,
    *,
    records: int,
    steps: Sequence[str],
    app: WorkQueue | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> IntakeFigures:
    """Take in so many, in as many parts as there are steps; each step happens while the part before it is taken in.

    `steps`: `member` (one is killed), `kill N` (a node; `lead`: that which leads partition 0) and `start` (the same),
    `join` and `leave` (a fourth member), `grow` (one partition more), or nothing.
    """
    topic = Topic(cluster, partitions=PARTITIONS)
    environ = None if app is None else {"WORKQ_LEDGER_URL": app.settings.ledger}
    way_in = WayIn(folder, environ=environ, app=app)
    way_in.add(kind="kafka", url=cluster.url, topic=topic.name, to="orders", group=topic.name)
    writer = Writer(topic)
    found = IntakeFigures()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        crew = stack.enter_context(way_in.running(processes=MEMBERS))
        fourth = contextlib.ExitStack()
        stack.enter_context(fourth)
        more = None
        dead = cluster.nodes[0]
        for number, step in enumerate(steps, 1):
            before = records * (number - 1) // len(steps)
            writer.wanted = records * number // len(steps)
            way_in.wait_for(max(1, before), timeout_s=ALL_S)
            what, _, which = step.partition(" ")
            match what:
                case "member":
                    wait_until(lambda: len(children_of(crew)) == MEMBERS, timeout_s=LONG_S, what="all members")
                    victim = children_of(crew)[number % MEMBERS]
                    victim.kill()
                case "kill":
                    dead = cluster.nodes[(topic.leader(0) if which == "lead" else int(which)) - 1]
                    dead.kill()
                    step = f"kill {dead.number}"
                case "start":
                    dead.start()
                case "join":
                    more = fourth.enter_context(way_in.running())
                case "leave" if more is not None:
                    end(more)
                    fourth.close()
                case "grow":
                    topic.grow(to=PARTITIONS + 1)
            if step:
                found.events.append(step)
                tell(f"{way_in.intake().recorded:>7} recorded: {step}")
        writer.close()
        found.written = writer.written
        found.ends = topic.ends()
        wait_until(lambda: way_in.offsets() == found.ends, timeout_s=ALL_S, what=f"{found.ends}, taken in")
        found.took_s = time.monotonic() - began
        end(crew)
    return counted(way_in, found)


def counted(way_in: WayIn, found: IntakeFigures) -> IntakeFigures:
    """The figures, with what the ledger has."""
    rows = way_in.messages()
    times = Counter(int(one.headers["n"]) for one in rows.values())
    found.rows = len(rows)
    found.twice = sum(count > 1 for count in times.values())
    found.missing = sum(number not in times for number in range(found.written))
    found.strange = sum(number >= found.written for number in times)
    found.counted, found.repeated = way_in.intake().recorded, way_in.intake().repeated
    offsets = way_in.ledger.intakes.offsets("in")
    found.offsets = {one.part: one.next_offset for one in offsets}
    found.epochs = sum(one.epoch for one in offsets)
    return found


SHORT = ("", "member", "kill lead", "start")
FULL = (
    *("", "member", "kill 1", "member", "start", "join", "kill 2", "start", "grow", "member"),
    *("leave", "kill 3", "member", "start", "member", ""),
)


def main() -> int:
    """Run the full one, and print its figures. Exits with 3 if they are not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ledger = stack.enter_context(start_postgres())
        cluster = stack.enter_context(start_kafka_cluster())
        app = WorkQueue(ledger=ledger.url)
        database = app.database()
        migrate.migrate(database)
        database.close()
        found = take_in(cluster, folder, records=asked.records, steps=FULL, app=app, tell=_say)
        app.close()
    print(
        f"{found.written} records in {sum(one > 0 for one in found.ends.values())} partitions, {MEMBERS} members, "
        f"{len(cluster.nodes)} nodes, PostgreSQL: {found.took_s:.0f} s, {found.written / found.took_s:.0f} a second\n"
        f"rows {found.rows}, counted {found.counted}, missing {found.missing}, twice {found.twice}, "
        f"strange {found.strange}, repeated {found.repeated}; partitions were taken {found.epochs} times\n"
        f"offsets of the ledger {found.offsets}\noffsets of Kafka      {found.ends}\n"
        f"{'each record is recorded once' if found.is_right else 'WRONG'}"
    )
    return 0 if found.is_right else 3


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.pop("WORKQ_CONFIG", None)
    sys.exit(main())
