"""Runs one step of one contestant inside its environment: `python -m benchmarks.contestants.play MODULE STEP [...]`.

Steps:

- `prepare`
- `enqueue-one N`, `enqueue-threads N THREADS`, `enqueue-bulk N`, `fill N`
- `latency WARM N RATE WORKERS`: an open loop of `WARM + N` tasks at `RATE` a second; task `i` is scheduled at
  `began + i / RATE`, and is enqueued late rather than never when the one before took too long
- `delays N RATE SECONDS WORKERS`: as `latency`, of tasks that are due so many seconds after their instant
- `instants N RATE SECONDS WORKERS FIRST`: tasks that are due so many seconds after they are enqueued, each at its own
  instant, at `RATE` a second or as fast as that is possible; with the indices from FIRST on
- `moment N WORKERS FIRST`: `N` tasks that are all due at one moment, so far ahead that all are enqueued by then; some
  more, which are due now, show how long that takes
- `sustained N WORKERS`: in bulk, once `WORKERS` processes have shown that they run
- `steady AHEAD WORKERS`: the same without an end, in lots, while fewer than `AHEAD` tasks are there that have not run;
  only for contestants that are called from threads
- `worker NUMBER`: becomes that worker

Each step but `worker` prints one line of JSON at its end: `tasks`, `began` (seconds since the epoch), `seconds` until
the last call returned, `published_seconds` until everything has reached the servers, `cpu_s` of this process meanwhile.
`instants` and `moment` also write when each task is due, as records, to the file `due` in `BENCH_FOLDER`; they are for
contestants that are called from threads.

An error ends with its traceback and a status other than 0. Imports the standard library only.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from benchmarks.contestants import task
from benchmarks.records import DUE, RECORD

PROBES = 10
"""Tasks in one look at who is up: more than one, so that each of several workers gets some."""
_PR_SET_PDEATHSIG = 1
UP_LIMIT_S = 30.0
PROBE_EVERY_S = 2.0
LOOK_EVERY_S = 0.02
LEFT_LIMIT_S = 10.0
"""How long to wait for probes that have not run: those of a variant without confirms may be lost."""
CALM_S = 0.5
STEADY_LOT = 1_000
TRIAL_PART = 0.02
"""Of the tasks that are due at one moment: so many more, due at once, show how long enqueueing takes."""
LEAD = 1.3
"""The moment is so many times as far ahead as enqueueing should take, and at least `LEAD_MIN_S`."""
LEAD_MIN_S = 5.0
SOME_UP_LIMIT_S = 3.0
"""How long to wait for the other workers once one has answered: some peers give a few tasks all to the same one."""


class Watch:
    """A stopwatch over one step: wall time and this process's CPU, children not included."""

    def __init__(self) -> None:
        self.began = time.time()
        self._start = time.perf_counter()
        self._cpu = _cpu_s()

    def seconds(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._start

    def cpu_s(self) -> float:
        """Of this process, since it was made."""
        return _cpu_s() - self._cpu


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def report(watch: Watch, tasks: int, *, seconds: float) -> None:
    """Print the figures of a step that has just ended."""
    figures = {
        "tasks": tasks,
        "began": watch.began,
        "seconds": seconds,
        "published_seconds": watch.seconds(),
        "cpu_s": watch.cpu_s(),
    }
    print(json.dumps(figures), flush=True)


def _write_due(due: Mapping[int, float]) -> None:
    lines = [RECORD.pack(at, index, os.getpid()) for index, at in due.items()]
    (Path(task.setting("FOLDER")) / DUE).write_bytes(b"".join(lines))


class Up:
    """Tells from the record file when enough worker processes have run probes, and none is left in the queue."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._records = Path(task.setting("RECORDS"))
        self._start = time.monotonic()
        self._first: float | None = None
        self._sent = 0
        self._sent_at = 0.0

    def wants(self) -> int:
        """How many probes to send now: some more once those before have run, or after a while without an answer."""
        is_answered = self._ran() >= self._sent
        if self._is_enough() or not (is_answered or time.monotonic() - self._sent_at > PROBE_EVERY_S):
            return 0
        self._sent += PROBES
        self._sent_at = time.monotonic()
        return PROBES

    def is_reached(self) -> bool:
        """Whether to go on: all are up, or one has been for a while; and the probes have run, or are not coming.

        Raises:
            TimeoutError: none ran a probe in time.
        """
        now = time.monotonic()
        if self._first is None and self._pids():
            self._first = now
        if self._first is None and now - self._start > UP_LIMIT_S:
            raise TimeoutError(f"no worker ran a probe within {UP_LIMIT_S:.0f} s")
        return self._is_enough() and (self._ran() >= self._sent or now - self._sent_at > LEFT_LIMIT_S)

    def _is_enough(self) -> bool:
        if len(self._pids()) >= self._workers:
            return True
        return self._first is not None and time.monotonic() - self._first > SOME_UP_LIMIT_S

    def _pids(self) -> set[int]:
        return {pid for _, _, pid in RECORD.iter_unpack(self._records.read_bytes())}

    def _ran(self) -> int:
        return self._records.stat().st_size // RECORD.size


class Threads:
    """The steps of a contestant that is called from threads."""

    def __init__(self, contestant: task.Contestant) -> None:
        self._contestant = contestant

    def prepare(self) -> None:
        watch = Watch()
        self._contestant.prepare()
        report(watch, 0, seconds=watch.seconds())

    def _first(self) -> None:
        """Connect outside of the measured time: the first task is a probe."""
        self._contestant.one(task.PROBE)

    def enqueue_one(self, tasks: int) -> None:
        self._first()
        watch = Watch()
        one = self._contestant.one
        for index in range(tasks):
            one(index)
        self._end(watch, tasks)

    def enqueue_threads(self, tasks: int, threads: int) -> None:
        self._first()
        gate = threading.Barrier(threads + 1)
        errors: list[BaseException] = []

        def enqueue(indices: range) -> None:
            try:
                self._first()  # each thread's own connection
                gate.wait(60.0)
                for index in indices:
                    self._contestant.one(index)
            except BaseException as error:  # whatever it is: the thread that waits for this one is told
                errors.append(error)
                raise

        shares = [range(number, tasks, threads) for number in range(threads)]
        crew = [threading.Thread(target=enqueue, args=(share,)) for share in shares]
        for thread in crew:
            thread.start()
        gate.wait(60.0)
        watch = Watch()
        for thread in crew:
            thread.join()
        if errors:
            raise errors[0]
        self._end(watch, tasks)

    def enqueue_bulk(self, tasks: int) -> None:
        self._first()
        watch = Watch()
        self._contestant.many(range(tasks))
        self._end(watch, tasks)

    def fill(self, tasks: int) -> None:
        watch = Watch()
        self._contestant.fill(range(tasks))
        self._end(watch, tasks)

    def latency(self, warm: int, tasks: int, rate: float, workers: int) -> None:
        self._await_workers(workers)
        watch = Watch()
        for index in range(warm + tasks):
            pause_s = watch.began + index / rate - time.time()
            if pause_s > 0.0:
                time.sleep(pause_s)
            self._contestant.one(index)
        self._end(watch, tasks)

    def delays(self, tasks: int, rate: float, delay_s: float, workers: int) -> None:
        self._await_workers(workers)
        watch = Watch()
        for index in range(tasks):
            at = watch.began + index / rate
            if (pause_s := at - time.time()) > 0.0:
                time.sleep(pause_s)
            self._contestant.later(index, max(0.0, at + delay_s - time.time()))
        self._end(watch, tasks)

    def instants(self, tasks: int, rate: float, delay_s: float, workers: int, first: int) -> None:
        self._await_workers(workers)
        due: dict[int, float] = {}
        watch = Watch()
        for number in range(tasks):
            if (pause_s := watch.began + number / rate - time.time()) > 0.0:
                time.sleep(pause_s)
            due[first + number] = at = time.time() + delay_s
            self._contestant.many_at([first + number], at)
        self._end(watch, tasks)
        _write_due(due)

    def moment(self, tasks: int, workers: int, first: int) -> None:
        self._await_workers(workers)
        trial = max(PROBES, round(TRIAL_PART * tasks))
        tried = Watch()
        self._contestant.many_at([task.PROBE] * trial, tried.began)
        lead_s = max(LEAD_MIN_S, LEAD * tried.seconds() * tasks / trial)
        time.sleep(CALM_S)
        watch = Watch()
        at = watch.began + lead_s
        self._contestant.many_at(range(first, first + tasks), at)
        self._end(watch, tasks)
        _write_due(dict.fromkeys(range(first, first + tasks), at))

    def sustained(self, tasks: int, workers: int) -> None:
        self._await_workers(workers)
        watch = Watch()
        self._contestant.many(range(tasks))
        self._end(watch, tasks)

    def steady(self, ahead: int, workers: int) -> None:
        self._await_workers(workers)
        records = Path(task.setting("RECORDS"))
        enqueued = 0
        while True:
            if enqueued - records.stat().st_size // RECORD.size < ahead:
                self._contestant.many(range(enqueued, enqueued + STEADY_LOT))
                enqueued += STEADY_LOT
            else:
                time.sleep(LOOK_EVERY_S)

    def _await_workers(self, workers: int) -> None:
        up = Up(workers)
        while not up.is_reached():
            for _ in range(up.wants()):
                self._contestant.one(task.PROBE)
            time.sleep(LOOK_EVERY_S)
        while not self._contestant.is_up():  # the driver ends this when it takes too long
            time.sleep(LOOK_EVERY_S)
        time.sleep(CALM_S)

    def _end(self, watch: Watch, tasks: int) -> None:
        seconds = watch.seconds()
        self._contestant.flush()
        report(watch, tasks, seconds=seconds)


class Coroutines:
    """The steps of a contestant that is called from an event loop; "threads" are coroutines at once."""

    def __init__(self, contestant: task.AsyncContestant) -> None:
        self._contestant = contestant

    def prepare(self) -> None:
        watch = Watch()
        asyncio.run(self._contestant.prepare())
        report(watch, 0, seconds=watch.seconds())

    def enqueue_one(self, tasks: int) -> None:
        async def enqueue() -> None:
            await self._contestant.one(task.PROBE)
            watch = Watch()
            for index in range(tasks):
                await self._contestant.one(index)
            report(watch, tasks, seconds=watch.seconds())

        self._run(enqueue)

    def enqueue_threads(self, tasks: int, threads: int) -> None:
        async def enqueue(indices: range) -> None:
            for index in indices:
                await self._contestant.one(index)

        async def all_at_once() -> None:
            await asyncio.gather(*(self._contestant.one(task.PROBE) for _ in range(threads)))
            watch = Watch()
            await asyncio.gather(*(enqueue(range(number, tasks, threads)) for number in range(threads)))
            report(watch, tasks, seconds=watch.seconds())

        self._run(all_at_once)

    def enqueue_bulk(self, tasks: int) -> None:
        async def enqueue() -> None:
            await self._contestant.one(task.PROBE)
            watch = Watch()
            await self._contestant.many(range(tasks))
            report(watch, tasks, seconds=watch.seconds())

        self._run(enqueue)

    def fill(self, tasks: int) -> None:
        self.enqueue_bulk(tasks)

    def latency(self, warm: int, tasks: int, rate: float, workers: int) -> None:
        async def enqueue() -> None:
            await self._await_workers(workers)
            watch = Watch()
            for index in range(warm + tasks):
                pause_s = watch.began + index / rate - time.time()
                if pause_s > 0.0:
                    await asyncio.sleep(pause_s)
                await self._contestant.one(index)
            report(watch, tasks, seconds=watch.seconds())

        self._run(enqueue)

    def delays(self, tasks: int, rate: float, delay_s: float, workers: int) -> None:
        async def enqueue() -> None:
            await self._await_workers(workers)
            watch = Watch()
            for index in range(tasks):
                at = watch.began + index / rate
                if (pause_s := at - time.time()) > 0.0:
                    await asyncio.sleep(pause_s)
                await self._contestant.later(index, max(0.0, at + delay_s - time.time()))
            report(watch, tasks, seconds=watch.seconds())

        self._run(enqueue)

    def sustained(self, tasks: int, workers: int) -> None:
        async def enqueue() -> None:
            await self._await_workers(workers)
            watch = Watch()
            await self._contestant.many(range(tasks))
            report(watch, tasks, seconds=watch.seconds())

        self._run(enqueue)

    async def _await_workers(self, workers: int) -> None:
        up = Up(workers)
        while not up.is_reached():
            for _ in range(up.wants()):
                await self._contestant.one(task.PROBE)
            await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.sleep(CALM_S)

    def _run(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def opened() -> None:
            await self._contestant.open()
            try:
                await step()
            finally:
                await self._contestant.close()

        asyncio.run(opened())


def _end_with_the_driver() -> None:
    """SIGKILL to this process, and to what it becomes, when the driver is killed and cannot end it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Read the step from the command line and take it."""
    module, step, *numbers = sys.argv[1:]
    _end_with_the_driver()
    contestant: task.Contestant | task.AsyncContestant = importlib.import_module(
        f"benchmarks.contestants.{module}"
    ).contestant
    if step == "worker":
        contestant.worker(int(numbers[0]))
        return
    steps = Coroutines(contestant) if isinstance(contestant, task.AsyncContestant) else Threads(contestant)
    match step:
        case "prepare":
            steps.prepare()
        case "enqueue-one":
            steps.enqueue_one(int(numbers[0]))
        case "enqueue-threads":
            steps.enqueue_threads(int(numbers[0]), int(numbers[1]))
        case "enqueue-bulk":
            steps.enqueue_bulk(int(numbers[0]))
        case "fill":
            steps.fill(int(numbers[0]))
        case "latency":
            steps.latency(int(numbers[0]), int(numbers[1]), float(numbers[2]), int(numbers[3]))
        case "delays":
            steps.delays(int(numbers[0]), float(numbers[1]), float(numbers[2]), int(numbers[3]))
        case "instants" if isinstance(steps, Threads):
            tasks, rate, delay_s, workers, first = numbers
            steps.instants(int(tasks), float(rate), float(delay_s), int(workers), int(first))
        case "moment" if isinstance(steps, Threads):
            steps.moment(int(numbers[0]), int(numbers[1]), int(numbers[2]))
        case "sustained":
            steps.sustained(int(numbers[0]), int(numbers[1]))
        case "steady" if isinstance(steps, Threads):
            steps.steady(int(numbers[0]), int(numbers[1]))
        case _:
            raise SystemExit(f"{step!r} is no step: see the docstring of {__file__}")


if __name__ == "__main__":
    main()
