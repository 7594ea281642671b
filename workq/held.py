"""Held: what this process holds in the in-flight store. Custody takes it, the beat asserts it, a release drops it.

Nothing is released while a beat is being written, or the beat would write again what was just released. A release
that failed is made up for by the next one, or by the next beat; if this process dies before, its reaping does it.

The store may also know of holds that this process does not: it was started again from an older copy of itself, or a
hint named a task in a queue that is not its own. Nobody would ever release them, and while this process lives they
would keep others from the task. So they are dropped after two looks; a hold that is just being taken is known by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from workq.errors import Unavailable
from workq.inflight import Beat, Entry, InFlight
from workq.ledger import Ledger
from workq.rarely import Rarely
from workq.stores import Stores
from workq.task import Claim

log = logging.getLogger("workq.held")

UNRELEASED_MAX = 10_000


class Held:
    """The entries of one incarnation. Thread-safe."""

    def __init__(self, inflight: InFlight, *, by: str) -> None:
        self._inflight = inflight
        self._by = by
        self._entries: dict[str, Entry] = {}
        self._changing = threading.Lock()
        self._strays: set[tuple[str, str]] = set()
        self._unreleased: list[tuple[str, str]] = []
        self._releasing = threading.Lock()

    def add(self, entries: Sequence[Entry]) -> list[Entry]:
        """These are held now; answers those that were not before: a hint may come twice."""
        new = []
        with self._changing:
            for entry in entries:
                if entry.task_id not in self._entries:
                    self._entries[entry.task_id] = entry
                    new.append(entry)
        return new

    def claimed(self, entries: Sequence[Entry]) -> None:
        """Tasks that are held were claimed: their attempts and the ledger's queues are known."""
        with self._changing:
            self._entries.update((entry.task_id, entry) for entry in entries)

    def beat(self, *, lease_s: float) -> Beat:
        """Extend the lease and assert every entry. Raises as the in-flight store does."""
        with self._releasing:
            with self._changing:
                entries = list(self._entries.values())
            return self._inflight.beat(self._by, lease_s=lease_s, entries=entries)

    def release(self, holds: Sequence[tuple[str, str]] = ()) -> None:
        """Drop holds, (task id, queue), and those that could not be dropped before. Never raises for a store away."""
        with self._changing:
            for task_id, _ in holds:
                self._entries.pop(task_id, None)
        with self._releasing:
            self._unreleased.extend(holds)
            if not self._unreleased:
                return
            try:
                self._inflight.release(self._unreleased, by=self._by)
            except Unavailable as error:
                log.warning("settle.unreleased: %s", error)
                del self._unreleased[:-UNRELEASED_MAX]  # leaving, or being reaped, drops the others
            else:
                self._unreleased.clear()

    def settled(self, claims: Sequence[Claim]) -> None:
        """These attempts have ended: drop their holds. Not that of a later attempt, which has begun here meanwhile."""
        with self._changing:
            kept = {one.task_id for one in claims if self._is_later(one)}
        self.release([(one.task_id, one.queue) for one in claims if one.task_id not in kept])

    def _is_later(self, claim: Claim) -> bool:
        entry = self._entries.get(claim.task_id)
        return entry is not None and entry.attempt is not None and entry.attempt > claim.attempt

    def release_strays(self) -> int:
        """Drop what was unknown here at the last look too; answers how many. Raises as the in-flight store does."""
        found = {(hold.task_id, hold.queue) for hold in self._inflight.held_by(self._by)}
        with self._releasing:
            with self._changing:
                known = {(entry.task_id, entry.queue) for entry in self._entries.values()}
            unknown = found.difference(known, self._unreleased)
            strays, self._strays = sorted(unknown & self._strays), unknown - self._strays
            return self._inflight.release(strays, by=self._by) if strays else 0


class ClaimsHeld(Held):
    """Of a process that claims straight from the hints (see direct.py): a claim is the hold, and ends by itself.

    A claim that the process does not know (it was started again from an older copy of itself) is handed back, as a
    stray hold is released: after two looks. Where a look takes long (see rarely.py), they are made more rarely.
    """

    def __init__(self, inflight: InFlight, ledger: Ledger, *, by: str, clock: Callable[[], float]) -> None:
        super().__init__(inflight, by=by)
        self._ledger = ledger
        self._clock = clock
        self._rarely = Rarely(clock)
        self._forgotten: set[tuple[str, int]] = set()
        """(task id, attempt) that runs here by the ledger, and that was unknown at the last look."""

    def beat(self, *, lease_s: float) -> Beat:
        """Extend the lease, which is all there is."""
        return self._inflight.beat(self._by, lease_s=lease_s, entries=())

    def release(self, holds: Sequence[tuple[str, str]] = ()) -> None:
        """Forget what is settled: it runs no more."""
        with self._changing:
            for task_id, _ in holds:
                self._entries.pop(task_id, None)

    def release_strays(self) -> int:
        """Hand back what was unknown here at the last look too; answers how many. Raises Unavailable."""
        if not self._rarely.is_due():
            return 0
        began = self._clock()
        found = {(hold.task_id, hold.attempt) for hold in self._inflight.held_by(self._by) if hold.attempt is not None}
        self._rarely.took(self._clock() - began)
        with self._changing:
            known = {(entry.task_id, entry.attempt) for entry in self._entries.values()}
        unknown = found - known
        forgotten = dict(sorted(unknown & self._forgotten))
        self._forgotten = unknown
        return self._ledger.return_forgotten(forgotten, by=self._by) if forgotten else 0


def held_for(stores: Stores, *, by: str, clock: Callable[[], float] = time.monotonic) -> Held:
    """What an incarnation holds, as its stores tell it."""
    if stores.direct is not None:
        return ClaimsHeld(stores.inflight, stores.ledger, by=by, clock=clock)
    return Held(stores.inflight, by=by)
