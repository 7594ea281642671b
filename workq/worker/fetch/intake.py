"""Intake: what one incarnation takes in, from the queues to its pool. There are two ways, which share their two ends.

three_stores.py is the way through three stores: fetch, hold, ack, claim. one_database.py is the way where all three are
tables of one database: one transaction. Both begin with `ForeignMessages` and end with worker/dispatch.py
and refused.py.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workq.broker import Consumer, Delivery
from workq.config import Settings
from workq.errors import Unavailable
from workq.handlers.registry import Registry
from workq.logs.seldom import Seldom
from workq.stores import Stores
from workq.values.failpoints import reach
from workq.values.lane import all_of
from workq.values.task import Claim, HandedBack
from workq.worker.dispatch import Dispatcher
from workq.worker.fetch.refused import RefusedHints
from workq.worker.holds import Holds
from workq.worker.lease import LeaseKeeper
from workq.worker.pool import Pool

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger

log = logging.getLogger("workq.intake")

FETCH_WAIT_S = 0.2
FULL_WAIT_S = 0.05
RETURNS_MAX = 5
"""How often a hint of a newer version waits a beat for a worker that can read it."""
LOOK_EVERY_S: Final = 1.0
"""While one of its queues is paused; and for bands that come into use."""
_AT_ONCE: Final = float("-inf")
_WHEN_TOLD: Final = float("inf")


class ServedLanes:
    """Those that one worker knows of. Used by one thread.

    They are the bands of its queues that are in use and not paused.

    The ledger decides about a pause, with each claim: this is only what a worker last saw. It looks when it begins,
    when a task was not granted because its queue is paused, and then every second for as long as something of its
    queues is: a worker that knows of no pause asks nobody about them.

    A queue's band of normal priority is always in use, the others from their first task on. So a worker asks every
    second which are, one small read, until all of its queues have all of theirs; and RabbitMQ has no queue that nobody
    ever used.

    What goes wrong: the ledger away: it is looked at again a second later. A pause that is not known yet: the claim is
    refused, and the hint goes back into its queue. A band that is not known yet: its tasks wait for up to a second.
    """

    def __init__(self, ledger: Ledger, queues: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._all = tuple(band for queue in queues for band in all_of(queue))
        self._pauses_at = self._bands_at = _AT_ONCE
        """When to look."""
        self._paused: frozenset[str] = frozenset()
        self.bands: tuple[str, ...] = tuple(queues)
        """Those of its queues that are in use."""
        self.open: tuple[str, ...] = self.bands
        """Those of them that are not paused."""

    def seen(self) -> None:
        """A claim was not granted because of a pause."""
        if len(self.open) == len(self.bands):
            self._pauses_at = _AT_ONCE

    def has_changed(self) -> bool:
        """Look, when it is time; whether others are open than before."""
        now = self._clock()
        if now < self._bands_at and now < self._pauses_at:
            return False
        try:
            if now >= self._bands_at:
                self._look_for_bands(now)
            if now >= self._pauses_at:
                self._paused = frozenset(self._ledger.pauses.all())
        except Unavailable:
            self._bands_at = max(self._bands_at, now + LOOK_EVERY_S)
            self._pauses_at = max(self._pauses_at, now + LOOK_EVERY_S)
            return False
        before, self.open = self.open, tuple(band for band in self.bands if band not in self._paused)
        if now >= self._pauses_at:
            self._pauses_at = _WHEN_TOLD if self.open == self.bands else now + LOOK_EVERY_S
        return before != self.open

    def _look_for_bands(self, now: float) -> None:
        used = self._ledger.lanes.bands()
        bands = tuple(band for band in self._all if band in used or band in self.bands)
        if bands != self.bands:
            self.bands = bands
            self._pauses_at = _AT_ONCE
        self._bands_at = _WHEN_TOLD if bands == self._all else now + LOOK_EVERY_S


class ForeignMessages:
    """What one consumer has received and is to be dealt with before hints.

    Markers go back to the ledger. A foreign message goes to the quarantine; a hint of a newer version first waits for a
    worker that can read it, as there will be in a rolling upgrade. Used by one thread.
    """

    def __init__(self, consumer: Consumer, ledger: Ledger, *, beat_s: float, seldom: Seldom) -> None:
        self._consumer = consumer
        self._ledger = ledger
        self._beat_s = beat_s
        self._seldom = seldom
        self._markers: list[Delivery] = []
        """Markers that have come out of their queues, and are to be handed back to the ledger."""

    @property
    def is_empty(self) -> bool:
        """Whether no marker waits."""
        return not self._markers

    def sort(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Our hints; whatever else arrived is dealt with here."""
        ours = []
        for delivery in deliveries:
            if delivery.fault is not None:
                self._set_aside(delivery, delivery.fault)
            elif delivery.marker is not None:
                self._markers.append(delivery)
            else:
                ours.append(delivery)
        return ours

    def return_markers(self) -> None:
        """Tell the ledger that these have come out of their queues; the hints that came before them are held by now.

        Raises Unavailable while the ledger is away; then they are kept.
        """
        if not self._markers:
            return
        reach("worker.before_return")
        self._ledger.markers.returned([one.marker for one in self._markers if one.marker is not None])
        self._consumer.ack(self._markers)
        self._markers = []

    def _set_aside(self, delivery: Delivery, fault: str) -> None:
        if fault == "newer_version" and delivery.returns < RETURNS_MAX:
            self._seldom.warning("hint.newer_version", reason=fault, queue=delivery.queue)
            self._consumer.put_back(delivery, delay_s=self._beat_s)
            return
        self._seldom.warning("hint.quarantined", reason=fault, queue=delivery.queue)
        self._consumer.quarantine(delivery, reason=fault)


