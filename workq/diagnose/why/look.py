"""What every reason is made with: one look at one task, which asks the three stores, and the closed list of reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from workq.broker import Depth
from workq.config import Times
from workq.diagnose.bounds import Bounds
from workq.errors import BrokerUnavailable, InFlightUnavailable
from workq.inflight import Lease
from workq.ledger import Standing, WorkerRow
from workq.slices import BEYOND_SUSPICION
from workq.stores import Stores
from workq.values.incarnation import is_gone, this_machine
from workq.values.lane import queue_of

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
    DESTINATION = "destination"
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


class TaskLook:
    """One look at one task: asks the stores only what the answer needs."""

    def __init__(self, stores: Stores, times: Times, task: Standing) -> None:
        self.stores = stores
        self.times = times
        self.bounds = Bounds.of(times)
        self.task = task

    def why(
        self, code: Code, reason: str, do: str, *, since: datetime | None = None, until: datetime | None = None
    ) -> Why:
        return Why(self.task.task_id, code, reason, do, since, until)

    @property
    def runs_alone(self) -> bool:
        """It is a suspect: nothing else runs in its process while it does."""
        return self.task.is_suspect and self.task.name not in BEYOND_SUSPICION

    def worker(self, worker: str | None) -> WorkerRow | None:
        """What the ledger knows of a worker."""
        return next((row for row in self.stores.ledger.questions.workers(live_only=False) if row.id == worker), None)

    def serving(self) -> list[WorkerRow]:
        """The workers that serve its queue now."""
        leases, queue = self.leases(), queue_of(self.task.queue)
        return [
            row
            for row in self.stores.ledger.questions.workers()
            if queue in row.queues and not self.is_silent(row, leases) and not is_seen_gone(row)
        ]

    def is_silent(self, row: WorkerRow, leases: Mapping[str, Lease] | None = None) -> bool:
        """Whether both its lease and its heartbeat in the ledger have ended: only then a sweep may reap it."""
        if row.beat_age_s < self.times.lease_s:
            return False
        lease = (self.leases() if leases is None else leases).get(row.id)
        return lease is None or lease.left_s <= 0.0

    def leases(self) -> Mapping[str, Lease]:
        """None, while the in-flight store is away: the ledger's heartbeats decide then."""
        try:
            return self.stores.inflight.leases()
        except InFlightUnavailable:
            return {}

    def depth(self) -> tuple[Depth | None, str]:
        """How many hints the broker has for the queue; or None, and why it cannot tell."""
        try:
            return self.stores.broker.depths([self.task.queue])[self.task.queue], ""
        except BrokerUnavailable as error:
            return None, one_line(error)


def is_seen_gone(row: WorkerRow) -> bool:
    """Whether it lived on this very machine, and its process is gone: no need to wait for its lease."""
    return row.machine is not None and row.machine == this_machine() and is_gone(row.pid)


def named_worker(worker: str | None, row: WorkerRow | None) -> str:
    """A worker, for a sentence."""
    if row is None:
        return f"worker {worker} (unknown to the ledger)"
    return f"worker {row.id} (process {row.pid} on {row.host})"


def one_line(error: Exception) -> str:
    """An error, for a sentence."""
    return " ".join(str(error).split())
