"""What the ledger is told and what it answers: values, without a duty of their own (see workq.ledger)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

import msgspec
from sqlalchemy import Connection

from workq.values.certificate import NO_FACTS, Certificate, DeathFacts, ProofOfEnd
from workq.values.hint import HintRow
from workq.values.task import NewTask, State


class Unpublished(msgspec.Struct, frozen=True):
    """A task that needs a hint, in `delay_s` seconds (0 when it is due). `attempt` guards the mark afterwards.

    `arrives_in_s`, of one whose hint was sent: when that comes, counted from the mark, if it may come after it is due.
    `reserved_until` is the reservation under which the hint is sent, as the row has it; None: the row has none. Whoever
    reserves the row later has moved it, or sends another hint; so it guards the mark, too (see `Hints.mark_published`).
    """

    task_id: str
    queue: str
    attempt: int
    delay_s: float
    arrives_in_s: float = 0.0
    reserved_until: datetime | None = None


class Settled(msgspec.Struct, frozen=True):
    """What became of one settlement: the state that it led to, or None for a late result, which changed nothing."""

    task_id: str
    state: State | None
    delay_s: float = 0.0
    follows: tuple[Unpublished, ...] = ()
    """Of the first of a batch: what jobs want published now that their subtasks have ended."""


BEHIND_S: Final = 50 * 365 * 86400.0
"""What is due so far ahead is due never: it waits for others."""


class Look(msgspec.Struct, frozen=True):
    """Why a hint could not be claimed: the task's state, and in how many seconds it is due (0 or less: it is).

    What has expired is never granted: the sweep cancels it.
    """

    state: State
    queue: str
    due_in_s: float
    is_expired: bool = False
    is_paused: bool = False
    """Its queue is: nothing of it is granted meanwhile."""

    @property
    def is_behind(self) -> bool:
        """Whether it waits for others, of its limit, its order key or its job: due never, until its turn comes."""
        return self.due_in_s > BEHIND_S


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue that a person has paused. `ends_at` None: when somebody resumes it."""

    queue: str
    paused_at: datetime
    ends_at: datetime | None
    who: str
    why: str


class Hinted(Protocol):
    """Hints beside the ledger, for `Claims.claim_hinted`: called in its transaction, again when that is repeated."""

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


class Evidence(msgspec.Struct, frozen=True):
    """What is known of a dead worker process. Without evidence, every task that it had claimed counts as started.

    `started` maps task ids to the attempt that had begun; `ended` are those of them whose handler had ended, and whose
    outcome was not settled. `failed` maps those that were killed for exceeding their hard limit to (error, seconds
    until the next attempt); the others were not at fault and are not charged when it is non-empty. `is_bystander`: it
    was killed for want of memory beside a process that had used more, and nothing in it is charged. `kind` says how its
    end is known, `facts` what a supervisor saw. `is_seen`: somebody saw it die, so that what ran then is charged.
    """

    cause: str
    started: Mapping[str, int] | None = None
    failed: Mapping[str, tuple[str, float]] | None = None
    kind: ProofOfEnd = ProofOfEnd.LEASE
    facts: DeathFacts = NO_FACTS
    ended: frozenset[str] = frozenset()
    is_bystander: bool = False
    is_seen: bool = True


class Absence(msgspec.Struct, frozen=True):
    """For how long a worker has not beaten, and when a look found no sign of it in any store, by the ledger's clock."""

    for_s: float
    looked_at: datetime


class AbsentWorker(msgspec.Struct, frozen=True):
    """A live incarnation of which the ledger has no sign. `signs`: what it says of the signs that it gives."""

    id: str
    signs: str
    looked_at: datetime


class Reaped(msgspec.Struct, frozen=True):
    """What reaping one incarnation did. `hints` are to be published."""

    worker: str
    returned: int
    dead: int
    hints: tuple[Unpublished, ...]


class WorkerRow(msgspec.Struct, frozen=True):
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


class Marker(msgspec.Struct, frozen=True):
    """One marker of one queue; `band` tells of which kind of broker (recovery/lost_hints.py).

    It is out until `returned_for_s` is told; then it is evidence; then it is closed. Ages in seconds, by the ledger's
    clock. `depth` is how many hints the line had when it was sent, `lost` how many it has proved lost so far. With
    `position` it is no message: it is back when its broker says that the line has passed this position.
    """

    id: str
    queue: str
    band: int
    sent_for_s: float
    returned_for_s: float | None
    closed_for_s: float | None
    depth: int | None
    lost: int
    position: str | None = None


