"""One fault: it strikes, lasts, and is healed; what it did is noted on the stage as a harm.

None needs any control over the servers: processes of ours are killed and paused, connections are cut in our own proxy,
and what is purged, deleted, wiped or locked belongs to the scratch namespace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from workq.lab.certify.stage import Stage


class Fault(ABC):
    """One fault. Used once: strike, wait `lasts_s`, heal."""

    kind: ClassVar[str]
    is_timed_from_heal: ClassVar[bool]
    """The promise counts from the end of the fault, not from its start."""
    waits_to_heal: ClassVar[bool] = False
    """Its heal waits for a process to do something, which another fault may still keep it from: it comes last."""
    lasts_s: float
    """How long until it is healed."""

    @property
    @abstractmethod
    def targets(self) -> frozenset[str]:
        """What it hits; faults that hit the same are never composed."""

    @abstractmethod
    def bound_s(self, stage: Stage) -> float:
        """What workq promises: so many seconds later everything is done that was open when it struck."""

    @abstractmethod
    def strike(self, stage: Stage) -> str:
        """Begin; answers what was hit, for people."""

    @abstractmethod
    def heal(self, stage: Stage) -> None:
        """End."""
