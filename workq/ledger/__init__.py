"""The port of the ledger: the durable record of every task, and the sole authority over it.

Each decision is one conditional statement, guarded by the state it needs or by the fence (id, attempt, token). So any
of them may be repeated, by anyone, at any time: whoever comes second changes nothing. Times are the database's clock.

Every method raises LedgerUnavailable when the database does not answer; nothing is half-written then, and the same
call may be made again.
"""

from __future__ import annotations

from typing import Protocol

from workq.ledger.answers import (
    NO_GROUP,
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
    LimitRow,
    Look,
    Marker,
    NewSchedule,
    OpenTask,
    Pause,
    Prunable,
    Pruned,
    PrunedJobs,
    PrunedWebhooks,
    Prunes,
    QueueCount,
    Reaped,
    Retention,
    ScheduleRow,
    SequenceRow,
    Settled,
    Standing,
    Unknown,
    Unpublished,
    Which,
    WhichOpen,
    WorkerRow,
)
from workq.ledger.port.flow import Flow
from workq.ledger.port.jobs import Jobs
from workq.ledger.port.life import Life
from workq.ledger.port.people import People
from workq.ledger.port.questions import Questions
from workq.ledger.port.sweeping import Sweeping
from workq.ledger.port.webhooks import Webhooks

__all__ = [
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
    "LimitRow",
    "Hinted",
    "Ledger",
    "Look",
    "Marker",
    "NewSchedule",
    "NO_GROUP",
    "OpenTask",
    "Pause",
    "Prunable",
    "Pruned",
    "PrunedJobs",
    "PrunedWebhooks",
    "Retention",
    "Prunes",
    "QueueCount",
    "Reaped",
    "ScheduleRow",
    "SequenceRow",
    "Settled",
    "Standing",
    "Unknown",
    "Unpublished",
    "Which",
    "WhichOpen",
    "WorkerRow",
]


class Ledger(Life, Sweeping, Flow, Jobs, Webhooks, People, Questions, Protocol):
    """What every ledger promises. Thread-safe."""

    @property
    def writers(self) -> int:
        """How many transactions are worth writing at once from one process: SQLite has one writer."""
        ...

    def close(self) -> None:
        """Close connections. Repeatable."""
        ...
