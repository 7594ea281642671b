"""The run of the demo: stores, a corpus, a worker, many subtasks, one SIGKILL; and then the count in the index.

Everything is private to one run: a folder, which is removed unless the caller wants to keep it, the settings in it, and
servers of its own if asked for. No setting of the surrounding environment or folder reaches the queue of the demo.

Who decides: the index, at the end. The queue's own counts only feed the progress and say when to stop waiting.

What happens on each failure: no subtask ends for two minutes, or the worker leaves by itself: the run stops there and
counts what is in the index, and the report says what was seen last. Whatever ends the run, Ctrl-C included: the worker,
its processes, the servers and the folder are gone when `play` has returned or raised.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import psutil

from workq.board import Board
from workq.demo.corpus import DebianPackages, open_corpus, package_stanzas
from workq.demo.index import Count, Hit, count, create_index, open_index
from workq.errors import ConfigError, MissingExtra, Unavailable
from workq.ledger.migrate import migrate
from workq.task import State, Task
from workq.testing.environment import only_workq_variables

if TYPE_CHECKING:
    from workq.app import WorkQueue

SUBTASK_SIZE: Final = 500
KILL_AT: Final = 0.4
"""The part of the subtasks that has succeeded when a process is killed."""
STALL_S: Final = 120.0
"""Without any progress for so long, the run is given up."""
HITS: Final = 5

_LOOK_EVERY_S: Final = 0.05
_LEAVE_S: Final = 15.0
"""How long the worker may take to leave after SIGTERM."""
_LAST_LINES: Final = 15


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for. `keep` is a folder that stays; `servers` means RabbitMQ, Redis and PostgreSQL of our own."""

    engine: str = "fts5"
    corpus: str = "unicode"
    servers: bool = False
    processes: int = 2
    threads: int = 2
    keep: Path | None = None
    kill: bool = True
    stall_s: float = STALL_S


@dataclass(frozen=True, slots=True)
class Scene:
    """What is about to happen."""

    what: str
    documents: int
    subtasks: int
    index: str
    processes: int
    threads: int
    kill: bool
    folder: Path


@dataclass(frozen=True, slots=True)
class Killed:
    """One process of the worker that was killed.

    `attempts` maps the tasks that it had claimed and not settled to their attempts; `at` is the ledger's clock.
    """

    pid: int
    worker: str
    attempts: Mapping[str, int]
    at: datetime


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of a killed process's subtasks. `seconds`: from the kill until others had settled the last one."""

    subtasks: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome. `seconds` and `documents_per_s` count from the start of the worker to the last subtask."""

    scene: Scene
    stores: str
    count: Count
    succeeded: int
    run_again: int
    killed: Killed | None
    recovery: Recovery | None
    seconds: float
    trouble: str | None
    """Why the run was given up, or what failed; None when all subtasks succeeded."""
    question: str
    hits: tuple[Hit, ...]

    @property
    def is_proved(self) -> bool:
        """Whether the index has every document once, and nothing went wrong on the way there."""
        return self.count.is_complete and self.trouble is None

    @property
    def documents_per_s(self) -> float:
        """How fast it was, workers' start included."""
        return self.count.found / self.seconds if self.seconds > 0.0 else 0.0


class Narrator(Protocol):
    """Who tells the user what happens. Called from one thread."""

    def begins(self, scene: Scene) -> None:
        """What is about to happen. Nothing runs yet."""
        ...

    def starts_servers(self) -> None:
        """Private servers are being started; this takes some seconds."""
        ...

    def starts_worker(self, stores: str) -> None:
        """The stores answer; the worker is being started."""
        ...

    def progress(self, done: int, total: int) -> None:
        """So many subtasks have succeeded. Called many times a second."""
        ...

    def killed(self, killed: Killed) -> None:
        """A process was killed just now."""
        ...

    def recovered(self, recovery: Recovery) -> None:
        """All its subtasks were settled by others."""
        ...

    def counting(self) -> None:
        """The work is over, for better or worse."""
        ...


@dataclass(slots=True)
class _Watch:
    """What was seen of the queue so far."""

    total: int
    folder: Path
    """Where the worker has its temporary files."""
    succeeded: int = 0
    settled: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0
    killed: Killed | None = None
    recovery: Recovery | None = None


