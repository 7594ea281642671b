"""The sure end of a server: all its processes killed, its folder removed; by us, or by a guardian when we cannot.

A guardian is a process of its own, one for each server. It waits on the pid of the test process, and clears away
everything of the server when that ends without `dismiss()`, even by SIGKILL. Only a SIGKILL of the guardian itself
defeats that. (PR_SET_PDEATHSIG is not used: it fires when the *thread* that started the server ends.)

This file is also the guardian's program, so it imports nothing of workq.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil


def with_children(pid: int) -> Iterator[psutil.Process]:
    """The process and everything under it, the process first. Nothing if it is gone."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        yield root
        yield from root.children(recursive=True)


def kill_trees(pids: Iterable[int]) -> None:
    """SIGKILL these processes and everything under them, and wait until all are gone.

    Each root is stopped before its children are listed: it can neither start another one nor react to their deaths.
    """
    doomed: list[psutil.Process] = []
    for pid in pids:
        for process in with_children(pid):
            with suppress(psutil.NoSuchProcess):
                if process.pid == pid:
                    process.suspend()
                doomed.append(process)
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + 10.0
    while any(map(_is_alive, doomed)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def remove(folder: Path) -> None:
    """Remove a folder and what the kernel keeps for a PostgreSQL that was killed in it (one small System V segment)."""
    for lock in (folder / "postmaster.pid", folder / "data" / "postmaster.pid"):
        with suppress(OSError, IndexError):
            segment = lock.read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", segment], capture_output=True, check=False)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


class Guardian:
    """A process that outlives us by a moment, to end our server and remove its folder when we could not.

    It is told which processes are the server's. It learns of our death from a pidfd: no signal, no thread is involved.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(os.getpid()), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def watch(self, pids: Sequence[int]) -> None:
        """From now on these processes, and only these, are the server's."""
        self._say(" ".join(map(str, pids)))

    def dismiss(self) -> None:
        """The server is stopped and the folder is gone: nothing is left to guard. Repeatable."""
        if self._process.poll() is None:
            self._say("dismissed")
            self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def _say(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.write(f"{line}\n".encode())
                pipe.flush()


def _guard(parent_pid: int, folder: Path) -> None:
    """The guardian's life: until it is dismissed, or its parent dies and everything of it is cleared away."""
    parent = _pidfd_of_parent(parent_pid)
    guarded: Mapping[int, psutil.Process] = {}
    waiting = select.poll()
    waiting.register(sys.stdin, select.POLLIN)
    if parent is not None:
        waiting.register(parent, select.POLLIN)
    heard = b""
    while True:
        ready = {fd for fd, _ in waiting.poll(0 if parent is None else None)}
        if sys.stdin.fileno() in ready:
            heard += (chunk := os.read(sys.stdin.fileno(), 4096))
            if not chunk:
                waiting.unregister(sys.stdin)
            *lines, heard = heard.split(b"\n")
            if b"dismissed" in lines:
                return
            if lines:
                guarded = _known(lines[-1].split())
        elif parent is None or parent in ready:  # only after everything that it said was heard
            kill_trees(pid for pid, process in guarded.items() if process.is_running())
            remove(folder)
            return


def _pidfd_of_parent(parent_pid: int) -> int | None:
    """A descriptor that becomes readable when the parent ends; None if it ended before we looked."""
    try:
        descriptor = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        return None
    return descriptor if os.getppid() == parent_pid else None


def _known(pids: Iterable[bytes]) -> dict[int, psutil.Process]:
    """Processes as they are now: a pid that is used again later is another process."""
    found: dict[int, psutil.Process] = {}
    for pid in map(int, pids):
        with suppress(psutil.NoSuchProcess):
            found[pid] = psutil.Process(pid)
    return found


if __name__ == "__main__":
    _guard(int(sys.argv[1]), Path(sys.argv[2]))