class Handover:
    """Claims that wait for the thread that starts them. Thread-safe.

    Whose turn it is when a task of a limit ends is known to the process that has settled it. If that has room, it
    claims the next one in the same transaction (see limits/ledger/limits.py), and that starts here, without a way
    through the broker. One slot stays free, so that what arrives does not wait behind the backlog of one limit.

    What waits here when this process dies was claimed and had not started: its reaping returns it, as any such claim.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[list[Claim], float]] = deque()
        self._changing = threading.Lock()
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many wait."""
        with self._changing:
            return sum(len(claims) for claims, _ in self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether more are taken."""
        return not self._is_closed

    def put(self, claims: Sequence[Claim], *, asked_at: float) -> bool:
        """Hand these over; False: nobody would start them. `asked_at`: when the ledger was asked, at the latest."""
        with self._changing:
            if self._is_closed:
                return False
            self._waiting.append((list(claims), asked_at))
            return True

    def take(self, most: int) -> list[tuple[list[Claim], float]]:
        """Those that wait, each with its `asked_at`: as they were put, and not more than so many claims."""
        taken: list[tuple[list[Claim], float]] = []
        with self._changing:
            while self._waiting and len(self._waiting[0][0]) <= most:
                taken.append(self._waiting.popleft())
                most -= len(taken[-1][0])
        return taken

    def close(self) -> None:
        """Take no more."""
        with self._changing:
            self._is_closed = True


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one incarnation that its intake works with. `clock` and `wall` are those of its host."""

    stores: Stores
    me: str
    queues: Sequence[str]
    registry: Registry
    settings: Settings
    heart: LeaseKeeper
    held: Holds
    pool: Pool
    rng: random.Random
    admit: Callable[[set[str]], None]
    """Of these limits, slots were taken: those who are parked get the next."""
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class Intake(ABC):
    """What the worker calls, and what both ways need. Used by one thread."""

    def __init__(self, parts: Parts, consumer: Consumer) -> None:
        self._consumer = consumer
        self._stores = parts.stores
        self._me = parts.me
        self._queues = tuple(parts.queues)
        self._times = parts.settings.times
        self._heart = parts.heart
        self._held = parts.held
        self._pool = parts.pool
        self._clock = parts.clock
        self._seldom = Seldom(log, clock=parts.clock)
        self._arrivals = ForeignMessages(consumer, parts.stores.ledger, beat_s=self._times.beat_s, seldom=self._seldom)
        self._missed = RefusedHints(
            parts.stores.ledger,
            me=parts.me,
            beat_s=self._times.beat_s,
            kept_s=max(parts.settings.retention_s, parts.settings.dead_retention_s),
            horizon_s=parts.stores.broker.horizon_s,
            seldom=self._seldom,
            wall=parts.wall,
        )
        self._handover = Handover()
        self._pauses = ServedLanes(parts.stores.ledger, parts.queues, clock=parts.clock)
        self._dispatch = Dispatcher(
            queues=[band for queue in parts.queues for band in all_of(queue)],
            registry=parts.registry,
            heart=parts.heart,
            held=parts.held,
            pool=parts.pool,
            rng=parts.rng,
            seldom=self._seldom,
            no_handler_wait_s=self._times.no_handler_wait_s,
            admit=parts.admit,
            clock=parts.clock,
        )

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether nothing is in hand."""

    @abstractmethod
    def round(self) -> float:
        """Claim what can start, and take in more. Answers for how many seconds there is nothing to do.

        It waits for nothing but the consumer, and everything that it has in hand is in this object, so that whatever it
        raises, the next round goes on where this one stopped.

        Raises:
            LeaseLost: the store knows no live lease of ours; a beat tells whether we were reaped.
            Unavailable: a store is away; call again a little later.
        """

    def room(self) -> int:
        """How many claims may be handed over now. May be called by any thread."""
        if not self._handover.is_open or self._dispatch.is_reserved or not self._heart.is_trusted:
            return 0
        return max(0, self._pool.threads - 1 - self._pool.active - self._handover.count)

    @property
    def served(self) -> Container[str]:
        """The queues of which something may start here. May be called by any thread."""
        return self._pauses.open

    def hand_over(self, claims: Sequence[Claim], *, asked_at: float) -> bool:
        """Start these soon; False: this process leaves, and does not. May be called by any thread.

        `asked_at`, by our clock, is before the ledger decided.
        """
        # known before anybody can start, and release them; whoever gets False hands them back, and releases them so
        self._held.claimed(claims)
        if not self._handover.put(claims, asked_at=asked_at):
            return False
        self._consumer.wake()
        self._pool.wake()
        return True

    def _start_handed(self) -> None:
        """What was handed over goes on; `_receive` says how it is held."""
        waiting = self._handover.take(self._pool.lines)
        if not waiting:
            return
        try:
            reach("worker.before_takeover")
            self._receive([claim for claims, _ in waiting for claim in claims])
        except BaseException:  # nobody else knows of them
            for claims, _ in waiting:
                self._hand_back(claims)
            raise
        for claims, asked_at in waiting:
            self._dispatch.give(claims, {claim.task_id: claim.queue for claim in claims}, asked_at=asked_at)

    def _leave_handed(self) -> None:
        """This process leaves: what was handed over and has not started goes back at no cost."""
        self._handover.close()
        for claims, _ in self._handover.take(self._pool.lines):
            self._hand_back(claims)

    def _hand_back(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._pool.take(claim, None, None, HandedBack())

    @abstractmethod
    def _receive(self, claims: Sequence[Claim]) -> None:
        """Hold what was claimed before it was held."""

    @abstractmethod
    def give_back(self) -> bool:
        """This process leaves: everything in hand and unclaimed becomes a hint again, or a mark in the ledger.

        False when neither could be written: then it must be reaped instead of leaving in order.
        """

    def _fetch_what_is_open(self) -> None:
        """No hints of a paused queue, and those of each band that is in use."""
        if self._pauses.has_changed():
            log.info(
                "worker.serves",
                extra={"queues": self._pauses.open, "paused": len(self._pauses.bands) - len(self._pauses.open)},
            )
            self._consumer.serve(self._pauses.open)

    def flush_log(self) -> None:
        """Tell what was counted and not told yet."""
        self._seldom.flush()
        self._dispatch.flush_log()
