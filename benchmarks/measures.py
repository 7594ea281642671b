"""The measures: what is done to a contestant, and the figures that come out.

Every step takes one contestant through one or two measures in a fresh place, and yields figures by name, each as soon
as it stands: a failure takes none away. Rates are tasks a
second; `..._cpu_s` are CPU seconds per 1,000 tasks; `..._ms` milliseconds; `pss_mb` megabytes of the workers.

- bulk: one call for many, until it returned (`bulk_rate`), and until everything is with the servers (`published_rate`).
- drain: tasks are there before any worker starts; from the first start to the last. `mid90_rate` leaves out the first
  and the last 5 % of the tasks.
- enqueue: one by one, from one thread, and from 8 (8 coroutines where the client is asynchronous).
- drain1: as drain, of tasks that were enqueued one by one.
- latency: an open loop; from the instant a task was scheduled at to its start.
- delay: the same loop, of tasks that are due in 1 s, and in 5 s; from the instant a task was due at to its start.
- sustained: a producer in bulk and the workers at once; from the producer's begin to the last start.
- kill: every worker process, supervisors included, gets SIGKILL when 30 % of the tasks are done, and the workers are
  started again at once. Counted at completion: `missing`, `run_twice`; and `started_twice`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arena import Arena
from benchmarks.arrivals import quantile
from benchmarks.crew import Crew, Produced, StepFailed
from benchmarks.follow import Followed, Follower
from benchmarks.roster import Contestant

Figures = dict[str, float]

THREADS = 8
RATE = 200.0
DELAYS_S = (1.0, 5.0)
PREPARE_LIMIT_S = 60.0
STALL_S = 25.0
"""No record for so long means that a drain stands still. Longer than any peer's pause between looks."""
UP_STALL_S = STALL_S + 30.0
"""The same where the workers still come up."""
MISSING_MAX = 0.01
"""A drain that ends with fewer tasks missing than this share of them is a figure, with the number; else a failure."""
COUNTED_MIN = 0.8
"""CPU is a figure when at least this share of the tasks ran after it began to be counted."""
KILL_BODY_S = 0.005
KILL_AT = 0.3
AT_MOST_ONCE_LIMIT_S = 20.0
"""How long to wait for tasks after the kill where nobody promises that they come back."""
AFTER_KILL_S = 3.0
"""How long duplicates may still come once every task has been completed."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        drain: tasks of bulk and drain; of `share` 1.
        one: tasks enqueued one by one, and drained for drain1.
        threads: tasks enqueued from threads.
        sustained: tasks of the sustained measure.
        latency_s, warm_s: of the open loop at 200 a second: measured, and before it.
        delayed: tasks of each delay.
        kill: tasks of the kill measure.
        kill_limit_s: how long to wait for tasks that seem to be lost; less where nobody promises them.
    """

    drain: int
    one: int
    threads: int
    sustained: int
    latency_s: float
    warm_s: float
    delayed: int
    kill: int
    kill_limit_s: float


