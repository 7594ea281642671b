"""The port of the ledger: the durable record of every task, and the sole authority over it.

Each decision is one conditional statement, guarded by the state it needs or by the fence (id, attempt, token). So any
of them may be repeated, by anyone, at any time: whoever comes second changes nothing. Times are the database's clock.

Every method raises LedgerUnavailable when the database does not answer; nothing is half-written then, and the same
call may be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec
from sqlalchemy import Connection

from workq.broker import HintRow
from workq.evidence import NO_FACTS, Certificate, Facts, Kind
from workq.incarnation import Incarnation
from workq.task import Claim, Enqueued, Event, NewTask, Settlement, State, Task


class Unpublished(msgspec.Struct, frozen=True):
    """A task that needs a hint, in `delay_s` seconds (0 when it is due). `attempt` guards the mark afterwards."""

    task_id: str
    queue: str
    attempt: int
    delay_s: float


class Settled(msgspec.Struct, frozen=True):
    """What became of one settlement: the state that it led to, or None for a late result, which changed nothing."""

    task_id: str
    state: State | None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """Why a hint could not be claimed: the task's state, and in how many seconds it is due (0 or less: it is).

    What has expired is never granted: the sweep cancels it.
    """

    state: State
    queue: str
    due_in_s: float
    is_expired: bool = False


class Hinted(Protocol):
    """Hints beside the ledger, for `Ledger.claim_hinted`: called in its transaction, again when that is repeated."""

    def choose(self, tx: Connection) -> Collection[str]:
        """Which tasks to claim: the ids of hints that nobody else is just taking."""
        ...

    def conclude(
        self, tx: Connection, granted: Collection[str], looks: Mapping[str, Look]
    ) -> Iterable[tuple[Sequence[str], float]]:
        """Remove the hints that were chosen. `looks` tells of each id that was not granted; the unknown are missing.

        Answers which ids were hinted again, and after how many seconds they are seen.
        """
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a dead worker process. Without evidence, every task that it had claimed counts as started.

    `started` maps task ids to the attempt that had begun; `ended` are those of them whose handler had ended, and whose
    outcome was not settled. `failed` maps those that were killed for exceeding their hard limit to (error, seconds
    until the next attempt); the others were not at fault and are not charged when it is non-empty. `is_bystander`: it
    was killed for want of memory beside a process that had used more, and nothing in it is charged. `kind` says how its
    end is known, `facts` what a supervisor saw.
    """

    cause: str
    started: Mapping[str, int] | None = None
    failed: Mapping[str, tuple[str, float]] | None = None
    kind: Kind = Kind.LEASE
    facts: Facts = NO_FACTS
    ended: frozenset[str] = frozenset()
    is_bystander: bool = False


