"""The port of the ledger: the durable record of every task, and the sole authority over it.

Each decision is one conditional statement, guarded by the state it needs or by the fence (id, attempt, token). So any
of them may be repeated, by anyone, at any time: whoever comes second changes nothing. Times are the database's clock.

Every method raises LedgerUnavailable when the database does not answer; nothing is half-written then, and the same
call may be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from sqlalchemy import Connection

from workq.incarnation import Incarnation
from workq.task import Claim, Enqueued, Event, NewTask, Settlement, State, Task


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A task that needs a hint, in `delay_s` seconds (0 when it is due). `attempt` guards the mark afterwards."""

    task_id: str
    queue: str
    attempt: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one settlement: the state that it led to, or None for a late result, which changed nothing."""

    task_id: str
    state: State | None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """Why a hint could not be claimed: the task's state, and in how many seconds it is due (0 or less: it is)."""

    state: State
    queue: str
    due_in_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a dead worker process. Without evidence, every task that it had claimed counts as started.

    `started` maps task ids to the attempt that had begun. `failed` maps those that were killed for exceeding their hard
    limit to (error, seconds until the next attempt); the others were not at fault and are not charged when it is
    non-empty.
    """

    cause: str
    started: Mapping[str, int] | None = None
    failed: Mapping[str, tuple[str, float]] | None = None


@dataclass(frozen=True, slots=True)
class Reaped:
    """What reaping one incarnation did. `hints` are to be published."""

    worker: str
    returned: int
    dead: int
    hints: tuple[Unpublished, ...]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One incarnation as the ledger knows it."""

    id: str
    state: str
    host: str
    pid: int
    queues: tuple[str, ...]
    threads: int
    started_at: datetime
    beat_at: datetime
    beat_age_s: float
    ended_at: datetime | None
    evidence: str | None


@dataclass(frozen=True, slots=True)
class QueueCount:
    """How many tasks of one queue could run now, are due later, and run."""

    ready: int
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class Counts:
    """The answer to `workq status`. `oldest_ready_s` is None when nothing is ready."""

    queues: Mapping[str, QueueCount]
    states: Mapping[State, int]
    oldest_ready_s: float | None
    workers: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows of each kind retention removed."""

    tasks: int
    events: int
    workers: int


class CancelAnswer(StrEnum):
    """What came of a cancel."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    ALREADY_CANCELLED = "already cancelled"
    ALREADY_FINISHED = "already finished"


Within = Callable[[Connection, Sequence[NewTask]], None]
"""Called in the recording transaction with the tasks that were created, to write their hints beside them."""


