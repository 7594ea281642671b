"""Three stores: from a delivery to a claim. Fetch, split, hold, ack, claim, and hand back what cannot start soon.

Custody moves in that order: a delivery is acked only after its ids are held under this incarnation's lease, and a
task runs only after the ledger has granted the claim. What was fetched and cannot start soon is handed back as a new
hint, so that it waits for whoever is free first and never ages unacked in this process.

What was granted goes on to worker/dispatch.py, what was not to refused.py, and what is no hint of a task to intake.py.

One `round` is one step: it waits for nothing but the consumer's `fetch`, and everything that it has in hand is in this
object, so that whatever it raises, the next round goes on where this one stopped. Used by one thread.

What goes wrong: the in-flight store away: nothing is acked unheld, fetching stops; what stays unheld for 45 seconds
goes back to the broker. The broker away: the consumer connects again by itself, and meanwhile this process finds due
tasks in the ledger (see fallback_polling.py); what would go back as a new hint is marked there instead. The ledger
away: nothing is claimed.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from workq.broker import PAGE, Consumer, Delivery, Hint, arrives_in_s
from workq.broker.each_queue import publish_each
from workq.enqueue import relay
from workq.errors import ConfigError, InFlightUnavailable, Unavailable
from workq.inflight import Entry
from workq.ledger import Look
from workq.ledger.engine.states import CLAIMABLE
from workq.values.failpoints import reach
from workq.values.task import Claim
from workq.worker.fetch.fallback_polling import FallbackPolling
from workq.worker.fetch.intake import FETCH_WAIT_S, FULL_WAIT_S, Intake, Parts
from workq.worker.fetch.refused import HintPages
from workq.worker.pace import Prefetch

log = logging.getLogger("workq.custody")

HELD_MAX = 800
"""How many ids one process holds beyond what it runs, at most."""
LOOKAHEAD_S = 0.25
"""Hold about this much work ahead."""
GIVE_BACK_AFTER_S = 0.5
"""What is held and cannot start within this time is handed back."""
EARLY_S = 0.1
"""A hint that comes early by no more is kept here until its time."""
UNHELD_MAX_S = 45.0
"""Deliveries that cannot be held for this long go back to the broker."""
GATHER_S = 0.025
"""After a claim of which all have to wait for their turn, so long is gathered for the next one: to have somebody wait
costs the ledger much the same for one as for many, and it is the same ledger that lets the others start."""
IDLE_S = 5.0
"""After so long without a delivery, few are asked for again."""


class ThreeStores(Intake):
    """What one incarnation has fetched and not yet started."""

    def __init__(self, parts: Parts, consumer: Consumer) -> None:
        super().__init__(parts, consumer)
        self._unheld: list[Delivery] = []
        self._unheld_since = 0.0
        self._backlog: deque[tuple[str, str]] = deque()
        """Held, not claimed yet: (task id, the queue that the hint named)."""
        self._early: list[tuple[float, str, str]] = []
        """A heap of what is held and comes to the backlog in a moment: when, and what."""
        self._ungranted: list[tuple[str, str]] = []
        """Held, but not granted by the ledger; their hints are to be dropped or sent again."""
        self._looks: dict[str, int] = {}
        self._polling = FallbackPolling(
            parts.stores.ledger,
            me=parts.me,
            rng=parts.rng,
            clock=parts.clock,
            has_owners=parts.stores.broker.has_owners,
        )
        self._unhinted: set[str] = set()
        """Of what is held and unclaimed: found by asking, so that no hint has to be sent in its place."""
        self._full_since: float | None = None
        self._gather_until = 0.0
        """Nothing is fetched before."""
        self._heard_at = self._clock()
        """When something arrived last, or this process was not listening."""
        self._prefetch = Prefetch(self._pool.threads)

    @property
    def is_empty(self) -> bool:
        in_hand = self._backlog or self._early or self._ungranted or self._unheld or self._handover.count
        return not in_hand and self._dispatch.is_empty and self._arrivals.is_empty

    def round(self) -> float:
        self._dispatch.start_together()
        self._start_handed()
        if self._unheld:
            self._hold()
        self._arrivals.return_markers()
        self._ripen()
        self._claim()
        left_s = self._gather_until - self._clock()
        if left_s > 0.0:
            return left_s
        room = self._room()
        if self._unheld or room <= 0 or not self._heart.is_trusted:
            self._heard_at = self._clock()  # it does not listen
            self._relieve()
            return FULL_WAIT_S
        self._full_since = None
        self._fetch_what_is_open()
        self._consumer.resume()
        has_more = bool(self._backlog) or self._polling.finds
        deliveries = self._consumer.fetch(ids_max=room, wait_s=0.0 if has_more else self._idle_s())
        trouble = self._consumer.trouble
        if trouble is not None:
            self._seldom.warning("worker.nothing_arrives", reason=trouble)
        if deliveries:
            self._heard_at = self._clock()
            self._polling.heard(deliveries)
            self._consumer.set_prefetch(self._prefetch.grow(deliveries, self._ahead()))
            self._take(deliveries, room)
        elif self._polling.is_due(trouble, is_wide=2 * room >= self._ahead(), is_free=self._has_free_thread):
            self._poll(room)
            return 0.0 if self._backlog else FULL_WAIT_S
        elif self._is_deaf():
            log.warning("worker.deaf", extra={"queues": self._queues})
            self._consumer.renew()
        elif self._clock() - self._heard_at > IDLE_S:
            self._consumer.set_prefetch(self._prefetch.shrink())
        return 0.0 if deliveries or not has_more else FULL_WAIT_S

    def give_back(self) -> bool:
        self._leave_handed()
        self._dispatch.leave()
        rows = [*self._backlog, *self._ungranted, *((task_id, queue) for _, task_id, queue in self._early)]
        with suppress(Unavailable):  # then these are not counted
            self._polling.tell()
        try:
            if not rows or self._give_back(rows):
                return True
            # no broker, and we go: without a mark in the ledger nobody would ever send these hints again
            self._stores.ledger.hints.unhint([task_id for task_id, _ in rows])
        except Unavailable as error:
            log.warning("worker.unhinted: %s", error)  # reaping this process will do it
            return False
        self._let_go(rows)
        return True

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
            return any(depth.ready for depth in self._stores.broker.depths(self._pauses.open).values())
        except (Unavailable, ConfigError):
            return False  # the consumer connects, or asks, again by itself

    @property
    def _has_free_thread(self) -> bool:
        """Whether what is found now can start now."""
        return self._pool.active + len(self._backlog) < self._pool.threads

    def _room(self) -> int:
        """How many more ids may be held now."""
        if self._dispatch.is_reserved:
            return 0
        ahead = self._ahead()
        room = min(ahead - self._pool.active - len(self._backlog), HELD_MAX - len(self._early))
        return 0 if room < PAGE <= ahead // 2 else room  # a page that has to be split costs a message

    def _ahead(self) -> int:
        """How many ids this process may hold: free slots, or about a quarter second of work if that is more."""
        # those before were quick, and those that run are not: what is held behind them would wait, and others be free
        soon = self._pool.pace.ahead(LOOKAHEAD_S, HELD_MAX, busy_s=self._pool.busy_s)
        ahead = max(self._pool.threads, soon)
        # while a thread is free, what can wait for company takes none
        return ahead + self._pool.linger.more if self._pool.active < ahead else ahead

    def _take(self, deliveries: Sequence[Delivery], room: int) -> None:
        """Take custody of a batch: quarantine what is foreign, split what is too long, hold, ack."""
        ours = self._arrivals.sort(deliveries)
        self._unheld = self._split(ours, room)
        self._unheld_since = self._clock()
        if self._unheld:
            self._hold()

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
        if not rest or not self._publish([Hint(last.queue, rest, looks=last.looks, waits_s=last.waits_s[keep:])]):
            return deliveries
        return [*deliveries[:-1], replace(last, task_ids=last.task_ids[:keep], waits_s=last.waits_s[:keep])]

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
        elsewhere = self._held_elsewhere(
            [(task_id, one.queue, one.looks) for one in deliveries for task_id in one.task_ids if task_id not in held]
        )
        if elsewhere and not self._publish(elsewhere):
            return  # still unacked: once more in the next round
        self._unheld = []
        reach("worker.before_ack")
        self._consumer.ack(deliveries)  # custody has moved
        self._looks |= {task_id: one.looks for one in deliveries for task_id in one.task_ids if one.looks}
        new = self._held.add([entry for entry in entries if entry.task_id in held])
        self._unhinted -= held  # the hint of each of them has come, and is ours
        waits = {
            task_id: wait_s for one in deliveries for task_id, wait_s in zip(one.task_ids, one.waits_s, strict=False)
        }
        if not waits:
            self._backlog.extend((entry.task_id, entry.queue) for entry in new)
            return
        early = self._early_by({entry.task_id: waits.get(entry.task_id, 0.0) for entry in new})
        now = self._clock()
        for entry in new:
            heapq.heappush(self._early, (now + early[entry.task_id], entry.task_id, entry.queue))

    def _poll(self, room: int) -> None:
        """Ask the ledger for due tasks, and take custody of them as if hints of them had come."""
        wanted = self._polling.ask(self._pauses.open, ids_max=room)
        self._polling.took(self._hold_found(wanted) if wanted else ())

    def _hold_found(self, wanted: Sequence[Entry]) -> list[str]:
        """Hold those of these that no live other holds; the ids of those that are new here."""
        reach("poll.before_hold")
        held = self._stores.inflight.hold(wanted, by=self._me)
        reach("poll.after_hold")
        new = self._held.add([entry for entry in wanted if entry.task_id in held])
        self._unhinted.update(entry.task_id for entry in new)
        self._backlog.extend((entry.task_id, entry.queue) for entry in new)
        return [entry.task_id for entry in new]

    def _receive(self, claims: Sequence[Claim]) -> None:
        self._stores.inflight.hold([Entry(one.task_id, one.queue, one.attempt) for one in claims], by=self._me)

    def _early_by(self, waits: dict[str, float]) -> dict[str, float]:
        """By how many seconds these are early, by the ledger's clock, and by no more than their hints say.

        A hint tells what was left when it set out, and RabbitMQ takes its time from queue to queue. For who is due
        later now, another hint comes. While the ledger is away, the hints are believed.
        """
        try:
            looks = self._stores.ledger.claims.look([task_id for task_id, wait_s in waits.items() if wait_s > 0.0])
        except Unavailable:
            return waits
        return waits | {task_id: min(waits[task_id], max(0.0, look.due_in_s)) for task_id, look in looks.items()}

    def _ripen(self) -> None:
        """What was early and is due now comes to the backlog."""
        now = self._clock()
        while self._early and self._early[0][0] <= now:
            _, task_id, queue = heapq.heappop(self._early)
            self._backlog.append((task_id, queue))

    def _idle_s(self) -> float:
        """How long to wait for a delivery while there is nothing to claim."""
        idle_s = min(FETCH_WAIT_S, max(0.0, self._early[0][0] - self._clock())) if self._early else FETCH_WAIT_S
        return self._dispatch.wait_s(idle_s)

    def _held_elsewhere(self, missed: Sequence[tuple[str, str, int]]) -> list[Hint]:
        """Of (task id, the queue that the hint named, how often it was looked up before): what is to be hinted again.

        What a live other holds, it runs, and this hint is worth nothing. If it does not run it, look again later: that
        may be a hold that its owner could not release, or will not live to, and then this hint is the only one. So it
        is for an id that is unknown: its owner sends the hint for the next look before it lets the id go.
        """
        if not missed:
            return []
        looks = self._stores.ledger.claims.look([task_id for task_id, _, _ in missed])
        again = HintPages(self._stores.broker.horizon_s)
        for task_id, queue, seen in missed:
            look = looks.get(task_id)
            if look is None:
                again.add(task_id, queue, pause_s=self._times.beat_s, looks=seen)
            elif look.state in CLAIMABLE:
                again.add(task_id, look.queue, due_in_s=look.due_in_s, pause_s=self._times.beat_s)
        return again.hints()

    # -- claim

    def _claim(self) -> None:
        """Claim what can start now, or within a moment; drop the hints of what the ledger does not grant."""
        if self._ungranted:
            self._drop_ungranted()
        if self._dispatch.serve_suspects():
            return
        chosen = self._startable()
        if not chosen or not self._heart.is_trusted:
            return
        reach("worker.before_claim")
        asked_at = self._clock()
        with self._held.claiming():
            claims = self._stores.ledger.claims.claim([task_id for task_id, _ in chosen], by=self._me)
            for _ in chosen:
                self._backlog.popleft()
            granted = {claim.task_id for claim in claims}
            self._unhinted -= granted
            # beside those whose hints the broker has not taken yet
            self._ungranted += [one for one in chosen if one[0] not in granted]
            self._dispatch.give(claims, dict(chosen), asked_at=asked_at)
        if self._ungranted:
            self._drop_ungranted()

    def _startable(self) -> list[tuple[str, str]]:
        """The first of the backlog, as many as the pool can take."""
        count = min(self._pool.startable(), len(self._backlog))
        return [self._backlog[index] for index in range(count)]

    def _drop_ungranted(self) -> None:
        """Hints that were not granted: settled, somebody else's, early, or unknown to the ledger."""
        looks = self._stores.ledger.claims.look([task_id for task_id, _ in self._ungranted])
        if looks and all(look.is_behind for look in looks.values()) and not self._backlog:
            self._gather_until = self._clock() + GATHER_S
        if not self._keep_early(looks):
            return
        judged = self._missed.judge(
            ((task_id, queue, self._looks.get(task_id, 0)) for task_id, queue in self._ungranted), looks
        )
        if judged.is_paused:
            self._pauses.seen()
        self._missed.tell(judged, queue=self._ungranted[0][1])
        if not self._send_again(self._hinted(judged.again)):
            return  # they stay missed: once more in the next round
        gone, self._ungranted = self._ungranted, []
        for task_id, _ in gone:
            self._looks.pop(task_id, None)
        self._unhinted.difference_update(task_id for task_id, _ in gone)
        self._held.release(gone)

    def _keep_early(self, looks: Mapping[str, Look]) -> bool:
        """What is due in a moment is held until then; whether anything else was not granted."""
        now = self._clock()
        left = []
        for task_id, queue in self._ungranted:
            look = looks.get(task_id)
            if look is not None and look.state in CLAIMABLE and not look.is_expired and 0 < look.due_in_s <= EARLY_S:
                heapq.heappush(self._early, (now + look.due_in_s, task_id, queue))
            else:
                left.append((task_id, queue))
        self._ungranted = left
        return bool(left)

    # -- giving back

    def _relieve(self) -> None:
        """No room. When none comes free soon, others may have it: hand back what has not started."""
        self._pool.relieve()
        now = self._clock()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since <= GIVE_BACK_AFTER_S or self._unheld:
            return
        self._consumer.pause()
        ours = self._arrivals.sort(self._consumer.fetch(ids_max=HELD_MAX, wait_s=0.0))
        self._consumer.set_prefetch(self._prefetch.shrink())  # for when it is resumed
        if ours and self._publish(_same(ours)):
            self._consumer.ack(ours)
        else:  # the broker did not take them: they are ours, and must not wait unacked for nobody
            self._unheld, self._unheld_since = ours, now
        self._give_back(list(self._backlog))
        self._dispatch.relieve()

    def _give_back(self, rows: Sequence[tuple[str, str]]) -> bool:
        """Held, not claimed: a new hint first, then the release. False when the broker did not take the hints."""
        again = HintPages(self._stores.broker.horizon_s)
        for task_id, name in rows:
            again.add(task_id, name, looks=self._looks.get(task_id, 0))
        if not self._send_again(self._hinted(again.hints())):
            return False
        reach("worker.before_let_go")
        self._let_go(rows)
        return True

    def _hinted(self, hints: Sequence[Hint]) -> list[Hint]:
        """Without those tasks that were found by asking: what hint each of them has is where it was."""
        if not self._unhinted:
            return list(hints)
        left = (replace(one, task_ids=tuple(i for i in one.task_ids if i not in self._unhinted)) for one in hints)
        return [one for one in left if one.task_ids]

    def _send_again(self, hints: Sequence[Hint]) -> bool:
        """Send hints in place of others; while the broker is away, a mark in the ledger is worth the same.

        What is marked is found by who polls, and a sweep sends its hint when the broker is back.
        """
        if hints and self._consumer.trouble is not None:
            self._stores.ledger.hints.unhint([task_id for one in hints for task_id in one.task_ids])
            return True
        return not hints or self._publish(hints)

    def _let_go(self, rows: Sequence[tuple[str, str]]) -> None:
        gone = {task_id for task_id, _ in rows}
        self._backlog = deque(one for one in self._backlog if one[0] not in gone)
        self._ungranted = [one for one in self._ungranted if one[0] not in gone]
        self._early = [one for one in self._early if one[1] not in gone]
        heapq.heapify(self._early)
        for task_id in gone:
            self._looks.pop(task_id, None)
        self._unhinted -= gone
        self._held.release(rows)

    def _publish(self, hints: Sequence[Hint]) -> bool:
        """Send hints in place of others; a marker that was sent before them must not prove them lost."""
        confirm_s = self._times.confirm_s
        if not all(publish_each(self._stores.broker, hints, deadline_s=confirm_s, refused=relay.refused)):
            return False
        by_delay: dict[float, list[str]] = {}
        for hint in hints:
            by_delay.setdefault(hint.delay_s, []).extend(hint.task_ids)
        try:
            for delay_s, task_ids in by_delay.items():
                self._stores.ledger.hints.rehinted(task_ids, delay_s=arrives_in_s(self._stores.broker, delay_s))
        except Unavailable as error:
            log.info("worker.unstamped: %s", error)  # at worst a marker has one of them sent once more
        return True


def _same(deliveries: Sequence[Delivery]) -> list[Hint]:
    """Deliveries as new hints of the same tasks."""
    return [Hint(one.queue, one.task_ids, looks=one.looks, waits_s=one.waits_s) for one in deliveries]
