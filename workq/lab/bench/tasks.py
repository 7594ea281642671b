"""The application that is measured: tasks that do nothing but write down that they ran; and what they wrote, read.

Each start and end is one record of 32 bytes, appended by one system call: the machine's monotonic clock in seconds,
the number of the task, the process, and whether it is a start or an end.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workq.lab.bench.steps import MeasuredQueue, at_work
from workq.lab.fleet import FOLDER

APP: Final = "workq.lab.bench.tasks:wq"
QUEUE: Final = "bench"
PAD: Final = "x" * 150
"""Makes the arguments of a task about 200 bytes of JSON."""

wq = MeasuredQueue()
_file: list[int] = []
FILE: Final = "records"
RECORD: Final = struct.Struct("<dqqq")
START: Final = 0
END: Final = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One start or end: when, by the machine's monotonic clock in seconds, of which task, in which process."""

    at: float
    number: int
    pid: int
    what: int


class Records:
    """The file of one run, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._read = 0
        self.all: list[Record] = []

    def refresh(self) -> None:
        """Read what was written since."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            body = file.read()
        whole = len(body) - len(body) % RECORD.size
        self._read += whole
        self.all += [Record(*one) for one in RECORD.iter_unpack(body[:whole])]

    def starts(self, numbers: range) -> list[Record]:
        """The starts of some tasks, in the order in which they were written."""
        return [one for one in self.all if one.what == START and one.number in numbers]

    def ends(self, numbers: range) -> list[Record]:
        """The ends of some tasks."""
        return [one for one in self.all if one.what == END and one.number in numbers]


@wq.task(queue=QUEUE)
def nothing(number: int, pad: str) -> None:  # noqa: ARG001 - it is only carried
    """Start, and end."""
    _record(START, number)
    at_work()


@wq.task(queue=QUEUE)
def sleep(number: int, seconds: float) -> None:
    """Take some time without working."""
    _record(START, number)
    time.sleep(seconds)
    _record(END, number)


def _record(what: int, number: int) -> None:
    if not _file:
        place = Path(os.environ[FOLDER]) / FILE
        _file.append(os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    os.write(_file[0], RECORD.pack(time.monotonic(), number, os.getpid(), what))
