"""Stacks: where the threads of a worker process stand, taken from outside, even while a handler holds the interpreter
lock.

The process registers a signal whose handler, in C, writes the stacks of all threads into a file that it shares with its
supervisor; a fault in native code (SIGSEGV and the like) writes them there as well, with the thread that it came from.
A stopped process writes nothing. The file is deleted as soon as both sides have it open.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from workq.config.sources import temporary_folder

WAIT_S: Final = 0.3
"""How long a supervisor waits for the stacks of a process, at most."""
_LOOK_EVERY_S: Final = 0.01
_STILL: Final = 5
"""So many looks without anything new are the end of it: nothing else marks it."""
_READ_MAX: Final = 256 * 1024
SIGNAL: Final = signal.SIGRTMIN + 10 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Beyond those that applications use, where there are such."""

_THREAD = re.compile(r"^(Current thread|Thread) 0x([0-9a-f]+)\b")


@dataclass(frozen=True, slots=True)
class DumpedStacks:
    """The stacks in the file: by thread, each with the innermost call first. `fault` is the thread that crashed."""

    threads: dict[int, str] = field(default_factory=dict)
    fault: int | None = None


class Stacks:
    """The shared file of one worker process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("r+b", buffering=0)
        self._asked_at = 0
        self._catches_faults = False

    @staticmethod
    def create() -> Stacks:
        """A new file, private and temporary."""
        handle, name = tempfile.mkstemp(prefix="workq-stacks-", dir=temporary_folder())
        os.close(handle)
        return Stacks(Path(name))

    # -- the process whose stacks they are

    def listen(self) -> None:
        """From now on this process answers the signal. Its owner's own fault handler is left in place."""
        faulthandler.register(SIGNAL, file=self._file, all_threads=True)
        if not faulthandler.is_enabled():
            self._catches_faults = True
            faulthandler.enable(file=self._file, all_threads=True)

    def leave(self) -> None:
        """In a child: it writes nothing here, whatever becomes of it."""
        faulthandler.unregister(SIGNAL)
        if self._catches_faults:
            faulthandler.disable()

    def dump(self) -> None:
        """Write them now: this process is about to leave although something runs."""
        faulthandler.dump_traceback(file=self._file, all_threads=True)

    # -- its supervisor

    def ask(self, pid: int) -> None:
        """Let the process write its stacks. It must be listening: the signal ends one that is not.

        Only for one that is about to be killed: while its threads move, it may crash of it (some in a thousand times).
        """
        self._asked_at = self._size()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SIGNAL)

    def wait(self, deadline: float) -> bool:
        """Wait until it has written them; False when it has not by then (on the monotonic clock)."""
        size, still = self._asked_at, 0
        while still < _STILL and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
            last, size = size, self._size()
            still = still + 1 if self._asked_at < last == size else 0
        return size > self._asked_at

    def read(self) -> DumpedStacks:
        """What was written so far: of each thread the newest."""
        text = os.pread(self._file.fileno(), _READ_MAX, max(0, self._size() - _READ_MAX)).decode("utf-8", "replace")
        return parse(text)

    def remove(self) -> None:
        """Close the file and delete it."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def parse(text: str) -> DumpedStacks:
    """Stacks as `faulthandler` writes them."""
    threads: dict[int, str] = {}
    fault = None
    ident = 0
    is_fatal = False
    lines: list[str] | None = None
    for line in text.splitlines():
        thread = _THREAD.match(line)
        if line.startswith("Fatal Python error:"):
            is_fatal = True
        if thread is not None:
            ident = int(thread[2], 16)
            if is_fatal and thread[1] == "Current thread":
                fault = ident
            lines = []
        elif lines is not None and line.startswith("  "):
            lines.append(line.strip())
            threads[ident] = "\n".join(lines)
        else:
            lines = None
    return DumpedStacks(threads, fault)
