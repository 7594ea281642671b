"""The port of the ledger: the durable record of every task, and the sole authority over it.

Each decision is one conditional statement, guarded by the state it needs or by the fence (id, attempt, token). So any
of them may be repeated, by anyone, at any time: whoever comes second changes nothing. Times are the database's clock.

Every method raises LedgerUnavailable when the database does not answer; nothing is half-written then, and the same
call may be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection

from workq.delivery import (
    AttemptRow,
    Cause,
    DeliveryRow,
    DeliveryState,
    EndpointChange,
    EndpointRow,
    EndpointState,
    NewEndpoint,
    NewWebhook,
    Parcel,
    SentTo,
    WhichDeliveries,
)
from workq.incarnation import Incarnation
from workq.job import (
    Begun,
    Bookmark,
    FailedGroup,
    IfRunning,
    JobRow,
    JobState,
    NewJob,
    NewStep,
    SlowSubtask,
    Split,
    Stepped,
    Tended,
)
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
    Unpublished,
    Which,
    WhichOpen,
    WorkerRow,
)
from workq.task import Claim, Enqueued, Event, FailedItem, NewSubtask, NewTask, Result, Settlement, State, Task

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
    "Unpublished",
    "Which",
    "WhichOpen",
    "WorkerRow",
]


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
        """Note that these tasks' hints are confirmed, for those that still stand at the same attempt.

        With `arrives_in_s`, the instant that is noted is the one at which the hint has come: see `rehinted`.
        """
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
        """The queues with tasks that have a hint, are due for `slack_s`, and unclaimed: their hints may be lost.

        Without those that are paused: no marker comes back from them.
        """
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
        """Claim those tasks that are ready or waiting, due, not expired, and not paused: the only way to run one.

        One conditional update: running, attempt + 1, a new token. What is missing in the answer was settled, cancelled,
        expired, not due, paused, or somebody else's. An incarnation that is not live in the ledger gets nothing.
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

    def transaction(
        self, claim: Claim, *, added: Callable[[], Sequence[NewSubtask]] = tuple
    ) -> AbstractContextManager[Connection]:
        """A transaction of the claim's handler: at the end of its block the task succeeds in it, without a result.

        It stands as a whole, or not at all. What the block raises rolls it back and passes. `added`: asked at its end,
        subtasks that the handler has added to its job.

        Raises:
            Refused: the attempt does not run any more, or the block has ended the transaction itself.
            LedgerUnavailable: it did not stand; CommitUnknown: the ledger stayed away after it broke in COMMIT.
        """
        ...

    @property
    def is_entered(self) -> bool:
        """Whether this thread is inside of `transaction`."""
        ...

    def give_way(self) -> None:
        """For a loop of events, between two rounds: wait a moment for a thread that keeps all others from writing."""
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

    # -- schedules (see ticks.py)

    def schedule(self, given: NewSchedule) -> bool:
        """Let something tick, or change what stands under that name; False when it stands so already.

        Whose timetable stays keeps its next tick. Repeatable.
        """
        ...

    def unschedule(self, name: str, *, who: str) -> bool:
        """Let it tick no more; False when there is none of that name. What has become a task stays one."""
        ...

    def pause_schedule(self, name: str, *, who: str, why: str) -> None:
        """Let it not tick until `resume_schedule`. NotFound when there is none."""
        ...

    def resume_schedule(self, name: str, *, who: str, why: str) -> bool:
        """Let it tick again, from now on; False when it was not paused. NotFound when there is none."""
        ...

    def schedules(self) -> list[ScheduleRow]:
        """All of them, by name."""
        ...

    def schedules_due(self, *, ahead_s: float, limit: int) -> list[ScheduleRow]:
        """Those whose next tick comes within `ahead_s`, the earliest first. None that is paused."""
        ...

    def tick(
        self,
        row: ScheduleRow,
        ticks: Sequence[tuple[datetime, NewTask]],
        *,
        next_at: datetime | None,
        hints: HintRows | None = None,
    ) -> bool:
        """Record a task for each of these ticks, and let the next one be at `next_at`, in one transaction.

        False, and nothing is recorded, when the schedule does not stand any more where `row` saw it. Repeatable.
        """
        ...

    def ticks(self, schedule: str, *, limit: int) -> list[tuple[datetime, str]]:
        """When it has ticked, and which task that became, the newest first."""
        ...

    # -- order

    def advance(self, keys: Iterable[str]) -> list[Unpublished]:
        """Let the lines of these order keys move up, where their first has ended; answers whose turn has come.

        Those are ready, or waiting for their own time, and need a hint. Repeatable.
        """
        ...

    def ended_heads(self, *, limit: int) -> list[str]:
        """The order keys whose first has ended, and whose line has not moved up."""
        ...

    def sequences(self, *, key: str | None = None, blocked_only: bool = False, limit: int = 100) -> list[SequenceRow]:
        """The order keys with open tasks, by name; or one; or those that are blocked by a dead task."""
        ...

    # -- limits (see permits.py)

    def admit(self, keys: Iterable[str], *, dry_run: bool = False) -> list[Unpublished]:
        """Give what has come free of these limits to the first that are parked; answers whose turn has come.

        Those are ready, or waiting for their slot, and need a hint. Repeatable.
        """
        ...

    def admit_and_claim(
        self, keys: Iterable[str], *, by: str, room: int, queues: Container[str]
    ) -> tuple[list[Claim], list[Unpublished]]:
        """As `admit`, and those whose turn is now are claimed for `by`, of these queues as many as there is room for.

        Answers the claims, and those that need a hint. Subtasks of jobs are never claimed here.

        Raises:
            As `claim` does.
        """
        ...

    def limits_to_look_at(self, *, limit: int) -> list[str]:
        """The limits whose permits may have come free without anybody's noticing; longest ago looked at first."""
        ...

    def limits(self, *, key: str | None = None, limit: int = 100) -> list[LimitRow]:
        """The limits that are in use, by name; or one."""
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

    # -- bands

    def bands(self) -> frozenset[str]:
        """The bands of priority that are in use, by the names that their tasks have as `queue`; no normal one is named.

        `record` and `tick` see to it that a band is here before its first task can be seen.
        """
        ...

    def bands_used(self, queues: Iterable[str]) -> None:
        """Those of these queues that are bands are in use, from now on. Repeatable."""
        ...

    # -- jobs (see counting.py and jobs.py)

    def begin_job(self, job: NewJob, *, hints: HintRows | None = None) -> Begun:
        """Record a job with the task that reads its source, in one transaction. Repeatable.

        While another of its name and key has not ended, `job.if_running` says what becomes of it.

        Raises:
            Refused: the other one has not ended, and this one was to be refused then.
        """
        ...

    def retry_job(
        self, job_id: str, *, chunk: int | None, rate_max: float | None, if_running: IfRunning, hints: HintRows | None
    ) -> Begun:
        """Begin a job over the failed items of one that has ended, with its parameters, and what follows its end.

        `chunk`: other than that one's. Items that no subtask could carry are left out.

        Raises:
            NotFound: there is no such job.
            Refused: it has not ended, or nothing of it has failed; or as `begin_job`.
        """
        ...

    def split_job(
        self,
        job_id: str,
        subtasks: Sequence[NewSubtask],
        *,
        after: int,
        cursor: Any,
        is_last: bool,
        failed: Sequence[FailedItem] = (),
        total: int | None = None,
        hints: HintRows | None = None,
    ) -> Split:
        """Record a page of subtasks and the cursor behind it, in one transaction, if `after` of them were made before.

        `failed`: items of it that no subtask can carry. Answers how many subtasks may be made now; None, and nothing is
        recorded, when the job stands elsewhere, or does not run: it may be paused. `is_last`: its source is read to the
        end. Repeatable.
        """
        ...

    def bookmark(self, claim: Claim) -> Bookmark:
        """Where the partition of a claim goes on. Refused: nobody knows, because its subtask was removed."""
        ...

    def step(
        self, claim: Claim, new: NewStep, *, on_stood: Callable[[Stepped], None]
    ) -> AbstractContextManager[Connection]:
        """As `transaction`, of a partition: the block's writes, the cursor and the count of items stand, or nothing.

        The task keeps running, with its whole budget again; or it has succeeded, if nothing is behind the cursor.
        `on_stood` is told after the commit. Fenced. Once: Refused, if another number of steps stands than it says, or
        the job does not wait for this partition any more (it was cancelled by force).
        """
        ...

    def pause_job(self, job_id: str, *, who: str, why: str, is_forced: bool = False) -> JobRow:
        """Start none of its subtasks any more, and split no further. What runs goes on. Repeatable.

        It is paused when nothing of it runs any more; `is_forced`: at once.
        Here as below: NotFound when there is no such job, Refused when it has ended.
        """
        ...

    def resume_job(self, job_id: str, *, who: str, why: str) -> tuple[JobRow | None, list[Unpublished]]:
        """Let a paused job go on, or one whose source has failed, at its cursor; answers what is to be hinted.

        None: the job's row was removed, and what was parked of it runs as any other task.
        """
        ...

    def cancel_job(
        self, job_id: str, *, who: str, why: str, is_forced: bool = False
    ) -> tuple[JobRow, list[Unpublished]]:
        """Start nothing of it any more, from this moment on; cancel what has not started, ask what runs. Repeatable.

        It is cancelled when nothing of it runs any more; `is_forced`: at once. Answers what is to be hinted.
        """
        ...

    def throttle_job(
        self, job_id: str, *, rate_max: float | None, who: str, why: str
    ) -> tuple[JobRow, list[Unpublished]]:
        """At most so many items a second start from now on, on the average; None: as fast as it can."""
        ...

    def open_jobs(self, *, limit: int) -> list[str]:
        """The jobs that have not ended."""
        ...

    def tend_job(self, job_id: str, *, dry_run: bool = False) -> Tended:
        """Do what others have left undone about a job. Repeatable."""
        ...

    def miscounts(self, job_id: str) -> dict[str, tuple[int, int]]:
        """Which counts of a job are not the sums of its subtasks: what the job says, and the sum."""
        ...

    def recount_job(self, job_id: str, *, by: Mapping[str, Any]) -> list[Unpublished]:
        """Put the sums of its subtasks in the place of a job's counts, where they differ; answers hints to send."""
        ...

    def prune_jobs(
        self, *, limit: int, retention_s: float, dead_retention_s: float, dry_run: bool = False
    ) -> PrunedJobs:
        """Remove jobs that ended so long ago (`dead_retention_s`: with failures); answers how many rows that were."""
        ...

    def job(self, job_id: str) -> JobRow | None:
        """One job, in one read, or None."""
        ...

    def jobs(
        self,
        *,
        name: str | None = None,
        parent_id: str | None = None,
        states: Collection[JobState] = (),
        limit: int = 100,
        after: str | None = None,
    ) -> list[JobRow]:
        """Jobs by id from the newest, a page at a time: `after` is the last id of the page before.

        `parent_id`: only those that are nested in this one.
        """
        ...

    def recent_jobs(self, *, within_s: float, limit: int) -> list[JobRow]:
        """Jobs that have not ended, or did so since then; from the newest."""
        ...

    def failed_groups(self, job_id: str, *, limit: int) -> list[FailedGroup]:
        """What its items have failed of, the most frequent first."""
        ...

    def slowest_subtasks(self, job_id: str, *, limit: int) -> list[SlowSubtask]:
        """Those whose last attempt took longest, the slowest first. Reads all of the job's."""
        ...

    def failed_items(
        self, job_id: str, *, after: int = 0, limit: int = 1000, of_subtasks: bool = False
    ) -> list[tuple[int, FailedItem]]:
        """A page of the items that have failed for good, in the order in which they did, each with its number.

        `of_subtasks`: only those that a subtask could carry.
        """
        ...

    def job_results(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[tuple[int, Result]]:
        """A page of the results that are kept of its items, in the order in which they came, each with its number."""
        ...

    # -- webhooks (see sending.py, delivering.py and endpoints.py)

    def send(
        self, webhook: NewWebhook, *, connection: Any = None, hints: HintRows | None = None
    ) -> tuple[list[SentTo], list[Unpublished]]:
        """Record a webhook for everybody who wants it, in one transaction, ours or the caller's.

        Answers its deliveries, also those that stand since it was sent before, and the hints that are to be sent.

        Raises:
            NotFound: there is no such endpoint. KeyConflict: another webhook has that id.
        """
        ...

    def parcels(self, delivery_ids: Sequence[str]) -> dict[str, Parcel]:
        """What is needed to send these now, by their ids; one that is gone is missing in the answer."""
        ...

    def add_endpoint(self, new: NewEndpoint) -> EndpointRow:
        """Record an endpoint. Refused: there is another one of that name. Repeatable."""
        ...

    def endpoint(self, endpoint_id: str) -> EndpointRow | None:
        """One endpoint, or None."""
        ...

    def endpoints(
        self,
        *,
        topic: str | None = None,
        state: EndpointState | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[EndpointRow]:
        """Endpoints by their names, a page at a time: `after` is the last name of the page before."""
        ...

    def change_endpoint(self, endpoint_id: str, change: EndpointChange, *, sealed_before: str | None = None) -> None:
        """Change what the change names, from the next attempt on. NotFound, or Refused: what is sealed is another."""
        ...

    def remove_endpoint(self, endpoint_id: str) -> None:
        """Forget an endpoint with its deliveries. NotFound, or Refused: something is on its way to it."""
        ...

    def disable_endpoint(self, endpoint_id: str, *, who: str, why: str) -> None:
        """Send nothing to an endpoint any more, from now on; what is under way ends. NotFound. Repeatable."""
        ...

    def enable_endpoint(self, endpoint_id: str, *, who: str, why: str) -> int:
        """Send to it again what is sent from now on; answers how many deliveries are held. NotFound. Repeatable."""
        ...

    def hold_deliveries(self, *, limit: int, dry_run: bool = False) -> int:
        """Hold what is open of endpoints that are disabled; answers how many. Repeatable."""
        ...

    def release_held(self, endpoint_id: str, *, limit: int = 500) -> tuple[int, list[Unpublished]]:
        """Send what is held of an endpoint, a page at a time; answers how many that were, and hints.

        What stands behind another one of its order has no hint. NotFound, or Refused: it is disabled.
        """
        ...

    def discard_held(self, endpoint_id: str, *, why: str, limit: int = 500) -> int:
        """Give up what is held of an endpoint, a page at a time; answers how many that were. NotFound."""
        ...

    def want_delivery(self, delivery_id: str) -> None:
        """A person wants a delivery that is open, however old it is. Repeatable."""
        ...

    def resendable(self, which: WhichDeliveries, *, limit: int = 500, after: str | None = None) -> list[str]:
        """Deliveries that have ended and can be sent again, from the oldest, a page at a time."""
        ...

    def resend(
        self, delivery_ids: Sequence[str], *, cause: Cause, hints: HintRows | None = None
    ) -> tuple[list[str], list[Unpublished]]:
        """Send deliveries that have ended once more; answers which, and the hints that are to be sent. Repeatable.

        Those are left out that are open, whose endpoint is gone or disabled, and whose body is kept no longer. They
        come last in the order that their endpoint keeps.
        """
        ...

    def tend_deliveries(self, *, limit: int, dry_run: bool = False) -> int:
        """End deliveries whose tasks were ended by others than their handler; answers how many. Repeatable."""
        ...

    def prune_webhooks(
        self, *, limit: int, body_retention_s: float, retention_s: float, dry_run: bool = False
    ) -> PrunedWebhooks:
        """Drop what webhooks had in them, `body_retention_s` old, and later all that is known of them: `retention_s`.

        None of which a delivery is open, and at most `limit` webhooks. Repeatable.
        """
        ...

    def prunable_rows(self, retention: Retention) -> dict[str, int]:
        """How many rows there are beyond their retention, by table; `webhook_body`: webhooks whose bodies are."""
        ...

    def delivery(self, delivery_id: str) -> DeliveryRow | None:
        """One delivery, or None."""
        ...

    def deliveries(self, which: WhichDeliveries, *, limit: int = 100, after: str | None = None) -> list[DeliveryRow]:
        """Deliveries by id from the newest, a page at a time: `after` is the last id of the page before."""
        ...

    def delivery_counts(self, which: WhichDeliveries) -> dict[DeliveryState, int]:
        """How many there are, in each state in which there are any."""
        ...

    def attempts(self, delivery_id: str, *, limit: int = 200) -> list[AttemptRow]:
        """The newest attempts of a delivery, the oldest first."""
        ...

    def webhook_body(self, webhook_id: str) -> str | None:
        """What is sent, or None: it is kept no longer, or never was."""
        ...

    # -- people

    def pause(self, queue: str, *, who: str, why: str, for_s: float | None = None) -> Pause:
        """Let nothing of a queue, or of one band of it, be claimed from now on, for `for_s` seconds or until `resume`.

        What is claimed goes on, also by a statement that is under way. A queue that is paused already is paused anew.
        Needs no queue of that name. Atomic: all of its bands are paused, or none.
        """
        ...

    def resume(self, queue: str, *, who: str, why: str) -> bool:
        """Let it be claimed again, a queue with all of its bands; False when none of it was paused. Repeatable."""
        ...

    def pauses(self) -> dict[str, Pause]:
        """What is paused now, band by band: by the names that tasks have as `queue`."""
        ...

    def cancel(self, task_id: str, *, reason: str, kills: bool = False) -> CancelAnswer:
        """Cancel at once what does not run; ask it of what runs. NotFound when there is no such task.

        `kills`: the process of an attempt that runs is to be killed (see `kills`). Repeatable.
        """
        ...

    def kills(self, workers: Sequence[str]) -> dict[str, int]:
        """The attempts of these incarnations that a person wants ended by force, by task, until they have ended."""
        ...

    def open_count(self, which: WhichOpen) -> Mapping[State, int]:
        """How many they are, in each state in which there are any."""
        ...

    def open_ids(self, which: WhichOpen, *, limit: int) -> list[str]:
        """Some of those of whom no cancel was asked yet, in no order; none, when there are no more."""
        ...

    def cancel_all(
        self, task_ids: Sequence[str], *, states: Collection[State], reason: str
    ) -> tuple[list[str], list[str]]:
        """As `cancel`, of many that are in one of these states, in one transaction.

        Answers who was cancelled, and who was asked. What has left these states since is in neither. Repeatable.
        """
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
        """Tasks by id from the newest, a page at a time: `after` is the last id of the page before.

        `queue`: here and in `Which` and `WhichOpen`, all bands of a queue, or one of them.
        """
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
        """Whether any task of these queues could be claimed now, or waits for its limit. None of a paused one can."""
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
