"""One consumer process: fetch, hold, ack, claim, run, settle, release.

Custody moves in that order: a delivery is acked only after its ids are held under this incarnation's lease, and a
task runs only after the ledger has granted the claim. What was fetched and cannot start soon is handed back as a
new hint, so that it waits for whoever is free first and never ages unacked in this process.

Threads: this one serves; `beat` keeps the lease and the heartbeat in the ledger; `settle` writes outcomes; `limits`
watches soft time limits; handlers run in up to `threads` pool threads, coroutines in one event loop. The broker's
client has a thread of its own.

What goes wrong: the in-flight store away: nothing is acked unheld, fetching stops, running tasks settle, and it
resumes by itself. The broker away: the consumer connects again by itself. The ledger away: nothing is claimed;
outcomes are kept and settled when it is back. The lease lost (reaped): claim no more, let handlers end as late
results, leave with status 75, and the supervisor starts a new incarnation. A beat thread that dies ends the
process: working without a lease is worse; so does a settle or limits thread that dies, and any error that this module
does not expect. Then the process leaves without a goodbye, and its supervisor ends its claims with the evidence.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from workq import codec
from workq.board import Board
from workq.broker import PAGE, Consumer, Delivery, Hint
from workq.errors import ConfigError, InFlightUnavailable, LeaseLost, Unavailable, WorkqError
from workq.failpoints import reach
from workq.handler import Handler
from workq.incarnation import Incarnation
from workq.inflight import Entry
from workq.logs import Seldom, configure
from workq.run import Limit, prepare, raised, returned, run_async, run_sync
from workq.settle import Settler
from workq.task import Claim, HandedBack, Outcome, Settlement, State

if TYPE_CHECKING:
    from workq.app import WorkQueue

log = logging.getLogger("workq.worker")

EXIT_LEASE_LOST = 75
EXIT_BROKEN = 70
"""A thread that nothing works without has died, or an error came that nobody expected."""
HELD_MAX = 200
"""How many ids one process holds beyond what it runs, at most."""
LOOKAHEAD_S = 0.25
"""Hold about this much work ahead."""
CLAIM_AHEAD_S = 0.05
"""Claim about this much work ahead of what can start at once."""
GIVE_BACK_AFTER_S = 0.5
"""What is held and cannot start within this time is handed back."""
UNHELD_MAX_S = 45.0
"""Deliveries that cannot be held for this long go back to the broker."""
RETURNS_MAX = 5
"""How often a hint of a newer version waits a beat for a worker that can read it (a rolling upgrade)."""
LOOKS_MAX = 3
"""An id that the ledger does not know is looked up so often, one beat apart."""
REFUSED_AGAIN_S = 0.2
"""When to look again at a task that could not be claimed although it was due a moment later."""
TRUST = 0.8
"""The part of a lease within which this process trusts it."""
_CLAIMABLE = (State.READY, State.WAITING)


class WorkerSpec(msgspec.Struct, frozen=True):
    """What the supervisor tells a consumer process, as JSON on its standard input."""

    app: str
    queues: list[str]
    threads: int
    is_drain: bool
    board: str
    log_level: int = logging.INFO


@dataclass(slots=True)
class _Attempt:
    """One claim on its way through this process."""

    claim: Claim
    line: int
    handler: Handler[..., Any] | None = None
    arguments: Any = None
    limit: Limit | None = None
    is_started: bool = False


@dataclass(slots=True)
class _Pace:
    """How long attempts take here, smoothed; decides how much to hold and claim ahead."""

    threads: int
    run_s: float | None = field(default=None)

    def add(self, run_s: float) -> None:
        self.run_s = run_s if self.run_s is None else 0.8 * self.run_s + 0.2 * run_s

    def ahead(self, seconds: float, most: int) -> int:
        """How many attempts end here within `seconds`."""
        if self.run_s is None:
            return self.threads
        return min(most, int(self.threads * seconds / max(self.run_s, 1e-6)))


class Worker:
    """One life of one consumer process."""

    def __init__(self, app: WorkQueue, *, queues: Sequence[str], threads: int, is_drain: bool, board: Board) -> None:
        self.app = app
        self.queues = tuple(queues)
        self.threads = threads
        self.is_drain = is_drain
        self.board = board
        self.times = app.settings.times
        self.stores = app.stores
        self.relay = app.producer.relay
        self.me = Incarnation.of_this_process()
        self.stop = threading.Event()
        self.lost = threading.Event()
        self._rng = random.Random()
        self._pace = _Pace(threads)
        self._backlog: deque[tuple[str, str]] = deque()
        self._missed: list[tuple[str, str]] = []
        """Held, but not granted by the ledger; their hints are to be dropped or sent again."""
        self._is_broken = False
        self._seldom = Seldom(log)
        self._unheld: list[Delivery] = []
        self._unheld_since = 0.0
        self._entries: dict[str, Entry] = {}
        self._running: dict[int, _Attempt] = {}
        self._looks: dict[str, int] = {}
        self._lines: deque[int] = deque(range(board.lines))
        self._lines_in_use: dict[str, int] = {}
        self._changed = threading.Condition()
        self._active = 0
        self._inbox: queue.SimpleQueue[_Attempt | None] = queue.SimpleQueue()
        self._idle_threads = threading.Semaphore(0)
        self._pool: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._trust_until = 0.0
        self._full_since: float | None = None
        self._pause_s = 0.0
        self._ended = threading.Event()
        self._settler = Settler(
            self.stores,
            self.relay,
            by=self.me.id,
            is_busy=lambda: self._active > 0,
            on_settled=self._settled,
            on_death=_end_broken,
        )

    # -- life

    def run(self) -> int:
        """Work until told to stop (or, draining, until nothing is due). Answers the exit status."""
        if not self._join():
            return 0
        self.board.introduce(self.me.id)
        for target, name in ((self._keep_beating, "workq-beat"), (self._keep_limits, "workq-limits")):
            threading.Thread(target=target, name=name, daemon=True).start()
        self._settler.start()
        consumer = self.stores.broker.consumer(self.queues, name=self.me.id, prefetch=max(2, min(50, self.threads * 2)))
        log.info("worker.started", extra={"worker": self.me.id, "queues": self.queues})
        status = 0
        try:
            self._serve_until_stopped(consumer)
        except ConfigError as error:
            log.error("worker.cannot_serve: %s", error)
            status = 2
        except Exception:
            log.exception("worker.broken")
            self._is_broken = True
        consumer.close()
        status = self._leave() or status
        self._seldom.flush()
        return status

    def _join(self) -> bool:
        """Get a lease and a row in the ledger, waiting for the servers as long as it takes; False when told to stop."""
        pause_s = 0.2
        while not self.stop.is_set():
            asked = time.monotonic()
            try:
                self.stores.inflight.join(self.me.id, lease_s=self.times.lease_s)
                self.stores.ledger.join(self.me, queues=self.queues, threads=self.threads)
            except Unavailable as error:
                log.warning("worker.waits: %s", error)
                self.stop.wait(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(5.0, pause_s * 2)
                continue
            self._trust_until = asked + TRUST * self.times.lease_s
            return True
        return False

    def _leave(self) -> int:
        """Hand back what has not started, finish what runs within the grace, settle, release, and say goodbye."""
        deadline = time.monotonic() + self.times.grace_s
        self._give_back_backlog()
        while True:
            try:
                attempt = self._inbox.get_nowait()
            except queue.Empty:
                break
            if attempt is not None:
                self._finish(attempt, HandedBack(), run_s=None)
        with self._changed:
            is_done = self._changed.wait_for(lambda: self._active == 0, max(0.0, deadline - time.monotonic()))
        is_settled = self._settler.close(timeout_s=max(1.0, deadline - time.monotonic()))
        self.relay.flush(timeout_s=min(5.0, max(0.5, deadline - time.monotonic())))
        self._ended.set()
        if self._is_broken:
            return EXIT_BROKEN
        if self.lost.is_set():
            return EXIT_LEASE_LOST
        if not (is_done and is_settled):
            log.warning("worker.grace_exceeded", extra={"running": self._active, "unsettled": self._settler.unsettled})
            return 1
        try:
            self.stores.inflight.leave(self.me.id)
            self.stores.ledger.leave(self.me.id)
        except Unavailable as error:
            log.warning("worker.left_without_goodbye: %s", error)
        else:
            self.board.leave()
        log.info("worker.left", extra={"worker": self.me.id})
        return 0

    # -- serve

    def _serve_until_stopped(self, consumer: Consumer) -> None:
        while not self.stop.is_set() and not self.lost.is_set():
            try:
                self._serve(consumer)
            except LeaseLost as error:
                log.error("worker.lease_lost: %s", error)
                self.lost.set()
            except Unavailable as error:
                self._pause_s = min(2.0, max(0.1, self._pause_s * 2))
                log.warning("worker.waits: %s", error)
                self.stop.wait(self._pause_s * random.uniform(0.5, 1.0))
            else:
                self._pause_s = 0.0
            if self.is_drain and self._is_drained():
                return

    def _serve(self, consumer: Consumer) -> None:
        """One round: claim what can start, then take custody of more."""
        if self._unheld:
            self._hold(consumer)
        self._claim()
        room = self._room()
        if self._unheld or room <= 0 or time.monotonic() > self._trust_until:
            self._wait_for_progress(consumer)
            return
        self._full_since = None
        consumer.resume()
        deliveries = consumer.fetch(ids_max=room, wait_s=0.0 if self._backlog else 0.2)
        if consumer.trouble is not None:
            self._seldom.warning("worker.nothing_arrives", reason=consumer.trouble)
        if deliveries:
            self._take(consumer, deliveries, room)

    def _room(self) -> int:
        """How many more ids may be held now: free slots, or about a quarter second of work if that is more."""
        waiting = len(self._backlog)
        return max(self.threads - self._active, self._pace.ahead(LOOKAHEAD_S, HELD_MAX) - self._active) - waiting

    def _take(self, consumer: Consumer, deliveries: Sequence[Delivery], room: int) -> None:
        """Take custody of a batch: quarantine what is foreign, split what is too long, hold, ack."""
        ours = []
        for delivery in deliveries:
            if delivery.fault is None:
                ours.append(delivery)
            else:
                self._set_aside(consumer, delivery, delivery.fault)
        self._unheld = self._split(ours, room)
        self._unheld_since = time.monotonic()
        if self._unheld:
            self._hold(consumer)

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

    def _hold(self, consumer: Consumer) -> None:
        """Hold, then ack. On failure the deliveries stay unacked, and go back to the broker in the end."""
        deliveries = self._unheld
        entries = [Entry(task_id, one.queue) for one in deliveries for task_id in one.task_ids]
        reach("worker.before_hold")
        try:
            held = self.stores.inflight.hold(entries, by=self.me.id)
        except InFlightUnavailable:
            if time.monotonic() - self._unheld_since > UNHELD_MAX_S and self._publish(
                [Hint(one.queue, one.task_ids, looks=one.looks) for one in deliveries]
            ):
                consumer.ack(deliveries)
                self._unheld = []
            raise
        elsewhere = self._held_elsewhere([entry.task_id for entry in entries if entry.task_id not in held])
        if elsewhere and not self._publish(elsewhere):
            return  # still unacked: once more in the next round
        self._unheld = []
        reach("worker.before_ack")
        consumer.ack(deliveries)  # custody has moved
        self._looks |= {task_id: one.looks for one in deliveries for task_id in one.task_ids if one.looks}
        with self._changed:
            for entry in entries:
                if entry.task_id in held and entry.task_id not in self._entries:
                    self._entries[entry.task_id] = entry
                    self._backlog.append((entry.task_id, entry.queue))

    def _held_elsewhere(self, task_ids: list[str]) -> list[Hint]:
        """What a live other holds, it runs, and this hint is worth nothing. If it does not run it, look again later.

        That may be a hold that its owner could not release, or will not live to: then this hint is the only one.
        """
        if not task_ids:
            return []
        again = _Pages(self.stores.broker.horizon_s)
        for task_id, look in self.stores.ledger.look(task_ids).items():
            if look.state in _CLAIMABLE:
                again.add(task_id, look.queue, delay_s=max(look.due_in_s, self.times.beat_s))
        return again.hints()

    def _set_aside(self, consumer: Consumer, delivery: Delivery, fault: str) -> None:
        """Foreign messages go to the quarantine; a hint of a newer version first waits for a worker that reads it."""
        if fault == "newer_version" and delivery.returns < RETURNS_MAX:
            self._seldom.warning("hint.newer_version", reason=fault, queue=delivery.queue)
            consumer.put_back(delivery, delay_s=self.times.beat_s)
            return
        self._seldom.warning("hint.quarantined", reason=fault, queue=delivery.queue)
        consumer.quarantine(delivery, reason=fault)

    # -- claim

    def _claim(self) -> None:
        """Claim what can start now, or within a moment; drop the hints of what the ledger does not grant."""
        if self._missed:
            self._drop_missed()
        free = max(self.threads, self._pace.ahead(CLAIM_AHEAD_S, 100)) - self._active
        count = min(free, len(self._backlog), len(self._lines))
        if count <= 0 or time.monotonic() > self._trust_until or self.lost.is_set():
            return
        chosen = [self._backlog[index] for index in range(count)]
        reach("worker.before_claim")
        claims = self.stores.ledger.claim([task_id for task_id, _ in chosen], by=self.me.id)
        for _ in chosen:
            self._backlog.popleft()
        granted = {claim.task_id for claim in claims}
        self._missed = [one for one in chosen if one[0] not in granted]
        held_under = dict(chosen)
        for claim in claims:
            self._start(claim, held_under[claim.task_id])
        if self._missed:
            self._drop_missed()

    def _start(self, claim: Claim, held_under: str) -> None:
        """The hint named the queue `held_under`; the ledger knows better, and a task of a queue not ours goes there."""
        handler = self.app.registry.get(claim.name)
        arguments, ended = prepare(claim, handler, rng=self._rng)
        if claim.queue != held_under:
            self._seldom.warning("hint.of_another_queue", reason=held_under, queue=claim.queue, task=claim.task_id)
            self._settler.release([(claim.task_id, held_under)])
            if claim.queue not in self.queues:
                ended = HandedBack()
        attempt = _Attempt(claim, self._lines.popleft(), handler, arguments)
        with self._changed:
            self._active += 1
            self._entries[claim.task_id] = Entry(claim.task_id, claim.queue, claim.attempt)
        if ended is not None:
            self._finish(attempt, ended, run_s=None)
        elif handler is not None and handler.is_async:
            asyncio.run_coroutine_threadsafe(self._attempt_async(attempt, handler), self._event_loop())
        else:
            self._inbox.put(attempt)
            if not self._idle_threads.acquire(blocking=False) and len(self._pool) < self.threads:
                thread = threading.Thread(target=self._work, name=f"workq-run-{len(self._pool)}", daemon=True)
                self._pool.append(thread)
                thread.start()

    def _drop_missed(self) -> None:
        """Hints that were not granted: settled, somebody else's, early, or unknown to the ledger."""
        looks = self.stores.ledger.look([task_id for task_id, _ in self._missed])
        again = _Pages(self.stores.broker.horizon_s)
        unknown: list[str] = []
        is_refused = False
        for task_id, name in self._missed:
            look = looks.get(task_id)
            if look is None:
                seen = self._looks.get(task_id, 0) + 1
                if seen >= LOOKS_MAX or self._is_pruned(task_id):
                    unknown.append(task_id)
                else:
                    again.add(task_id, name, delay_s=self.times.beat_s, looks=seen)
            elif look.state in _CLAIMABLE:
                is_refused = is_refused or look.due_in_s <= 0.0
                again.add(task_id, look.queue, delay_s=max(look.due_in_s, REFUSED_AGAIN_S))
        if unknown:
            self._seldom.warning("hint.unknown_id", reason="unknown_id", count=len(unknown), task=unknown[-1])
            detail = {"reason": "unknown_id", "queue": self._missed[0][1], "tasks": unknown}
            self.stores.ledger.note("quarantined", detail=detail, worker=self.me.id)
        if is_refused and not self.stores.ledger.beat(self.me.id):
            raise LeaseLost("the ledger has ended this incarnation, and grants it nothing any more")
        hints = again.hints()
        if hints and not self._publish(hints):
            return  # they stay missed: once more in the next round
        missed, self._missed = self._missed, []
        with self._changed:
            for task_id, _ in missed:
                self._looks.pop(task_id, None)
                self._entries.pop(task_id, None)
        self._settler.release(missed)

    def _is_pruned(self, task_id: str) -> bool:
        """Whether an unknown id is older than anything that the ledger keeps: no use in looking again."""
        made_at_s = codec.made_at_s(task_id)
        kept_s = max(self.app.settings.retention_s, self.app.settings.dead_retention_s)
        return made_at_s is not None and made_at_s < time.time() - kept_s

    # -- run

    def _work(self) -> None:
        """A pool thread: attempts, one after the other."""
        while True:
            self._idle_threads.release()
            attempt = self._inbox.get()
            if attempt is None:
                return
            try:
                self._attempt_sync(attempt)
            except BaseException:  # not the handler's: its attempt would never be settled
                log.critical("worker.thread_died", exc_info=True)
                _end_broken()

    def _attempt_sync(self, attempt: _Attempt) -> None:
        claim, handler = attempt.claim, attempt.handler
        if handler is None:
            raise RuntimeError(f"{claim.task_id} was queued without a handler")
        began = self._begin(attempt)
        limit = Limit(began + handler.time_limit_s) if handler.time_limit_s is not None else None
        outcome: Outcome
        try:
            if limit is not None:
                attempt.limit = limit
                self._running[attempt.line] = attempt
            try:
                result = run_sync(claim, handler, attempt.arguments, lambda: self._is_cancelled(claim))
            finally:
                if limit is not None:
                    limit.ended()
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: data never kills a worker
            outcome = raised(claim, handler, error, rng=self._rng)
        else:
            outcome = returned(result)
        self._running.pop(attempt.line, None)
        self._finish(attempt, outcome, run_s=time.monotonic() - began)

    async def _attempt_async(self, attempt: _Attempt, handler: Handler[..., Any]) -> None:
        began = self._begin(attempt)
        outcome: Outcome
        try:
            result = await run_async(
                attempt.claim, handler, attempt.arguments, lambda: self._is_cancelled(attempt.claim)
            )
        except BaseException as error:  # CancelledError and SystemExit too: the loop serves other tasks
            outcome = raised(attempt.claim, handler, error, rng=self._rng)
        else:
            outcome = returned(result)
        self._finish(attempt, outcome, run_s=time.monotonic() - began)

    def _begin(self, attempt: _Attempt) -> float:
        reach("worker.before_run")
        began = time.monotonic()
        limit_s = attempt.handler.time_limit_s if attempt.handler is not None else None
        hard_at = began + limit_s + self.times.hard_limit_grace_s if limit_s is not None else 0.0
        attempt.is_started = True
        self.board.start(attempt.line, attempt.claim.task_id, attempt.claim.attempt, started_at=began, hard_at=hard_at)
        return began

    def _finish(self, attempt: _Attempt, outcome: Outcome, *, run_s: float | None) -> None:
        """The attempt has an outcome: free its slot and let it be settled."""
        if attempt.is_started:
            self.board.ended(attempt.line)
            reach("worker.after_run")
        with self._changed:
            self._active -= 1
            self._lines_in_use[attempt.claim.task_id] = attempt.line
            if run_s is not None:
                self._pace.add(run_s)
            self._changed.notify_all()
        self._settler.put(Settlement(attempt.claim, outcome))

    def _settled(self, batch: Sequence[Settlement]) -> None:
        """Told by the settler: the hold is released, and the board's line is free again."""
        with self._changed:
            for one in batch:
                self._entries.pop(one.claim.task_id, None)
                line = self._lines_in_use.pop(one.claim.task_id, None)
                if line is not None:
                    self.board.clear(line)
                    self._lines.append(line)
            self._changed.notify_all()

    def _is_cancelled(self, claim: Claim) -> bool:
        task = self.stores.ledger.get(claim.task_id)
        return (
            task is None or task.is_cancel_requested or task.attempt != claim.attempt or task.state is not State.RUNNING
        )

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._keep_looping, args=(self._loop,), name="workq-async", daemon=True).start()
        return self._loop

    def _keep_looping(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ended.is_set():
            try:
                loop.run_forever()
            except BaseException:  # SystemExit in a task that a handler started: the other handlers go on
                log.exception("worker.event_loop")

    # -- waiting and giving back

    def _wait_for_progress(self, consumer: Consumer) -> None:
        """No room: wait for a slot. When none comes free soon, others may: hand back what has not started."""
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since > GIVE_BACK_AFTER_S and not self._unheld:
            consumer.pause()
            arrived = consumer.fetch(ids_max=HELD_MAX, wait_s=0.0)
            foreign = [one for one in arrived if one.fault is not None]
            for one in foreign:
                self._set_aside(consumer, one, one.fault or "foreign")
            ours = [one for one in arrived if one.fault is None]
            if ours and self._publish([Hint(one.queue, one.task_ids, looks=one.looks) for one in ours]):
                consumer.ack(ours)
            self._give_back_backlog()
        with self._changed:
            self._changed.wait(0.05)

    def _give_back_backlog(self) -> None:
        """Held, not claimed: a new hint first, then the release."""
        rows = [*self._backlog, *self._missed] if self._is_leaving() else list(self._backlog)
        if not rows:
            return
        again = _Pages(self.stores.broker.horizon_s)
        for task_id, name in rows:
            again.add(task_id, name, looks=self._looks.get(task_id, 0))
        if not self._publish(again.hints()):
            if not self._is_leaving():
                return
            # no broker, and we go: without a mark in the ledger nobody would ever send these hints again
            try:
                self.stores.ledger.unhint([task_id for task_id, _ in rows])
            except Unavailable as error:
                log.warning("worker.unhinted: %s", error)  # reaping this process will do it
                self._is_broken = True
                return
        self._backlog.clear()
        self._missed.clear()
        with self._changed:
            for task_id, _ in rows:
                self._looks.pop(task_id, None)
                self._entries.pop(task_id, None)
        self._settler.release(rows)

    def _is_leaving(self) -> bool:
        return self.stop.is_set() or self.lost.is_set() or self._is_broken

    def _publish(self, hints: Sequence[Hint]) -> bool:
        return all(self.stores.broker.publish(hints, deadline_s=self.times.confirm_s))

    def _is_drained(self) -> bool:
        if self._active or self._backlog or self._missed or self._unheld or self._settler.unsettled:
            return False
        try:
            return not self.stores.ledger.has_due(self.queues)
        except Unavailable:
            return False

    # -- beat and limits

    def _keep_beating(self) -> None:
        try:
            ledger_at = time.monotonic() + self.times.worker_beat_s
            while not self._ended.wait(self.times.beat_s) and not self.lost.is_set():
                self._beat()
                if time.monotonic() >= ledger_at:
                    ledger_at = time.monotonic() + self.times.worker_beat_s
                    self._beat_in_ledger()
        except BaseException:
            log.critical("beat.died", exc_info=True)
            _end_broken()  # working on without a lease would let others start what runs here

    def _beat(self) -> None:
        reach("beat.before_write")
        asked = time.monotonic()
        try:
            with self._settler.releasing:  # or the beat would write again what was just released
                with self._changed:
                    entries = list(self._entries.values())
                beat = self.stores.inflight.beat(self.me.id, lease_s=self.times.lease_s, entries=entries)
        except LeaseLost as error:
            log.error("worker.lease_lost: %s", error)
            self.lost.set()
        except Unavailable as error:
            log.warning("beat.failed: %s", error)
        else:
            self._trust_until = asked + TRUST * self.times.lease_s
            self._settler.release()
            if beat.restored:
                log.warning("beat.restored", extra={"holds": beat.restored})

    def _beat_in_ledger(self) -> None:
        try:
            if not self.stores.ledger.beat(self.me.id):
                log.error("worker.reaped: the ledger has ended this incarnation")
                self.lost.set()
        except Unavailable as error:
            log.warning("beat.failed: %s", error)

    def _keep_limits(self) -> None:
        try:
            while not self._ended.wait(0.1):
                now = time.monotonic()
                for attempt in list(self._running.values()):
                    if attempt.limit is not None and now > attempt.limit.at:
                        attempt.limit.exceed()
        except BaseException:
            log.critical("limits.died", exc_info=True)
            _end_broken()


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


def _end_broken() -> None:
    """End this process at once: the supervisor ends its claims and starts another."""
    os._exit(EXIT_BROKEN)


def main() -> int:
    """The consumer process: reads its WorkerSpec from standard input, which ends when the supervisor does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the supervisor, which decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerSpec)
    from workq.app import load_app

    configure(spec.log_level)
    board = Board(Path(spec.board))
    board.path.unlink(missing_ok=True)  # both sides have it open: nothing is left behind, whoever dies first
    try:
        app = load_app(spec.app)
        app.registry.freeze()
        worker = Worker(app, queues=spec.queues, threads=spec.threads, is_drain=spec.is_drain, board=board)
    except (ConfigError, Unavailable) as error:
        log.error("worker.cannot_start: %s", error)
        return 4 if isinstance(error, Unavailable) else 2
    except WorkqError as error:
        log.error("worker.cannot_start: %s", error)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())

    def leave_with_supervisor() -> None:
        sys.stdin.buffer.read()  # nothing more is ever sent: this ends when the supervisor does
        worker.stop.set()

    threading.Thread(target=leave_with_supervisor, name="workq-parent", daemon=True).start()
    status = worker.run()
    app.close()
    return status


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)  # a handler thread that never ends must not keep the process: what it ran was handed on
