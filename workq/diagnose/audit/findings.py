"""What an audit finds, and what a repair of it did: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from workq.diagnose.where import Misplacement, Place
from workq.ledger import Fence

IDS_AT_ONCE = 500
"""How many tasks one question to the ledger names."""


class Way(StrEnum):
    """How it is known what is in a queue."""

    LISTED = "listed"
    TURNED = "turned"
    MARKED = "marked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `fence` says where the task stood; a hint or hold without a task has none."""

    kind: Misplacement
    task: str
    queue: str
    proof: str
    repair: str
    worker: str | None = None
    fence: Fence | None = field(default=None, repr=False)
    is_unheld: bool = field(default=False, repr=False)
    is_expired: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit found. `tasks` is how many are not settled: in a place, lost, an orphan, or unproven.

    `unproven` counts by queue the tasks of which nothing could be told, `stale` the hints of tasks that are settled
    (they are dropped when they are delivered), `foreign` the messages that are not ours. `ways` says how each queue was
    looked at.
    """

    tasks: int
    places: Mapping[Place, int]
    findings: tuple[Finding, ...]
    unproven: Mapping[str, int]
    stale: int
    foreign: int
    ways: Mapping[str, Way]

    @property
    def is_ok(self) -> bool:
        """Every task is in exactly one place, and that is proved."""
        return not self.findings and not self.unproven

    def count(self, kind: Misplacement) -> int:
        """How many findings are of this kind."""
        return sum(finding.kind is kind for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, by kind. `left` counts what had moved meanwhile, what mends itself, and what is harmless."""

    done: Mapping[Misplacement, int]
    left: int
