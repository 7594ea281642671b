"""What the faults act on, and the harms that they leave behind, by which the auditor explains second starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final

from workq.config import Times
from workq.diagnose.bounds import Bounds
from workq.lab.certify.scratch import Scratch
from workq.lab.certify.wire import Wires
from workq.lab.fleet import Host

WAKING_S: Final = 30.0
"""So long after a pause past its lease a process may still be leaving, with the status that says so."""


class DuplicateCause(StrEnum):
    """Why a task may have been started twice."""

    KILLED = "killed"
    PAUSED = "paused"
    CUT = "cut off"


@dataclass(frozen=True, slots=True)
class Harm:
    """What one fault did to processes (`pids`), or to everybody's way to a store (none). Times are monotonic."""

    cause: DuplicateCause
    fault: str
    at: float
    until: float
    pids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Stage:
    """What the faults act on, and what they leave behind."""

    folder: Path
    hosts: list[Host]
    scratch: Scratch
    wires: Wires
    times: Times
    rng: Random
    harms: list[Harm] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """What went wrong that should not have, whatever the fault."""
    tell: Callable[[str], None] = lambda _: None
    pile_up: Callable[[], None] = lambda: None
    """Enqueue more at once than the workers can take, so that hints wait in the queue."""

    def note(self, cause: DuplicateCause, fault: str, at: float, pids: Iterable[int] = ()) -> None:
        """A harm that has ended just now."""
        self.harms.append(Harm(cause, fault, at, time.monotonic(), frozenset(pids)))

    def good_ends(self) -> set[int | None]:
        """How a supervisor may end after SIGTERM: with 0; with 1 if one of its processes, just woken, was leaving."""
        woken = any(
            harm.cause is DuplicateCause.PAUSED and harm.until > time.monotonic() - WAKING_S for harm in self.harms
        )
        return {0, 1} if woken else {0}

    def bounds(self) -> Bounds:
        """How long recoveries may take with these times."""
        return Bounds.of(self.times)
