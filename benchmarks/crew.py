"""The processes of one contestant in one place: its producer for a step, its workers for a while.

Every wait is bounded. What fails raises `StepFailed` with the last lines of the log, and leaving the block ends every
process that was started in it, by its pid, with everything under it.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from benchmarks import usage
from benchmarks.arena import Place
from benchmarks.roster import Contestant

PLAY = "benchmarks.contestants.play"
_LAST_LINES = 12


class StepFailed(RuntimeError):
    """A step of a contestant failed, or took too long. The message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Produced:
    """What a producer said at its end; see `contestants/play.py`. Times in seconds, `began` since the epoch."""

    tasks: int
    began: float
    seconds: float
    published_seconds: float
    cpu_s: float


class Crew:
    """Starts, watches and ends the processes of a contestant. A context manager."""

    def __init__(self, contestant: Contestant, python: Path, place: Place) -> None:
        self.contestant = contestant
        self.place = place
        self._python = python
        self._workers: list[subprocess.Popen[bytes]] = []
        self._producers: list[subprocess.Popen[bytes]] = []
        self._log = place.folder / "worker.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        usage.kill(process.pid for process in self._producers if process.poll() is None)
        usage.kill(usage.given("BENCH_RECORDS", str(self.place.records)))  # whose parent ended before

    def call(self, step: str, *numbers: float, limit_s: float) -> Produced:
        """Take one step in a process of its own, and wait for its end.

        Raises:
            StepFailed: it ended with an error, or not in time.
        """
        return self.result(self.begin(step, *numbers), step, limit_s=limit_s)

    def begin(self, step: str, *numbers: float) -> subprocess.Popen[bytes]:
        """Start one step."""
        process = self._start(step, numbers, self.place.folder / "producer.out", self.place.folder / "producer.log")
        self._producers.append(process)
        return process

    def result(self, process: subprocess.Popen[bytes], step: str, *, limit_s: float) -> Produced:
        """Wait for a step that was begun. See `call`."""
        out, log = self.place.folder / "producer.out", self.place.folder / "producer.log"
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            usage.kill([process.pid])
            process.wait()
            raise StepFailed(f"{step} took longer than {limit_s:.0f} s{last_lines(log)}") from None
        if status != 0:
            raise StepFailed(f"{step} ended with {status}{last_lines(log)}")
        lines = out.read_text().splitlines()
        if not lines:
            raise StepFailed(f"{step} said nothing{last_lines(log)}")
        return Produced(**json.loads(lines[-1]))

    def start(self) -> None:
        """Start the worker commands. Returns at once."""
        self._workers = [
            self._start("worker", (number,), self._log, self._log) for number in range(self.contestant.commands)
        ]

    def check(self) -> None:
        """Raise StepFailed if a worker command has ended by itself."""
        for worker in self._workers:
            if worker.poll() is not None:
                raise StepFailed(f"a worker ended with {worker.returncode}{last_lines(self._log)}")

    def processes(self) -> list[psutil.Process]:
        """The worker commands and everything under them."""
        return usage.tree(worker.pid for worker in self._workers)

    def failed(self, what: str) -> StepFailed:
        """An error about the workers, with their last lines."""
        return StepFailed(what + last_lines(self._log))

    def kill(self) -> None:
        """SIGKILL to every worker process, supervisors included, and wait until they are gone."""
        usage.kill(worker.pid for worker in self._workers if worker.poll() is None)
        for worker in self._workers:
            worker.wait()
        self._workers = []

    def _start(self, step: str, numbers: tuple[float, ...], out: Path, log: Path) -> subprocess.Popen[bytes]:
        """In a session of its own: a Ctrl-C is for the driver, which then ends it."""
        command = [str(self._python), "-m", PLAY, self.contestant.module, step, *map(str, numbers)]
        with out.open("ab") as output, log.open("ab") as errors:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=self.place.folder,
                env={**self.place.environment, "BENCH_STEP": step},
                start_new_session=True,
            )


def last_lines(log: Path) -> str:
    """The end of a log, indented below a message; empty if it says nothing."""
    if not log.exists():
        return ""
    lines = log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
    return "".join(f"\n    {line[:300]}" for line in lines)
