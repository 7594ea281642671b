"""Custody: from a delivery to a claim. Fetch, split, hold, ack, claim, and hand back what cannot start soon.

Custody moves in that order: a delivery is acked only after its ids are held under this incarnation's lease, and a
task runs only after the ledger has granted the claim. What was fetched and cannot start soon is handed back as a new
hint, so that it waits for whoever is free first and never ages unacked in this process.

A suspect (a task that ran in a process that died) runs alone: while one waits or runs, nothing else is started or
fetched here, and it starts when all that ran before is settled. So the next death tells who it was.

One `round` is one step: it waits for nothing but the consumer's `fetch`, and everything that it has in hand is in this
object, so that whatever it raises, the next round goes on where this one stopped. Used by one thread.

What goes wrong: the in-flight store away: nothing is acked unheld, fetching stops; what stays unheld for 45 seconds
goes back to the broker. The broker away: the consumer connects again by itself. The ledger away: nothing is claimed.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from workq import codec
from workq.beat import Heart
from workq.broker import PAGE, Consumer, Delivery, Hint
from workq.config import Settings
from workq.errors import InFlightUnavailable, LeaseLost, Unavailable
from workq.failpoints import reach
from workq.handler import Registry
from workq.held import Held
from workq.inflight import Entry
from workq.logs import Seldom
from workq.pool import Pool
from workq.run import prepare
from workq.stores import Stores
from workq.task import Claim, HandedBack, State

log = logging.getLogger("workq.custody")

HELD_MAX = 200
"""How many ids one process holds beyond what it runs, at most."""
LOOKAHEAD_S = 0.25
"""Hold about this much work ahead."""
GIVE_BACK_AFTER_S = 0.5
"""What is held and cannot start within this time is handed back."""
SUSPECTS_TOGETHER_S = 5.0
"""Suspects wait here for each other as long as each takes no longer: handed back, they would go behind the backlog."""
SUSPECT_WAIT_MAX_S = 600.0
"""A suspect that could not start for this long is handed back: behind a handler that hangs, the others would starve."""
UNHELD_MAX_S = 45.0
"""Deliveries that cannot be held for this long go back to the broker."""
RETURNS_MAX = 5
"""How often a hint of a newer version waits a beat for a worker that can read it (a rolling upgrade)."""
LOOKS_MAX = 3
"""An id that the ledger does not know is looked up so often, one beat apart."""
REFUSED_AGAIN_S = 0.2
"""When to look again at a task that could not be claimed although it was due a moment later."""
FETCH_WAIT_S = 0.2
FULL_WAIT_S = 0.05
_CLAIMABLE = (State.READY, State.WAITING)


class Custody:
    """What one incarnation has fetched and not yet started."""

    def __init__(
        self,
        stores: Stores,
        consumer: Consumer,
        *,
        me: str,
        queues: Sequence[str],
        registry: Registry,
        settings: Settings,
        heart: Heart,
        held: Held,
        pool: Pool,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._stores = stores
        self._consumer = consumer
        self._me = me
        self._queues = tuple(queues)
        self._registry = registry
        self._settings = settings
        self._times = settings.times
        self._heart = heart
        self._held = held
        self._pool = pool
        self._rng = rng
        self._clock = clock
        self._wall = wall
        self._unheld: list[Delivery] = []
        self._unheld_since = 0.0
        self._markers: list[Delivery] = []
        """Markers that have come out of their queues, and are to be handed back to the ledger."""
        self._backlog: deque[tuple[str, str]] = deque()
        """Held, not claimed yet: (task id, the queue that the hint named)."""
        self._missed: list[tuple[str, str]] = []
        """Held, but not granted by the ledger; their hints are to be dropped or sent again."""
        self._suspects: deque[Claim] = deque()
        """Claimed, and waiting to run alone."""
        self._is_alone = False
        """A suspect runs, or is not settled yet."""
        self._looks: dict[str, int] = {}
        self._full_since: float | None = None
        self._heard_at = clock()
        """When something arrived last, or this process was not listening."""
        self._seldom = Seldom(log)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in hand."""
        return not (self._backlog or self._suspects or self._missed or self._unheld or self._markers)

    def round(self) -> float:
        """Claim what can start, then take custody of more. Answers for how many seconds there is no room for more.

        Raises:
            LeaseLost: this incarnation was reaped. Unavailable: a store is away; call again a little later.
        """
        if self._unheld:
            self._hold()
        if self._markers:
            self._return_markers()
        self._claim()
        room = self._room()
        if self._unheld or room <= 0 or not self._heart.is_trusted:
            self._heard_at = self._clock()  # it does not listen
            self._relieve()
            return FULL_WAIT_S
        self._full_since = None
        self._consumer.resume()
        deliveries = self._consumer.fetch(ids_max=room, wait_s=0.0 if self._backlog else FETCH_WAIT_S)
        if self._consumer.trouble is not None:
            self._seldom.warning("worker.nothing_arrives", reason=self._consumer.trouble)
        if deliveries:
            self._heard_at = self._clock()
            self._take(deliveries, room)
        elif self._is_deaf():
            log.warning("worker.deaf", extra={"queues": self._queues})
            self._consumer.renew()
        return 0.0

    def give_back(self) -> bool:
        """This process leaves: everything held and unclaimed becomes a hint again, or a mark in the ledger.

        False when neither could be written: then it must be reaped instead of leaving in order.
        """
        self._hand_back_suspects()
        rows = [*self._backlog, *self._missed]
        if not rows or self._give_back(rows):
            return True
        # no broker, and we go: without a mark in the ledger nobody would ever send these hints again
        try:
            self._stores.ledger.unhint([task_id for task_id, _ in rows])
        except Unavailable as error:
            log.warning("worker.unhinted: %s", error)  # reaping this process will do it
            return False
        self._let_go(rows)
        return True

    def flush_log(self) -> None:
        """Tell what was counted and not told yet."""
        self._seldom.flush()

    # -- fetch and hold

    def _is_deaf(self) -> bool:
        """Whether hints have been waiting while none arrived here for as long as a lease: a subscription may be dead.

        Seen with RabbitMQ 3.10, when a queue was deleted and declared again: no cancellation, and no delivery any more.
        """
        now = self._clock()
        if now - self._heard_at < self._times.lease_s:
            return False
        self._heard_at = now
        try:
            return any(depth.ready for depth in self._stores.broker.depths(self._queues).values())
        except Unavailable:
            return False  # the consumer connects again by itself

    def _room(self) -> int:
        """How many more ids may be held now: free slots, or about a quarter second of work if that is more."""
        if self._is_alone or self._suspects:
            return 0
        ahead = max(self._pool.threads, self._pool.pace.ahead(LOOKAHEAD_S, HELD_MAX))
        return ahead - self._pool.active - len(self._backlog)

    def _take(self, deliveries: Sequence[Delivery], room: int) -> None:
        """Take custody of a batch: quarantine what is foreign, split what is too long, hold, ack."""
        ours = self._sort(deliveries)
        self._unheld = self._split(ours, room)
        self._unheld_since = self._clock()
        if self._unheld:
            self._hold()

    def _sort(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
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

    def _return_markers(self) -> None:
        """Tell the ledger that these have come out of their queues; the hints that came before them are held by now."""
        reach("worker.before_return")
        self._stores.ledger.marker_returned([one.marker for one in self._markers if one.marker is not None])
        self._consumer.ack(self._markers)
        self._markers = []

    def _split(self, deliveries: list[Delivery], room: int) -> list[Delivery]:
        """Hand the part of a page that exceeds the room back as a new hint, before the old one is acked."""
        total = sum(len(delivery.task_ids) for delivery in deliveries)
        excess = total - room
        if excess <= 0 or not deliveries:
            return deliveries
        last = deliveries[-1]
        keep = len(last.task_ids) - excess
        if keep <= 0:  # one page is at most 100 ids: the consumer returned whole deliveries up to the room before it
            keep = max(1, keep)
        rest = last.task_ids[keep:]
        if not rest or not self._publish([Hint(last.queue, rest, looks=last.looks)]):
            return deliveries
        return [*deliveries[:-1], Delivery(last.tag, last.queue, last.task_ids[:keep], last.looks)]

    def _hold(self) -> None:
        """Hold, then ack. On failure the deliveries stay unacked, and go back to the broker in the end."""
        deliveries = self._unheld
        entries = [Entry(task_id, one.queue) for one in deliveries for task_id in one.task_ids]
        reach("worker.before_hold")
        try:
            held = self._stores.inflight.hold(entries, by=self._me)
        except InFlightUnavailable:
            if self._clock() - self._unheld_since > UNHELD_MAX_S and self._publish(_same(deliveries)):
                self._consumer.ack(deliveries)
                self._unheld = []
            raise
        elsewhere = self._held_elsewhere([entry.task_id for entry in entries if entry.task_id not in held])
        if elsewhere and not self._publish(elsewhere):
            return  # still unacked: once more in the next round
        self._unheld = []
        reach("worker.before_ack")
        self._consumer.ack(deliveries)  # custody has moved
        self._looks |= {task_id: one.looks for one in deliveries for task_id in one.task_ids if one.looks}
        new = self._held.add([entry for entry in entries if entry.task_id in held])
        self._backlog.extend((entry.task_id, entry.queue) for entry in new)

    def _held_elsewhere(self, task_ids: list[str]) -> list[Hint]:
        """What a live other holds, it runs, and this hint is worth nothing. If it does not run it, look again later.

        That may be a hold that its owner could not release, or will not live to: then this hint is the only one.
        """
        if not task_ids:
            return []
        again = _Pages(self._stores.broker.horizon_s)
        for task_id, look in self._stores.ledger.look(task_ids).items():
            if look.state in _CLAIMABLE:
                again.add(task_id, look.queue, delay_s=max(look.due_in_s, self._times.beat_s))
        return again.hints()

    def _set_aside(self, delivery: Delivery, fault: str) -> None:
        """Foreign messages go to the quarantine; a hint of a newer version first waits for a worker that reads it."""
        if fault == "newer_version" and delivery.returns < RETURNS_MAX:
            self._seldom.warning("hint.newer_version", reason=fault, queue=delivery.queue)
            self._consumer.put_back(delivery, delay_s=self._times.beat_s)
            return
        self._seldom.warning("hint.quarantined", reason=fault, queue=delivery.queue)
        self._consumer.quarantine(delivery, reason=fault)

    # -- claim

    def _claim(self) -> None:
        """Claim what can start now, or within a moment; drop the hints of what the ledger does not grant."""
        if self._missed:
            self._drop_missed()
        if self._serves_a_suspect():
            return
        chosen = self._startable()
        if not chosen or not self._heart.is_trusted:
            return
        reach("worker.before_claim")
        claims = self._stores.ledger.claim([task_id for task_id, _ in chosen], by=self._me)
        for _ in chosen:
            self._backlog.popleft()
        granted = {claim.task_id for claim in claims}
        self._missed = [one for one in chosen if one[0] not in granted]
        self._dispatch(claims, dict(chosen))
        if self._missed:
            self._drop_missed()

    def _startable(self) -> list[tuple[str, str]]:
        """The first of the backlog, as many as the pool can take."""
        count = min(self._pool.startable(), len(self._backlog))
        return [self._backlog[index] for index in range(count)]

    def _dispatch(self, claims: Sequence[Claim], held_under: dict[str, str]) -> None:
        """Give what the ledger granted to the pool; suspects wait until they can run alone."""
        for claim in claims:
            is_ours = self._adopt(claim, held_under[claim.task_id])
            if not is_ours:
                self._pool.take(claim, None, None, HandedBack())
            elif claim.is_suspect:
                self._suspects.append(claim)
            else:
                self._start(claim)

    def _adopt(self, claim: Claim, held_under: str) -> bool:
        """Note the claim in what is held; False when its queue is not ours.

        The hint named the queue `held_under`; the ledger knows better, and a task of a queue not ours goes there.
        """
        if claim.queue != held_under:
            self._seldom.warning("hint.of_another_queue", reason=held_under, queue=claim.queue, task=claim.task_id)
            self._held.release([(claim.task_id, held_under)])
        self._held.claimed(Entry(claim.task_id, claim.queue, claim.attempt))
        return claim.queue == held_under or claim.queue in self._queues

    def _start(self, claim: Claim) -> None:
        handler = self._registry.get(claim.name)
        arguments, ended = prepare(claim, handler, rng=self._rng)
        if ended is None and not self._heart.is_trusted:  # this process was stopped while it claimed: too late to start
            ended = HandedBack()
        self._pool.take(claim, handler, arguments, ended)

    def _serves_a_suspect(self) -> bool:
        """Whether a suspect runs here, or waits for its turn, which comes when all that ran is settled."""
        if (self._is_alone or self._suspects) and self._pool.is_idle:
            self._is_alone = False
            if self._suspects and self._heart.is_trusted:
                self._is_alone = True
                self._full_since = self._clock()  # they go one after the other, as long as each is quick
                self._start(self._suspects.popleft())
        return self._is_alone or bool(self._suspects)

    def _hand_back_suspects(self, *, but: int = 0) -> None:
        """Suspects that have not started go back at no cost, apart from the first `but`."""
        while len(self._suspects) > but:
            self._pool.take(self._suspects.pop(), None, None, HandedBack())

    def _drop_missed(self) -> None:
        """Hints that were not granted: settled, somebody else's, early, or unknown to the ledger."""
        looks = self._stores.ledger.look([task_id for task_id, _ in self._missed])
        again = _Pages(self._stores.broker.horizon_s)
        unknown: list[str] = []
        is_refused = False
        for task_id, name in self._missed:
            look = looks.get(task_id)
            if look is None:
                seen = self._looks.get(task_id, 0) + 1
                if seen >= LOOKS_MAX or self._is_pruned(task_id):
                    unknown.append(task_id)
                else:
                    again.add(task_id, name, delay_s=self._times.beat_s, looks=seen)
            elif look.state in _CLAIMABLE:
                is_refused = is_refused or look.due_in_s <= 0.0
                again.add(task_id, look.queue, delay_s=max(look.due_in_s, REFUSED_AGAIN_S))
        if unknown:
            self._seldom.warning("hint.unknown_id", reason="unknown_id", count=len(unknown), task=unknown[-1])
            detail = {"reason": "unknown_id", "queue": self._missed[0][1], "tasks": unknown}
            self._stores.ledger.note("quarantined", detail=detail, worker=self._me)
        if is_refused and not self._stores.ledger.beat(self._me):
            raise LeaseLost("the ledger has ended this incarnation, and grants it nothing any more")
        hints = again.hints()
        if hints and not self._publish(hints):
            return  # they stay missed: once more in the next round
        missed, self._missed = self._missed, []
        for task_id, _ in missed:
            self._looks.pop(task_id, None)
        self._held.release(missed)

    def _is_pruned(self, task_id: str) -> bool:
        """Whether an unknown id is older than anything that the ledger keeps: no use in looking again."""
        made_at_s = codec.made_at_s(task_id)
        kept_s = max(self._settings.retention_s, self._settings.dead_retention_s)
        return made_at_s is not None and made_at_s < self._wall() - kept_s

    # -- giving back

    def _relieve(self) -> None:
        """No room. When none comes free soon, others may have it: hand back what has not started."""
        now = self._clock()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since <= GIVE_BACK_AFTER_S or self._unheld:
            return
        self._consumer.pause()
        ours = self._sort(self._consumer.fetch(ids_max=HELD_MAX, wait_s=0.0))
        if ours and self._publish(_same(ours)):
            self._consumer.ack(ours)
        else:  # the broker did not take them: they are ours, and must not wait unacked for nobody
            self._unheld, self._unheld_since = ours, now
        self._give_back(list(self._backlog))
        waited_s = now - self._full_since
        if waited_s > SUSPECTS_TOGETHER_S:
            self._hand_back_suspects(but=0 if self._is_alone or waited_s > SUSPECT_WAIT_MAX_S else 1)

    def _give_back(self, rows: Sequence[tuple[str, str]]) -> bool:
        """Held, not claimed: a new hint first, then the release. False when the broker did not take the hints."""
        again = _Pages(self._stores.broker.horizon_s)
        for task_id, name in rows:
            again.add(task_id, name, looks=self._looks.get(task_id, 0))
        if not self._publish(again.hints()):
            return False
        self._let_go(rows)
        return True

    def _let_go(self, rows: Sequence[tuple[str, str]]) -> None:
        gone = {task_id for task_id, _ in rows}
        self._backlog = deque(one for one in self._backlog if one[0] not in gone)
        self._missed = [one for one in self._missed if one[0] not in gone]
        for task_id in gone:
            self._looks.pop(task_id, None)
        self._held.release(rows)

    def _publish(self, hints: Sequence[Hint]) -> bool:
        """Send hints in place of others; a marker that was sent before them must not prove them lost."""
        if not all(self._stores.broker.publish(hints, deadline_s=self._times.confirm_s)):
            return False
        by_delay: dict[float, list[str]] = {}
        for hint in hints:
            by_delay.setdefault(hint.delay_s, []).extend(hint.task_ids)
        try:
            for delay_s, task_ids in by_delay.items():
                self._stores.ledger.rehinted(task_ids, delay_s=delay_s)
        except Unavailable as error:
            log.info("worker.unstamped: %s", error)  # at worst a marker has one of them sent once more
        return True


def _same(deliveries: Sequence[Delivery]) -> list[Hint]:
    """Deliveries as new hints of the same tasks."""
    return [Hint(one.queue, one.task_ids, looks=one.looks) for one in deliveries]


class _Pages:
    """Hints to send again: ids of one queue, delay and number of looks share pages."""

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._ids: dict[tuple[str, float, int], list[str]] = {}

    def add(self, task_id: str, queue: str, *, delay_s: float = 0.0, looks: int = 0) -> None:
        """One id. Beyond the broker's horizon it is left to the sweep, which knows when it is due."""
        if delay_s <= self._horizon_s:
            self._ids.setdefault((queue, delay_s, looks), []).append(task_id)

    def hints(self) -> list[Hint]:
        """The hints, each with one page at most."""
        return [
            Hint(queue, tuple(ids[start : start + PAGE]), delay_s, looks)
            for (queue, delay_s, looks), ids in self._ids.items()
            for start in range(0, len(ids), PAGE)
        ]