def play(wishes: Wishes, narrator: Narrator) -> Report:
    """Run the demo from start to end; nothing is left behind but what `wishes.keep` names.

    Once in the life of a process: the application reads its settings when it is imported.

    Raises:
        ConfigError: something that was asked for is not there: an engine, a corpus, the binaries of the servers.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(wishes.keep))
        corpus = open_corpus(wishes.corpus, folder)
        if isinstance(corpus, DebianPackages):
            corpus.write(package_stanzas())
        create_index(wishes.engine, folder)
        expected, slices = list(corpus.numbers()), list(corpus.slices(SUBTASK_SIZE))
        index = stack.enter_context(closing(open_index(wishes.engine, folder)))
        scene = Scene(
            what=corpus.what,
            documents=len(expected),
            subtasks=len(slices),
            index=index.engine,
            processes=wishes.processes,
            threads=wishes.threads,
            kill=wishes.kill,
            folder=folder,
        )
        narrator.begins(scene)
        stores, urls = "SQLite: ledger, hints and leases in one file", {"ledger": f"sqlite:///{folder / 'workq.db'}"}
        if wishes.servers:
            narrator.starts_servers()
            stores, urls = stack.enter_context(_private_servers())
        variables = {
            "WORKQ_CONFIG": str(_write_settings(folder, urls)),
            "WORKQ_DEMO_FOLDER": str(folder),
            "WORKQ_DEMO_ENGINE": wishes.engine,
            "WORKQ_DEMO_CORPUS": wishes.corpus,
        }
        stack.enter_context(only_workq_variables(variables))
        from workq.demo import reindex as application  # not before: it reads its settings now

        wq = stack.enter_context(application.wq)
        with closing(wq.database()) as database:
            migrate(database)
        narrator.starts_worker(stores)
        began = time.monotonic()
        with _worker(folder, wishes) as worker:
            total = application.reindex.enqueue_many(
                {"part": one.part, "start": one.start, "end": one.end} for one in slices
            )
            watch = _Watch(total, folder)
            trouble = _wait(wq, worker, watch, wishes, narrator)
        narrator.counting()
        tasks = _all_tasks(wq, application.QUEUE)
        return Report(
            scene=scene,
            stores=stores,
            count=count(index, expected),
            succeeded=sum(task.state is State.SUCCEEDED for task in tasks),
            run_again=sum(task.attempt > 1 for task in tasks),
            killed=watch.killed,
            recovery=watch.recovery,
            seconds=(watch.ended_at or time.monotonic()) - began,
            trouble=trouble or _failures(tasks),
            question=corpus.question,
            hits=tuple(index.search(corpus.question, limit=HITS)),
        )


# -- watching


def _wait(
    wq: WorkQueue, worker: subprocess.Popen[bytes], watch: _Watch, wishes: Wishes, narrator: Narrator
) -> str | None:
    """Until every subtask is settled; answers why not, when it gives up."""
    while True:
        try:
            _look(wq, worker, watch, wishes, narrator)
        except Unavailable as error:
            seen = f"the ledger does not answer: {error}"
        else:
            seen = f"{watch.settled} of {watch.total} subtasks are settled"
            if watch.settled >= watch.total:
                watch.ended_at = watch.moved_at
                return None
        if worker.poll() is not None:
            return f"the worker ended by itself with status {worker.returncode}; {seen}{_last_words()}"
        if time.monotonic() - watch.moved_at > wishes.stall_s:
            return f"no progress for {wishes.stall_s:.0f} s; {seen}{_last_words()}"
        time.sleep(_LOOK_EVERY_S)


def _look(wq: WorkQueue, worker: subprocess.Popen[bytes], watch: _Watch, wishes: Wishes, narrator: Narrator) -> None:
    states = wq.stores.ledger.counts().states
    settled = states[State.SUCCEEDED] + states[State.DEAD] + states[State.CANCELLED]
    if settled > watch.settled:
        watch.settled, watch.succeeded, watch.moved_at = settled, states[State.SUCCEEDED], time.monotonic()
    narrator.progress(watch.succeeded, watch.total)
    if watch.killed is None:
        if wishes.kill and KILL_AT * watch.total <= watch.succeeded < watch.total:
            watch.killed = _kill_one(wq, worker, watch.folder)
            if watch.killed is not None:
                narrator.killed(watch.killed)
    elif watch.recovery is None:
        watch.recovery = _recovery(wq, watch.killed)
        if watch.recovery is not None:
            narrator.recovered(watch.recovery)


def _kill_one(wq: WorkQueue, worker: subprocess.Popen[bytes], folder: Path) -> Killed | None:
    """SIGKILL to the process of our worker that has most in hand; None while none of them is caught at work.

    It is stopped for the moment in which the ledger is asked what it has claimed, and its board whether it runs any of
    it: otherwise the answers would be old by the time of the kill, or all of it done, and nothing to recover. A process
    that is stopped and then killed never wakes in between.
    """
    ledger = wq.stores.ledger
    children = {child.pid: child for child in psutil.Process(worker.pid).children(recursive=True)}
    ours = {row.id: children[row.pid] for row in ledger.workers() if row.pid in children}
    busy = [attempts for attempts in _running(wq).items() if attempts[0] in ours]
    if not busy:
        return None
    name, _ = max(busy, key=lambda one: len(one[1]))
    victim = ours[name]
    victim.suspend()
    is_killed = False
    try:
        attempts = _running(wq).get(name)
        board = Board.of(name, folder=folder)
        if not attempts or board is None or all(one.is_ended for one in board.started()):
            return None
        at = ledger.clock()
        victim.kill()
        is_killed = True
        return Killed(victim.pid, name, attempts, at)
    finally:
        if not is_killed:
            victim.resume()


def _running(wq: WorkQueue) -> dict[str, dict[str, int]]:
    """By worker: the tasks that it has claimed, with the number of the attempt."""
    found: dict[str, dict[str, int]] = {}
    for task in wq.stores.ledger.tasks(state=State.RUNNING, limit=1000):
        if task.worker is not None:
            found.setdefault(task.worker, {})[task.id] = task.attempt
    return found


def _recovery(wq: WorkQueue, killed: Killed) -> Recovery | None:
    """None while some of its subtasks are not settled yet.

    What had ended when the process was stopped is settled in its place, if it did not do so itself: such a subtask
    needed no recovery, and is not counted as one.
    """
    again: list[Task] = []
    for task_id, attempt in killed.attempts.items():
        task = wq.get(task_id)
        if task is None or task.settled_at is None:
            return None
        if task.attempt > attempt:
            again.append(task)
    settled = [task.settled_at for task in again if task.settled_at is not None]
    return Recovery(len(again), (max(settled) - killed.at).total_seconds() if settled else None)


def _all_tasks(wq: WorkQueue, queue: str) -> list[Task]:
    found: list[Task] = []
    while page := wq.stores.ledger.tasks(queue=queue, limit=1000, after=found[-1].id if found else None):
        found += page
    return found


def _failures(tasks: list[Task]) -> str | None:
    lost = [task for task in tasks if task.state in (State.DEAD, State.CANCELLED)]
    if not lost:
        return None
    why = f"{lost[0].reason}: {lost[0].error}" if lost[0].error else str(lost[0].reason)
    return f"{len(lost)} subtasks did not succeed; the first: {why.splitlines()[0]}"


def _last_words() -> str:
    """The end of the worker's log, which stands beside the settings."""
    log = Path(os.environ["WORKQ_DEMO_FOLDER"]) / "worker.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:] if log.exists() else []
    return "".join(f"\n    {line}" for line in ["the worker's last words:", *lines]) if lines else ""


