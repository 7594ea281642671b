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


class ToDisk:
    """Writes a few bytes through to the disk, each time. Its file stays open: some tests count descriptors."""

    def __init__(self) -> None:
        self._file, path = tempfile.mkstemp(prefix="workq-standstill-")
        os.unlink(path)

    def __call__(self) -> None:
        with suppress(OSError):
            os.pwrite(self._file, b"standstill", 0)
            os.fsync(self._file)


@dataclass(frozen=True)
class Span:
    """One nap and one write: when both were over, how late the nap ended, and how long the write took."""

    ended_at: float
    late_s: float
    write_s: float


@dataclass
class Standstill:
    """Naps and writes in a thread of its own, and remembers how long each took."""

    write: Callable[[], None]
    every_s: float = EVERY_S
    spans: list[Span] = field(default_factory=list)

    def start(self) -> None:
        """Go on until the process ends."""
        threading.Thread(target=self._run, name="standstill", daemon=True).start()

    def _run(self) -> None:
        never = threading.Event()
        while True:
            began = time.monotonic()
            never.wait(self.every_s)
            awake = time.monotonic()
            self.write()
            now = time.monotonic()
            self.spans.append(Span(now, awake - began - self.every_s, now - awake))

    def late_between(self, began: float, ended: float) -> float:
        """How late its naps ended, all together, of those that ended between these moments of the monotonic clock."""
        return sum(max(0.0, one.late_s) for one in list(self.spans) if began <= one.ended_at <= ended)

    def told(self, since: float = 0.0) -> str:
        """The worst of what ended after `since`, by the monotonic clock, and for how long nothing has ended now."""
        spans = list(self.spans)
        late_s = max((one.late_s for one in spans if one.ended_at >= since), default=0.0)
        write_s = max((one.write_s for one in spans if one.ended_at >= since), default=0.0)
        still_s = time.monotonic() - spans[-1].ended_at - self.every_s if spans else 0.0
        now = f", and now it stands still for {still_s:.1f} s" if still_s > self.every_s else ""
        return f"at most {late_s:.1f} s late to wake up, {write_s:.1f} s to write to the disk{now}"
