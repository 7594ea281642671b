"""The ledger: the durable record of every task, and the sole authority over it. What it answers, for all to import.

Each decision is one conditional statement, guarded by the state it needs or by the fence (id, attempt, token). So any
of them may be repeated, by anyone, at any time: whoever comes second changes nothing. Times are the database's clock.

Every method raises LedgerUnavailable when the database does not answer; nothing is half-written then, and the same
call may be made again.
"""

from __future__ import annotations

from workq.ledger.answers import (
    NO_GROUP,
    Absence,
    AbsentWorker,
    Applied,
    CancelAnswer,
    Company,
    Counts,
    DeadGroup,
    Evidence,
    Fence,
    Foreseen,
    Foresight,
    Hinted,
    HintRows,
    Look,
    Marker,
    OpenTask,
    Pause,
    Prunable,
    Pruned,
    Prunes,
    QueueCount,
    Reaped,
    Retention,
    Settled,
    Standing,
    Unknown,
    Unpublished,
    Which,
    WhichOpen,
    WorkerRow,
)

__all__ = [
    "Absence",
    "AbsentWorker",
    "Applied",
    "CancelAnswer",
    "Company",
    "Counts",
    "DeadGroup",
    "Evidence",
    "Fence",
    "Foreseen",
    "Foresight",
    "HintRows",
    "Hinted",
    "Look",
    "Marker",
    "NO_GROUP",
    "OpenTask",
    "Pause",
    "Prunable",
    "Pruned",
    "Retention",
    "Prunes",
    "QueueCount",
    "Reaped",
    "Settled",
    "Standing",
    "Unknown",
    "Unpublished",
    "Which",
    "WhichOpen",
    "WorkerRow",
]
