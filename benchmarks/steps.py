"""`python -m benchmarks.steps`: what one task costs, step by step, where it is alone.

First the enqueue: the same row of about 200 bytes, committed one at a time, from a bare table by psycopg to
`enqueue()` with servers, a line each; the differences say what each layer adds. Then the way of a task at 200 a second
through the stores as a producer and a worker call them, one after the other in one process: the wall that no worker can
be faster than, and which step it is made of.

The lines of a table take turns, some rounds long, so that a machine that slows down slows them all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from benchmarks import machine
from benchmarks.arena import POSTGRES_OPTIONS, REDIS_OPTIONS
from workq import WorkQueue
from workq.broker import Hint
from workq.inflight import Entry
from workq.lab.servers import PostgreSQL, start_postgres, start_rabbitmq, start_redis
from workq.ledger.engine import migrate
from workq.values.codec import new_task_id
from workq.values.incarnation import Incarnation
from workq.values.task import Done, NewTask, Settlement

PAD = "x" * 172
QUEUE = "bench"
RATE = 200.0
WARM = 100
LEASE_S = 600.0
LONG_S = 30.0
_BARE = "INSERT INTO bare (payload) VALUES (%s)"
_ROW = (
    "INSERT INTO workq_task (id, payload, name, queue, state, failures_max, crashes_max, due_at, created_at, queued_at)"
    " VALUES (%s, %s, 'bench', 'bench', 'ready', 5, 3, now(), now(), now())"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table, in microseconds: wall and processor time of this process, the median of the rounds."""

    name: str
    wall_us: float
    processor_us: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the way, in milliseconds: medians and 99th percentiles over all tasks."""

    name: str
    p50_ms: float
    p99_ms: float


def main() -> int:
    """Measure both, print both. Answers 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description="what one task costs, by step")
    parser.add_argument("--calls", type=int, default=1000, help="calls of a line in a round, and tasks of the way")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    with ExitStack() as stack:
        postgres = stack.enter_context(start_postgres(options=POSTGRES_OPTIONS))
        rabbitmq = stack.enter_context(start_rabbitmq())
        redis = stack.enter_context(start_redis(options=REDIS_OPTIONS))
        urls = {"broker": rabbitmq.url, "inflight": redis.url}
        servers = {"postgres": postgres.version, "rabbitmq": rabbitmq.version, "redis": redis.version}
        lines = enqueues(postgres, urls, calls=options.calls, rounds=options.rounds)
        steps = way(postgres, urls, tasks=options.calls)
    facts = machine.facts([], servers)
    print(f"{facts['date']}, {facts['cores']} cores, workq {facts['workq']['commit']}, {servers}\n")
    print(f"one enqueue{'us of wall':>40}{'of processor':>14}{'of a bare commit':>18}")
    for line in lines:
        print(
            f"  {line.name:<40}{line.wall_us:>9,.0f}{line.processor_us:>14,.0f}{lines[0].wall_us / line.wall_us:>18.2f}"
        )
    print(f"\nthe way of a task at {RATE:.0f} a second{'p50 ms':>18}{'p99 ms':>10}")
    for step in steps:
        print(f"  {step.name:<40}{step.p50_ms:>10.2f}{step.p99_ms:>10.2f}")
    if options.output is not None:
        found = {"machine": facts, "enqueue": [asdict(one) for one in lines], "way": [asdict(one) for one in steps]}
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


# -- the enqueue


