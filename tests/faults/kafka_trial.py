"""`make chaos-kafka`: tasks through three nodes of Kafka, while nodes, topics, records and workers are lost.

Tasks are enqueued all the time, one by one, and for each fault a share of them at once, half of it before the fault and
half under it. A fleet runs them; each only writes that it started and ended. Each fault lasts until a task that was
enqueued under it has started, and at least `HELD_S`; then it ends, and all copies must be in sync again. `alone: ...`
is a fault that leaves no hint, while no worker is there and nothing is enqueued: nobody finds a task in the ledger, so
all that is missing has to be proved lost, and to be sent again.

At the end each task has succeeded, each start beyond the first is charged to something, no hint is left, and the tasks
whose hints the proof by positions sent again are those whose hints the witness (kafka_witness.py) found missing, but
for `TOO_MANY` of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Select, select, text

from tests.faults.kafka_harm import HARMS, KafkaHarm
from tests.faults.kafka_topic import Topic
from tests.faults.kafka_witness import HintWitness
from tests.faults.steady_producer import PLAIN, SteadyProducer
from tests.stores import database_of
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from workq import State
from workq.broker.kafka.topics import TopicNames
from workq.cli.exits import DONE, FAILED
from workq.errors import BrokerUnavailable
from workq.lab.servers import start_postgres, start_redis
from workq.lab.servers.kafka_cluster import KafkaCluster, start_kafka_cluster
from workq.recovery.sweep import sweep
from workq.values.codec import new_task_id

HELD_S = 5.0
ASK_EVERY_S = 0.2
LONG_S = 120.0
PROVED_S = 40.0
ALL_S = 600.0
TOO_MANY = 0.05
PARTITIONS = 8
DIVIDE = 4.0
"""Of the default times."""
AT_ONCE = (2000, 1, 20, 3)
"""How many tasks are enqueued by a call, in turns."""
SHARE_MIN = 400
"""So many are enqueued for each fault, also where the steady producer has enqueued all that were asked for."""
FEW = (4,)
LOSE_HINTS = ("delete records", "delete topic", "make topic anew", "unclean election")
SLOW_S = 0.02
"""So long each task of such a fault takes: there has to be something to lose."""
ALONE = "alone: "
CRASHED = re.compile("SIGABRT|SIGSEGV|SIGBUS")
QUEUE = "witness"


@dataclass(frozen=True)
class ChaosStep:
    """One fault, and what was seen until its end."""

    what: str
    lasted_s: float
    started_after_s: float
    """How long after the fault the first task started that was enqueued under it."""
    recorded: int
    done: int
    again: int
    """Starts beyond the first, the planned failures among them."""
    offsets_missing: int
    missing: int
    """Tasks whose hints stood there."""
    proved: int
    """Tasks whose hints the proof sent again."""
    proved_wrongly: int
    """Until now: tasks whose hint the proof sent again more often than one was missing."""


@dataclass
class ChaosFigures:
    """What came of it."""

    recorded: int = 0
    succeeded: int = 0
    planned: int = 0
    """Second starts of tasks that fail once on purpose."""
    again: Counter[str] = field(default_factory=Counter)
    """All other second starts, by what the ledger has charged for them."""
    unexplained: list[str] = field(default_factory=list)
    """Tasks that started more often than something was charged for, or never."""
    hints_seen: int = 0
    offsets_missing: int = 0
    offsets_below: int = 0
    missing: int = 0
    proved: int = 0
    proved_wrongly: int = 0
    """Tasks whose hint the proof sent again more often than one was missing."""
    stolen: int = 0
    """Tasks that idle workers found in the ledger while Kafka was well."""
    polled: int = 0
    """The same while it was away."""
    unsent: list[str] = field(default_factory=list)
    """Of an `alone: ` fault: how many tasks got no other hint in time."""
    hints_left: int = 0
    crashed: list[str] = field(default_factory=list)
    """What was said of processes that ended in their C code: librdkafka asserts much."""
    took_s: float = 0.0
    steps: list[ChaosStep] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return self.recorded - self.succeeded

    @property
    def findings(self) -> list[str]:
        """What is not as promised."""
        told = {
            f"{self.lost} of {self.recorded} tasks are lost": self.lost != 0 or not self.recorded,
            f"starts without a reason: {self.unexplained[:5]}": bool(self.unexplained),
            f"{self.proved_wrongly} hints sent again that were not missing, of {self.missing} that were": (
                self.proved_wrongly > TOO_MANY * self.missing
            ),
            f"hints that were not sent again: {self.unsent}": bool(self.unsent),
            f"{self.hints_left} hints that nobody is done with": self.hints_left != 0,
            f"processes crashed: {self.crashed}": bool(self.crashed),
        }
        return [what for what, is_so in told.items() if is_so]


class _Starts:
    """The starts that the handlers have written, as far as it was read."""

    def __init__(self, path: Path) -> None:
        self.count: Counter[str] = Counter()
        self.first: dict[str, float] = {}
        self._path = path
        self._at = 0

    def read(self) -> None:
        """Read what is new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole, end, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(end)
        for line in whole.decode().splitlines():
            what, task_id, _, _, _, at = line.split(" ")
            if what == "start":
                self.count[task_id] += 1
                self.first.setdefault(task_id, float(at))


