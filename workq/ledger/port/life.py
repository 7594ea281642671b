"""The port of the ledger: what a task asks of it from its record to its settlement, and the workers that run it.

What holds for all of it is said in `workq/ledger/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection

from workq.ledger.answers import Hinted, HintRows, Look, Marker, Settled, Unpublished, WorkerRow
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Enqueued, NewSubtask, NewTask, Settlement


class Life(Protocol):
    """This part of what every ledger promises."""

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

    # -- the proof of loss (see lost_hints.py)

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

    def return_doubtful(self, *, by: str) -> int:
        """Hand back what calls of this incarnation have claimed whose commit stayed unknown; answers how many.

        The next claim does so first; this is for whoever makes none. Repeatable.
        """
        ...

    def claimed_by(self, worker: str) -> dict[str, str]:
        """What runs under an incarnation: the tokens of its claims, by task."""
        ...

    def return_forgotten(self, tokens: Mapping[str, str], *, by: str) -> list[Unpublished]:
        """Claims that stand under `by`, which lives and does not have them: their tasks are reaped, charged nothing.

        Each only if it runs under that very token. Answers the hints that are to be published; they are reserved as by
        `take_unpublished`. A task whose crash is a person's question (`OnCrash.ASK`) is dead: it may have begun. If one
        runs all the same, its result comes late. Repeatable.
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
