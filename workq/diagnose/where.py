"""Places: where a task is, by what was seen of it in the three stores. Pure: nothing is asked here, and nothing waits.

    unpublished   it has no hint; the relay of a sweep sends one
    broker        a hint of it is in its queue
    waiting       it is due later, or its hint comes later: that is among the delays, or is sent when the time is near
    held          an incarnation holds it, and has not claimed it yet
    running       an incarnation has claimed it, and holds it
    expired       nobody started it in its time; the next sweep cancels it

A task that is open and in none of them, or in two, is a suspicion, and no more: three stores cannot be seen at one
moment. The audit (diagnose/audit/look.py) looks twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from workq.config import Times
from workq.diagnose.bounds import Bounds
from workq.inflight import Hold, Lease
from workq.ledger import OpenTask
from workq.recovery.lost_hints import slack_s
from workq.values.task import State


class Place(StrEnum):
    """Where a task that is not settled can be."""

    UNPUBLISHED = "unpublished"
    BROKER = "broker"
    WAITING = "waiting"
    HELD = "held"
    RUNNING = "running"
    EXPIRED = "expired"


class Misplacement(StrEnum):
    """What may be wrong with a task, a hint or a hold."""

    LOST = "lost"
    """It could be claimed, its hint was confirmed, and it is in no place."""
    GHOST = "ghost"
    """A hint or a hold of a task that the ledger does not know, or a hold of a settled one that stays."""
    TWIN = "twin"
    """Two hints, a hint and a hold, or two holds of one task. Harmless: the claim decides."""
    ORPHAN = "orphan"
    """It runs under an incarnation that is not live, or that lives and does not know of it."""
    MISCOUNT = "miscount"
    """A job (not a task) whose counts are not the sums of its subtasks."""
    MISMATCH = "mismatch"
    """A message without its task, such a task without its message or its place in a line, a way in that lacks some."""
    OVERDUE = "overdue"
    """A repair that should have happened by now: nobody sweeps, or a sweep cannot keep up."""


@dataclass(frozen=True, slots=True)
class HolderFacts:
    """What the in-flight store, and the ledger's rows of workers, say at one look."""

    leases: Mapping[str, Lease]
    live: Collection[str]
    """The incarnations that are live in the ledger."""
    beat_age_s: Mapping[str, float]
    """How long ago each of them beat in the ledger."""
    holds: Mapping[str, tuple[Hold, ...]]
    """By task."""
    epoch_age_s: float
    swept_for_s: float | None

    def has_lease(self, worker: str) -> bool:
        """Its lease has not ended."""
        lease = self.leases.get(worker)
        return lease is not None and lease.left_s > 0.0

    def is_to_be_reaped(self, worker: str) -> bool:
        """Its lease has ended, and a sweep will find that out: what it holds is not lost."""
        return not self.has_lease(worker) and (worker in self.leases or worker in self.live)

    def lease_ended_for_s(self, worker: str) -> float:
        """How long its lease is over, for certain; 0 while it is not, or nobody can tell."""
        lease = self.leases.get(worker)
        if lease is not None:
            return max(0.0, -lease.left_s)
        return min(self.beat_age_s.get(worker, 0.0), self.epoch_age_s)


@dataclass(frozen=True, slots=True)
class QueueHints:
    """What is known of the hints in one queue.

    Every hint that was confirmed at `known_until` or before is among the `copies`, or has left the queue. None: nothing
    is known. `proof` says in words how it is known.
    """

    known_until: datetime | None
    proof: str
    copies: Mapping[str, int] = field(default_factory=dict)
    """How many hints of a task were seen."""
    has_owners: bool = False
    """Who is idle takes due tasks from the ledger (`Broker.has_owners`), and their hints stay: one hint beside a hold
    is how it is, and no twin."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a task seems to be, and what seems wrong. Without a place and a suspicion nothing can be told."""

    place: Place | None
    kind: Misplacement | None = None
    proof: str = ""
    worker: str | None = None
    """Of whom this speaks: under whom an orphan runs, who is to be reaped, who holds a ghost."""
    is_unheld: bool = False
    """It runs, its worker lives, and nobody holds it."""


def stand_of(task: OpenTask, line: QueueHints, facts: HolderFacts, times: Times, bounds: Bounds) -> Stand:
    """Where one open task is, by one look."""
    if task.state is State.RUNNING:
        return _running(task, line, facts, bounds)
    if task.expires_at is not None and task.expires_at <= task.now:
        return _expired((task.now - task.expires_at).total_seconds(), bounds, facts)
    return _unclaimed(task, line, facts, times, bounds)