class QueueCount(msgspec.Struct, frozen=True):
    """How many tasks of one queue could run now, are due later, and run."""

    ready: int
    waiting: int
    running: int


class Unknown(msgspec.Struct, frozen=True):
    """So many tasks of this name wait for a worker that knows it, the first of them since then."""

    name: str
    tasks: int
    since: datetime


class Counts(msgspec.Struct, frozen=True):
    """The answer to `workq status`.

    What `states` says of open tasks is the sum of `queues`: a task that is due is ready in both. `oldest_ready_s` is
    None when nothing is ready in a queue that is not paused; `oldest_paused_s` has the age of the oldest task that is
    ready in each queue, or band, that is.
    """

    queues: Mapping[str, QueueCount]
    states: Mapping[State, int]
    oldest_ready_s: float | None
    workers: int
    dead_of_jobs: int = 0
    """Of the dead, those that are subtasks or splitters of jobs."""
    unknown: Sequence[Unknown] = ()
    oldest_paused_s: Mapping[str, float] = msgspec.field(default_factory=dict)


class Pruned(msgspec.Struct, frozen=True):
    """How many rows of each kind retention removed."""

    tasks: int
    events: int
    ticks: int
    windows: int
    workers: int


class Retention(msgspec.Struct, frozen=True):
    """How long is kept, in seconds, what has an end: tasks and jobs, those that are dead or have failures, webhooks."""

    tasks_s: float
    dead_s: float
    bodies_s: float
    webhooks_s: float


class Standing(msgspec.Struct, frozen=True):
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
    waits_for: str | None
    queued_at: datetime
    published_at: datetime | None
    reserved_until: datetime | None
    started_at: datetime | None
    settled_at: datetime | None
    cancel_requested_at: datetime | None
    expires_at: datetime | None
    order_key: str | None
    limit_key: str | None
    job_id: str | None


class OpenTask(msgspec.Struct, frozen=True):
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


class Fence(msgspec.Struct, frozen=True):
    """Where one task stands: what must not have moved until a plan is applied (see recovery/plan.py).

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


class Foreseen(msgspec.Struct, frozen=True):
    """What would become of one claim whose worker is gone, and with what it would be charged."""

    fence: Fence
    becomes: State
    charged: str


class Foresight(msgspec.Struct, frozen=True):
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
    TICKS = "ticks"
    WINDOWS = "windows"
    WORKERS = "workers"


class Prunable(msgspec.Struct, frozen=True):
    """Rows of one kind that are beyond their retention: settled, appended or ended at `before` or earlier."""

    what: Prunes
    before: datetime
    ids: tuple[str, ...]


class Applied(msgspec.Struct, frozen=True):
    """What came of some rows of a plan: the ids that were changed, the hints that must follow, and why not the rest."""

    changed: tuple[str, ...] = ()
    hints: tuple[Unpublished, ...] = ()
    refused: Mapping[str, str] = msgspec.field(default_factory=dict)


class Company(msgspec.Struct, frozen=True):
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


class Which(msgspec.Struct, frozen=True):
    """Which of the dead: those to which all of this applies; None: whatever it is. Ages count from their death."""

    group: str | None = None
    """A fingerprint (see values/fingerprint.py), or `NO_GROUP`."""
    name: str | None = None
    queue: str | None = None
    older_s: float | None = None
    younger_s: float | None = None
    ids: tuple[str, ...] | None = None
    """Only these."""
    of_job: bool | None = None
    """Whether they are of a job: those are sent back by `Jobs.retry_job` alone."""


class WhichOpen(msgspec.Struct, frozen=True):
    """Which of the tasks that are not settled: those to which all of this applies. Ages count from their enqueueing."""

    states: tuple[State, ...] = (State.READY, State.WAITING, State.RUNNING)
    name: str | None = None
    queue: str | None = None
    older_s: float | None = None
    younger_s: float | None = None
    before: datetime | None = None
    """Enqueued then or earlier, by the ledger's clock."""


class DeadGroup(msgspec.Struct, frozen=True):
    """Dead tasks that died of the same thing."""

    group: str
    name: str
    tasks: int
    first_at: datetime
    last_at: datetime
    reason: str | None
    sample: str
    """The id of one of them: the oldest enqueued."""
    of_jobs: int = 0
    """So many of them are of jobs."""


HintRows = Callable[[Sequence[NewTask]], Sequence[HintRow]]
"""The hints of tasks that are created, to be written beside them. Those of tasks that are alike are of one delay."""
