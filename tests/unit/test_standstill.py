"""A process that is stopped stands still when the call returns, however busy its machine is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from workq.lab import standstill

BUSY = """\
import hashlib, threading
data = bytes(1 << 20)
def work():
    while True:
        hashlib.sha256(data)
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
threading.Event().wait(120)
"""


def states(pid: int) -> set[str]:
    """Of all its threads, as the kernel has them."""
    found = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {one.rpartition(")")[2].split()[0] for one in found}


def test_all_threads_stand_still_when_it_returns() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            for _ in range(20):
                standstill.stop(psutil.Process(process.pid))
                assert states(process.pid) == {"T"}
                psutil.Process(process.pid).resume()
        finally:
            process.kill()


def test_a_process_that_is_gone_is_said_to_be_so() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        there = psutil.Process(process.pid)
    with pytest.raises(psutil.NoSuchProcess):
        standstill.stop(there)
