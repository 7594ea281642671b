"""What the demo runs on: a folder, settings in it, servers of its own, and the worker. All of it is gone at the end.

Nothing of the surrounding environment or folder reaches the queue of the demo. Another Ctrl-C does not keep `working`
from ending what it has started, also what has lost its parent.

The worker is watched: how far its work has come, and whether it still moves; and one of its processes is killed at
work. Nothing ends for a while, or the worker leaves by itself: the run is given up, and what was seen last is told. The
ledger does not answer: it is asked again, for as long.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import psutil

from workq.config.sources import temporary_folder
from workq.errors import ConfigError, MissingExtra, Unavailable
from workq.lab import standstill
from workq.values.task import State, Task
from workq.worker.crash_board import CrashBoard

if TYPE_CHECKING:
    from workq.app import WorkQueue
    from workq.lab.servers.server import Server

OWNER: Final = "WORKQ_DEMO_FOLDER"
"""The variable by which a process is known as ours."""
_LEAVE_S: Final = 15.0
"""How long the worker may take to leave after SIGTERM."""
_LAST_LINES: Final = 15
STALL_S: Final = 120.0
"""Without any progress for so long, a run is given up."""
_LOOK_EVERY_S: Final = 0.05


@contextmanager
def folder_for(keep: Path | None) -> Iterator[Path]:
    """A private folder: a temporary one, or the one to keep, which must be new or empty."""
    if keep is not None:
        keep = keep.absolute()
        try:
            keep.mkdir(parents=True, exist_ok=True)
            is_empty = not any(keep.iterdir())
        except OSError as error:
            raise ConfigError(f"--keep {keep}: {error.strerror}") from None
        if not is_empty:
            raise ConfigError(f"--keep {keep}: the folder is not empty; name a new one")
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="workq-demo-", dir=temporary_folder())).absolute()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def write_settings(folder: Path, settings: Mapping[str, str]) -> Path:
    """A settings file that says where the stores are, so that none of the user's own is read."""
    file = folder / "workq.toml"
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items()]
    file.write_text("".join(lines), encoding="utf-8")
    return file


@contextmanager
def private_servers(*, kafka: bool = False) -> Iterator[tuple[str, dict[str, str]]]:
    """RabbitMQ or Kafka, Redis and PostgreSQL for this run alone: what they are, and their URLs."""
    from workq.lab.servers import ServerFailed, ServerMissing, start_kafka, start_postgres, start_rabbitmq, start_redis

    option = "--kafka" if kafka else "--servers"
    client = ("confluent_kafka", "kafka") if kafka else ("pika", "rabbitmq")
    for module, extra in (client, ("redis", "redis"), ("psycopg", "postgres")):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"{option} needs {module}; install workq with its extra: {extra}")
    with ExitStack() as stack:
        try:
            broker: Server = stack.enter_context(start_kafka() if kafka else start_rabbitmq())
            redis, postgres = (stack.enter_context(start()) for start in (start_redis, start_postgres))
        except ServerMissing as error:
            raise ConfigError(f"{option}: {error} (all that is missing, on Debian: make servers)") from error
        except ServerFailed as error:
            raise ConfigError(f"{option}: {error}") from error
        names = ", ".join(f"{one.name} {one.version}" for one in (broker, redis, postgres))
        yield names, {"ledger": postgres.url, "broker": broker.url, "inflight": redis.url}


@contextmanager
def working(folder: Path, *, app: str, queues: str, processes: int, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """`workq worker` as a real process; it and its children are gone at the end. A Ctrl-C is for us alone.

    `app`: the demo's application, `module:name`. `queues`: those that it serves.
    """
    command = [sys.executable, "-m", "workq", "worker", "--app", app, "--queues", queues]
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*command, "--processes", str(processes), "--threads", str(threads)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(folder), OWNER: str(folder)},
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        _end(worker, folder)


def _end(worker: subprocess.Popen[bytes], folder: Path) -> None:
    """SIGTERM, and SIGKILL for what is left after a while. Another Ctrl-C does not keep us from it."""
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for process in _ours(folder):
            with suppress(psutil.NoSuchProcess):
                process.resume()  # a stopped process does not see the signal
        if worker.poll() is None:
            worker.terminate()
            try:
                worker.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        left = list(_ours(folder))
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()  # psutil makes sure that the pid is still the same process
        psutil.wait_procs(left, timeout=_LEAVE_S)
    finally:
        for number, before in ignored.items():
            signal.signal(number, before)


def _ours(folder: Path) -> Iterator[psutil.Process]:
    """The processes that were started for this folder, also those whose parent is gone."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(OWNER) == str(folder):
                yield process


def last_words(folder: Path) -> str:
    """The end of the worker's log, which stands beside the settings."""
    log = folder / "worker.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:] if log.exists() else []
    return "".join(f"\n    {line}" for line in ["the worker's last words:", *lines]) if lines else ""


