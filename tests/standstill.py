"""Standstill: how late this process wakes up and how long its disk takes, so that who reads of a failure sees whether
the machine stood still meanwhile.

It excuses nothing: a test that failed has failed.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

EVERY_S = 0.5


def write_through() -> None:
    """A few bytes, to the disk."""
    with suppress(OSError), tempfile.TemporaryFile() as file:
        file.write(b"pulse")
        file.flush()
        os.fsync(file.fileno())


@dataclass
class Pulse:
    """Beats in a thread of its own, and remembers each beat: when it began, how late, how long its write took."""

    write: Callable[[], None] = write_through
    every_s: float = EVERY_S
    beats: list[tuple[float, float, float]] = field(default_factory=list)

    def start(self) -> None:
        """Beat until the process ends."""
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(self.every_s)
            awake = time.monotonic()
            self.write()
            self.beats.append((began, awake - began - self.every_s, time.monotonic() - awake))

    def told(self, since: float = 0.0) -> str:
        """The worst of what ended after `since`, by the monotonic clock."""
        beats = [one for one in list(self.beats) if sum(one) + self.every_s >= since]
        late_s = max((one[1] for one in beats), default=0.0)
        write_s = max((one[2] for one in beats), default=0.0)
        return f"at most {late_s:.1f} s late to wake up, {write_s:.1f} s to write to the disk"
