"""Standstill: a process that is stopped, and stands still when the call returns.

The signal reaches one thread, which stops the others as soon as it runs: on a busy machine they go on until then.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import psutil

STANDSTILL_S: Final = 3.0
"""How long the threads of a process may run on after SIGSTOP; one that waits for a disk needs more than moments."""


def stop(process: psutil.Process) -> None:
    """SIGSTOP, and wait until every thread stands still, or it is gone.

    Raises:
        psutil.NoSuchProcess: there is no such process any more.
    """
    process.suspend()
    deadline = time.monotonic() + STANDSTILL_S
    while not all(_is_still(process.pid, thread.id) for thread in process.threads()) and time.monotonic() < deadline:
        time.sleep(0.001)


def _is_still(pid: int, thread: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
    except OSError:
        return True  # it has ended
    return status.rpartition(")")[2].split()[0] in "TtZX"
