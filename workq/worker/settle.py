"""Settle: outcomes are gathered for a few milliseconds and written in bulk, then their holds are released.

Settling is a plain call, never a hook. While the ledger is away the outcomes are kept and written when it is back;
their leases go on meanwhile. The ledger decides first, and only the winner of a failure publishes the retry's hint:
after the release, so that whoever gets the hint finds nobody holding the task. A result that comes late changes
nothing and is recorded as `late_result`. A batch that the ledger refuses is halved, so that one row harms no other; an
outcome that it refuses alone (text that it cannot store) is written again without its text.

`settle_once` is one try and never waits; the thread around it does. If that thread dies, `on_death` ends the process:
nothing that it runs would ever be settled.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Protocol, assert_never

from msgspec.structs import replace

from workq.enqueue.relay import Relay
from workq.errors import Unavailable
from workq.ledger import Settled, Unpublished
from workq.limits.ledger.limits import Limits
from workq.order.ledger.order import Order
from workq.stores import Stores
from workq.values.failpoints import reach
from workq.values.task import (
    Cancelled,
    Claim,
    Dead,
    Delivered,
    Done,
    Failed,
    HandedBack,
    Outcome,
    Settlement,
    Snoozed,
    State,
    Unhandled,
    Worked,
)
from workq.worker.holds import Holds

log = logging.getLogger("workq.settle")

BATCH = 600
LINGER_S = 0.005
"""How long a settlement waits for others while more attempts are running."""
LINGER_MAX_S = 0.02
"""It waits for up to so long, and as long as the batch before took to be written, where that was of `MANY` and started
none who waited for their turn: so a busy ledger gets fewer and fuller batches."""
MANY = 50
AGAIN_S = 0.1
"""The first pause while the ledger is away; it doubles up to `AGAIN_MAX_S`."""
AGAIN_MAX_S = 2.0


class Taker(Protocol):
    """Who starts tasks in this process (see worker/fetch/intake.py)."""

    def room(self) -> int:
        """How many claims it takes now."""
        ...

    @property
    def served(self) -> Container[str]:
        """Of which queues."""
        ...

    def hand_over(self, claims: Sequence[Claim], *, asked_at: float) -> bool:
        """Start these; False: it leaves. `asked_at`: when the ledger was asked, by its clock."""
        ...


class Settler:
    """Writes outcomes. `on_settled` is told of each, won or late, just before its hold is released.

    `taker` is asked for whoever takes what is claimed `by` this incarnation when its turn comes; None: nobody yet.
    """

    def __init__(
        self,
        stores: Stores,
        relay: Relay,
        held: Holds,
        *,
        by: str,
        taker: Callable[[], Taker | None],
        is_busy: Callable[[], bool],
        on_settled: Callable[[Sequence[Settlement]], None],
        on_death: Callable[[], None],
        rng: random.Random,
    ) -> None:
        self._stores = stores
        self._relay = relay
        self._held = held
        self._by = by
        self._taker = taker
        self._is_busy = is_busy
        self._on_settled = on_settled
        self._on_death = on_death
        self._rng = rng
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Settlement] = deque()
        self._in_hand: deque[list[Settlement]] = deque()
        """Batches that were begun: one, or the parts of one that the ledger refused."""
        self._again_s = AGAIN_S
        self._linger_s = LINGER_S
        self._are_awaited = False
        """With what was settled last, the turn of others has come."""
        self._is_closing = False
        self._thread = threading.Thread(target=self._live, name="workq-settle", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, settlement: Settlement) -> None:
        """Settle this soon."""
        with self._lock:
            self._waiting.append(settlement)
            if len(self._waiting) == 1:  # later ones find it awake
                self._changed.notify_all()

    @property
    def unsettled(self) -> int:
        """How many outcomes are not written yet."""
        with self._lock:
            return len(self._waiting) + sum(len(batch) for batch in self._in_hand)

    def close(self, *, timeout_s: float) -> bool:
        """Write what is left and end; False when the time is up before."""
        with self._lock:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def settle_once(self) -> float:
        """One try to write one batch, if there is any; answers how many seconds to wait before the next one.

        What is raised is not a fault of a server: this process cannot settle, and must end.
        """
        with self._lock:
            if not self._in_hand:
                if not self._waiting:
                    return 0.0
                self._in_hand.append([self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))])
                self._again_s = AGAIN_S
                is_new = True
            else:
                is_new = False
            batch = self._in_hand[0]
        if is_new:
            reach("settle.before_write")
        began = self._relay.clock()
        try:
            settled = self._stores.ledger.outcomes.settle(batch)
        except Unavailable as error:
            log.warning("settle.waits: %s", error)
            pause_s, self._again_s = self._again_s, min(AGAIN_MAX_S, self._again_s * 2)
            return pause_s * self._rng.uniform(0.5, 1.0)
        except Exception:  # a row that the database refuses must not stop the others
            log.exception("settle.refused", extra={"tasks": [one.claim.task_id for one in batch[:10]]})
            parts = _simpler(batch)
            if parts is None:
                raise  # not the text then: this process ends, and its claims with it
            with self._lock:
                self._in_hand.popleft()
                self._in_hand.extendleft(reversed(parts))
            return 0.0
        self._finish(batch, settled, began)
        with self._lock:
            self._in_hand.popleft()
        return 0.0

    def _finish(self, batch: list[Settlement], settled: list[Settled], began: float) -> None:
        """After the ledger has decided: release, then the hints of retries, whose waits began meanwhile."""
        follows = [hint for one in settled for hint in one.follows]
        hints = retries_of(batch, settled) + follows
        self._are_awaited = bool(follows)
        ended = ended_of(batch, settled)
        self._on_settled(batch)
        reach("settle.before_release")
        self._held.settled([one.claim for one in batch])
        reach("settle.before_retry_hint")
        if hints:
            self._relay.offer(hints, since=began)
        if ended:
            reach("settle.before_advance")
            self._advance(ended)
        if freed := freed_of(batch):
            reach("settle.before_admit")
            self.admit(freed)

    def admit(self, keys: set[str]) -> None:
        """What is free of these limits goes to those who are parked, and starts here where there is room.

        Never fails: otherwise a sweep does it.
        """
        taker = self._taker()
        room = 0 if taker is None else taker.room()
        asked_at = self._relay.clock()
        try:
            if taker is None or not room:
                turn = self._stores.ledger.part(Limits).admit(keys)
            else:
                with self._held.claiming():
                    claims, turn = self._stores.ledger.part(Limits).admit_and_claim(
                        keys, by=self._by, room=room, queues=taker.served
                    )
                    self._hand_over(claims, taker, asked_at)
                self._are_awaited = self._are_awaited or bool(claims)
        except Unavailable as error:
            log.warning("settle.admit: %s", error)
        else:
            self._come(turn)

    def _hand_over(self, claims: Sequence[Claim], taker: Taker, asked_at: float) -> None:
        if claims and not taker.hand_over(claims, asked_at=asked_at):
            for claim in claims:
                self.put(Settlement(claim, HandedBack()))

    def _advance(self, keys: set[str]) -> None:
        try:
            turn = self._stores.ledger.part(Order).advance(keys)
        except Unavailable as error:  # a sweep does it
            log.warning("settle.advance: %s", error)
        else:
            self._come(turn)

    def _come(self, turn: Sequence[Unpublished]) -> None:
        """The turn of these has come."""
        self._are_awaited = self._are_awaited or bool(turn)
        self._relay.offer(turn)

    def _live(self) -> None:
        try:
            self._run()
        except BaseException:
            try:
                log.critical("settle.died", exc_info=True)
            finally:  # a logging handler of the application's may raise anything
                self._on_death()

    def _run(self) -> None:
        while True:
            if not self._in_hand:
                with self._lock:
                    self._changed.wait_for(lambda: self._waiting or self._is_closing)
                    if not self._waiting:
                        return
                if len(self._waiting) < BATCH and self._is_busy() and not self._is_closing:
                    time.sleep(self._linger_s)
            count, began = len(self._waiting), time.monotonic()
            pause_s = self.settle_once()
            self._linger_s = linger_s(count, time.monotonic() - began, are_awaited=self._are_awaited)
            if pause_s > 0.0:
                time.sleep(pause_s)


def linger_s(count: int, took_s: float, *, are_awaited: bool) -> float:
    """How long to wait for others, when so many took so long to be written. `are_awaited`: by those behind them."""
    return LINGER_S if are_awaited or count < MANY else min(LINGER_MAX_S, max(LINGER_S, took_s))


def retries_of(batch: Sequence[Settlement], settled: Sequence[Settled]) -> list[Unpublished]:
    """What the ledger has made of these that runs again, and needs a hint; what it refused is told to the log."""
    hints = []
    for one, result in zip(batch, settled, strict=True):
        if result.state is None:
            log.warning("task.fenced", extra={"task": one.claim.task_id, "attempt": one.claim.attempt})
        elif result.state in (State.WAITING, State.READY):
            hints.append(Unpublished(one.claim.task_id, one.claim.queue, one.claim.attempt, result.delay_s))
    return hints


def ended_of(batch: Sequence[Settlement], settled: Sequence[Settled]) -> set[str]:
    """The order keys of what has ended for good: the next one's turn may have come."""
    return {
        one.claim.order_key
        for one, result in zip(batch, settled, strict=True)
        if one.claim.order_key is not None and result.state not in (State.WAITING, State.READY)
    }