class Ledger(Protocol):
    """What every ledger promises. Thread-safe."""

    # -- produce and relay

    def record(
        self, tasks: Sequence[NewTask], *, connection: Any = None, within: Within | None = None
    ) -> list[Enqueued]:
        """Record tasks in one transaction, in the caller's own when `connection` (or a session) is given.

        All or nothing. Repeatable after CommitUnknown, because the ids are made by the client: rows that stand already
        are answered as created. A task whose key a live task holds is not recorded; the live one is answered with
        `created=False`.

        Raises:
            KeyConflict: the live task with that key has another name or other arguments.
        """
        ...

    def mark_published(self, sent: Iterable[Unpublished]) -> None:
        """Note that these tasks' hints are confirmed, for those that still stand at the same attempt."""
        ...

    def take_unpublished(
        self, *, limit: int, grace_s: float, horizon_s: float, dry_run: bool = False
    ) -> list[Unpublished]:
        """Tasks that need a hint: unpublished for longer than the grace and due within the horizon; oldest first.

        They are reserved for a while, so that ten sweeps together publish each once. A relay that dies lets go of them.
        """
        ...

    # -- claim and settle

    def claim(self, task_ids: Sequence[str], *, by: str) -> list[Claim]:
        """Claim those tasks that are ready or waiting, and due: the only way to run one.

        One conditional update: running, attempt + 1, a new token. What is missing in the answer was settled, cancelled,
        not due, or somebody else's. An incarnation that is not live in the ledger gets nothing.
        """
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes, each guarded by its fence, in one transaction; answers in the same order.

        A settlement whose fence is old changes nothing and is recorded as `late_result`. Repeatable: settling again
        answers the same. A failure of a task whose cancel was requested ends as cancelled.
        """
        ...

    def look(self, task_ids: Sequence[str]) -> dict[str, Look]:
        """Where these tasks stand; an id that the ledger does not know is missing in the answer."""
        ...

    # -- workers

    def join(self, worker: Incarnation, *, queues: Sequence[str], threads: int) -> None:
        """Record a new incarnation as live. Repeatable."""
        ...

    def beat(self, worker: str) -> bool:
        """Note that an incarnation lives; False when it was reaped: it must stop claiming."""
        ...

    def leave(self, worker: str) -> None:
        """The incarnation has left in order and runs nothing. Repeatable."""
        ...

    def workers(self, *, live_only: bool = True) -> list[WorkerRow]:
        """The incarnations, newest first."""
        ...

    # -- sweep

    def suspect(self, missing: Iterable[str], *, beat_s: float, lease_s: float, dry_run: bool = False) -> list[str]:
        """Note who has no live lease; answers those who are suspected for at least a beat: looked at twice.

        Only a live incarnation whose own heartbeat in the ledger is older than a lease can be suspected. Whoever has a
        lease again is no longer suspected. With `dry_run` nothing is noted: who would be answered now.
        """
        ...

    def reap(
        self,
        worker: str,
        evidence: Evidence,
        *,
        suspected_for_s: float | None = None,
        lease_s: float = 0.0,
        dry_run: bool = False,
    ) -> Reaped | None:
        """End one incarnation and its claims in one transaction; None when somebody did already, or it lives after all.

        With `suspected_for_s`, only if it is still suspected for that long and has not beaten within `lease_s`. Started
        tasks are charged with the crash; when the budget is used up they are dead as `worker_lost`. With `dry_run`
        nothing changes: what would be answered now.
        """
        ...

    def orphans(self, *, limit: int, dry_run: bool = False) -> list[Unpublished]:
        """Return tasks that run under an incarnation which is not live any more."""
        ...

    def unhint(self, task_ids: Sequence[str], *, dry_run: bool = False) -> list[Unpublished]:
        """Ready or waiting tasks whose hint died with its holder: unpublished again, and answered for publishing.

        With `dry_run` nothing changes.
        """
        ...

    def promote(self, *, limit: int, dry_run: bool = False) -> int:
        """Waiting tasks whose time has come become ready. Answers how many."""
        ...

    def prune(self, *, limit: int, retention_s: float, dead_retention_s: float, dry_run: bool = False) -> Pruned:
        """Remove settled tasks, old events and ended workers beyond their retention, at most `limit` of each."""
        ...

    # -- people

    def cancel(self, task_id: str, *, reason: str) -> CancelAnswer:
        """Cancel at once what does not run; ask it of what runs. NotFound when there is no such task."""
        ...

    def revive(self, task_id: str, *, why: str) -> Unpublished:
        """Send a dead or cancelled task back to ready with fresh budgets. Raises NotFound or Refused."""
        ...

    def note(
        self, kind: str, *, detail: Mapping[str, Any], task_id: str | None = None, worker: str | None = None
    ) -> None:
        """Append an event."""
        ...

    # -- questions

    def get(self, task_id: str) -> Task | None:
        """One task, or None."""
        ...

    def tasks(
        self,
        *,
        state: State | None = None,
        queue: str | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        """Tasks by id from the newest, a page at a time: `after` is the last id of the page before."""
        ...

    def history(self, task_id: str) -> list[Event]:
        """The events of one task, oldest first."""
        ...

    def counts(self) -> Counts:
        """How many tasks are where."""
        ...

    def has_due(self, queues: Sequence[str]) -> bool:
        """Whether any task of these queues could be claimed now."""
        ...

    def clock(self) -> datetime:
        """The database's clock. Also the cheapest proof that the ledger answers."""
        ...

    def close(self) -> None:
        """Close connections. Repeatable."""
        ...
