"""`python -m benchmarks.jobs`: what a job of many subtasks costs, on one SQLite file and on servers.

overhead  the package descriptions of this machine into a full-text index: a plain loop in one process, and the job with
          one worker process of one thread, in turn in one run. Seconds of the job are those of the ledger, from its
          begin to its end; the worker is up before.
kills     a job whose handlers wait: undisturbed, and with one of two worker processes killed by SIGKILL every 5 s
split     a job of ten million numbers: when its first subtask started, the memory of the process that splits (the
          largest of the worker's processes), and how long one read of its progress takes meanwhile
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks import indexing, legs, machine
from workq import WorkQueue
from workq.jobs.define import Job
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import JOB_ENDED, Begun, JobRow
from workq.lab.fleet import Host, kill

APP = "benchmarks.indexing:wq"
RUNS = 5
KILL_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done."""

    packages: int = 1_000_000
    waits: int = 10_000
    """Items of 25 ms each, ten a chunk."""
    numbers: int = 10_000_000
    runs: int = RUNS
    kill_every_s: float = KILL_EVERY_S
    kills: int | None = None
    """No more of them: a machine on which a process starts more slowly than others are killed would never end."""


QUICK = Sizes(packages=2_000, waits=400, numbers=20_000, runs=1, kill_every_s=1.0, kills=2)


@dataclass(frozen=True, slots=True)
class Leg:
    """A queue on its stores, and its jobs."""

    name: str
    app: WorkQueue
    jobs: Mapping[str, Job]
    folder: Path

    @contextmanager
    def workers(self, *, processes: int, threads: int) -> Iterator[Host]:
        """A worker that is up, and gone at the end."""
        host = Host(self.folder, 1, app=APP, processes=processes, threads=threads)
        host.start()
        try:
            legs.until(lambda: len(self.app.stores.ledger.questions.workers()) >= processes, "the worker is up")
            yield host
        finally:
            host.terminate()
            if host.wait(60.0) is None:
                host.kill()

    def ended(self, job: Begun) -> JobRow:
        """The job, when it has."""
        legs.until(lambda: self.row(job).state in JOB_ENDED, "the job ends")
        return self.row(job)

    def row(self, job: Begun) -> JobRow:
        """The job as it stands."""
        found = self.app.stores.ledger.part(JobLedger).questions.job(job.id)
        if found is None:
            raise RuntimeError(f"job {job.id} is gone")
        return found