def enqueues(postgres: PostgreSQL, urls: dict[str, str], *, calls: int, rounds: int) -> list[Line]:
    """From a bare commit to an enqueue with servers."""
    with ExitStack() as stack:
        alone = stack.enter_context(_workqueue(postgres))
        full = stack.enter_context(_workqueue(postgres, **urls))
        on_alone, on_full = alone.task(name="bench", queue=QUEUE)(_noop), full.task(name="bench", queue=QUEUE)(_noop)
        bare = stack.enter_context(psycopg.connect(postgres.create_database(), autocommit=True))
        bare.execute("CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL)")
        row = stack.enter_context(psycopg.connect(_workq_tables(postgres), autocommit=True))
        payload = json.dumps({"a": [1, PAD], "k": {}})
        ways: dict[str, Callable[[], object]] = {
            "a bare commit: two columns, psycopg": lambda: bare.execute(_BARE, (payload,)),
            "the row that workq keeps, psycopg": lambda: row.execute(_ROW, (new_task_id(), payload)),
            "the ledger's record()": lambda: full.stores.ledger.tasks.record(
                [NewTask(new_task_id(), "bench", QUEUE, payload)]
            ),
            "enqueue(), PostgreSQL alone": lambda: on_alone.enqueue(1, PAD),
            "enqueue(), three servers": lambda: on_full.enqueue(1, PAD),
        }
        spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for call in ways.values():
            _timed(call, WARM)
        for _ in range(rounds):
            for name, call in ways.items():
                spent[name].append(_timed(call, calls))
                full.producer.relay.flush(timeout_s=LONG_S)  # what it left behind is not the next line's
    return [
        Line(name, *(1e6 * statistics.median(values) for values in zip(*each, strict=True)))
        for name, each in spent.items()
    ]


def _timed(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """Seconds of wall and of processor, of one call."""
    began, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls, (time.process_time() - processor) / calls


def _noop(_index: int, _pad: str) -> None:
    """Never run here."""


# -- the way


def way(postgres: PostgreSQL, urls: dict[str, str], *, tasks: int) -> list[Step]:
    """Each step of so many tasks, one task at a time."""
    spent: dict[str, list[float]] = defaultdict(list)
    with _workqueue(postgres, **urls) as wq:
        ledger, broker, inflight = wq.stores.ledger, wq.stores.broker, wq.stores.inflight
        me = Incarnation.of_this_process()
        ledger.workers.join(me, queues=[QUEUE], threads=1)
        inflight.join(me.id, lease_s=LEASE_S)
        consumer = broker.consumer([QUEUE], name=me.id, prefetch=10)
        began = time.perf_counter()
        for number in range(WARM + tasks):
            time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            task = NewTask(new_task_id(), "bench", QUEUE, json.dumps({"a": [number, PAD], "k": {}}))
            laps = Laps(spent if number >= WARM else defaultdict(list))
            ledger.tasks.record([task])
            laps.end("record: a commit")
            broker.publish([Hint(QUEUE, (task.id,))], deadline_s=LONG_S)
            laps.end("publish, until confirmed")
            fetched = consumer.fetch(ids_max=1, wait_s=LONG_S)
            laps.end("fetch: what is left to wait")
            inflight.hold([Entry(task.id, QUEUE, None)], by=me.id)
            laps.end("hold")
            consumer.ack(fetched)
            laps.end("ack")
            claims = ledger.claims.claim([task.id], by=me.id)
            laps.end("claim: a commit")
            ledger.outcomes.settle([Settlement(claim, Done()) for claim in claims])
            inflight.release([(task.id, QUEUE)], by=me.id)
        consumer.close()
    whole = [sum(each) for each in zip(*spent.values(), strict=True)]
    return [_step(name, values) for name, values in (*spent.items(), ("all together", whole))]


class Laps:
    """Adds the seconds since the lap before, by name."""

    def __init__(self, spent: dict[str, list[float]]) -> None:
        self._spent = spent
        self._began = time.perf_counter()

    def end(self, name: str) -> None:
        """The step of this name has ended, and the next one begins."""
        now = time.perf_counter()
        self._spent[name].append(now - self._began)
        self._began = now


def _step(name: str, seconds: list[float]) -> Step:
    ordered = sorted(seconds)
    return Step(name, 1e3 * statistics.median(ordered), 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))])


# -- places


@contextmanager
def _workqueue(postgres: PostgreSQL, *, broker: str | None = None, inflight: str | None = None) -> Iterator[WorkQueue]:
    wq = WorkQueue(ledger=_workq_tables(postgres), broker=broker, inflight=inflight)
    try:
        yield wq
    finally:
        wq.close()


def _workq_tables(postgres: PostgreSQL) -> str:
    """A new database with workq's tables."""
    url = postgres.create_database()
    database = WorkQueue(ledger=url).database()
    migrate.migrate(database)
    database.close()
    return url


if __name__ == "__main__":
    sys.exit(main())
