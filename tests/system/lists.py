"""An application whose handlers get lists of single tasks (`batch=`). Each call is a line in a file of their own.

The environment says where (`WITNESS`) and how fast time runs (`WITNESS_DIVIDE`, which divides the default times).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.pace import paced_by_environment
from workq import WorkQueue
from workq.handlers.handler import BatchHandler
from workq.handlers.retry import Fixed

APP = "tests.system.lists:wq"
POISON = -1
FAILURES_MAX = 3
LINGER_S = 0.5
wq = WorkQueue(times=paced_by_environment())


@dataclass(frozen=True)
class Call:
    """One call: its numbers, its process, and when it began (seconds since 1970)."""

    numbers: tuple[int, ...]
    pid: int
    at: float


def write(numbers: list[int]) -> None:
    """One line, appended in one system call: it survives any later death of this process."""
    line = f"{','.join(map(str, numbers))} {os.getpid()} {time.time():.6f}\n"
    handle = os.open(os.environ["WITNESS"] + ".calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def calls(folder: Path) -> list[Call]:
    """Every call so far."""
    path = folder / "witness.calls"
    if not path.exists():
        return []
    found = []
    whole, _, _ = path.read_text().rpartition("\n")
    for line in whole.splitlines():
        numbers, pid, at = line.split(" ")
        found.append(Call(tuple(map(int, numbers.split(","))), int(pid), float(at)))
    return found


def stamp(numbers: list[int]) -> None:
    """It cannot do the poisonous one, nor any list that has it."""
    write(numbers)
    if POISON in numbers:
        raise ValueError("poison")


def hold(numbers: list[int]) -> None:
    """Runs until the test says that it may end (`tell` of witness.py)."""
    write(numbers)
    while not os.path.exists(os.environ["WITNESS"] + ".told"):
        time.sleep(0.05)


def registered(app: WorkQueue) -> dict[str, BatchHandler[int, Any]]:
    """The handlers, in an application."""
    common: dict[str, Any] = {"queue": "witness", "batch": 100}
    return {
        "stamp": app.task(name="lists.stamp", linger_s=LINGER_S, failures_max=FAILURES_MAX, retry=Fixed(0.3), **common)(
            stamp
        ),
        "hold": app.task(name="lists.hold", linger_s=LINGER_S, **common)(hold),
        "patient": app.task(name="lists.patient", linger_s=60.0, **common)(stamp),
    }


registered(wq)
