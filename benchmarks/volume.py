"""`python -m benchmarks.volume`: many messages at their time, counted at their destination.

    sustained   recorded at a steady rate, each due 1 to 60 s ahead, while the workers send what is due
    moment      recorded beforehand, and all of them due at one moment
    waiting     100,000 become due within 20 s: beside 1,000 that wait for tomorrow, and beside 1,000,000
    restore     100,000 have arrived, their destination is wiped, and a person restores them all

What counts is what arrives: in a queue of RabbitMQ, which a process of its own reads, or in a topic of Kafka, by the
broker's clock. The recorder, the workers, the reader and all servers share the processors of this machine. The ledger
is PostgreSQL, and delayed hints are its rows, unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil

from benchmarks import legs, usage
from workq import WorkQueue
from workq.demo.messages.mailboxes import NAME, AmqpBox, KafkaBox, Mailbox
from workq.demo.messages.proof import Arrival, ExpectedMessage, MailboxTally, tally
from workq.lab.fleet import Host
from workq.lab.servers import start_kafka, start_rabbitmq
from workq.ledger.claims import Claims
from workq.messages import Messages
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import WhichMessages
from workq.values.task import State

APP: Final = "benchmarks.volume:wq"
TO: Final = "there"
NEAREST_S: Final = 1.0
FARTHEST_S: Final = 60.0
PAGE_S: Final = 0.1
"""What is recorded within this goes into one transaction."""
PAGE: Final = 1_000
WITHIN_S: Final = 20.0
HEAD_START_S: Final = 5.0
PATIENCE_S: Final = 120.0
"""A run in which nothing has moved for so long is counted as it is."""
RATE: Final = 5_000.0
RECORDED_S: Final = 60.0
FILLING: Final = "x" * 200
SEED: Final = 30
CLAIMS: Final = "BENCH_CLAIMS"
"""The folder in which each process of the worker writes how long its claims took."""

wq = WorkQueue()
messages = Messages(wq)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done. `rate`: recorded a second."""

    rate: float
    sustained: int
    moment: int = 50_000
    few_wait: int = 1_000
    many_wait: int = 1_000_000
    come_due: int = 100_000
    restored: int = 100_000
    processes: int = 2
    threads: int = 4


QUICK: Final = Sizes(200.0, 400, 500, 100, 2_000, 400, 300)


class Reader:
    """A queue of RabbitMQ, read by a process of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.about = "a queue of RabbitMQ, read by a process of its own"
        self.options: dict[str, Any] = {"url": url, "exchange": "", "routing_key": NAME}
        self._file = folder / "arrivals.json"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.volume", "read", url, str(self._file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def arrivals(self) -> list[Arrival]:
        """See `Mailbox`. The process has ended then."""
        self._process.communicate(timeout=PATIENCE_S)
        return [Arrival(*one) for one in json.loads(self._file.read_text())]

    def close(self) -> None:
        """End the process, if it lives."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def read(url: str, file: Path) -> None:
    """Be the process that reads, until the standard input ends."""
    box = AmqpBox(url, "")
    print("ready", flush=True)
    sys.stdin.read()
    file.write_text(json.dumps([(one.id, one.body, one.at) for one in box.arrivals()]))


@dataclass(slots=True)
class Stage:
    """A queue on its stores, its worker, and one destination."""

    app: WorkQueue
    sending: Messages
    box: Mailbox
    host: Host
    folder: Path
    expected: dict[str, ExpectedMessage] = field(default_factory=dict)

    def record(self, page: list[dict[str, Any]]) -> None:
        """Record these in one transaction, and expect them."""
        for one, sent in zip(page, self.sending.send_many(TO, page), strict=True):
            self.expected[sent.id] = ExpectedMessage(one["body"], one["at"].timestamp())

    def wait(self) -> None:
        """Until all that is expected was sent, or nothing moves any more. Asks little before the last one is due."""
        time.sleep(max(0.0, max(one.due_at for one in self.expected.values()) - time.time()))
        last, moved_at = -1, time.monotonic()
        while time.monotonic() - moved_at < PATIENCE_S:
            states = self.app.stores.ledger.part(MessageLedger).letters.counts(WhichMessages())
            done = states.get(State.SUCCEEDED, 0)
            if done >= len(self.expected):
                return
            if done != last:
                last, moved_at = done, time.monotonic()
            time.sleep(1.0)

    def tally(self, arrivals: list[Arrival]) -> MailboxTally:
        """Count what came."""
        return tally(TO, self.expected, arrivals)


