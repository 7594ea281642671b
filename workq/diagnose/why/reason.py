"""The reasons: a closed list, and what is said of one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

SUSPECTED: Final = "it was running when a process died and is suspected of having killed it"


class Code(StrEnum):
    """The closed list of reasons."""

    SETTLED = "settled"
    CANCELLED = "cancelled"
    RUNNING = "running"
    CANCEL_REQUESTED = "cancel_requested"
    WORKER_GONE = "worker_gone"
    WORKER_SILENT = "worker_silent"
    EXPIRED = "expired"
    JOB = "job"
    IN_LINE = "in_line"
    LIMITED = "limited"
    NOT_DUE = "not_due"
    NO_HANDLER = "no_handler"
    PAUSED = "paused"
    INFLIGHT_AWAY = "inflight_away"
    HELD = "held"
    SUSPECT = "suspect"
    NO_WORKER = "no_worker"
    UNPUBLISHED = "unpublished"
    DELAYED = "delayed"
    LOST = "lost"
    BROKER_AWAY = "broker_away"
    BEHIND = "behind"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Why:
    """The reason. `since` is when it began, `until` when it ends by itself at the latest; None where nobody knows."""

    task_id: str
    code: Code
    reason: str
    do: str
    since: datetime | None = None
    until: datetime | None = None


def rfc3339(at: datetime | None) -> str:
    """As everywhere on the command line: RFC 3339, in UTC."""
    if at is None:
        return "an unknown time"
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
