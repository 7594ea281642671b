"""Workers of a run: hosts, each one `workq worker` with its consumer processes, what their logs tell, and the
environment that they get. Ends only what it started.

For a fault suite there are two hosts, as far as the queue can tell: two supervisors that know nothing of each other. A
fault that kills one of them leaves the other to take over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil

from workq.lab import standstill

FOLDER = "WORKQ_SCRATCH_FOLDER"
"""The variable that names a run's folder to its processes, and by which they are known."""
SERVER_UNREACHABLE = 4
"""The exit status of a command that a server did not answer, as the commands document it."""


class Host:
    """One supervisor and its consumer processes, started as often as wanted. All lives write to one log."""

    def __init__(self, folder: Path, number: int, *, app: str, processes: int, threads: int) -> None:
        self.number = number
        self.log = folder / f"worker-{number}.log"
        self.was_killed = False
        """The life that ended last was ended by us."""
        self._folder = folder
        self._command = [sys.executable, "-m", "workq", "worker", "--app", app]
        self._command += ["--processes", str(processes), "--threads", str(threads)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the supervisor lives; a paused one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """How the supervisor ended; None while it lives, or before its first life."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Begin a new life."""
        self.was_killed = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | {"TMPDIR": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for us alone
            )

    def consumers(self) -> list[psutil.Process]:
        """The consumer processes that live."""
        if self._process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [one for one in psutil.Process(self._process.pid).children() if _is_alive(one)]
        return []

    def everyone(self) -> list[psutil.Process]:
        """The supervisor, then its consumer processes."""
        if self._process is None or not self.is_running:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [psutil.Process(self._process.pid), *self.consumers()]
        return []

    def kill(self) -> list[int]:
        """kill -9 of all at once; their pids."""
        self.was_killed = True
        everyone = self.everyone()
        for one in everyone[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.suspend()  # it can neither start a child nor tell one to drain
        everyone = [*everyone[:1], *self.consumers()]
        pids = kill(everyone)
        if self._process is not None:
            self._process.wait(10)
        return pids

    def terminate(self) -> None:
        """SIGTERM to the supervisor."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int | None:
        """The supervisor's exit status; None if it has not ended in time."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None


def kill(processes: Iterable[psutil.Process]) -> list[int]:
    """kill -9, and wait until they are gone; their pids."""
    doomed = list(processes)
    for one in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    deadline = time.monotonic() + 10.0
    while any(_is_alive(one) for one in doomed) and time.monotonic() < deadline:
        time.sleep(0.005)
    return [one.pid for one in doomed]


def pause(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """SIGSTOP; those that were there to be stopped."""
    paused = []
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            standstill.stop(one)
            paused.append(one)
    return paused


def wake(processes: Iterable[psutil.Process]) -> None:
    """SIGCONT."""
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.resume()


def end_all(folder: Path) -> None:
    """Kill every process that was started for this folder, also those whose supervisor is gone."""
    kill(_ours(folder))


def _ours(folder: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(FOLDER) == str(folder):
                yield process


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def only_workq_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Exactly these WORKQ_ variables, for this process and those that it starts."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("WORKQ_")]:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def logged_by_workers(folder: Path) -> tuple[Counter[str], list[str]]:
    """Events at warning and above by name; and those that came with a traceback, which only a death should."""
    counted: Counter[str] = Counter()
    broken: list[str] = []
    for log in sorted(folder.glob("worker-*.log")):
        event = ""
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split(" ", 5)
            if line.startswith("  Traceback") and event != "task.dead":
                broken.append(f"a worker logged {event} with a traceback; see --keep")
            elif len(words) > 4 and words[2] in ("WARNING", "ERROR", "CRITICAL"):
                event = words[4].rstrip(":")
                counted[event] += 1
                if words[2] == "CRITICAL":
                    broken.append(f"a worker logged {event}")
    return counted, broken


def startup_s(folder: Path) -> float:
    """How long three of four consumer processes took to start at most, as the logs of the workers tell.

    The others may have been paused, or cut off, while they started.
    """
    found = [0.0]
    for log in sorted(folder.glob("worker-*.log")):
        started: dict[str, datetime] = {}
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split(" ")
            if len(words) < 6 or words[4] not in ("supervisor.started", "worker.started"):
                continue
            at = datetime.strptime(f"{words[0]} {words[1]}", "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
            if words[4] == "supervisor.started":
                started[words[5].removeprefix("pid=")] = at
            elif words[3] in started:
                found.append((at - started.pop(words[3])).total_seconds())
    return sorted(found)[len(found) * 3 // 4]


def last_words(hosts: list[Host]) -> str:
    """The last line that a worker logged, as the end of a message."""
    lines = [line for host in hosts if host.log.exists() for line in host.log.read_text(errors="replace").splitlines()]
    return f". Its last words: {lines[-1]}" if lines else ""
