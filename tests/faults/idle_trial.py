"""`make idle-kafka`: 64 processes on 8 partitions of Kafka, with tasks of 1 ms to 60 s. Nobody waits while one is idle.

A partition belongs to one process, so most of these processes never get a hint, and most hints come to a process that
is busy. Tasks are recorded at random, alone, in pages and with delays, at a rate that keeps some processes idle. Of
each task the ledger has when it was due, and the handler when it started; from the handlers' starts and ends follows
how many processes were idle at each moment. What counts is the part of a task's wait in which at least one was.

A process counts as idle from the end of a handler to the start of the next, also while it settles and claims. What the
machine itself was late to wake a thread up is measured meanwhile and printed apart; beyond that `BOUND_S` is right.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.standstill import Standstill
from tests.system.legs import Leg
from tests.system.witness import Line
from workq.lab.servers import start_kafka, start_postgres, start_redis

BOUND_S = 3.0
SHORTEST_S, LONGEST_S = 0.001, 60.0
MEAN_S = (LONGEST_S - SHORTEST_S) / math.log(LONGEST_S / SHORTEST_S)
"""Of durations whose logarithms are spread evenly."""
BUSY = 0.65
"""So much of the processes the tasks occupy in the mean."""
PAGE = 10
DELAY_S = 1.0
TASKS_A_CALL = 0.1 * PAGE + 0.9
WAKE_S = 0.05
LONG_S = 180.0


@dataclass(frozen=True)
class Waited:
    """One task: its number, when it was due and when it started; of its wait, how long somebody was idle."""

    number: int
    due: float
    started: float
    idle_s: float
    late_s: float
    """So much the machine was late to wake a thread up meanwhile, all together."""

    @property
    def is_long(self) -> bool:
        """Whether it waited longer than is promised, and not for the machine."""
        return self.idle_s - self.late_s > BOUND_S


@dataclass(frozen=True)
class Idleness:
    """How many of some processes were idle: from each moment on, and for how long any was before it."""

    moments: Sequence[float]
    idle: Sequence[int]
    any_s: Sequence[float]

    @staticmethod
    def of(lines: Iterable[Line], *, processes: int) -> Idleness:
        """From what the handlers wrote. Each process runs one task at a time."""
        changes = sorted((line.at, -1 if line.what == "start" else 1) for line in lines)
        moments, idle, any_s = [0.0], [processes], [0.0]
        for at, change in changes:
            any_s.append(any_s[-1] + (at - moments[-1] if idle[-1] > 0 else 0.0))
            moments.append(at)
            idle.append(idle[-1] + change)
        return Idleness(moments, idle, any_s)

    def between(self, began: float, ended: float) -> float:
        """For how long at least one was idle."""
        return self._until(ended) - self._until(began)

    def _until(self, moment: float) -> float:
        place = bisect.bisect_right(self.moments, moment) - 1
        return self.any_s[place] + (moment - self.moments[place] if self.idle[place] > 0 else 0.0)


@dataclass(frozen=True)
class IdleFigures:
    """What came of it."""

    recorded: int
    waited: Sequence[Waited]
    polled: int
    """Tasks that a process found in the ledger."""
    again: int
    """Starts beyond the first."""
    idle: Idleness

    @property
    def long(self) -> list[Waited]:
        """What waited too long, the longest first."""
        return sorted((one for one in self.waited if one.is_long), key=lambda one: -one.idle_s)

    @property
    def is_right(self) -> bool:
        """Each task has started once, and none waited longer than `BOUND_S` while somebody was idle."""
        return len(self.waited) == self.recorded > 0 and not (self.long or self.again)


class Work:
    """Records tasks at random, for so long; remembers what each was to wait for."""

    def __init__(self, leg: Leg, *, seed: int, processes: int) -> None:
        self.delays: list[float] = []
        """Of each task, by its number."""
        self._leg = leg
        self._rng = random.Random(seed)
        self._calls_a_second = BUSY * processes / MEAN_S / TASKS_A_CALL

    def record(self, *, seconds: float, tell: Callable[[int], None]) -> None:
        """Tell, every 15 s, how many were recorded."""
        began = told_at = time.monotonic()
        next_at = began
        while next_at < began + seconds:
            time.sleep(max(0.0, next_at - time.monotonic()))
            self._call(self._rng.random())
            next_at += self._rng.expovariate(self._calls_a_second)
            if time.monotonic() > told_at + 15.0:
                told_at = time.monotonic()
                tell(len(self.delays))

    def _call(self, which: float) -> None:
        note = self._leg["note"]
        if which < 0.1:
            note.enqueue_many([self._task(0.0) for _ in range(PAGE)])
        elif which < 0.2:
            note.options(delay_s=DELAY_S).enqueue(**self._task(DELAY_S))
        else:
            note.enqueue(**self._task(0.0))

    def _task(self, delay_s: float) -> dict[str, float]:
        self.delays.append(delay_s)
        seconds = math.exp(self._rng.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        return {"number": len(self.delays) - 1, "seconds": round(seconds, 4)}


def try_idleness(
    leg: Leg, *, processes: int, seconds: float, seed: int, tell: Callable[[str], None] = lambda _: None
) -> IdleFigures:
    """Record tasks for so long, and wait until the last has ended."""
    machine = Standstill(lambda: None, every_s=WAKE_S)
    wall_s = time.time() - time.monotonic()
    machine.start()
    with leg.fleet(processes=processes, threads=1) as fleet:
        fleet.wait_whole(processes, timeout_s=LONG_S)
        tell(f"{processes} processes have started")
        work = Work(leg, seed=seed, processes=processes)
        work.record(seconds=seconds, tell=lambda count: tell(f"{count} recorded"))
        leg.wait_settled(timeout_s=LONGEST_S + LONG_S)
        used_s = sum(sum(one.cpu_times()[:2]) for one in fleet.children())
        memory = sum(one.memory_full_info().pss for one in fleet.children())
        tell(f"the processes used {used_s:.0f} s of a processor, and have {memory / 2**20 / processes:.0f} MiB each")
        fleet.terminate()
        fleet.wait(LONG_S)
    lines = leg.testimony()
    idle = Idleness.of(lines, processes=processes)
    first = {line.task_id: line for line in reversed(lines) if line.what == "start"}
    waited = []
    for task in leg.app.stores.ledger.questions.tasks(limit=len(work.delays) + 1):
        if task.id in first:
            number, started = int(first[task.id].number), first[task.id].at
            due = task.created_at.timestamp() + work.delays[number]
            late_s = machine.late_between(due - wall_s, started - wall_s)
            waited.append(Waited(number, due, started, idle.between(due, started), late_s))
    events = leg.app.stores.ledger.questions.happened(("polled",), within_s=86400.0, limit=100_000)
    starts = sum(line.what == "start" for line in lines)
    polled = sum(int(event.detail["tasks"]) for event in events)
    return IdleFigures(len(work.delays), waited, polled, starts - len(first), idle)


def _share(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def table(found: IdleFigures) -> str:
    """The figures in words."""
    waits = {
        "from due to start": [one.started - one.due for one in found.waited],
        "of it, one was idle": [one.idle_s for one in found.waited],
    }
    began, ended = min(one.due for one in found.waited), max(one.started for one in found.waited)
    none_s = ended - began - found.idle.between(began, ended)
    lines = [f"{'wait':<20} {'p50':>8} {'p99':>8} {'longest':>8}"]
    for name, values in waits.items():
        p50, p99, longest = (_share(values, share) for share in (0.5, 0.99, 1.0))
        lines.append(f"{name:<20} {p50:>6.2f} s {p99:>6.2f} s {longest:>6.2f} s")
    worst = max(found.waited, key=lambda one: one.idle_s)
    lines += [
        f"{found.recorded} recorded, {len(found.waited)} started, {found.again} started again; {found.polled} found in "
        f"the ledger; in the mean {statistics.mean(found.idle.idle):.0f} were idle, and for {none_s:.1f} of "
        f"{ended - began:.0f} s none",
        f"while the longest waited, the machine was {worst.late_s:.2f} s late to wake a thread up",
    ]
    lines += [f"LONG: {one}" for one in found.long[:10]]
    return "\n".join(lines)


def main() -> int:
    """Run it on private servers, and print its figures. Exits with 3 if a task waited too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ledger = stack.enter_context(start_postgres(options=("-c", f"max_connections={100 + 8 * asked.processes}")))
        redis, kafka = stack.enter_context(start_redis()), stack.enter_context(start_kafka())
        broker = f"{kafka.url}?partitions={asked.partitions}"
        leg = Leg.open("idle", folder, ledger=ledger.url, broker=broker, inflight=redis.url)
        stack.callback(leg.close)
        print(
            f"Kafka {kafka.version}, {asked.partitions} partitions, {asked.processes} processes of one thread, "
            f"{asked.minutes:g} minutes, --seed {asked.seed}"
        )
        seconds = 60.0 * asked.minutes
        found = try_idleness(leg, processes=asked.processes, seconds=seconds, seed=asked.seed, tell=_say)
    print(f"{table(found)}\n{'right' if found.is_right else 'WRONG'}")
    return 0 if found.is_right else 3


def _say(text: str) -> None:
    load = os.getloadavg()[0]
    print(f"{time.strftime('%H:%M:%S')} {text} (load {load:.1f})", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.pop("WORKQ_CONFIG", None)
    sys.exit(main())
