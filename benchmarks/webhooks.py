"""`python -m benchmarks.webhooks`: how fast webhooks are delivered, and who waits for whom, on SQLite and on servers.

throughput  a worker of one process, and one of two, with a hundred deliveries at once in each to one local receiver;
            and a plain aiohttp loop that sends as many of the same signed requests, before and after each of them: a
            worker is compared with the mean of both, because machines have good and bad minutes. Everything is in the
            queue before; the seconds are those from the first to the last attempt in the ledger, where each one has to
            be.
slow        two endpoints and one worker: one sleeps 20 s, the other is sent 200 a second. From sent to arrived.
dead        a thousand endpoints and one worker: with all of them alive, and with one of them dead (nothing answers
            there until its deadline). From sent to arrived, of the others.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, func, select

from benchmarks import legs, machine, posts
from workq import WorkQueue
from workq.lab.fleet import Host
from workq.ledger.engine.database import Database
from workq.webhooks.ledger.tables import webhook_tables
from workq.webhooks.outbox import Outbox

RUNS = 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done."""

    webhooks: int = 40_000
    runs: int = RUNS
    endpoints: int = 1_000
    rate: float = 200.0
    seconds: float = 60.0
    slow_s: float = 20.0
    deadline_s: float = 10.0
    """Of a request to the endpoint that is dead."""


QUICK = Sizes(webhooks=200, runs=1, endpoints=20, rate=50.0, seconds=2.0, slow_s=3.0, deadline_s=2.0)


class Receiver:
    """The receiver, in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.posts", "receive"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def to(self, name: str) -> str:
        """Where it answers at once."""
        return f"http://127.0.0.1:{self._port}/to/{name}"

    def slow(self, name: str, seconds: float) -> str:
        """Where it answers after so many seconds."""
        return f"http://127.0.0.1:{self._port}/slow/{seconds}/{name}"

    def seen(self) -> dict[str, list[tuple[str, float]]]:
        """What has come since the last question: by name, the ids, and how late each was in seconds."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", "/seen")
            return dict(json.load(connection.getresponse()))
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Leg:
    """A queue on its stores, and the receiver."""

    name: str
    app: WorkQueue
    database: Database
    outbox: Outbox
    receiver: Receiver
    folder: Path

    @contextmanager
    def worker(self, *, processes: int = 1) -> Iterator[None]:
        """A worker, and a hundred deliveries at once in each of its processes."""
        host = Host(self.folder, 1, app=posts.APP, processes=processes, threads=posts.AT_ONCE)
        host.start()
        try:
            legs.until(lambda: len(self.app.stores.ledger.questions.workers()) >= processes, "the worker is up")
            yield
        finally:
            host.terminate()
            if host.wait(60.0) is None:
                host.kill()

    def send_at_once(self, count: int, endpoint: str) -> None:
        """Send so many, some hundred in a transaction."""
        engine = create_engine(self.database.url)  # as an application does
        for start in range(0, count, 500):
            with engine.begin() as connection:
                for _ in range(start, min(count, start + 500)):
                    self.outbox.send("order.paid", posts.DATA, endpoint=endpoint, connection=connection)
        engine.dispose()
        self.app.producer.relay.flush(timeout_s=legs.LONG_S)

    def attempts(self) -> tuple[int, float]:
        """How many attempts are recorded, and the seconds from the first one's begin to the last one's end."""
        a = webhook_tables(self.database).delivery_attempt
        query = select(func.count(), func.min(a.c.at), func.max(a.c.at))
        count, first, last = self.database.ask(lambda tx: tuple(tx.execute(query).one()))
        return count, 0.0 if first is None else (last - first).total_seconds()


