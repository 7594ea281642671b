"""Watching a worker: how far its work has come, and whether it still moves.

What happens on each failure: nothing ends for a while, or the worker leaves by itself: the run is given up, and what
was seen last is told. The ledger does not answer: it is asked again, for as long.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workq.demo.stage import last_words
from workq.errors import Unavailable

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
