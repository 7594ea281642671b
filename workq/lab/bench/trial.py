"""One measurement from start to end: a scratch namespace, real workers, real tasks, and the figures, told to a person
or a program.

Each measure is taken `runs` times, and every figure is told as its median, least and most. The rate of a drain counts
from the first start to the last, so that it does not depend on how long workers take to boot; that is told apart.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final

import msgspec
import psutil

from workq import WorkQueue
from workq.config import Settings
from workq.config.sources import temporary_folder
from workq.errors import Unavailable, WorkqError
from workq.lab import fleet
from workq.lab.bench import tasks
from workq.lab.bench.steps import VARIABLE
from workq.lab.bench.tasks import Records
from workq.lab.fleet import Host, only_workq_variables
from workq.lab.namespace import Namespace, new_name, settings_for, urls_of, versions_here, write_settings
from workq.values.plural import counted

RATE: Final = 200
"""Tasks a second, one by one, while latency is measured."""
WARM_S: Final = 5.0
"""For so long tasks come at that rate before latency counts: on Kafka the partitions are dealt out meanwhile."""
KILL_TASKS: Final = 2_000
KILL_SLEEP_S: Final = 0.005
KILL_AT: Final = 0.3
"""After this part of the tasks, every worker is killed."""
START_S: Final = 60.0
"""How long workers may take to start, and tasks to make no progress."""
SINGLE_PART: Final = 10
"""Enqueued one by one is a tenth of what is enqueued in bulk."""
_SHOWN: Final = {
    "enqueue_one_per_s": ("enqueued one by one", "/s", 1.0),
    "enqueue_many_per_s": ("enqueued in bulk, recorded", "/s", 1.0),
    "published_per_s": ("enqueued in bulk, published", "/s", 1.0),
    "drain_one_by_one_per_s": ("run, enqueued one by one", "/s", 1.0),
    "drain_per_s": ("run, enqueued in bulk", "/s", 1.0),
    "sustained_per_s": ("enqueued and run at once", "/s", 1.0),
    "latency_p50_ms": ("latency at 200/s, p50", "ms", 1.0),
    "latency_p99_ms": ("latency at 200/s, p99", "ms", 1.0),
    "first_start_s": ("workers started to first task", "s", 1.0),
    "workers_cpu_us": ("processor of the workers", "us a task", 1.0),
    "workers_memory_bytes": ("memory of the workers", "MB", 1e6),
    "last_completion_after_kill_s": ("kill -9 of all to last of {kill_tasks:,}", "s", 1.0),
    "started_twice_after_kill": ("started twice after it", "tasks", 1.0),
}


@dataclass(frozen=True, slots=True)
class BenchWishes:
    """What to measure."""

    tasks: int = 20_000
    runs: int = 3
    processes: int = 2
    threads: int = 1
    latency_s: float = 10.0
    keep: bool = False

    @property
    def kill_tasks(self) -> int:
        """How many tasks the test with kill -9 has: 2,000, or all where fewer are wished for."""
        return min(KILL_TASKS, self.tasks)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure over all runs."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Figure:
        """Of one value a run."""
        return Figure(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class BenchReport:
    """What was measured. Rates are tasks a second, processor time is microseconds a task, memory is bytes."""

    wishes: BenchWishes
    namespace: str
    began_at: datetime
    versions: dict[str, str]
    figures: dict[str, Figure]
    steps: dict[str, float]
    """Processor microseconds a task: of each step of a worker, in one more drain with a clock around each call."""
    threads: dict[str, float]
    missing: int
    """Tasks of the test with kill -9 that never ended."""
    kept: Path | None = None
    not_removed: list[str] = field(default_factory=list)


def run(settings: Settings, wishes: BenchWishes, *, tell: Callable[[str], None] = lambda _: None) -> BenchReport:
    """Measure these stores.

    Raises:
        Unavailable: a server did not answer, or nothing went on for a minute.
        SchemaMismatch: this user may not create tables.
    """
    scratch_settings = settings_for(settings, new_name("bench"), settings.times)
    with ExitStack() as stack:
        folder = Path(mkdtemp(prefix="workq-bench-", dir=temporary_folder())).absolute()
        if not wishes.keep:
            stack.callback(rmtree, folder, ignore_errors=True)
        config = write_settings(folder / "workq.toml", scratch_settings, urls_of(scratch_settings))
        stack.enter_context(only_workq_variables({"WORKQ_CONFIG": str(config), fleet.FOLDER: str(folder)}))
        namespace = Namespace(scratch_settings, WorkQueue())
        stack.callback(namespace.close)
        not_removed: list[str] = []
        if not wishes.keep:
            stack.callback(lambda: not_removed.extend(namespace.remove()))
        namespace.create()
        stack.callback(fleet.end_all, folder)
        tell(f"namespace {scratch_settings.namespace}")
        trial = _BenchTrial(folder, wishes, tell)
        stack.callback(trial.close)
        report = trial.play(scratch_settings.namespace, versions_here() | namespace.versions())
        report.kept = folder if wishes.keep else None
        report.not_removed = not_removed  # filled when the stack unwinds
    return report


class _BenchTrial:
    """The course of one measurement."""

    def __init__(self, folder: Path, wishes: BenchWishes, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.wishes = wishes
        self.tell = tell
        self.records = Records(folder)
        self.app = WorkQueue()
        self.nothing = self.app.task(name=tasks.nothing.name, queue=tasks.QUEUE)(_nothing)
        self.sleep = self.app.task(name=tasks.sleep.name, queue=tasks.QUEUE)(_sleep)
        self.host = Host(folder, 0, app=tasks.APP, processes=wishes.processes, threads=wishes.threads)
        self.found: dict[str, list[float]] = {}
        self.numbered = 0

    def close(self) -> None:
        """Close connections."""
        self.app.close()

    def play(self, namespace: str, versions: dict[str, str]) -> BenchReport:
        began_at = datetime.now(UTC)
        for number in range(self.wishes.runs):
            self.tell(f"run {number + 1} of {self.wishes.runs}: enqueue, drain, latency")
            self._note("enqueue_one_per_s", self._enqueue_one())
            self._drain("drain_one_by_one_per_s", self.wishes.tasks // SINGLE_PART)
            rate, published = self._enqueue_many(self.wishes.tasks)
            self._note("enqueue_many_per_s", rate)
            self._note("published_per_s", published)
            self._drain("drain_per_s", self.wishes.tasks)
            self._latency()
        self.tell("kill -9 of every worker, and where the time goes")
        missing = self._kill()
        steps, threads = self._steps()
        figures = {name: Figure.of(values) for name, values in self.found.items()}
        return BenchReport(self.wishes, namespace, began_at, versions, figures, steps, threads, missing)

    def _note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)

    def _numbers(self, count: int) -> range:
        self.numbered += count
        return range(self.numbered - count, self.numbered)

    # -- measures

    def _enqueue_one(self) -> float:
        numbers = self._numbers(self.wishes.tasks // SINGLE_PART)
        began = time.monotonic()
        for number in numbers:
            self.nothing.enqueue(number, tasks.PAD)
        rate = len(numbers) / (time.monotonic() - began)
        self._publish()
        return rate

    def _enqueue_many(self, count: int) -> tuple[float, float]:
        """The rates until all is recorded, and until all is published."""
        calls = [(number, tasks.PAD) for number in self._numbers(count)]
        began = time.monotonic()
        self.nothing.enqueue_many(calls)
        recorded = time.monotonic()
        self._publish()
        return count / (recorded - began), count / (time.monotonic() - began)

    def _publish(self) -> None:
        if not self.app.producer.relay.flush(timeout_s=START_S):
            raise Unavailable(f"the broker has not taken all hints within {START_S:g} s; try: workq doctor")

    def _drain(self, name: str, count: int) -> None:
        """Start the workers, and let them run what was enqueued last."""
        numbers = range(self.numbered - count, self.numbered)
        began = time.monotonic()
        with self._workers():
            starts = self._wait(lambda: self.records.starts(numbers), count)
            used, memory = _used(self.host)
        first, last = starts[0].at, max(one.at for one in starts)
        self._note(name, (count - 1) / (last - first))
        if name == "drain_per_s":  # the large one: the boot of the processes weighs less
            self._note("first_start_s", first - began)
            self._note("workers_cpu_us", 1e6 * used / count)
            self._note("workers_memory_bytes", memory)

    def _latency(self) -> None:
        """From the instant in which a task should be enqueued to its start, at a steady rate that keeps nobody busy."""
        warmed, numbers = self._numbers(int(RATE * WARM_S)), self._numbers(int(RATE * self.wishes.latency_s))
        with self._workers():
            self.nothing.enqueue(warmed[0], tasks.PAD)
            self._wait(lambda: self.records.starts(warmed[:1]), 1)
            began = time.monotonic() - 1 / RATE
            for number in (*warmed[1:], *numbers):
                time.sleep(max(0.0, began + (number - warmed[0]) / RATE - time.monotonic()))
                self.nothing.enqueue(number, tasks.PAD)
            starts = self._wait(lambda: self.records.starts(numbers), len(numbers))
            self._sustained()
        late = sorted(one.at - began - (one.number - warmed[0]) / RATE for one in starts)
        self._note("latency_p50_ms", 1e3 * late[len(late) // 2])
        self._note("latency_p99_ms", 1e3 * late[int(0.99 * len(late))])

    def _sustained(self) -> None:
        """The rate at which workers that are up run what is enqueued in bulk meanwhile, from the enqueue on."""
        began = time.monotonic()
        self._enqueue_many(self.wishes.tasks)
        numbers = range(self.numbered - self.wishes.tasks, self.numbered)
        starts = self._wait(lambda: self.records.starts(numbers), len(numbers))
        self._note("sustained_per_s", len(numbers) / (max(one.at for one in starts) - began))

    def _kill(self, sleep_s: float = KILL_SLEEP_S) -> int:
        """Kill all processes of the workers at 30 %, and start them again at once; answers how many are missing.

        A kill that comes when all tasks have ended measures nothing: it is made again with tasks that take longer.
        """
        count = self.wishes.kill_tasks
        numbers = self._numbers(count)
        self.sleep.enqueue_many([(number, sleep_s) for number in numbers])
        self._publish()
        with self._workers():
            self._wait(lambda: self.records.ends(numbers), int(KILL_AT * count))
            self.host.kill()
            killed_at = time.monotonic()
            self.records.refresh()
            is_late = len({one.number for one in self.records.ends(numbers)}) == count
            self.host.start()
            with suppress(Unavailable):
                self._wait(lambda: list({one.number: one for one in self.records.ends(numbers)}.values()), count)
        if is_late:
            return self._kill(10 * sleep_s)
        first_ends: dict[int, float] = {}
        for one in self.records.ends(numbers):
            first_ends.setdefault(one.number, one.at)
        self._note("last_completion_after_kill_s", max(first_ends.values()) - killed_at)
        starts = self.records.starts(numbers)
        self._note("started_twice_after_kill", len(starts) - len({one.number for one in starts}))
        return count - len(first_ends)

    def _steps(self) -> tuple[dict[str, float], dict[str, float]]:
        count = self.wishes.tasks
        self._enqueue_many(count)
        os.environ[VARIABLE] = "1"
        try:
            with self._workers():
                self._wait(lambda: self.records.starts(range(self.numbered - count, self.numbered)), count)
        finally:
            del os.environ[VARIABLE]
        steps: dict[str, float] = {}
        threads: dict[str, float] = {}
        for file in sorted(self.folder.glob("steps-*.json")):
            found = msgspec.json.decode(file.read_bytes())
            for into, part in ((steps, found["steps"]), (threads, found["threads"])):
                for name, seconds in part.items():
                    into[name] = into.get(name, 0.0) + 1e6 * seconds / count
            threads["whole process"] = threads.get("whole process", 0.0) + 1e6 * found["whole"] / count
        return steps, threads

    # -- workers

    @contextmanager
    def _workers(self) -> Iterator[None]:
        self.host.start()
        try:
            yield
        finally:
            self.host.terminate()
            if self.host.wait(30.0) is None:
                self.host.kill()

    def _wait(self, look: Callable[[], list[Any]], count: int) -> list[Any]:
        """Wait until `look` finds so many.

        Raises:
            Unavailable: nothing was added for a minute. WorkqError: the workers have ended.
        """
        seen, since = -1, time.monotonic()
        while True:
            self.records.refresh()
            found = look()
            if len(found) >= count:
                return found
            if len(found) != seen:
                seen, since = len(found), time.monotonic()
            if not self.host.is_running:
                raise WorkqError(f"the workers have ended with status {self.host.status}; run again with --keep")
            if time.monotonic() - since > START_S:
                raise Unavailable(f"no task has run for {START_S:g} s ({seen} of {count} did); try: workq doctor")
            time.sleep(0.02)


def _used(host: Host) -> tuple[float, float]:
    """What a host and its processes have used so far: processor seconds, and bytes of memory, shared parts once."""
    seconds = memory = 0.0
    for one in host.everyone():
        with suppress(psutil.Error):
            times = one.cpu_times()
            seconds += times.user + times.system
            memory += getattr(one.memory_full_info(), "pss", one.memory_info().rss)
    return seconds, memory


def _nothing(number: int, pad: str) -> None:
    """The caller's side of `tasks.nothing`."""


