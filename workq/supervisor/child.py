"""Child: one consumer process as its supervisor sees it: how it ends, and with what."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Final

import psutil

from workq.supervisor.cutoff import CutoffWatch
from workq.worker.crash_board import CrashBoard, Started
from workq.worker.stacks import Stacks

_MAXRSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


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
