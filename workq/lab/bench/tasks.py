"""The application that is measured: tasks that do nothing but write down that they ran.

Each start and end is one record of 32 bytes, appended by one system call: the machine's monotonic clock in seconds,
the number of the task, the process, and whether it is a start or an end.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from workq.lab.bench.records import END, FILE, RECORD, START
from workq.lab.bench.steps import MeasuredQueue, at_work
from workq.lab.fleet import FOLDER

APP: Final = "workq.lab.bench.tasks:wq"
QUEUE: Final = "bench"
PAD: Final = "x" * 150
"""Makes the arguments of a task about 200 bytes of JSON."""

wq = MeasuredQueue()
_file: list[int] = []


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