class _ProofSpy:
    """A trigger in the ledger that writes down of which tasks the proof said that their hints are lost."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        with closing(leg.app.database()) as database:
            task, event = database.tables.task.name, database.tables.event.name
            self._table = f"{leg.app.settings.namespace}_proved"
            for statement in (
                f"CREATE TABLE {self._table} (task_id text)",
                f"CREATE FUNCTION {self._table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO "
                f"{self._table} SELECT id::text FROM {task} WHERE xmin = pg_current_xact_id()::xid "
                "AND published_at IS NULL; RETURN NULL; END $$",
                f"CREATE TRIGGER {self._table} AFTER INSERT ON {event} FOR EACH ROW WHEN (NEW.kind = 'hints_lost') "
                f"EXECUTE FUNCTION {self._table}()",
            ):
                with database.engine.begin() as connection:
                    connection.execute(text(statement))

    def proved(self) -> Counter[str]:
        """How often it was said of each task."""
        with closing(self._leg.app.database()) as database, database.engine.connect() as connection:
            return Counter(row.task_id for row in connection.execute(text(f"SELECT task_id FROM {self._table}")))


class ChaosTrial:
    """A leg on the cluster with its producer, its fleet and its witness."""

    def __init__(self, leg: Leg, cluster: KafkaCluster, tell: Callable[[str], None], *, held_s: float) -> None:
        self.figures = ChaosFigures()
        self._leg = leg
        self._tables = database_of(leg.app).tables
        self._tell = tell
        self._held_s = held_s
        self._names = TopicNames(leg.app.settings.namespace)
        self._topic = Topic(cluster, name=self._names.topic(QUEUE))
        self._spy = _ProofSpy(leg)
        self._starts = _Starts(leg.folder / "witness")
        self._more = 0
        self._task_s = 0.0
        self._share = 0
        self._began = time.monotonic()
        self._fleets: list[Fleet] = []
        self._fleet = self._new_fleet()
        self._harm = KafkaHarm(
            cluster,
            self._topic,
            self._names.group,
            fleet=lambda: self._fleet,
            write=lambda: self._write_into_kafka(FEW),
        )
        self._producer = SteadyProducer(leg)
        self._wait_for_start(0.0)
        self._witness = HintWitness(cluster.admin_conf, topic=self._topic.name, group=self._names.group)
        self._witness.take_stock()

    @property
    def recorded(self) -> int:
        return len(self._producer.enqueued) + self._more

    def run(self, step: str, *, until: int) -> None:
        """One fault, from before it until all is well again; so many tasks are enqueued by then."""
        what = step.removeprefix(ALONE)
        is_alone = what != step
        self._share = max(SHARE_MIN, until - self.recorded)
        self._task_s = SLOW_S if step in LOSE_HINTS else 0.0
        before = self._witness.missing.copy()
        with self._nobody() if is_alone else contextlib.nullcontext():
            (self._write_into_kafka if is_alone else self._write)(AT_ONCE)
            began = time.time()
            with self._harm.struck(what):
                if is_alone:
                    self._prove(before)
                else:
                    self._go_on(began, held_s=self._held_s)
        self._go_on(began if is_alone else time.time(), held_s=0.0)
        self._harm.wait_whole()
        self._wait_for_start(time.time())
        self._witness.take_stock()
        self._note(step, began)

    @contextlib.contextmanager
    def _nobody(self) -> Iterator[None]:
        """No worker is there, and nothing more is enqueued. What was enqueued is done, and all hints were read.

        No marker overtakes a delayed hint that is due and still a row, and without a supervisor nobody moves it.
        """
        with self._producer.held():
            self._leg.wait_settled(timeout_s=ALL_S)
            delayed = select(self._tables.hint.c.id)
            wait_until(lambda: not self._rows(delayed), timeout_s=LONG_S, what="no delayed hint is left")
            self._wait_read()
            self._end_fleet()
            yield
        self._fleet = self._new_fleet()

    def _go_on(self, since: float, *, held_s: float) -> None:
        """Enqueue half of what is left of the share, until a task that was enqueued since then has started, and for so
        long at least."""
        writing = threading.Thread(target=self._write, args=[AT_ONCE])
        writing.start()
        self._wait_for_start(since)
        self._ask_of_positions(until=since + held_s)
        writing.join()

    def _ask_of_positions(self, *, until: float) -> None:
        """As a sweep does, again and again: librdkafka can end a process that asks while a coordinator moves."""
        broker = self._leg.app.stores.broker
        while time.time() < until:
            with contextlib.suppress(BrokerUnavailable):  # the coordinator moves: a sweep asks again at its next pass
                position = broker.position(QUEUE)
                assert position is not None
                broker.has_passed(QUEUE, position)
            time.sleep(ASK_EVERY_S)

    def end(self, records: int) -> ChaosFigures:
        """Enqueue what is left of so many, wait for everything, and judge it."""
        self._producer.close()
        self._enqueue(records - self.recorded, AT_ONCE)
        self._leg.wait_settled(timeout_s=ALL_S)
        found = self.figures
        found.took_s = time.monotonic() - self._began
        with contextlib.suppress(AssertionError):  # the figure says so
            self._wait_read()
        found.hints_left = self._hints_left()
        self._witness.take_stock()
        self._end_fleet()  # it tells how many tasks it has found
        self._witness.close()
        self._judge()
        return found

    def _wait_read(self) -> None:
        wait_until(lambda: self._hints_left() == 0, timeout_s=LONG_S, what="no hint is left")

    def _hints_left(self) -> int:
        """How many of them the group is not done with; -1: nobody answers."""
        try:
            return self._leg.app.stores.broker.depths([QUEUE])[QUEUE].ready
        except BrokerUnavailable:
            return -1

    def close(self) -> None:
        """End what runs. Repeatable."""
        self._fleet.kill()
        with contextlib.suppress(Exception):  # `end` raises it, where nothing else was raised
            self._producer.close()
        self._witness.close()

    def show_logs(self) -> None:
        """The end of the log of the workers."""
        print(self._fleet.text()[-3000:])

    def _new_fleet(self) -> Fleet:
        self._fleets.append(self._leg.fleet(processes=2, threads=4))
        return self._fleets[-1]

    def _end_fleet(self) -> None:
        """In order."""
        self._fleet.terminate()
        status = self._fleet.wait(LONG_S)
        if status not in (DONE, FAILED):  # FAILED: a task was still running
            self.figures.crashed.append(f"a supervisor ended with {status}")

    def _enqueue(self, count: int, pages: Sequence[int]) -> None:
        left, number = count, 0
        while left > 0:
            size = min(left, pages[number % len(pages)])
            first = 1_000_000 + self._more
            self._leg[PLAIN].enqueue_many([(one, self._task_s) for one in range(first, first + size)])
            self._more += size
            left -= size
            number += 1

    def _write(self, pages: Sequence[int]) -> None:
        """Half of what is left of this fault's share."""
        count = self._share // 2
        self._share -= count
        self._enqueue(count, pages)

    def _write_into_kafka(self, pages: Sequence[int]) -> None:
        """The same; it returns when their hints stand in Kafka, and the witness has seen them, or workers have them.

        One that was sent later would stand in the topic after a fault, and with no worker there no position behind it
        is ever passed.
        """
        first = new_task_id()
        self._write(pages)
        t = self._tables.task.c
        mine = t.id.between(first, new_task_id()), t.state.in_([State.READY, State.WAITING])
        waiting = select(t.id, t.published_at).where(*mine)

        def is_there() -> bool:
            sweep(self._leg.app.stores, self._leg.app.settings, only=["relay"])
            rows = self._rows(waiting)
            return all(row.published_at for row in rows) and {row.id for row in rows} <= self._witness.standing()

        wait_until(is_there, timeout_s=LONG_S, what="all hints stand in Kafka")

    def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        """What the ledger's tables say."""
        return database_of(self._leg.app).ask(lambda tx: tx.execute(query).all())

    def _prove(self, missing: Counter[str]) -> None:
        """Sweep until each task whose hint is missing now, and was not before, has another one; and some times more."""
        stores, settings = self._leg.app.stores, self._leg.app.settings
        self._witness.take_stock()
        self._starts.read()
        wanted = {one for one in self._witness.missing - missing if not self._starts.count[one]}

        def left() -> set[str]:
            sweep(stores, settings)
            return wanted - self._witness.standing()

        try:
            wait_until(lambda: not left(), timeout_s=PROVED_S, what="all that is missing is there again")
        except AssertionError:
            self.figures.unsent.append(f"{len(left())} of {len(wanted)}, markers {stores.ledger.markers.all()}")
        for _ in range(3):
            time.sleep(settings.times.beat_s)
            sweep(stores, settings)

    def _missing(self) -> int:
        return self._witness.missing.total()

    def _wait_for_start(self, since: float) -> None:
        """Until a plain task has started that was enqueued one by one since then."""

        def has_started() -> bool:
            self._starts.read()
            tasks = self._producer.enqueued[:]
            return any(one.at >= since and one.is_plain and self._starts.count[one.task_id] for one in reversed(tasks))

        wait_until(has_started, timeout_s=LONG_S, what="a task that was enqueued since has started")

    def _note(self, what: str, began: float) -> None:
        self._starts.read()
        under = [one for one in self._producer.enqueued[:] if one.at >= began and one.is_plain]
        first = min(self._starts.first[one.task_id] for one in under if one.task_id in self._starts.first)
        done = len(self._starts.count)
        sums = [
            sum(getattr(one, name) for one in self.figures.steps) for name in ("offsets_missing", "missing", "proved")
        ]
        step = ChaosStep(
            what,
            lasted_s=time.time() - began,
            started_after_s=first - began,
            recorded=self.recorded,
            done=done,
            again=self._starts.count.total() - done,
            offsets_missing=self._witness.offsets_missing - sums[0],
            missing=self._missing() - sums[1],
            proved=(proved := self._spy.proved()).total() - sums[2],
            proved_wrongly=(proved - self._witness.missing).total(),
        )
        self.figures.steps.append(step)
        self._tell(row(step))

    def _judge(self) -> None:
        self._starts.read()
        found, starts = self.figures, self._starts.count
        found.recorded, found.succeeded = self.recorded, self._leg.states()[State.SUCCEEDED]
        fails = {one.task_id for one in self._producer.enqueued if one.fails}
        for task_id in [one for one, count in starts.items() if count > 1]:
            charges = self._leg.charges(task_id)
            if task_id in fails and charges["failure"]:
                charges["failure"] -= 1
                found.planned += 1
                extra = starts[task_id] - 2
            else:
                extra = starts[task_id] - 1
            found.again.update((+charges).elements() if extra else ())
            if extra > charges.total():
                found.unexplained.append(task_id)
        said = [line for fleet in self._fleets for line in fleet.text().splitlines()]
        found.crashed += [line for line in said if " supervisor.child_died " in line and CRASHED.search(line)]
        found.unexplained += [one.task_id for one in self._producer.enqueued if not starts[one.task_id]]
        witness, proved = self._witness, self._spy.proved()
        found.hints_seen, found.offsets_missing = witness.seen, witness.offsets_missing
        found.offsets_below, found.missing = witness.offsets_below, self._missing()
        found.proved, found.proved_wrongly = proved.total(), (proved - witness.missing).total()
        for event in self._leg.app.stores.ledger.questions.happened(["polled"], within_s=86_400.0, limit=10_000):
            if "reason" in event.detail:
                found.polled += int(event.detail["tasks"])
            else:
                found.stolen += int(event.detail["tasks"])


