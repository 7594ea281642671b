"""A finding of an audit."""

from __future__ import annotations

from dataclasses import dataclass, field

from workq.diagnose.where import Misplacement
from workq.ledger import Fence


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
