"""A process of the demo's worker is killed with SIGKILL, at work, and it is known what it had in its hands."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from workq.values.task import State, Task
from workq.worker.crash_board import CrashBoard

if TYPE_CHECKING:
    from workq.app import WorkQueue


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
    victim.suspend()
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


def _running(wq: WorkQueue, counts: Callable[[Task], bool]) -> dict[str, dict[str, int]]:
    """By worker: the tasks that it has claimed, with the number of the attempt."""
    found: dict[str, dict[str, int]] = {}
    for task in wq.stores.ledger.questions.tasks(state=State.RUNNING, limit=1000):
        if task.worker is not None and counts(task):
            found.setdefault(task.worker, {})[task.id] = task.attempt
    return found