def sizes(tasks: int, *, is_quick: bool) -> Size:
    """The sizes that belong to a number of tasks to drain."""
    return Size(
        drain=tasks,
        one=tasks // 2,
        threads=tasks // 4,
        sustained=2 * tasks,
        latency_s=2.0 if is_quick else 10.0,
        warm_s=1.0 if is_quick else 5.0,
        delayed=100 if is_quick else 1000,
        kill=min(tasks, 2000),
        kill_limit_s=120.0,
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """One contestant, ready to be measured."""

    arena: Arena
    contestant: Contestant
    python: Path
    size: Size

    def tasks(self, tasks: int, share: float | None = None) -> int:
        """The contestant's share of a number of tasks."""
        return max(10, round(tasks * (self.contestant.share if share is None else share)))


def bulk_and_drain(bench: Bench, asked: frozenset[str]) -> Iterator[Figures]:
    """The figures of `bulk` and `drain`, whichever are asked for: the one fills the queue of the other."""
    tasks = bench.tasks(bench.size.drain)
    with bench.arena.place(bench.contestant) as place, Crew(bench.contestant, bench.python, place) as crew:
        crew.call("prepare", limit_s=PREPARE_LIMIT_S)
        if "bulk" in asked:
            produced, servers = _produce(bench, crew, "enqueue-bulk", tasks)
            yield {
                "bulk_tasks": tasks,
                "bulk_rate": tasks / produced.seconds,
                "bulk_published_rate": tasks / produced.published_seconds,
                **_cost("bulk", produced.cpu_s, servers, tasks),
            }
        else:
            crew.call("fill", tasks, limit_s=_limit_s(tasks))
        if "drain" in asked:
            yield _drain(bench, crew, tasks, "drain")


def one_by_one(bench: Bench, asked: frozenset[str]) -> Iterator[Figures]:
    """The figures of `enqueue` and `drain1`, whichever are asked for."""
    tasks = bench.tasks(bench.size.one)
    with bench.arena.place(bench.contestant) as place, Crew(bench.contestant, bench.python, place) as crew:
        crew.call("prepare", limit_s=PREPARE_LIMIT_S)
        produced, servers = _produce(bench, crew, "enqueue-one", tasks)
        if "enqueue" in asked:
            yield {
                "enqueue_tasks": tasks,
                "enqueue_rate": tasks / produced.seconds,
                "enqueue_published_rate": tasks / produced.published_seconds,
                **_cost("enqueue", produced.cpu_s, servers, tasks),
            }
        if "drain1" in asked:
            yield _drain(bench, crew, tasks, "drain1")


def from_threads(bench: Bench, _: frozenset[str]) -> Iterator[Figures]:
    """The figures of `enqueue` from 8 threads."""
    tasks = bench.tasks(bench.size.threads)
    with bench.arena.place(bench.contestant) as place, Crew(bench.contestant, bench.python, place) as crew:
        crew.call("prepare", limit_s=PREPARE_LIMIT_S)
        produced = crew.call("enqueue-threads", tasks, THREADS, limit_s=_limit_s(tasks))
        yield {"threads_rate": tasks / produced.seconds, "threads_published_rate": tasks / produced.published_seconds}


def latency(bench: Bench, _: frozenset[str]) -> Iterator[Figures]:
    """The figures of `latency`."""
    warm, tasks = round(bench.size.warm_s * RATE), round(bench.size.latency_s * RATE)
    with bench.arena.place(bench.contestant) as place, Crew(bench.contestant, bench.python, place) as crew:
        crew.call("prepare", limit_s=PREPARE_LIMIT_S)
        follower = Follower(bench.arena, crew, poll_s=0.25)
        crew.start()
        producer = crew.begin("latency", warm, tasks, RATE, bench.contestant.workers)
        limit_s = 60.0 + (warm + tasks) / RATE
        is_complete = follower.until(warm + tasks, stall_s=UP_STALL_S, limit_s=limit_s, producer=producer)
        produced = crew.result(producer, "latency", limit_s=limit_s)
        seen = follower.finish()
    first: dict[int, float] = {}
    for record in seen.ends:
        first.setdefault(record.index, record.at)
    late_ms = sorted(1e3 * (at - produced.began - index / RATE) for index, at in first.items() if index >= warm)
    if len(late_ms) < tasks * (1.0 - MISSING_MAX):
        raise StepFailed(f"latency: only {len(late_ms)} of {tasks} tasks ran")
    yield {
        "p50_ms": quantile(late_ms, 0.5),
        "p90_ms": quantile(late_ms, 0.9),
        "p99_ms": quantile(late_ms, 0.99),
        "max_ms": late_ms[-1],
        "latency_missing": 0 if is_complete else warm + tasks - len(first),
        **_cost_of_running("latency", seen),
    }


def delay(bench: Bench, _: frozenset[str]) -> Iterator[Figures]:
    """The figures of `delay`. Who is early is late by less than nothing."""
    tasks = bench.size.delayed
    for delay_s in DELAYS_S:
        with bench.arena.place(bench.contestant) as place, Crew(bench.contestant, bench.python, place) as crew:
            crew.call("prepare", limit_s=PREPARE_LIMIT_S)
            follower = Follower(bench.arena, crew, poll_s=0.25)
            crew.start()
            producer = crew.begin("delays", tasks, RATE, delay_s, bench.contestant.workers)
            limit_s = 60.0 + tasks / RATE + delay_s
            follower.until(tasks, stall_s=UP_STALL_S + delay_s, limit_s=limit_s, producer=producer)
            produced = crew.result(producer, "delays", limit_s=limit_s)
            seen = follower.finish()
        missing = _checked(crew, seen, tasks)
        first: dict[int, float] = {}
        for record in seen.ends:
            first.setdefault(record.index, record.at)
        late_ms = sorted(1e3 * (at - produced.began - index / RATE - delay_s) for index, at in first.items())
        name = f"delay_{delay_s:.0f}s"
        yield {
            f"{name}_p50_ms": quantile(late_ms, 0.5),
            f"{name}_p99_ms": quantile(late_ms, 0.99),
            f"{name}_max_ms": late_ms[-1],
            f"{name}_min_ms": late_ms[0],
            f"{name}_missing": missing,
        }


def sustained(bench: Bench, _: frozenset[str]) -> Iterator[Figures]:
    """The figures of `sustained`."""
    tasks = bench.tasks(bench.size.sustained, bench.contestant.sustained_share)
    with bench.arena.place(bench.contestant) as place, Crew(bench.contestant, bench.python, place) as crew:
        crew.call("prepare", limit_s=PREPARE_LIMIT_S)
        follower = Follower(bench.arena, crew, poll_s=0.05)
        crew.start()
        producer = crew.begin("sustained", tasks, bench.contestant.workers)
        follower.until(tasks, stall_s=UP_STALL_S, limit_s=_limit_s(tasks) + 60.0, producer=producer)
        produced = crew.result(producer, "sustained", limit_s=_limit_s(tasks))
        seen = follower.finish()
    missing = _checked(crew, seen, tasks)
    last = max(record.at for record in seen.ends)
    yield {
        "sustained_tasks": tasks,
        "sustained_rate": len(seen.done) / (last - produced.began),
        "sustained_enqueue_rate": tasks / produced.published_seconds,
        "sustained_missing": missing,
        "sustained_producer_cpu_s": 1e3 * produced.cpu_s / tasks,
        **_cost_of_running("sustained", seen),
    }


def kill(bench: Bench, _: frozenset[str]) -> Iterator[Figures]:
    """The figures of `kill`."""
    tasks = bench.size.kill
    with (
        bench.arena.place(bench.contestant, body_s=KILL_BODY_S) as place,
        Crew(bench.contestant, bench.python, place) as crew,
    ):
        crew.call("prepare", limit_s=PREPARE_LIMIT_S)
        crew.call("fill", tasks, limit_s=_limit_s(tasks))
        follower = Follower(bench.arena, crew, poll_s=0.005)
        crew.start()
        if not follower.until(round(KILL_AT * tasks), stall_s=STALL_S, limit_s=60.0 + 0.05 * tasks):
            raise crew.failed(f"only {len(follower.seen.done)} of {tasks} tasks ran before the kill")
        killed_at = time.time()
        crew.kill()
        crew.start()
        limit_s = AT_MOST_ONCE_LIMIT_S if bench.contestant.is_lossy else bench.size.kill_limit_s
        if follower.until(tasks, stall_s=limit_s, limit_s=limit_s):
            time.sleep(AFTER_KILL_S)
        follower.look()
        seen = follower.seen
    ends, starts = (Counter(record.index for record in records) for records in (seen.ends, seen.starts))
    first: dict[int, float] = {}
    for record in seen.ends:
        first.setdefault(record.index, record.at)
    yield {
        "kill_tasks": tasks,
        "missing": tasks - len(ends),
        "run_twice": sum(1 for times in ends.values() if times > 1),
        "started_twice": sum(1 for times in starts.values() if times > 1),
        "last_s": max(first.values()) - killed_at,
    }


STEPS: tuple[tuple[frozenset[str], Callable[[Bench, frozenset[str]], Iterator[Figures]]], ...] = (
    (frozenset({"bulk", "drain"}), bulk_and_drain),
    (frozenset({"enqueue", "drain1"}), one_by_one),
    (frozenset({"enqueue"}), from_threads),
    (frozenset({"latency"}), latency),
    (frozenset({"delay"}), delay),
    (frozenset({"sustained"}), sustained),
    (frozenset({"kill"}), kill),
)
"""What is run for which measures, in this order."""


def _produce(bench: Bench, crew: Crew, step: str, tasks: int) -> tuple[Produced, dict[str, float]]:
    """One enqueuing step, and the CPU seconds of the servers meanwhile."""
    before = bench.arena.cpu_s(bench.contestant)
    produced = crew.call(step, tasks, limit_s=_limit_s(tasks))
    after = bench.arena.cpu_s(bench.contestant)
    return produced, {name: after[name] - before[name] for name in after}


def _drain(bench: Bench, crew: Crew, tasks: int, name: str) -> Figures:
    follower = Follower(bench.arena, crew, poll_s=0.01, is_weighed=True)
    crew.start()
    follower.until(tasks, stall_s=STALL_S, limit_s=_limit_s(tasks) + 60.0)
    seen = follower.finish()
    missing = _checked(crew, seen, tasks)
    starts = sorted(record.at for record in seen.ends)
    low, high = starts[int(0.05 * len(starts))], starts[int(0.95 * len(starts)) - 1]
    return {
        f"{name}_tasks": tasks,
        f"{name}_rate": len(starts) / (starts[-1] - starts[0]),
        f"{name}_mid90_rate": 0.9 * len(starts) / (high - low),
        f"{name}_missing": missing,
        f"{name}_pss_mb": seen.pss_mb,
        **_cost_of_running(name, seen),
    }


def _checked(crew: Crew, seen: Followed, tasks: int) -> int:
    """How many tasks are missing, if that is few.

    Raises:
        StepFailed: it is more than `MISSING_MAX` of them.
    """
    missing = tasks - len(seen.done)
    if missing > MISSING_MAX * tasks or len(seen.ends) < 2:
        raise crew.failed(f"it stood still with {len(seen.done)} of {tasks} tasks run")
    return missing


def _cost_of_running(name: str, seen: Followed) -> Figures:
    """CPU per 1,000 tasks, unless most of them ran before it could be looked at: a handful of tasks says nothing."""
    if seen.counted < COUNTED_MIN * len(seen.ends):
        return {}
    return _cost(name, seen.worker_cpu_s, seen.server_cpu_s, seen.counted)


def _cost(name: str, client_cpu_s: float, server_cpu_s: Mapping[str, float], tasks: int) -> Figures:
    """CPU seconds per 1,000 tasks: of the client (workers, or the producer), of each server, and of all together."""
    each = {f"{name}_{server}_cpu_s": 1e3 * used / tasks for server, used in server_cpu_s.items()}
    total = client_cpu_s + sum(server_cpu_s.values())
    return {f"{name}_client_cpu_s": 1e3 * client_cpu_s / tasks, **each, f"{name}_total_cpu_s": 1e3 * total / tasks}


def _limit_s(tasks: int) -> float:
    """More than the slowest peer needs at any step: 50 ms for each task."""
    return 60.0 + 0.05 * tasks