@contextmanager
def stage(kind: str, leg: str, ladder: str, sizes: Sizes) -> Iterator[Stage]:
    """All of it, running; all of it is gone afterwards."""
    with ExitStack() as stack:
        app, folder, _ = stack.enter_context(legs.opened(leg, CLAIMS, WORKQ_LADDER=ladder))
        box: Mailbox
        if kind == "kafka":
            box = KafkaBox(stack.enter_context(start_kafka()))
        else:
            box = reader = Reader(stack.enter_context(start_rabbitmq()).url, folder)
            stack.callback(reader.close)
        sending = Messages(app)
        sending.destinations.add(TO, kind=kind, **box.options)
        host = Host(folder, 1, app=APP, processes=sizes.processes, threads=sizes.threads)
        host.start()
        stack.callback(_end, host)
        legs.until(lambda: len(app.stores.ledger.questions.workers()) >= sizes.processes, "the worker is up")
        yield Stage(app, sending, box, host, folder)


def _end(host: Host) -> None:
    host.terminate()
    if host.wait(60.0) is None:
        host.kill()


def main() -> int:
    """Measure, and print a line of JSON for each run. Answers 0; 3: something is missing, early, or foreign."""
    if sys.argv[1:2] == ["read"]:
        read(sys.argv[2], Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.volume", description="many messages at their time")
    parser.add_argument("--only", default=",".join(MEASURES), help=f"some of {','.join(MEASURES)} [all]")
    parser.add_argument("--kind", default="amqp,kafka", help="of the destination [amqp,kafka]")
    parser.add_argument("--leg", choices=legs.LEGS, default="servers")
    parser.add_argument("--ladder", default="ledger")
    parser.add_argument("--rate", type=float, default=RATE, help="recorded a second [5000]")
    parser.add_argument("--quick", action="store_true", help="small numbers: to try it, not to quote")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes(options.rate, round(options.rate * RECORDED_S))
    is_right = True
    for name in options.only.split(","):
        for kind in options.kind.split(",") if name in OF_EACH_KIND else ["amqp"]:
            about = {"measure": name, "kind": kind, "leg": options.leg, "ladder": options.ladder}
            for figures in MEASURES[name](kind, options.leg, options.ladder, sizes):
                is_right &= not any(figures[one] for one in ("missing", "early", "foreign"))
                print(json.dumps(about | figures), flush=True)
    print(f"load of the last 1, 5, 15 minutes: {os.getloadavg()}", file=sys.stderr)
    return 0 if is_right else 3


# -- the measures


def sustained(kind: str, leg: str, ladder: str, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Record at a steady rate."""
    rng, size = Random(SEED), max(1, round(sizes.rate * PAGE_S))
    with stage(kind, leg, ladder, sizes) as run:
        used, began = _used(), time.monotonic()
        for first in range(0, sizes.sustained, size):
            time.sleep(max(0.0, began + first / sizes.rate - time.monotonic()))
            now = datetime.now(UTC)
            ahead = [timedelta(seconds=rng.uniform(NEAREST_S, FARTHEST_S)) for _ in range(size)]
            run.record([_message(first + number, now + one) for number, one in enumerate(ahead)])
        recorded_s = time.monotonic() - began
        run.wait()
        spent = {name: value - used.get(name, 0.0) for name, value in _used().items()}
        yield _figures(run, recorded_s) | {"processor_s": {name: round(value, 1) for name, value in spent.items()}}


def moment(kind: str, leg: str, ladder: str, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Record all for one moment."""
    with stage(kind, leg, ladder, sizes) as run:
        at = datetime.now(UTC) + timedelta(seconds=HEAD_START_S + sizes.moment / 2_500)
        began = time.monotonic()
        for first in range(0, sizes.moment, PAGE):
            run.record([_message(number, at) for number in range(first, min(sizes.moment, first + PAGE))])
        recorded_s = time.monotonic() - began
        run.wait()
        figures = _figures(run, recorded_s)
        yield figures | {"a_second": round(figures["arrived"] / figures["span_s"])}


def waiting(kind: str, leg: str, ladder: str, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Beside few that wait, and beside many."""
    for wait in (sizes.few_wait, sizes.many_wait):
        with stage(kind, leg, ladder, sizes) as run:
            tomorrow = datetime.now(UTC) + timedelta(days=1)
            for first in range(0, wait, PAGE):
                page = [_message(number, tomorrow) for number in range(first, min(wait, first + PAGE))]
                run.sending.send_many(TO, page)
            before = _resident_mib(run.host)
            rng = Random(SEED)
            begins = datetime.now(UTC) + timedelta(seconds=HEAD_START_S + sizes.come_due / 2_500)
            began = time.monotonic()
            for first in range(0, sizes.come_due, PAGE):
                after = [timedelta(seconds=rng.uniform(0.0, WITHIN_S)) for _ in range(PAGE)]
                run.record([_message(wait + first + number, begins + one) for number, one in enumerate(after)])
            recorded_s = time.monotonic() - began
            run.wait()
            grown = [round(now - was, 1) for was, now in zip(before, _resident_mib(run.host), strict=True)]
            _end(run.host)
            claims = sorted(float(line) for one in run.folder.glob("claims-*") for line in one.read_text().split())
            yield _figures(run, recorded_s) | {
                "waiting": wait,
                "grown_mib": grown,
                "claims": len(claims),
                "claim_p95_ms": round(claims[int(0.95 * (len(claims) - 1))] * 1e3, 2),
            }


def restore(kind: str, leg: str, ladder: str, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Send, forget what came, restore, and count what comes again."""
    with stage(kind, leg, ladder, sizes) as run:
        now = datetime.now(UTC)
        for first in range(0, sizes.restored, PAGE):
            run.record([_message(number, now) for number in range(first, min(sizes.restored, first + PAGE))])
        run.wait()
        began = time.monotonic()
        answer = run.sending.restore(TO, why="the destination was wiped")
        decided_s = time.monotonic() - began
        run.wait()
        arrivals = run.box.arrivals()
        times = Counter(one.id for one in arrivals)
        yield _figures(run, 0.0, arrivals) | {
            "sent_again": answer.sent_again,
            "decided_s": round(decided_s, 2),
            "restored_within_s": round(time.monotonic() - began, 1),
            "came_twice": sum(count == 2 for count in times.values()),
        }


MEASURES: Final = {"sustained": sustained, "moment": moment, "waiting": waiting, "restore": restore}
OF_EACH_KIND: Final = ("sustained", "moment")


def _message(number: int, at: datetime) -> dict[str, Any]:
    return {"body": f"{number} {FILLING}", "at": at.replace(microsecond=at.microsecond // 1000 * 1000)}


def _figures(run: Stage, recorded_s: float, arrivals: list[Arrival] | None = None) -> dict[str, Any]:
    """What a run came to. `span_s`: from the first due moment to the last arrival."""
    came = run.box.arrivals() if arrivals is None else arrivals
    found, late = run.tally(came), run.tally(came).lateness
    first = min(one.due_at for one in run.expected.values())
    figures: dict[str, Any] = {
        "sent": found.sent,
        "recorded_s": round(recorded_s, 2),
        "span_s": round(max((one.at for one in came), default=first) - first, 2),
        "arrived": found.arrived,
        "missing": len(found.missing),
        "early": len(found.early),
        "foreign": len(found.foreign),
        "copies": found.copies,
    }
    if late is not None:
        for name, seconds in (("p50_ms", late.half_s), ("p99_ms", late.p99_s), ("most_ms", late.most_s)):
            figures[name] = round(seconds * 1e3, 1)
    return figures


def _used() -> dict[str, float]:
    """Processor seconds of everything under this process by now, by what it is."""
    found: dict[str, float] = defaultdict(float)
    for one in usage.tree([os.getpid()]):
        try:
            line, times = " ".join(one.cmdline()), one.cpu_times()
        except psutil.Error:
            continue
        found[next((name for name, word in _KNOWN.items() if word in line), "recorder")] += times.user + times.system
    return found


_KNOWN: Final = {
    "reader": "benchmarks.volume read",
    "worker": "workq worker",
    "processes of the worker": "workq.consumer",
    "PostgreSQL": "postgres",
    "RabbitMQ": "beam",
    "Redis": "redis-server",
    "Kafka": "kafka",
}
"""What stands in the command line of each."""


def _resident_mib(host: Host) -> list[float]:
    """Of each process of the worker, its supervisor first."""
    return [one.memory_info().rss / 2**20 for one in host.everyone()]


def _time_claims(folder: Path) -> None:
    """In a process of the worker: write down how long each claim takes."""
    claim = Claims.claim
    file = (folder / f"claims-{os.getpid()}").open("a", buffering=1)

    def timed(self: Claims, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return claim(self, *arguments, **named)
        finally:
            file.write(f"{time.perf_counter() - began:.6f}\n")

    Claims.claim = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
if CLAIMS in os.environ:
    _time_claims(Path(os.environ[CLAIMS]))