@dataclass(frozen=True, slots=True)
class Reaped:
    """What reaping one incarnation did. `hints` are to be published."""

    worker: str
    returned: int
    dead: int
    hints: tuple[Unpublished, ...]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One incarnation as the ledger knows it. `evidence` is the cause of its end in one sentence."""

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
    machine: str | None = None
    parent: int | None = None
    memory_bytes: int | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True, slots=True)
class Marker:
    """One marker of one line of the broker: a queue, and one of its priority bands.

    It is out until `returned_for_s` is told; then it is evidence; then it is closed. Ages in seconds, by the ledger's
    clock. `depth` is how many hints the line had when it was sent, `lost` how many it has proved lost so far.
    """

    id: str
    queue: str
    band: int
    sent_for_s: float
    returned_for_s: float | None
    closed_for_s: float | None
    depth: int | None
    lost: int


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


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one task stands, with what only an operator asks. `now` is the ledger's clock at the look."""

    task_id: str
    name: str
    queue: str
    state: State
    attempt: int
    failures: int
    failures_max: int
    is_suspect: bool
    worker: str | None
    error: str | None
    reason: str | None
    now: datetime
    due_at: datetime
    queued_at: datetime
    published_at: datetime | None
    reserved_until: datetime | None
    started_at: datetime | None
    settled_at: datetime | None
    cancel_requested_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task that is not settled, as the audit looks at it. `now` is the ledger's clock at the look."""

    task_id: str
    queue: str
    state: State
    attempt: int
    worker: str | None
    due_at: datetime
    queued_at: datetime
    published_at: datetime | None
    reserved_until: datetime | None
    now: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """Where one task stands: what must not have moved until a plan is applied (see plan.py).

    `seal` is a short hash of the claim's token: it tells one claim from another, and settles nothing.
    """

    task_id: str
    queue: str
    state: State
    attempt: int
    due_at: datetime
    queued_at: datetime
    published_at: datetime | None
    worker: str | None
    seal: str | None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What would become of one claim whose worker is gone, and with what it would be charged."""

    fence: Fence
    becomes: State
    charged: str


@dataclass(frozen=True, slots=True)
class Foresight:
    """What reaping one incarnation would do, and where its row stands."""

    worker: str
    beat_at: datetime
    suspected_at: datetime | None
    claims: tuple[Foreseen, ...]


class Prunes(StrEnum):
    """The kinds of rows that retention removes."""

    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    DEAD = "dead"
    EVENTS = "events"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class Prunable:
    """Rows of one kind that are beyond their retention: settled, appended or ended at `before` or earlier."""

    what: Prunes
    before: datetime
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of some rows of a plan: the ids that were changed, the hints that must follow, and why not the rest."""

    changed: tuple[str, ...] = ()
    hints: tuple[Unpublished, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Company:
    """What else a worker has claimed: so many tasks, some of them suspects."""

    others: int
    suspects: int


class CancelAnswer(StrEnum):
    """What came of a cancel."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    ALREADY_CANCELLED = "already cancelled"
    ALREADY_FINISHED = "already finished"


NO_GROUP: Final = "-"
"""The group of those that died before there were groups."""


@dataclass(frozen=True, slots=True)
class Which:
    """Which of the dead: those to which all of this applies; None: whatever it is. Ages count from their death."""

    group: str | None = None
    """A fingerprint (see fingerprint.py), or `NO_GROUP`."""
    name: str | None = None
    queue: str | None = None
    older_s: float | None = None
    younger_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead tasks that died of the same thing."""

    group: str
    name: str
    tasks: int
    first_at: datetime
    last_at: datetime
    reason: str | None
    sample: str
    """The id of one of them: the oldest enqueued."""


HintRows = Callable[[Sequence[NewTask]], Sequence[HintRow]]
"""The hints of tasks that are created, to be written beside them. Those of tasks that are alike are of one delay."""


class Ledger(Protocol):
    """What every ledger promises. Thread-safe."""

    @property
    def writers(self) -> int:
        """How many transactions are worth writing at once from one process: SQLite has one writer."""
        ...

    # -- produce and relay

    def record(
        self, tasks: Sequence[NewTask], *, connection: Any = None, hints: HintRows | None = None
    ) -> list[Enqueued]:
        """Record tasks in one transaction, in the caller's own when `connection` (or a session) is given.

        With `hints`, in the same transaction, and the tasks are published with it.

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

    def rehinted(self, task_ids: Sequence[str], *, delay_s: float = 0.0) -> None:
        """Note that tasks which are still to be claimed have a new hint, which reaches its queue in `delay_s` seconds.

        Call it after the new hint is confirmed, whenever one takes the place of another: a marker that was sent before
        would otherwise prove the new hint lost. Without it, at worst a hint too many is sent.
        """
        ...

    # -- the proof of loss (see marker.py)

    def lines(self, *, slack_s: float) -> list[str]:
        """The queues with tasks that have a hint, are due for `slack_s`, and unclaimed: their hints may be lost."""
        ...

    def markers(self) -> list[Marker]:
        """The markers of all lines, the newest of a line first: those that are out, and the last one that came back."""
        ...

    def marker_sent(self, queue: str, band: int, marker_id: str, *, spacing_s: float, depth: int | None) -> bool:
        """Note that a marker is about to be published; False when the line's newest is younger than `spacing_s`.

        Two at the same moment may both be noted: a marker too many is harmless.
        """
        ...

    def marker_returned(self, marker_ids: Sequence[str]) -> int:
        """Note that these markers have come out of their queues. Answers how many of them were awaited. Repeatable."""
        ...

    def lost(
        self, marker: Marker, *, held: Iterable[str], slack_s: float, limit: int, dry_run: bool = False
    ) -> list[Unpublished]:
        """Tasks whose hint a returned marker has overtaken: unpublished again, and answered for publishing.

        Those with a hint that was confirmed before the marker was sent, that were due for `slack_s` then, and that
        are neither claimed nor among the `held`. They are reserved as by `take_unpublished`. With `dry_run` nothing
        changes.
        """
        ...

    def marker_closed(self, marker: Marker) -> None:
        """Note that all that this marker proved lost has been answered by `lost`; older ones of its line are dropped.

        Repeatable.
        """
        ...

    # -- claim and settle

    def claim(self, task_ids: Sequence[str], *, by: str) -> list[Claim]:
        """Claim those tasks that are ready or waiting, due and not expired: the only way to run one.

        One conditional update: running, attempt + 1, a new token. What is missing in the answer was settled, cancelled,
        expired, not due, or somebody else's. An incarnation that is not live in the ledger gets nothing.
        """
        ...

    def claim_hinted(self, hinted: Hinted, *, by: str) -> list[Claim]:
        """As `claim`, of tasks whose hints are rows of the ledger's own database: the hints go in the same transaction.

        When the commit was lost, the next try finds by its token whether it stands; if it does, the hints are gone too.
        """
        ...

    def return_forgotten(self, held: Mapping[str, int], *, by: str) -> int:
        """Attempts, by task, that run under `by`, which knows nothing of them: back to ready at no cost.

        Answers how many did. If one runs all the same, its result comes late. Repeatable.
        """
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write outcomes, each guarded by its fence, in one transaction; answers in the same order.

        A settlement whose fence is old changes nothing and is recorded as `late_result`. Repeatable: settling again
        answers the same. A failure of a task whose cancel was requested ends as cancelled.
        """
        ...

    def transaction(self, claim: Claim) -> AbstractContextManager[Connection]:
        """A transaction of the claim's handler: at the end of its block the task succeeds in it, without a result.

        It stands as a whole, or not at all. What the block raises rolls it back and passes.

        Raises:
            Refused: the attempt does not run any more, or the block has ended the transaction itself.
            LedgerUnavailable: it did not stand; CommitUnknown: the ledger stayed away after it broke in COMMIT.
        """
        ...

    @property
    def is_entered(self) -> bool:
        """Whether this thread is inside of `transaction`."""
        ...

    def look(self, task_ids: Sequence[str]) -> dict[str, Look]:
        """Where these tasks stand; an id that the ledger does not know is missing in the answer."""
        ...

    # -- workers

    def join(self, worker: Incarnation, *, queues: Sequence[str], threads: int) -> None:
        """Record a new incarnation as live. Repeatable."""
        ...

    def beat(self, worker: str, *, memory_bytes: int | None = None) -> bool:
        """Note that an incarnation lives, and its resident memory; False when it was reaped: it must stop claiming."""
        ...

    def leave(self, worker: str) -> None:
        """The incarnation has left in order and runs nothing. Repeatable."""
        ...

    def workers(self, *, live_only: bool = True, prefix: str = "") -> list[WorkerRow]:
        """The incarnations whose id begins with `prefix`, newest first."""
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
        planned: Foresight | None = None,
        by: Mapping[str, Any] | None = None,
    ) -> Reaped | None:
        """End one incarnation and its claims in one transaction; None when somebody did already, or it lives after all.

        With `suspected_for_s`, only if it is still suspected for that long and has not beaten within `lease_s`. With
        `dry_run` nothing changes: what would be answered now.

        The attempt that was running, if it was the only one, is charged with the crash; several become suspects: nobody
        knows yet who it was. Where nobody saw a crash, or a handler had ended already, presence is noted, which is
        free. Whoever was suspected or noted before is charged. A task whose budget is used up is dead as `worker_lost`.

        With `planned`, only if neither its row nor its claims have moved since (see plan.py); `by` is then appended as
        an event `manual` for the incarnation and for each claim.

        The certificate of its death is kept with the incarnation, and its essentials in the history of each task.
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

    def expire(self, *, limit: int, dry_run: bool = False) -> int:
        """Cancel ready and waiting tasks that have expired, for that reason. Answers how many."""
        ...

    def promote(self, *, limit: int, dry_run: bool = False) -> int:
        """Waiting tasks whose time has come become ready. Answers how many."""
        ...

    def prune(self, *, limit: int, retention_s: float, dead_retention_s: float, dry_run: bool = False) -> Pruned:
        """Remove settled tasks, old events and ended workers beyond their retention, at most `limit` of each."""
        ...

    def swept(self, *, every_s: float) -> None:
        """Note that a pass of the sweep has ended; at most once in `every_s` seconds, however many sweep."""
        ...

    # -- plan and apply (see plan.py)

    def began_at(self) -> datetime:
        """When this ledger was made: tells it from others with the same URL."""
        ...

    def fences(self, task_ids: Iterable[str]) -> dict[str, Fence]:
        """Where these tasks stand; an id that the ledger does not know is missing in the answer."""
        ...

    def foresee(self, worker: str, evidence: Evidence) -> Foresight | None:
        """What `reap` would do to a live incarnation; None when it is not live."""
        ...

    def orphaned(self, *, limit: int) -> list[Foreseen]:
        """What `orphans` would return."""
        ...

    def expirable(self, *, limit: int) -> list[str]:
        """Whom `expire` would cancel."""
        ...

    def promotable(self, *, limit: int) -> list[str]:
        """Whom `promote` would make ready."""
        ...

    def prunable(self, *, limit: int, retention_s: float, dead_retention_s: float) -> list[Prunable]:
        """What `prune` would remove, at most `limit` rows of each kind."""
        ...

    def relay_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that stand where they stood are unpublished, reserved for a relay, and answered for publishing.

        Each of these five writes decides row by row, in one transaction that locks the row, and appends an event
        `manual` with `by` for each that it changed. Whoever comes second is refused.
        """
        ...

    def expire_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that stand where they stood, and have expired, are cancelled."""
        ...

    def promote_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that wait where they waited, and are due, become ready."""
        ...

    def return_planned(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that still run under the same claim of an incarnation which is not live are returned."""
        ...

    def prune_planned(
        self, rows: Prunable, *, retention_s: float, dead_retention_s: float, by: Mapping[str, Any]
    ) -> Applied:
        """Rows that are still beyond their retention, and were when the plan was made, are removed."""
        ...

    # -- audit (see audit.py)

    def queues_with_open_tasks(self) -> list[str]:
        """The queues with tasks that are not settled."""
        ...

    def open_tasks(
        self, queue: str, *, is_running: bool, after: OpenTask | None = None, limit: int = 1000
    ) -> list[OpenTask]:
        """The tasks of a queue that run, or those that are still to be claimed: a page at a time, after the last one.

        One that changes its state between two pages may be met twice, or not at all.
        """
        ...

    def open_among(self, task_ids: Sequence[str]) -> dict[str, OpenTask]:
        """Those of these tasks that are not settled."""
        ...

    def marker_sent_at(self, queue: str, band: int) -> datetime | None:
        """When the newest marker of a line was sent; None when it has none."""
        ...

    def has_marker_returned(self, queue: str, band: int, *, since: datetime) -> bool:
        """Whether a marker sent then or later has come back: whatever was confirmed before has left the line."""
        ...

    def markers_voided(self, queue: str, *, since: datetime) -> int:
        """The order of a queue was disturbed, from `since` until now: markers that were on their way prove nothing.

        Those that are out, or came back since then, are dropped. Answers how many. Repeatable.
        """
        ...

    def return_unheld(self, fences: Sequence[Fence], *, by: Mapping[str, Any]) -> Applied:
        """Tasks that still run under the same claim are returned at no charge, though their worker lives.

        Only for what nobody holds: a worker that runs one all the same settles it as a late result. As with plans, each
        has an event `manual` with `by`.
        """
        ...

    # -- rebuild (see rebuild.py)

    def open_queues(self) -> list[str]:
        """The queues with tasks that are ready or waiting."""
        ...

    def unclaimed(self, queue: str, *, before: datetime) -> int:
        """How many tasks of a queue are ready or waiting since `before`, without a hint that was confirmed later."""
        ...

    def unclaimed_page(
        self, queue: str, *, before: datetime, after: tuple[datetime, str] | None, limit: int
    ) -> list[Fence]:
        """Those tasks in the order in which they are due, a page at a time: `after` is the last of the page before."""
        ...

    def renew(self, task_ids: Sequence[str], *, before: datetime) -> list[Unpublished]:
        """Those of these tasks that are still unclaimed, and have no hint that was confirmed after `before`.

        They are unpublished, and reserved as by `take_unpublished`; answered in the order in which they are due.
        """
        ...

    def markers_dropped(self, queue: str) -> int:
        """Forget the markers of a queue that are out: they will not come back. Answers how many. Repeatable."""
        ...

    # -- people

    def cancel(self, task_id: str, *, reason: str) -> CancelAnswer:
        """Cancel at once what does not run; ask it of what runs. NotFound when there is no such task."""
        ...

    def reschedule(self, task_id: str, *, delay_s: float, why: str) -> Unpublished:
        """Let a task that does not run be due in `delay_s` seconds, whatever it waited for. Answers its new hint.

        The hint that it had is worth nothing when it comes: too early, the claim refuses it; too late, it is done. A
        task that expires before is refused. Raises NotFound or Refused.
        """
        ...

    def revive(self, task_id: str, *, why: str) -> Unpublished:
        """Send a dead or cancelled task back to ready with fresh budgets; it does not expire any more.

        Raises NotFound or Refused.
        """
        ...

    def dead_groups(self, which: Which, *, limit: int) -> list[DeadGroup]:
        """The dead by what they died of, the largest group first."""
        ...

    def dead_count(self, which: Which) -> int:
        """How many they are."""
        ...

    def dead_ids(self, which: Which, *, after: str | None, limit: int) -> list[str]:
        """A page of them, by id from the oldest: `after` is the last id of the page before."""
        ...

    def revive_dead(self, task_ids: Sequence[str], *, why: str) -> tuple[list[Unpublished], dict[str, str]]:
        """As `revive`, of many that are dead, in one transaction; answers the hints, and by id why another is not.

        What is not dead any more is in neither: somebody was faster. Repeatable.
        """
        ...

    def discard_dead(self, task_ids: Sequence[str], *, why: str) -> list[str]:
        """Dead tasks that nobody wants back: cancelled, as `discarded`. Answers which were. Repeatable."""
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

    def running(self, worker: str, *, limit: int = 1000) -> list[Task]:
        """What an incarnation has claimed and not settled, by id."""
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

    # -- questions of operators (see report.py and meters.py)

    def standings(self, task_ids: Iterable[str]) -> dict[str, Standing]:
        """Where these tasks stand in every detail; an id that the ledger does not know is missing in the answer."""
        ...

    def older(self, than: Standing) -> int:
        """How many tasks of the same queue could be claimed and were due before this one; counted up to 100,000."""
        ...

    def company(self, of: Standing) -> Company:
        """Which other tasks the same worker has claimed and not settled."""
        ...

    def happened(self, kinds: Collection[str], *, within_s: float, limit: int) -> list[Event]:
        """The newest events of these kinds, at most `limit` and `within_s` seconds old; the oldest first."""
        ...

    def begun(self, *, within_s: float) -> int:
        """How many tasks have succeeded within these seconds, or run now: attempts of which no event tells."""
        ...

    def swept_for_s(self) -> float | None:
        """How long ago a sweep last finished a pass; None when it is not known."""
        ...

    def clock(self) -> datetime:
        """The database's clock. Also the cheapest proof that the ledger answers."""
        ...

    def close(self) -> None:
        """Close connections. Repeatable."""
        ...
