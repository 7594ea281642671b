"""Child: one consumer process as its supervisor sees it: how it ends, with what, and whether it is cut off.

Cut off is a process that reaches no store any more, while its supervisor does. A handler may have closed the
descriptors of its process, or set a limit for it: then it holds its tasks, ends none, and its supervisor keeps its
lease. Its board says when each store was reached last, and that its threads run: a process whose handler holds the
interpreter lock, or that is stopped, is not cut off. While the supervisor does not reach the stores itself, nobody is:
they are away.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import psutil

from workq.config import Times
from workq.worker.crash_board import CrashBoard, Started
from workq.worker.stacks import Stacks

_MAXRSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
AWAKE_S: Final = 2.0
"""A process whose threads have not run for so long does not reach anything because of that."""


class WayToStores(Enum):
    """How a supervisor reaches the stores. Each is needed to say that it does."""

    LEASE = "lease"
    SWEEP = "sweep"


class Reach:
    """Since when one supervisor has reached the stores in all its ways, without a miss."""

    def __init__(self, times: Times, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stale_s = times.lease_s
        self._clock = clock
        self._since = dict.fromkeys(WayToStores, math.inf)
        self._last = dict.fromkeys(WayToStores, -math.inf)

    def had(self, way: WayToStores) -> None:
        """It did, just now."""
        now = self._clock()
        if now - self._last[way] > self._stale_s:
            self._since[way] = now
        self._last[way] = now

    def missed(self, way: WayToStores) -> None:
        """A store did not answer."""
        self._last[way] = -math.inf

    @property
    def since(self) -> float:
        """On its clock; infinite while it does not."""
        now = self._clock()
        if any(now - last > self._stale_s for last in self._last.values()):
            return math.inf
        return max(self._since.values())


class CutoffWatch:
    """For how long one process has reached no store although it runs, and its supervisor has reached them."""

    def __init__(self, times: Times, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._times = times
        self._clock = clock
        self._awake_since = clock()

    def cut_off_s(self, board: CrashBoard, reach: Reach, *, is_draining: bool) -> float | None:
        """Seconds, if they are too many; None otherwise. Called at every look.

        A lease may pass, and one call more; of a process that has to leave, only a heartbeat and one call.
        """
        now = self._clock()
        reached_at, ran_at = board.contact()
        if board.incarnation() is None or now - ran_at > AWAKE_S:
            self._awake_since = now
        silent_s = now - max(reached_at, self._awake_since, reach.since)
        times = self._times
        heartbeat_s = times.worker_beat_s + times.beat_s
        most_s = heartbeat_s if is_draining else max(times.lease_s, heartbeat_s)
        return silent_s if silent_s > most_s + times.statement_s else None


def start_afresh(program: str) -> subprocess.Popen[bytes]:
    """Start the process that runs this module.

    It leads a session of its own: its group can be killed, and it has no terminal that could stop it.
    """
    return subprocess.Popen([sys.executable, "-m", program], stdin=subprocess.PIPE, bufsize=0, start_new_session=True)


@dataclass(slots=True)
class Child:
    """One consumer process and what is known of it."""

    process: subprocess.Popen[bytes]
    board: CrashBoard
    stacks: Stacks
    started_at: float
    extended_at: float
    watch: CutoffWatch
    overdue: list[Started] = field(default_factory=list)
    condemned: list[Started] = field(default_factory=list)
    """Attempts that a person has cancelled by force."""
    is_told: bool = False
    """It was told to drain."""
    memory_bytes: int | None = None
    memory_at: float = float("-inf")
    peak_bytes: int | None = None
    """The most memory that it ever used, as the kernel tells when it has ended."""
    stack_note: str | None = None
    """Why it gave no stacks when it was asked."""
    cut_off_s: float | None = None
    """It was killed because it had reached no store for so long."""

    def status(self, *, options: int = os.WNOHANG) -> int | None:
        """Its exit status as `subprocess` has it; None while it lives.

        What its handlers had started ends with it, unless it has left in order: nothing goes on beside a next attempt.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ChildProcessError):  # somebody else has waited for it: `poll` says what is known
                if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | options) is None:
                    return None
                if not self.board.has_left():
                    self.kill()  # until it is waited for, no other group can have its number
                _, status, usage = os.wait4(self.process.pid, 0)
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.peak_bytes = usage.ru_maxrss * _MAXRSS_UNIT
        return self.process.poll()

    def kill(self) -> None:
        """Kill it with all that its handlers have started, but for what has left its process group."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def kill_family(self) -> None:
        """Kill it with all that its handlers have started: what has left its group, too, unless its parent is gone."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.kill()
        for one in family:
            with contextlib.suppress(psutil.Error):
                one.kill()

    def is_stopped(self) -> bool:
        """Whether it does not run and will not beat: stopped by a signal, or dead. Raises psutil.Error when gone."""
        status: str = psutil.Process(self.process.pid).status()
        return status in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
