"""The application under test: handlers that bear witness. Each start and end is one line in a file of their own.

A line is appended by one system call, so it survives any later death of its process; the stores of the queue never see
it. Times are the machine's monotonic clock, which all its processes share. The budgets are endless, so that only the
doomed can die: every other death is a finding.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import workq
from workq import WorkQueue
from workq.handlers.retry import Exponential
from workq.lab.fleet import FOLDER

FILE: Final = "witness"
APP: Final = "workq.lab.certify.witness:wq"
QUEUE: Final = "certify"
DOOMED_FAILURES: Final = 2
PACE_S: Final = 15
"""How far back the pace looks: a fault does not make it forget what the machine can do."""
_ENDLESS: Final = 1_000_000
_SOON: Final = Exponential(0.1, 0.4)


class What(StrEnum):
    """What a line says."""

    START = "start"
    END = "end"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class WitnessLine:
    """One line of testimony: what happened to which attempt, in which process, and when."""

    what: What
    task_id: str
    attempt: int
    number: int
    pid: int
    at: float


class Testimony:
    """What the handlers have written so far. For several threads."""

    def __init__(self, file: Path) -> None:
        self.lines: list[WitnessLine] = []
        self.finished: set[int] = set()
        """The numbers of the tasks that have ended well at least once."""
        self.pace = 0.0
        """Of the seconds before now, the best: how many tasks ended well in it."""
        self._seconds: deque[int] = deque([0], maxlen=PACE_S)
        self._second = int(time.monotonic())
        self._file = file
        self._lock = threading.Lock()
        self._read = 0
        self._rest = b""

    def refresh(self) -> None:
        """Read what was written since."""
        with self._lock:
            if not self._file.exists():
                return
            with self._file.open("rb") as file:
                file.seek(self._read)
                body = file.read()
            self._read += len(body)
            *whole, self._rest = (self._rest + body).split(b"\n")
            for one in whole:
                what, task_id, attempt, number, pid, at = one.decode().split(" ")
                line = WitnessLine(What(what), task_id, int(attempt), int(number), int(pid), float(at))
                self.lines.append(line)
                if line.what is What.END:
                    self.finished.add(line.number)
                    self._seconds[-1] += 1
            if int(time.monotonic()) != self._second:
                self._second = int(time.monotonic())
                self.pace = float(max(self._seconds))
                self._seconds.append(0)


wq = WorkQueue()


def _write(what: What, number: int) -> None:
    me = workq.current()
    line = f"{what} {me.id} {me.attempt} {number} {os.getpid()} {time.monotonic():.6f}\n"
    handle = os.open(Path(os.environ[FOLDER]) / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


@wq.task(name="certify.work", queue=QUEUE, failures_max=_ENDLESS, crashes_max=_ENDLESS, retry=_SOON)
def work(number: int, seconds: float = 0.0, failures: int = 0) -> int:
    """Take so long; fail in the first attempts, if told to."""
    _write(What.START, number)
    if seconds:
        time.sleep(seconds)
    if workq.current().attempt <= failures:
        _write(What.FAIL, number)
        raise ValueError(f"attempt {workq.current().attempt} of number {number} fails on purpose")
    _write(What.END, number)
    return number


@wq.task(name="certify.doomed", queue=QUEUE, failures_max=DOOMED_FAILURES, crashes_max=_ENDLESS, retry=_SOON)
def doomed(number: int) -> None:
    """Fail until nobody tries it any more."""
    _write(What.START, number)
    _write(What.FAIL, number)
    raise ValueError(f"number {number} always fails, on purpose")