HEAD = (
    f"{'fault':<25} {'lasted':>8} {'tasks again':>12} {'recorded':>9} {'started':>8} {'twice':>6} "
    f"{'offsets missing':>16} {'tasks':>7} {'proved lost':>12} {'wrongly':>8} {'load':>6}"
)


def row(step: ChaosStep) -> str:
    """A line below `HEAD`."""
    return (
        f"{step.what:<25} {step.lasted_s:>6.1f} s {step.started_after_s:>10.2f} s {step.recorded:>9} {step.done:>8} "
        f"{step.again:>6} {step.offsets_missing:>16} {step.missing:>7} {step.proved:>12} {step.proved_wrongly:>8} "
        f"{os.getloadavg()[0]:>6.1f}"
    )


def try_chaos(
    leg: Leg,
    cluster: KafkaCluster,
    steps: Sequence[str],
    *,
    records: int,
    held_s: float = HELD_S,
    tell: Callable[[str], None] = lambda _: None,
) -> ChaosFigures:
    """Run these faults (`HARMS`, and the same `alone: `), one after the other, with about so many tasks."""
    trial = ChaosTrial(leg, cluster, tell, held_s=held_s)
    try:
        for number, step in enumerate(steps, 1):
            trial.run(step, until=records * number // (len(steps) + 1))
        return trial.end(records)
    except BaseException:
        trial.show_logs()
        raise
    finally:
        trial.close()


FULL = (
    *("kill leader", "pause leader", "kill coordinator", "pause coordinator", "kill two", "too few in sync"),
    *("kill a worker", "add partitions", "delete records", "alone: delete records", "wipe a node", "unclean election"),
    *("delete topic", "make topic anew", "alone: delete topic", "alone: unclean election", "delete topic"),
)
assert {one.removeprefix(ALONE) for one in FULL} == set(HARMS)


def page(found: ChaosFigures) -> Iterator[str]:
    """What came of it, for people."""
    yield (
        f"{found.recorded} recorded, {found.succeeded} succeeded, {found.lost} lost; {found.took_s:.0f} s, "
        f"{found.recorded / found.took_s:.0f} a second, load {os.getloadavg()[0]:.1f}"
    )
    yield (
        f"second starts: {found.planned} planned, {found.again.total()} others ({dict(found.again)}), "
        f"{len(found.unexplained)} without a reason"
    )
    yield (
        f"hints: the witness saw {found.hints_seen} offsets, {found.offsets_missing} went missing "
        f"({found.offsets_below} below the group's offset) with {found.missing} tasks; the proof sent those of "
        f"{found.proved} again, of which {found.proved_wrongly} were not missing; {found.hints_left} are left"
    )
    yield f"found in the ledger: {found.stolen} by idle workers (steals), {found.polled} while Kafka was away"
    yield from (f"FINDING: {one}" for one in found.findings)


def main() -> int:
    """Run the full one, and print the figures. Exits with 3 if they are not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--only", default="", help="faults, with commas between")
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ledger, redis = stack.enter_context(start_postgres()), stack.enter_context(start_redis())
        began = time.monotonic()
        cluster = stack.enter_context(start_kafka_cluster())
        up_s = time.monotonic() - began
        url = f"{cluster.url}?partitions={PARTITIONS}"
        leg = Leg.open("kafka", folder, divide=DIVIDE, ledger=ledger.url, broker=url, inflight=redis.url)
        print(
            f"Kafka {cluster.nodes[0].version}, three nodes, up after {up_s:.1f} s; {PARTITIONS} partitions; the "
            f"default times divided by {DIVIDE:g}\n{HEAD}",
            flush=True,
        )
        steps = tuple(filter(None, asked.only.split(","))) or FULL
        found = try_chaos(leg, cluster, steps, records=asked.records, tell=lambda line: print(line, flush=True))
        leg.close()
    print("\n".join(page(found)))
    return 3 if found.findings else 0


if __name__ == "__main__":
    os.environ.pop("WORKQ_CONFIG", None)
    sys.exit(main())