class WorkerNarrator(Protocol):
    """What every demo tells of its worker. Called from one thread."""

    def starts_servers(self) -> None:
        """Private servers are being started; this takes some seconds."""
        ...

    def starts_worker(self, stores: str) -> None:
        """The stores answer; the worker is being started."""
        ...

    def progress(self, done: int, total: int) -> None:
        """So much is done. Called many times a second."""
        ...

    def killed(self, killed: Killed) -> None:
        """A process was killed just now."""
        ...

    def counting(self) -> None:
        """The work is over, for better or worse."""
        ...


class GaveUp(Exception):
    """The run is given up: why, and what was seen last."""


@dataclass(slots=True)
class WorkWatch:
    """What was seen of the work of a worker so far. `what`: what is counted. `folder`: where its log is."""

    worker: subprocess.Popen[bytes]
    folder: Path
    total: int
    what: str
    stall_s: float = STALL_S
    done: int = 0
    moved_at: float = field(default_factory=time.monotonic)

    def saw(self, done: int) -> None:
        """So much is done by now."""
        if done > self.done:
            self.done, self.moved_at = done, time.monotonic()

    def moved(self) -> None:
        """Something else has gone on."""
        self.moved_at = time.monotonic()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Look again and again, until it is so.

        Raises:
            GaveUp: it will not be.
        """
        while True:
            try:
                if is_so():
                    return
                self.check()
            except Unavailable as error:
                self.check(f"the ledger does not answer: {error}")
            time.sleep(_LOOK_EVERY_S)

    def check(self, seen: str | None = None) -> None:
        """Whether there is hope. `seen`: what was seen last, if not the progress.

        Raises:
            GaveUp: the worker has left, or nothing has moved for too long.
        """
        if seen is None:
            seen = f"{self.done:,} of {self.total:,} {self.what}"
        if self.worker.poll() is not None:
            status = self.worker.returncode
            raise GaveUp(f"the worker ended by itself with status {status}; {seen}{last_words(self.folder)}")
        if time.monotonic() - self.moved_at > self.stall_s:
            raise GaveUp(f"no progress for {self.stall_s:.0f} s; {seen}{last_words(self.folder)}")


@dataclass(frozen=True, slots=True)
class Killed:
    """One process of the worker that was killed.

    `attempts` maps the tasks that it had claimed and not settled to their attempts; `at` is the ledger's clock.
    """

    pid: int
    worker: str
    attempts: Mapping[str, int]
    at: datetime


def kill_one(
    wq: WorkQueue, worker: subprocess.Popen[bytes], folder: Path, *, counts: Callable[[Task], bool]
) -> Killed | None:
    """SIGKILL to the process of our worker that has most in hand; None while none of them is caught at work.

    `counts`: whether a task is of the work that is looked at. `folder`: where the worker has its temporary files.

    It is stopped for the moment in which the ledger is asked what it has claimed, and its board whether it runs any of
    it: otherwise the answers would be old by the time of the kill, or all of it done, and nothing to recover. A process
    that is stopped and then killed never wakes in between.
    """
    ledger = wq.stores.ledger
    children = {child.pid: child for child in psutil.Process(worker.pid).children(recursive=True)}
    ours = {row.id: children[row.pid] for row in ledger.questions.workers() if row.pid in children}
    busy = [attempts for attempts in _running(wq, counts).items() if attempts[0] in ours]
    if not busy:
        return None
    name, _ = max(busy, key=lambda one: len(one[1]))
    victim = ours[name]
    standstill.stop(victim)
    is_killed = False
    try:
        attempts = _running(wq, counts).get(name)
        board = CrashBoard.of(name, folder=folder)
        if not attempts or board is None or all(one.is_ended for one in board.started()):
            return None
        at = ledger.questions.clock()
        victim.kill()
        is_killed = True
        return Killed(victim.pid, name, attempts, at)
    finally:
        if not is_killed:
            victim.resume()


@dataclass(frozen=True, slots=True)
class Freed:
    """So many seconds after the kill no task that the killed process had in hand, `deliveries` of them, was its own."""

    deliveries: int
    seconds: float


def freed_after_s(wq: WorkQueue, killed: Killed) -> float | None:
    """How long after the kill its claims have ended; None while one of them stands."""
    for task_id, attempt in killed.attempts.items():
        task = wq.get(task_id)
        if task is not None and (task.state, task.attempt) == (State.RUNNING, attempt):
            return None
    return (wq.stores.ledger.questions.clock() - killed.at).total_seconds()


def _running(wq: WorkQueue, counts: Callable[[Task], bool]) -> dict[str, dict[str, int]]:
    """By worker: the tasks that it has claimed, with the number of the attempt."""
    found: dict[str, dict[str, int]] = {}
    for task in wq.stores.ledger.questions.tasks(state=State.RUNNING, limit=1000):
        if task.worker is not None and counts(task):
            found.setdefault(task.worker, {})[task.id] = task.attempt
    return found
