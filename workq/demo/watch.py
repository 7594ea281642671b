"""Watching a worker: how far its work has come, and whether it still moves; and killing one of its processes at work.

What happens on each failure: nothing ends for a while, or the worker leaves by itself: the run is given up, and what
was seen last is told. The ledger does not answer: it is asked again, for as long.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from workq.demo.stage import last_words
from workq.errors import Unavailable
from workq.values.task import State, Task
from workq.worker.crash_board import CrashBoard

if TYPE_CHECKING:
    from workq.app import WorkQueue

STALL_S: Final = 120.0
"""Without any progress for so long, a run is given up."""
_LOOK_EVERY_S: Final = 0.05


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
