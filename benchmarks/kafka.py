"""workq on Kafka beside workq on RabbitMQ: `workq bench` on both, in turns, in one run.

The ledger and the in-flight store are the same servers for both: PostgreSQL and Redis. Each measure is taken on one
broker and then on the other, `--runs` times, and the brokers take turns in going first; so what else the machine does
hits both. A ratio above 1 is in Kafka's favour, also where less is better.

    python -m benchmarks.kafka [--runs 3] [--tasks 20000] [--seconds 10] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.arena import POSTGRES_OPTIONS, REDIS_OPTIONS
from workq.config import Settings
from workq.lab.bench import trial
from workq.lab.bench.trial import BenchWishes
from workq.lab.servers import start_kafka, start_postgres, start_rabbitmq, start_redis

BROKERS: Final = ("rabbitmq", "kafka")
LESS_IS_BETTER: Final = frozenset(
    {
        "latency_p50_ms",
        "latency_p99_ms",
        "first_start_s",
        "workers_cpu_us",
        "workers_memory_bytes",
        "last_completion_after_kill_s",
        "started_twice_after_kill",
    }
)
Found = dict[str, dict[str, list[float]]]
"""By broker and figure: one value a run."""


def measured(urls: Mapping[str, str], wishes: BenchWishes, runs: int) -> Found:
    """The figures of each run, the brokers in turns."""
    found: Found = {broker: {} for broker in BROKERS}
    for number in range(runs):
        for broker in BROKERS if number % 2 == 0 else BROKERS[::-1]:
            print(f"run {number + 1} of {runs}: {broker}", file=sys.stderr, flush=True)
            settings = Settings(ledger=urls["ledger"], broker=urls[broker], inflight=urls["inflight"])
            report = trial.run(settings, wishes)
            if report.missing or report.not_removed:
                raise RuntimeError(f"{broker}: missing {report.missing}, not removed {report.not_removed}")
            for name, figure in report.figures.items():
                found[broker].setdefault(name, []).append(figure.median)
    return found


def ratio(name: str, kafka: float, rabbitmq: float) -> float | None:
    """How Kafka does beside RabbitMQ: above 1 is better. None: there is nothing to divide by."""
    above, below = (rabbitmq, kafka) if name in LESS_IS_BETTER else (kafka, rabbitmq)
    return above / below if below else None


def page(found: Found) -> Iterator[str]:
    """A table for people."""
    yield f"{'':<34}{'RabbitMQ':>22}{'Kafka':>22}{'ratio':>8}"
    for name, values in found["rabbitmq"].items():
        cells = [_cell(values), _cell(found["kafka"][name])]
        told = ratio(name, statistics.median(found["kafka"][name]), statistics.median(values))
        yield f"{name:<34}{cells[0]:>22}{cells[1]:>22}{'-' if told is None else f'{told:.2f}':>8}"


def _cell(values: list[float]) -> str:
    median, least, most = (_short(one) for one in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least}-{most})"


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.0f}M"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """Fresh ones, ended afterwards."""
    with ExitStack() as stack:
        postgres = stack.enter_context(start_postgres(options=POSTGRES_OPTIONS))
        yield {
            "ledger": postgres.create_database(),
            "inflight": stack.enter_context(start_redis(options=REDIS_OPTIONS)).url,
            "rabbitmq": stack.enter_context(start_rabbitmq()).url,
            "kafka": stack.enter_context(start_kafka()).url,
        }


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long latency is measured, each time")
    parser.add_argument("--output", type=Path, help="write the figures there too")
    asked = parser.parse_args()
    wishes = BenchWishes(tasks=asked.tasks, runs=1, latency_s=asked.seconds)
    before = os.getloadavg()
    with servers() as urls:
        found = measured(urls, wishes, asked.runs)
    print("\n".join(page(found)))
    load = " ".join(f"{one:.1f}" for one in (*before, *os.getloadavg()))
    print(f"load of the machine before (1, 5, 15 minutes) and after: {load}; {os.cpu_count()} processors")
    if asked.output is not None:
        document: Any = {"figures": found, "load": [before, os.getloadavg()], "at": time.time()}
        asked.output.write_text(json.dumps(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    os.environ.pop("WORKQ_CONFIG", None)
    sys.exit(main())
