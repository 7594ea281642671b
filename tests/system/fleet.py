"""A supervisor with its worker processes, as tests start, kill and watch it. Ends only what it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from tests.zygote import FORKED_WITH, NURSERY, Forked

REPOSITORY = Path(__file__).resolve().parents[2]
ROOM_S = 30.0
"""What a machine that is busy with other tests may add to a bound: bounds themselves are measured by the long runs."""
PATIENCE = 3.0
"""So many times as long as on a quiet machine is waited before what does not come is a failure."""


def wait_until(is_so: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Look every 50 ms until it is so, more rarely where a look takes long; fails with `what` when the time is up.

    `timeout_s` is for a quiet machine. A look may take a fifth of the time, at most: what is waited for has the rest.
    """
    deadline = time.monotonic() + PATIENCE * timeout_s
    while True:
        began = time.monotonic()
        if is_so():
            return
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {PATIENCE * timeout_s:.0f} s: {what}")
        time.sleep(min(1.0, max(0.05, 4 * (now - began))))


def printed_until_killed(program: str) -> list[str]:
    """The words of a Python program that ends by SIGKILL, as it sends it to itself."""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=150, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    return ran.stdout.split()


def processes_of(supervisor: int) -> list[psutil.Process]:
    """Those that this supervisor has started, and that live."""
    found = []
    for pid in _children_of(supervisor):
        with contextlib.suppress(psutil.NoSuchProcess):
            child = psutil.Process(pid)
            if child.status() != psutil.STATUS_ZOMBIE and not _is_nursery(child):
                found.append(child)
    return found


def _is_nursery(process: psutil.Process) -> bool:
    return bool(process.name() == NURSERY)


def _children_of(pid: int) -> list[int]:
    """As the kernel lists them: psutil would look at each process of the machine, and tests ask often.

    One may be missing from the list while another one ends.
    """
    found: list[int] = []
    for one in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread has ended
            found += map(int, one.read_text().split())
    return found


class Fleet:
    """One `workq worker` with its consumer processes. Its log is in `folder/worker-N.log`.

    `prefix` is a command that becomes the worker in the end.
    """

    count = 0

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        *,
        processes: int = 2,
        threads: int = 4,
        app: str = "tests.system.witness:wq",
        queues: str | None = None,
        drain: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        Fleet.count += 1
        self.log = folder / f"worker-{Fleet.count}.log"
        self.witness = Path(environ.get("WITNESS", folder / "witness"))
        self._killed: set[int] = set()
        args = ["worker", "--app", app, "--processes", str(processes), "--threads", str(threads)]
        if queues is not None:
            args += ["--queues", queues]
        if drain:
            args.append("--drain")
        env = {**os.environ, **FORKED_WITH, "WITNESS": str(folder / "witness"), **environ}
        with self.log.open("wb") as log:
            self.process = Forked(
                [*prefix, sys.executable, "-m", "workq", *args],
                cwd=REPOSITORY,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.kill()
        if kind is not None:
            print(f"--- {self.log.name}\n{self.text()[-6000:]}")
            if self.witness.exists():
                print(f"--- what the handlers wrote, the end of it\n{self.witness.read_text()[-2000:]}")

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """The consumer processes that live."""
        return processes_of(self.process.pid)

    def kill_one(self, index: int = 0) -> int | None:
        """kill -9 of one consumer process; its pid, or None when none lives just now."""
        children = self.children()
        if not children:
            return None
        victim = children[index % len(children)]
        self._killed.add(victim.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
        return victim.pid

    def kill(self) -> list[int]:
        """kill -9 of the supervisor and all its consumer processes at once."""
        everyone: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(self.process.pid)
            everyone = [supervisor, *(one for one in supervisor.children() if not _is_nursery(one))]  # none is missed
        for one in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait(10)
        psutil.wait_procs(everyone, timeout=10)
        return [one.pid for one in everyone]

    def wait_whole(self, processes: int, *, timeout_s: float) -> None:
        """Wait until so many consumer processes live, each of which said that it started. What was killed is none."""

        def is_whole() -> bool:
            # A killed process is in the kernel's list for a moment yet.
            pids = {child.pid for child in self.children()} - self._killed
            return len(pids) == processes and all(f" {pid} worker.started " in self.text() for pid in pids)

        wait_until(is_whole, timeout_s=timeout_s, what=f"{processes} consumer processes have started")

    def terminate(self) -> None:
        """SIGTERM to the supervisor."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        """The supervisor's exit status."""
        return self.process.wait(timeout_s)
