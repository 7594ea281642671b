"""Holds: what this process holds in the in-flight store, and which claims are its own until they are settled.

The fetch takes a hold, the beat asserts it, a release drops it.

Nothing is released while a beat is being written, or the beat would write again what was just released. A release
that failed is made up for by the next one, or by the next beat; if this process dies before, its reaping does it.

The store may also know of holds that this process does not: it was started again from an older copy of itself, or a
hint named a task in a queue that is not its own. Nobody would ever release them, and while this process lives they
would keep others from the task. So they are dropped after two looks; a hold that is just being taken is known by then.

The same with claims: a ledger that was restored from a backup says that tasks run here which were settled since, a
process that was restored has forgotten what it claimed, an answer was lost. Such a task would stay `running` for as
long as this process lives. It is returned after two looks, under the fence of that very claim (`return_forgotten`).
A claim whose answer is still on its way is never taken for forgotten: calls that claim stand in `claiming`, and
nothing is returned while one that had begun before the first look has not ended. A look that takes long is made more
rarely (see values/clock.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from workq.errors import Unavailable
from workq.inflight import Beat, Entry, InFlight
from workq.ledger import Unpublished
from workq.stores import Stores
from workq.values.clock import Throttle
from workq.values.failpoints import reach
from workq.values.task import Claim

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


log = logging.getLogger("workq.held")

UNRELEASED_MAX = 10_000


class _ClaimCall:
    """One call that claims. It is among the calls that are open as long as its block lasts; thread-safe."""

    __slots__ = ("_open",)

    def __init__(self, calls: set[object]) -> None:
        self._open = calls

    def __enter__(self) -> None:
        self._open.add(self)

    def __exit__(self, *_: object) -> None:
        self._open.discard(self)


class Holds:
    """The entries of one incarnation. Thread-safe."""

    def __init__(self, inflight: InFlight, ledger: Ledger, *, by: str, clock: Callable[[], float]) -> None:
        self._inflight = inflight
        self._ledger = ledger
        self._by = by
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._tokens: dict[str, str] = {}
        """By task: the token of its newest claim by this process, from the ledger's answer to its settlement."""
        self._calls: set[object] = set()
        """Claims that the ledger has been asked for, and has not answered yet."""
        self._rarely = Throttle(clock)
        self._forgotten: frozenset[tuple[str, str]] = frozenset()
        """(task id, token) that runs here by the ledger, and that was unknown at the last look."""
        self._calls_then: frozenset[object] = frozenset()
        """The calls that had not ended at the last look."""
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

    def claiming(self) -> AbstractContextManager[None]:
        """Around each call that claims, up to `claimed` with its answer."""
        return _ClaimCall(self._calls)

    def claimed(self, claims: Sequence[Claim]) -> None:
        """The ledger has granted these to this process; of what is held, attempts and queues are known now."""
        with self._changing:
            for one in claims:
                self._tokens[one.task_id] = one.token
                self._entries[one.task_id] = Entry(one.task_id, one.queue, one.attempt)

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
        """These attempts have ended: drop their holds. Not that of another claim, which was made here meanwhile."""
        with self._changing:
            ended = [one for one in claims if self._tokens.get(one.task_id, one.token) == one.token]
            for one in ended:
                self._tokens.pop(one.task_id, None)
        self.release([(one.task_id, one.queue) for one in ended])

    def return_forgotten(self) -> list[Unpublished]:
        """Return the tasks that run here by the ledger and were unknown here at the last look too; answers their hints.

        Raises:
            Unavailable: the ledger did not answer; the next look goes on.
        """
        if not self._rarely.is_due():
            return []
        began = self._clock()
        running = self._ledger.workers.claimed_by(self._by)
        self._rarely.took(self._clock() - began)
        with self._changing:  # after the ledger was asked: what it has granted by then is known, or being answered
            unknown = frozenset(one for one in running.items() if self._tokens.get(one[0]) != one[1])
            calls = frozenset(self._calls)
        is_answered = calls.isdisjoint(self._calls_then)
        forgotten = dict(sorted(unknown & self._forgotten)) if is_answered else {}
        self._forgotten = unknown if is_answered else unknown & self._forgotten
        self._calls_then = calls if is_answered else calls & self._calls_then
        if not forgotten:
            return []
        reach("beat.before_return")
        log.warning("worker.forgotten", extra={"worker": self._by, "tasks": list(forgotten)})
        return self._ledger.workers.return_forgotten(forgotten, by=self._by)

    def release_strays(self) -> int:
        """Drop what was unknown here at the last look too; answers how many. Raises as the in-flight store does."""
        found = {(hold.task_id, hold.queue) for hold in self._inflight.held_by(self._by)}
        with self._releasing:
            with self._changing:
                known = {(entry.task_id, entry.queue) for entry in self._entries.values()}
            unknown = found.difference(known, self._unreleased)
            strays, self._strays = sorted(unknown & self._strays), unknown - self._strays
            return self._inflight.release(strays, by=self._by) if strays else 0


class ClaimsAsHolds(Holds):
    """Of a process that claims from hints (worker/fetch/one_database.py): a claim is the hold, and ends by itself."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """The ledger has granted these to this process."""
        with self._changing:
            self._tokens.update((one.task_id, one.token) for one in claims)

    def beat(self, *, lease_s: float) -> Beat:
        """Extend the lease, which is all there is."""
        return self._inflight.beat(self._by, lease_s=lease_s, entries=())

    def release(self, holds: Sequence[tuple[str, str]] = ()) -> None:
        """Nothing: there is no entry."""

    def release_strays(self) -> int:
        """None: what no claim tells of is not held."""
        return 0


def held_for(stores: Stores, *, by: str, clock: Callable[[], float] = time.monotonic) -> Holds:
    """What an incarnation holds, as its stores tell it."""
    kind = Holds if stores.direct is None else ClaimsAsHolds
    return kind(stores.inflight, stores.ledger, by=by, clock=clock)