def freed_of(batch: Sequence[Settlement]) -> set[str]:
    """The limits of what has ended, for good or for now: others may start."""
    return {one.claim.limit_key for one in batch if one.claim.limit_key is not None}


def _simpler(batch: list[Settlement]) -> list[list[Settlement]] | None:
    """What to write in place of a batch that the ledger refused: its halves, or one outcome without its text."""
    if len(batch) > 1:
        half = len(batch) // 2
        return [batch[:half], batch[half:]]
    plain = _plain(batch[0].outcome)
    return None if plain == batch[0].outcome else [[Settlement(batch[0].claim, plain)]]


def _plain(outcome: Outcome) -> Outcome:
    """The same outcome without anything that a handler wrote."""
    refused = "the ledger refused the text of this outcome; the worker's log has it"
    match outcome:
        case Done():
            return Done(None, f"result_error: {refused}")
        case Failed(delay_s=delay_s):
            return Failed(delay_s, refused)
        case Dead(failed=failed):
            return Dead("failed", refused, failed=failed)
        case Cancelled():
            return Cancelled("cancelled by its handler")
        case Snoozed(delay_s=delay_s, awaits_room=awaits_room):
            return Snoozed(delay_s, awaits_room=awaits_room)
        case Delivered():
            then = _plain(outcome.then)
            return replace(outcome, sent=replace(outcome.sent, error=refused, answer=""), then=then)
        case Worked():
            items = tuple(replace(one, error=refused) for one in outcome.failed)
            return replace(outcome, failed=items, error=refused, results=())
        case Unhandled() | HandedBack():
            return outcome
        case _:
            assert_never(outcome)