def main() -> int:
    """Measure, print, write. Answers 0."""
    measures = {"throughput": throughput, "slow": slow, "dead": dead}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.webhooks", description="how fast webhooks are delivered"
    )
    parser.add_argument("--quick", action="store_true", help="small: to try it, not to quote")
    parser.add_argument("--leg", choices=legs.LEGS, help="that alone")
    parser.add_argument("--measure", choices=tuple(measures), help="that alone")
    parser.add_argument("--runs", type=int, help="of throughput")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    sizes = QUICK if options.quick else Sizes(runs=options.runs or RUNS)
    found: dict[str, Any] = {}
    for name in [options.leg] if options.leg else legs.LEGS:
        for measure in [options.measure] if options.measure else list(measures):
            figures, servers = measures[measure](name, sizes)
            found.setdefault("machine", machine.facts([], {}))["servers"] |= servers
            found.setdefault(name, {})[measure] = figures
            for line in legs.told(figures):
                print(f"{name}, {measure}: {line}", flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    facts = found["machine"]
    print(f"{facts['date']}, {facts['cores']} cores, workq {facts['workq']['commit']}, {facts['servers']}")
    return 0


def throughput(name: str, sizes: Sizes) -> tuple[dict[str, Any], dict[str, str]]:
    """The plain loop, a worker of one process, the plain loop, a worker of two, the plain loop."""
    rates: dict[str, list[float]] = {"plain": [], "worker": [], "worker_of_two": []}
    to_plain: dict[str, list[float]] = {"worker": [], "worker_of_two": []}
    for _ in range(sizes.runs):
        before = _plain_per_s(sizes.webhooks)
        rates["plain"].append(before)
        for who, processes in (("worker", 1), ("worker_of_two", 2)):
            with _leg(name) as (leg, servers):
                rates[who].append(sizes.webhooks / _delivered_s(leg, sizes.webhooks, processes))
            after = _plain_per_s(sizes.webhooks)
            rates["plain"].append(after)
            to_plain[who].append(rates[who][-1] / statistics.mean((before, after)))
            before = after
    figures = {f"{who}_per_s": legs.spread(found) for who, found in rates.items()}
    figures |= {f"{who}_to_plain": legs.spread(found) for who, found in to_plain.items()}
    return {"webhooks": sizes.webhooks, **figures}, servers


def _plain_per_s(count: int) -> float:
    with Receiver() as receiver:
        command = [sys.executable, "-m", "benchmarks.posts", "loop", receiver.to("plain"), str(count)]
        took_s = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        arrived = len(receiver.seen()["plain"])
    if arrived != count:
        raise RuntimeError(f"of {count}, {arrived} have arrived")
    return count / took_s


def _delivered_s(leg: Leg, count: int, processes: int) -> float:
    leg.outbox.endpoints.add(
        leg.receiver.to("queued"), endpoint_id="queued", secret=posts.SECRET, concurrency=100 * posts.AT_ONCE
    )
    leg.send_at_once(count, "queued")
    with leg.worker(processes=processes):
        legs.until(lambda: leg.attempts()[0] >= count, "all are delivered", every_s=0.5)
    recorded, took_s = leg.attempts()
    arrived = len(leg.receiver.seen()["queued"])
    if (recorded, arrived) != (count, count):
        raise RuntimeError(f"of {count}, {arrived} have arrived, and {recorded} attempts are recorded")
    return took_s


def slow(name: str, sizes: Sizes) -> tuple[dict[str, Any], dict[str, str]]:
    """One endpoint that sleeps, with a backlog of its own, and one that does not."""
    with _leg(name) as (leg, servers):
        leg.outbox.endpoints.add(leg.receiver.slow("slow", sizes.slow_s), endpoint_id="slow")
        leg.outbox.endpoints.add(leg.receiver.to("quick"), endpoint_id="quick")
        with leg.worker():
            for _ in range(100):
                leg.outbox.send("order.paid", posts.DATA, endpoint="slow")
            sent = _send_steadily(leg, ["quick"], sizes)
            late_s = _late_s(leg, sent)
        return {"slow_s": sizes.slow_s, "sent": sent, "rate_per_s": sizes.rate, **_percentiles(late_s)}, servers


def dead(name: str, sizes: Sizes) -> tuple[dict[str, Any], dict[str, str]]:
    """All alive, then one dead."""
    figures: dict[str, Any] = {"endpoints": sizes.endpoints, "rate_per_s": sizes.rate}
    with _leg(name) as (leg, servers), socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(1)  # who connects waits for an answer that nobody gives
        names = [f"e{number}" for number in range(sizes.endpoints)]
        for one in names:
            leg.outbox.endpoints.add(leg.receiver.to(one), endpoint_id=one, total_s=sizes.deadline_s)
        with leg.worker():
            for is_dead in (False, True):
                if is_dead:
                    leg.outbox.endpoints.edit("e0", url=f"http://127.0.0.1:{hole.getsockname()[1]}/")
                sent = _send_steadily(leg, names, sizes)
                if is_dead:
                    sent -= -(-sent // len(names))
                late_s = _late_s(leg, sent)
                for percentile, ms in _percentiles(late_s).items():
                    figures[f"{'dead' if is_dead else 'alive'}_{percentile}"] = ms
    figures["p99_dead_to_alive"] = figures["dead_p99_ms"] / figures["alive_p99_ms"]
    return figures, servers


def _send_steadily(leg: Leg, names: list[str], sizes: Sizes) -> int:
    """Send to each in turn, so many a second; answers how many."""
    count = int(sizes.rate * sizes.seconds)
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / sizes.rate - time.monotonic()))
        leg.outbox.send("order.paid", posts.DATA, endpoint=names[number % len(names)])
    return count


def _late_s(leg: Leg, count: int) -> list[float]:
    """How late each was, when so many have come."""
    late_s: list[float] = []

    def have_come() -> bool:
        late_s.extend(seconds for what in leg.receiver.seen().values() for _, seconds in what)
        return len(late_s) >= count

    legs.until(have_come, f"{count} have arrived")
    return late_s


def _percentiles(late_s: list[float]) -> dict[str, float]:
    late_s = sorted(late_s)
    return {
        "p50_ms": 1e3 * statistics.median(late_s),
        "p99_ms": 1e3 * late_s[int(0.99 * (len(late_s) - 1))],
        "most_ms": 1e3 * late_s[-1],
    }


@contextmanager
def _leg(name: str) -> Iterator[tuple[Leg, dict[str, str]]]:
    with (
        legs.opened(name, WORKQ_WEBHOOK_ALLOW="loopback") as (app, folder, servers),
        closing(app.database()) as database,
        Receiver() as receiver,
    ):
        yield Leg(name, app, database, Outbox(app), receiver, folder), servers


if __name__ == "__main__":
    sys.exit(main())
