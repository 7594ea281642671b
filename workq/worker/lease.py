"""Beat: this incarnation's lease in the in-flight store, and its heartbeat in the ledger.

A lease is trusted for 0.8 of its length, counted from before the request that granted it: after that nothing is
claimed, while what runs goes on and settles as usual. Who has reaped whom, the ledger decides: when it says that this
incarnation has ended, or the in-flight store says that its lease was taken away, it is `lost` for good.

A store away: the lease ends by itself unless a later beat comes in time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import psutil

from workq.config import Times
from workq.errors import LeaseLost, Unavailable
from workq.ledger import Unpublished
from workq.stores import Stores
from workq.values.failpoints import reach
from workq.values.incarnation import Incarnation
from workq.worker.holds import Holds

log = logging.getLogger("workq.beat")

TRUST = 0.8
"""The part of a lease within which this process trusts it."""


class LeaseKeeper:
    """The lease of one incarnation. One step a call; the caller decides when."""

    def __init__(
        self,
        stores: Stores,
        held: Holds,
        *,
        me: Incarnation,
        times: Times,
        offer: Callable[[Sequence[Unpublished]], None],
        clock: Callable[[], float] = time.monotonic,
        on_reached: Callable[[float], None] = lambda _: None,
        signs: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`offer` publishes hints soon, without waiting for it. `on_reached`: told when both stores answered last.

        `signs`: what the ledger may say of the signs of life that this process gives.
        """
        self._stores = stores
        self._held = held
        self._me = me
        self._times = times
        self._offer = offer
        self._clock = clock
        self._trust_until = float("-inf")
        self._ledger_at = 0.0
        self._on_reached = on_reached
        self._signs = signs
        self._answered_at = {"inflight": float("-inf"), "ledger": float("-inf")}
        self.lost = threading.Event()
        """It was reaped: claim no more."""

    @property
    def is_trusted(self) -> bool:
        """Whether the lease can be relied on now: hold and claim only then."""
        return self._clock() <= self._trust_until and not self.lost.is_set()

    def join(self, *, queues: Sequence[str], threads: int) -> None:
        """Get a lease and a row in the ledger. Repeatable. Raises Unavailable while a store is away."""
        asked = self._clock()
        self._stores.inflight.join(self._me.id, lease_s=self._times.lease_s)
        self._stores.ledger.workers.join(self._me, queues=queues, threads=threads, signs=self._signs())
        self._answered("inflight", asked)
        self._answered("ledger", asked)
        self._trust_until = asked + TRUST * self._times.lease_s
        self._ledger_at = self._clock() + self._times.worker_beat_s

    def leave(self) -> None:
        """Give both up in order. Raises Unavailable while a store is away."""
        self._stores.inflight.leave(self._me.id)
        self._stores.ledger.workers.leave(self._me.id)

    def beat(self) -> None:
        """Once a beat: the lease; and when it is time, the heartbeat in the ledger."""
        self.beat_in_flight()
        self.beat_in_ledger_in_time()

    def beat_in_ledger_in_time(self) -> None:
        """When it is time, the heartbeat in the ledger, and a look for what nobody else returns."""
        if self._clock() >= self._ledger_at:
            self._ledger_at = self._clock() + self._times.worker_beat_s
            self.beat_in_ledger()
            self.return_strays()

    def make_sure(self) -> None:
        """Something was refused for want of a live lease: beat at once, which tells whether it was reaped.

        A lease that has ended unnoticed, or was wiped, is granted anew; only one that was reaped is `lost`.
        """
        self.beat_in_flight()
        self.beat_in_ledger()

    def beat_in_flight(self) -> bool:
        """Extend the lease and assert what is held. False: the store did not answer, and it should be tried soon."""
        reach("beat.before_write")
        asked = self._clock()
        try:
            beat = self._held.beat(lease_s=self._times.lease_s)
        except LeaseLost as error:
            log.error("worker.lease_lost: %s", error)
            self.lost.set()
        except Unavailable as error:
            log.warning("beat.failed: %s", error)
            return False
        else:
            self._trust_until = asked + TRUST * self._times.lease_s
            self._answered("inflight", asked)
            self._held.release()
            if beat.restored:
                log.warning("beat.restored", extra={"holds": beat.restored})
        return True

    def beat_in_ledger(self) -> None:
        """Note in the ledger that this incarnation lives, and how much memory it has."""
        asked = self._clock()
        try:
            if not self._stores.ledger.workers.beat(
                self._me.id, memory_bytes=psutil.Process().memory_info().rss, signs=self._signs()
            ):
                log.error("worker.reaped: the ledger has ended this incarnation")
                self.lost.set()
        except Unavailable as error:
            log.warning("beat.failed: %s", error)
        else:
            self._answered("ledger", asked)

    def _answered(self, store: str, asked: float) -> None:
        self._answered_at[store] = asked
        self._on_reached(min(self._answered_at.values()))

    def return_strays(self) -> None:
        """Return claims under our name that we do not know of, and drop such holds (see holds.py)."""
        try:
            self._stores.ledger.claims.return_doubtful(by=self._me.id)
            if hints := self._held.return_forgotten():
                reach("beat.before_hints")
                self._offer(hints)
            dropped = self._held.release_strays()
        except Unavailable as error:
            log.warning("beat.failed: %s", error)
        else:
            if dropped:
                log.warning("beat.strays", extra={"holds": dropped})