def _running(task: OpenTask, line: QueueHints, facts: HolderFacts, bounds: Bounds) -> Stand:
    worker = task.worker or ""
    if worker not in facts.live:
        proof = f"attempt {task.attempt} runs under {worker}, which is not live in the ledger"
        return Stand(None, Misplacement.ORPHAN, proof, worker)
    holds = facts.holds.get(task.task_id, ())
    if not facts.has_lease(worker):
        ended_for_s = facts.lease_ended_for_s(worker)
        if ended_for_s > bounds.dead_host_s:
            return Stand(Place.RUNNING, Misplacement.OVERDUE, _unreaped(worker, ended_for_s, bounds, facts), worker)
        return Stand(Place.RUNNING)
    if not holds:
        proof = f"attempt {task.attempt} runs under {worker}, whose lease is live and who does not hold it"
        return Stand(None, Misplacement.ORPHAN, proof, worker, is_unheld=True)
    return _twin(task, line, holds, Place.RUNNING) or Stand(Place.RUNNING)


def _unclaimed(task: OpenTask, line: QueueHints, facts: HolderFacts, times: Times, bounds: Bounds) -> Stand:
    holds = [hold for hold in facts.holds.get(task.task_id, ()) if facts.has_lease(hold.worker)]
    copies = line.copies.get(task.task_id, 0)
    if holds or copies:
        place = Place.HELD if holds else Place.BROKER
        return _twin(task, line, holds, place) or Stand(place)
    for hold in facts.holds.get(task.task_id, ()):
        if facts.is_to_be_reaped(hold.worker):
            ended_for_s = facts.lease_ended_for_s(hold.worker)
            if ended_for_s > bounds.dead_host_s:
                return Stand(
                    Place.HELD, Misplacement.OVERDUE, _unreaped(hold.worker, ended_for_s, bounds, facts), hold.worker
                )
            return Stand(Place.HELD)
    if task.published_at is None:
        return _unpublished(task, bounds, facts)
    slack = timedelta(seconds=slack_s(times))
    if task.due_at > task.now - slack or task.published_at > task.now:  # its hint comes later: see Hints.rehinted
        return Stand(Place.WAITING)
    if line.known_until is None:
        return Stand(None)
    if task.published_at > line.known_until or task.due_at > line.known_until - slack:
        return Stand(Place.BROKER)  # it went there after the look
    held = "".join(f"; {hold.worker}, which holds it, is nobody" for hold in facts.holds.get(task.task_id, ()))
    return Stand(
        None,
        Misplacement.LOST,
        f"its hint was confirmed at {_at(task.published_at)}, it is due since {_at(task.due_at)}, nobody has claimed "
        f"it{held or ' or holds it'}; {line.proof}",
    )


def _unpublished(task: OpenTask, bounds: Bounds, facts: HolderFacts) -> Stand:
    since = max(task.due_at, task.queued_at)
    if since > task.now:
        return Stand(Place.WAITING)
    is_in_hand = task.reserved_until is not None and task.reserved_until > task.now
    late_s = (task.now - since).total_seconds()
    if late_s <= bounds.unpublished_s or is_in_hand:
        return Stand(Place.UNPUBLISHED)
    proof = f"due for {late_s:.0f} s without a hint; a sweep sends it within {bounds.unpublished_s:.0f} s"
    return Stand(Place.UNPUBLISHED, Misplacement.OVERDUE, f"{proof}; {_swept(facts)}")


def _expired(for_s: float, bounds: Bounds, facts: HolderFacts) -> Stand:
    if for_s <= bounds.unpublished_s:
        return Stand(Place.EXPIRED)
    proof = f"expired for {for_s:.0f} s; a sweep cancels it within {bounds.unpublished_s:.0f} s"
    return Stand(Place.EXPIRED, Misplacement.OVERDUE, f"{proof}; {_swept(facts)}")


def _twin(task: OpenTask, line: QueueHints, holds: Collection[Hold], place: Place) -> Stand | None:
    copies = line.copies.get(task.task_id, 0)
    owners = sorted({f"{hold.worker} (queue {hold.queue})" for hold in holds})
    if copies == 1 and line.has_owners:
        copies = 0
    if copies + len(owners) < 2:
        return None
    seen = (
        [f"{copies} hints in queue {task.queue}" if copies > 1 else f"a hint in queue {task.queue}"] if copies else []
    )
    seen += [f"held by {owner}" for owner in owners]
    return Stand(place, Misplacement.TWIN, ", ".join(seen))


def _unreaped(worker: str, ended_for_s: float, bounds: Bounds, facts: HolderFacts) -> str:
    return (
        f"the lease of {worker} ended {ended_for_s:.0f} s ago; a sweep reaps it within {bounds.dead_host_s:.0f} s; "
        f"{_swept(facts)}"
    )


def _swept(facts: HolderFacts) -> str:
    if facts.swept_for_s is None:
        return "nobody has ever swept here"
    return f"somebody swept {facts.swept_for_s:.0f} s ago"


def _at(instant: datetime) -> str:
    return instant.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