# -- what it runs on


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
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
    folder = Path(tempfile.mkdtemp(prefix="workq-demo-")).absolute()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _write_settings(folder: Path, urls: Mapping[str, str]) -> Path:
    """A settings file that says where the stores are, so that none of the user's own is read."""
    file = folder / "workq.toml"
    file.write_text("".join(f"{name} = '{url}'\n" for name, url in urls.items()), encoding="utf-8")
    return file


@contextmanager
def _private_servers() -> Iterator[tuple[str, dict[str, str]]]:
    """RabbitMQ, Redis and PostgreSQL for this run alone: what they are, and their URLs."""
    from workq.testing.servers import ServerFailed, ServerMissing, start_postgres, start_rabbitmq, start_redis

    for module, extra in (("pika", "rabbitmq"), ("redis", "redis"), ("psycopg", "postgres")):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"--servers needs {module}; install workq with its extra: {extra}")
    with ExitStack() as stack:
        try:
            rabbitmq, redis, postgres = (
                stack.enter_context(start()) for start in (start_rabbitmq, start_redis, start_postgres)
            )
        except ServerMissing as error:
            raise ConfigError(f"--servers: {error} (all that is missing, on Debian: make servers)") from error
        except ServerFailed as error:
            raise ConfigError(f"--servers: {error}") from error
        names = ", ".join(f"{one.name} {one.version}" for one in (rabbitmq, redis, postgres))
        yield names, {"ledger": postgres.url, "broker": rabbitmq.url, "inflight": redis.url}


@contextmanager
def _worker(folder: Path, wishes: Wishes) -> Iterator[subprocess.Popen[bytes]]:
    """`workq worker` as a real process; it and its children are gone at the end. A Ctrl-C is for us alone."""
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            _worker_command(wishes),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(folder)},
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        _end(worker, folder)


def _worker_command(wishes: Wishes) -> list[str]:
    options = ["--queues", "demo", "--processes", str(wishes.processes), "--threads", str(wishes.threads)]
    return [sys.executable, "-m", "workq", "worker", "--app", "workq.demo.reindex:wq", *options]


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
            if process.pid != os.getpid() and process.environ().get("WORKQ_DEMO_FOLDER") == str(folder):
                yield process