def _sleep(number: int, seconds: float) -> None:
    """The caller's side of `tasks.sleep`."""


def document(report: BenchReport) -> dict[str, Any]:
    """One JSON object. Names are only added."""
    return {
        "ok": report.missing == 0 and not report.not_removed,
        "began_at": report.began_at,
        "namespace": report.namespace,
        "tasks": report.wishes.tasks,
        "runs": report.wishes.runs,
        "processes": report.wishes.processes,
        "threads": report.wishes.threads,
        "versions": report.versions,
        "figures": {name: asdict(figure) for name, figure in report.figures.items()},
        "missing_after_kill": report.missing,
        "steps_cpu_us": report.steps,
        "threads_cpu_us": report.threads,
        "not_removed": report.not_removed,
    }


def page(report: BenchReport) -> str:
    """For a person."""
    wishes = report.wishes
    lines = [
        "",
        f"workq {report.versions['workq']}, Python {report.versions['Python']}, {report.versions['system']}, "
        f"{report.versions['processors']} processors, {report.began_at:%Y-%m-%d}",
        *(f"{name}: {report.versions[name]}" for name in ("ledger", "broker", "inflight")),
        f"{wishes.tasks:,} tasks that do nothing, {counted(wishes.processes, 'process', 'processes')} of "
        f"{counted(wishes.threads, 'thread')}, "
        f"{counted(wishes.runs, 'run')}: median (least - most)",
        "",
        *(
            _line(label.format(kill_tasks=wishes.kill_tasks), figure, unit, by)
            for name, (label, unit, by) in _SHOWN.items()
            if (figure := report.figures.get(name))
        ),
        f"  {'missing after it':<34}{report.missing:>10,} tasks",
        "",
        "Processor time of a task in the workers, in us, with a clock around each call",
        *(f"  {name:<34}{spent:>10.1f}" for name, spent in sorted(report.steps.items(), key=lambda one: -one[1])),
        "By thread: intake (fetch, hold, decode, claim), run, settle (settle, release)",
        *(f"  {name:<34}{spent:>10.1f}" for name, spent in sorted(report.threads.items(), key=lambda one: -one[1])),
    ]
    lines += [f"NOT REMOVED {one}" for one in report.not_removed]
    return "\n".join(lines)


def _line(label: str, figure: Figure, unit: str, by: float) -> str:
    median, least, most = (_number(value / by) for value in (figure.median, figure.least, figure.most))
    return f"  {label:<34}{median:>10} {unit} ({least} - {most})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
