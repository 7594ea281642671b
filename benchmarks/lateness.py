"""How late delayed hints come: RabbitMQ's ladders of delay queues, rows of the ledger with a mover, and a bare TTL hop.

Hints are published one by one at a steady rate, each with a delay of 1 to 5 s, and one consumer notes when each is
to be looked at: its arrival, and what the hint tells the consumer to wait. Tasks, claims and handlers have no part in
it. Where each queue keeps one delay (levels, TTL hop), the delays are whole seconds; else any.

    ttl       one queue with a time to live for each delay, dead-lettered straight to the main queue; no confirms
    binary    the ladder of queues
    levels    one queue for each level: levels:1s,2s,3s,4s,5s
    ledger    rows of PostgreSQL and one mover, in a process of its own

    python -m benchmarks.lateness [--seconds 3] [--rates 200,1000] [--only ledger,binary]
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pika

from benchmarks.arena import POSTGRES_OPTIONS
from workq.broker import Broker, Hint
from workq.broker.later import LedgerDelays
from workq.broker.later.mover import LOOK_S, Mover
from workq.broker.rabbitmq import RabbitMQBroker
from workq.config import BINARY, LEDGER
from workq.lab.servers import PostgreSQL, RabbitMQ, start_postgres, start_rabbitmq
from workq.ledger.engine.database import Database
from workq.slices import every_table
from workq.values.codec import Envelope, encode_hint, new_task_id

QUEUE: Final = "late"
WHOLE_S: Final = (1.0, 2.0, 3.0, 4.0, 5.0)
LEVELS: Final = "levels:" + ",".join(f"{one:g}s" for one in WHOLE_S)
WAYS: Final = ("ttl", "binary", "levels", "ledger")
TICK_S: Final = 0.01
PATIENCE_S: Final = 60.0
EARLY_S: Final = 0.002
"""Clocks of a millisecond are no finding."""
SEED: Final = 7

Send = Callable[[Sequence[Hint]], None]


@dataclass(frozen=True, slots=True)
class Lateness:
    """One way at one rate; in ms, from the instant at which a hint was due."""

    way: str
    rate: int
    hints: int
    missing: int
    early: int
    p50: float
    p99: float
    most: float


class Listener:
    """One consumer, and what it saw."""

    def __init__(self, broker: Broker) -> None:
        self._consumer = broker.consumer([QUEUE], name="lateness", prefetch=1000)
        self.looked_at: dict[str, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _listen(self) -> None:
        while not self._is_over.is_set():
            page = self._consumer.fetch(ids_max=1000, wait_s=0.2)
            now = time.monotonic()
            for one in page:
                waits_s = one.waits_s or (0.0,) * len(one.task_ids)
                for task_id, wait_s in zip(one.task_ids, waits_s, strict=True):
                    self.looked_at.setdefault(task_id, now + wait_s)
            self._consumer.ack(page)


def measure(way: str, rate: int, seconds: float, rabbitmq: RabbitMQ, postgres: PostgreSQL) -> Lateness:
    """One way at one rate."""
    rng = random.Random(SEED)
    with opened(way, rabbitmq, postgres) as (broker, send):
        listener = Listener(broker)
        warm = Hint(QUEUE, (new_task_id(),), 1.0)
        send([warm])
        _wait(lambda: warm.task_ids[0] in listener.looked_at)
        due = _publish(send, rate, seconds, lambda: rng.choice(WHOLE_S) if way in ("ttl", "levels") else 0.0, rng)
        _wait(lambda: due.keys() <= listener.looked_at.keys())
        listener.close()
    late_ms = sorted(1000 * (listener.looked_at[one] - at) for one, at in due.items() if one in listener.looked_at)
    return Lateness(
        way,
        rate,
        len(due),
        len(due) - len(late_ms),
        sum(one < -1000 * EARLY_S for one in late_ms),
        statistics.median(late_ms),
        late_ms[int(0.99 * (len(late_ms) - 1))],
        late_ms[-1],
    )


def _publish(send: Send, rate: int, seconds: float, whole: Callable[[], float], rng: random.Random) -> dict[str, float]:
    """Publish at a steady rate; answers when each is due."""
    due: dict[str, float] = {}
    began, sent = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - began) < seconds:
        count = int(elapsed_s * rate) - sent
        hints = [Hint(QUEUE, (new_task_id(),), whole() or rng.uniform(1.0, 5.0)) for _ in range(count)]
        now = time.monotonic()
        due |= {one.task_ids[0]: now + one.delay_s for one in hints}
        if hints:
            send(hints)
        sent += count
        time.sleep(TICK_S)
    return due


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)


@contextmanager
def opened(way: str, rabbitmq: RabbitMQ, postgres: PostgreSQL) -> Iterator[tuple[Broker, Send]]:
    """The broker that is listened to, and how hints are sent, in a namespace of its own."""
    namespace = f"late{secrets.token_hex(4)}"
    ladder = {"levels": LEVELS, "ledger": LEDGER}.get(way, BINARY)
    broker: Broker = RabbitMQBroker(rabbitmq.url, namespace=namespace, ladder=ladder)
    mover: subprocess.Popen[bytes] | None = None
    connection: pika.BlockingConnection | None = None
    database = Database(postgres.url, namespace=namespace)
    try:
        if way == "ledger":
            every_table(database.tables).create_all(database.engine)
            broker = LedgerDelays(broker, database)
            command = [sys.executable, "-m", "benchmarks.lateness", "--move", postgres.url, rabbitmq.url, namespace]
            mover = subprocess.Popen(command, stdin=subprocess.PIPE)
        if way != "ttl":
            yield broker, lambda hints: _confirmed(broker, hints)
            return
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
        yield broker, _hop(connection, f"{namespace}.q.{QUEUE}", namespace)
    finally:
        if mover is not None:
            mover.communicate()
        if connection is not None:
            connection.close()
        broker.close()
        database.close()


def _confirmed(broker: Broker, hints: Sequence[Hint]) -> None:
    if not all(broker.publish(hints, deadline_s=PATIENCE_S)):
        raise SystemExit("lateness: the broker did not confirm; the machine is too busy for this rate")


def _hop(connection: pika.BlockingConnection, main_queue: str, namespace: str) -> Send:
    """Straight to a queue whose time to live is the delay, and from there to the main queue."""
    channel = connection.channel()
    for delay_s in WHOLE_S:
        arguments = {
            "x-message-ttl": int(1000 * delay_s),
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": main_queue,
        }
        channel.queue_declare(f"{namespace}.ttl.{delay_s:g}", durable=True, arguments=arguments)
    persistent = pika.BasicProperties(delivery_mode=2)

    def send(hints: Sequence[Hint]) -> None:
        for one in hints:
            body = encode_hint(Envelope(one.queue, one.task_ids))
            channel.basic_publish("", f"{namespace}.ttl.{one.delay_s:g}", body, persistent)

    return send


def move(ledger: str, broker: str, namespace: str) -> None:
    """The mover's process, until its standard input ends."""
    database = Database(ledger, namespace=namespace)
    server = RabbitMQBroker(broker, namespace=namespace)
    mover = Mover(database, server, look_s=LOOK_S, confirm_s=10.0)
    mover.start()
    sys.stdin.read()
    mover.close()
    server.close()
    database.close()


def table(found: Sequence[Lateness]) -> str:
    """As Markdown."""
    lines = ["| a second | way | hints | p50 ms | p99 ms | most ms | early | missing |", "| --- " * 8 + "|"]
    lines += [
        f"| {one.rate} | {one.way} | {one.hints} | {one.p50:.1f} | {one.p99:.1f} | {one.most:.0f} | {one.early} "
        f"| {one.missing} |"
        for one in found
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long hints are published for each row")
    parser.add_argument("--rates", default="200,1000")
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--move", nargs=3, metavar=("LEDGER", "BROKER", "NAMESPACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.move:
        move(*options.move)
        return 0
    with start_rabbitmq() as rabbitmq, start_postgres(options=POSTGRES_OPTIONS) as postgres:
        found = []
        for rate in map(int, options.rates.split(",")):
            for way in options.only.split(","):
                found.append(measure(way, rate, options.seconds, rabbitmq, postgres))
                print(table(found[-1:]).splitlines()[-1], flush=True)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"\n{table(found)}\n\n{os.cpu_count()} processors; load of the last 1, 5, 15 minutes: {load}")
    return 3 if any(one.early or one.missing for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
