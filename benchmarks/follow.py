"""Follow the records of a contestant's tasks until all have run, and what that cost.

Memory is weighed now and then, and at the end, while the workers still live.

CPU counts from the first record on: of a process that runs tasks, from its own first record, so that starting Python
and importing is left out; of supervisors and servers, from the first record of any. It ends `SETTLE_S` after the last
one, when completions that were gathered are written. It is divided by the tasks that ran in between.

It stops waiting when no record came for `stall_s`.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field

from benchmarks import usage
from benchmarks.arena import Arena
from benchmarks.crew import Crew
from benchmarks.records import Record, Tail

SETTLE_S = 0.5
_MEMORY_EVERY_S = 2.0
"""Seldom: it stops a process for a moment. Short drains are weighed at their end alone."""


@dataclass(slots=True)
class Followed:
    """What was seen.

    Attributes:
        ends: the records of tasks, in the order they were written; a no-op's start and end are one.
        starts: for tasks that take time, the records of their starts.
        worker_cpu_s, server_cpu_s: as the module says; per server by name.
        counted: how many tasks ran while CPU was counted.
        pss_mb: the largest sample of the workers' memory, all processes together; 0.0 if it was not asked for.
    """

    ends: list[Record] = field(default_factory=list)
    starts: list[Record] = field(default_factory=list)
    worker_cpu_s: float = 0.0
    server_cpu_s: dict[str, float] = field(default_factory=dict)
    counted: int = 0
    pss_mb: float = 0.0

    @property
    def done(self) -> set[int]:
        """The indices that have run."""
        return {record.index for record in self.ends}


class Follower:
    """Watches one place. `is_weighed`: sample memory too, which stops a process for about a millisecond each time."""

    def __init__(self, arena: Arena, crew: Crew, *, poll_s: float, is_weighed: bool = False) -> None:
        self.seen = Followed()
        self._arena = arena
        self._crew = crew
        self._tail = Tail(crew.place.records)
        self._poll_s = poll_s
        self._is_weighed = is_weighed
        self._worker_base: dict[int, float] = {}
        self._runners: set[int] = set()
        self._server_base: dict[str, float] = {}
        self._before = 0
        self._weighed_at = 0.0

    def until(
        self, tasks: int, *, stall_s: float, limit_s: float, producer: subprocess.Popen[bytes] | None = None
    ) -> bool:
        """Wait until so many different tasks have run. False when it stalled, the producer failed or the time is up.

        Raises:
            StepFailed: a worker ended by itself.
        """
        done = self.seen.done
        now = time.monotonic()
        deadline, moved = now + limit_s, now
        while True:
            fresh = self.look()
            done.update(record.index for record in fresh)
            now = time.monotonic()
            if fresh:
                moved = now
            if len(done) >= tasks:
                return True
            if now > deadline or now - moved > stall_s or (producer is not None and producer.poll()):
                return False
            self._crew.check()
            time.sleep(self._poll_s)

    def look(self) -> list[Record]:
        """Take in what has been written since the last look; answers the tasks that ended."""
        ends = self._take()
        if ends and not self._runners:
            self._open_accounts()
            ends += self._take()  # what ran meanwhile was paid before
            self._before = len(self.seen.ends)
        if new := {record.pid for record in ends} - self._runners:
            self._runners |= new
            self._worker_base |= usage.cpu_by_pid(one for one in self._crew.processes() if one.pid in new)
        if self._is_weighed and ends and time.monotonic() - self._weighed_at > _MEMORY_EVERY_S:
            self._weigh()
        return ends

    def _take(self) -> list[Record]:
        fresh = [record for record in self._tail.fresh() if record.index >= 0]
        ends = [record for record in fresh if not record.is_start]
        self.seen.starts += [record for record in fresh if record.is_start]
        self.seen.ends += ends
        return ends

    def _open_accounts(self) -> None:
        """Of every process and server, with the first record of any."""
        self._worker_base = usage.cpu_by_pid(self._crew.processes())
        self._server_base = self._arena.cpu_s(self._crew.contestant)
        self._weighed_at = time.monotonic()

    def finish(self) -> Followed:
        """Let what was gathered be written, and close the account of CPU."""
        time.sleep(SETTLE_S)
        self.look()
        now = usage.cpu_by_pid(self._crew.processes())
        servers = self._arena.cpu_s(self._crew.contestant)
        if self._is_weighed:
            self._weigh()
        self.seen.worker_cpu_s = sum(used - self._worker_base.get(pid, 0.0) for pid, used in now.items())
        self.seen.server_cpu_s = {name: used - self._server_base.get(name, used) for name, used in servers.items()}
        self.seen.counted = len(self.seen.ends) - self._before
        return self.seen

    def _weigh(self) -> None:
        self.seen.pss_mb = max(self.seen.pss_mb, usage.pss_mb(self._crew.processes()))
        self._weighed_at = time.monotonic()
