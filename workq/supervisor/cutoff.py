"""Cut off: a worker process that reaches no store any more, while its supervisor does.

A handler may have closed the descriptors of its process, or set a limit for it: then it holds its tasks, ends none, and
its supervisor keeps its lease. Its board says when each store was reached last, and that its threads run: a process
whose handler holds the interpreter lock, or that is stopped, is not cut off. While the supervisor does not reach the
stores itself, nobody is: they are away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import Enum
from typing import Final

from workq.config import Times
from workq.worker.crash_board import CrashBoard

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