def main() -> int:
    """Measure, print, write. Answers 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description="what a job of many subtasks costs")
    parser.add_argument("--quick", action="store_true", help="small: to try it, not to quote")
    parser.add_argument("--leg", choices=legs.LEGS, help="that alone")
    parser.add_argument("--measure", choices=("overhead", "kills", "split"), help="that alone")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes()
    measures = {"overhead": overhead, "kills": kills, "split": split}
    found: dict[str, Any] = {}
    for name in [options.leg] if options.leg else legs.LEGS:
        for measure in [options.measure] if options.measure else list(measures):
            with _leg(name) as (leg, servers):
                figures = measures[measure](leg, sizes)
                found.setdefault("machine", machine.facts([], {}))["servers"] |= servers
            found.setdefault(name, {})[measure] = figures
            for line in legs.told(figures):
                print(f"{name}, {measure}: {line}", flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    facts = found["machine"]
    print(f"{facts['date']}, {facts['cores']} cores, workq {facts['workq']['commit']}, {facts['servers']}")
    return 0


def overhead(leg: Leg, sizes: Sizes) -> dict[str, Any]:
    """A plain loop, and the job, in turn."""
    rows = indexing.fill(leg.folder, most=sizes.packages)
    subtasks = -(-rows // indexing.CHUNK)
    plain_s, job_s = [], []
    with leg.workers(processes=1, threads=1):
        for _ in range(sizes.runs):
            indexing.new_index(leg.folder, "plain")
            plain_s.append(indexing.plain(leg.folder, "plain"))
            indexing.new_index(leg.folder, "queued")
            row = leg.ended(leg.jobs["index"].run(folder=str(leg.folder), name="queued"))
            job_s.append(row.ran_s)
            done = [indexing.indexed(leg.folder, name) for name in ("plain", "queued")]
            if done != [rows, rows] or row.succeeded != rows:
                raise RuntimeError(f"indexed {done} of {rows}, succeeded {row.succeeded}")
    more_ms = [1e3 * (queued - alone) / subtasks for queued, alone in zip(job_s, plain_s, strict=True)]
    return {
        "rows": rows,
        "subtasks": subtasks,
        "plain_s": legs.spread(plain_s),
        "job_s": legs.spread(job_s),
        "job_to_plain": legs.spread([queued / alone for queued, alone in zip(job_s, plain_s, strict=True)]),
        "more_ms_a_subtask": legs.spread(more_ms),
    }


def kills(leg: Leg, sizes: Sizes) -> dict[str, Any]:
    """Undisturbed, and under kills."""
    seconds, killed = {}, 0
    with leg.workers(processes=2, threads=4) as host:
        for is_killed in (False, True):
            job = leg.jobs["wait"].run(to=sizes.waits, seconds=0.25)
            next_at = time.monotonic() + sizes.kill_every_s
            while leg.row(job).state not in JOB_ENDED:
                if is_killed and time.monotonic() >= next_at and killed != sizes.kills:
                    consumers = host.consumers()
                    killed += len(kill(consumers[:1]))
                    next_at += sizes.kill_every_s
                time.sleep(0.05)
            row = leg.row(job)
            if row.succeeded != sizes.waits:
                raise RuntimeError(f"{row.succeeded} of {sizes.waits} items succeeded")
            seconds[is_killed] = row.ran_s
    return {
        "items": sizes.waits,
        "undisturbed_s": seconds[False],
        "killed_s": seconds[True],
        "kills": killed,
        "killed_to_undisturbed": seconds[True] / seconds[False],
    }


def split(leg: Leg, sizes: Sizes) -> dict[str, Any]:
    """Ten million numbers."""
    status_ms: list[float] = []
    memory = 0
    with leg.workers(processes=2, threads=2) as host:
        before = max(one.memory_info().rss for one in host.consumers())
        job = leg.jobs["count"].run(to=sizes.numbers)
        while True:
            began = time.perf_counter()
            row = leg.row(job)
            status_ms.append(1e3 * (time.perf_counter() - began))
            memory = max([memory, *(one.memory_info().rss for one in host.consumers())])
            if row.state in JOB_ENDED:
                break
            time.sleep(0.05)
    if row.succeeded != sizes.numbers:
        raise RuntimeError(f"{row.succeeded} of {sizes.numbers} items succeeded")
    status_ms.sort()
    return {
        "items": sizes.numbers,
        "subtasks": row.subtasks,
        "ran_s": row.ran_s,
        "first_start_s": _first_start_s(leg, row),
        "memory_before_mib": before / 2**20,
        "memory_mib": memory / 2**20,
        "status_p50_ms": statistics.median(status_ms),
        "status_p99_ms": status_ms[int(0.99 * (len(status_ms) - 1))],
        "status_most_ms": status_ms[-1],
    }


def _first_start_s(leg: Leg, row: JobRow) -> float:
    """From the begin of a job to the start of its first subtask, by the ledger's clock."""
    database = leg.app.database()
    t, s = database.tables.task, job_tables(database).subtask
    query = select(t.c.started_at).join(s, s.c.task_id == t.c.id).where(s.c.job_id == row.id, s.c.number == 1)
    started = database.ask(lambda tx: tx.execute(query).scalar_one())
    database.close()
    return float((started - row.created_at).total_seconds())


@contextmanager
def _leg(name: str) -> Iterator[tuple[Leg, dict[str, str]]]:
    with legs.opened(name, indexing.FOLDER) as (app, folder, servers):
        yield Leg(name, app, indexing.jobs(app), folder), servers


if __name__ == "__main__":
    sys.exit(main())
