"""Fallback polling: a process with room that no hint reaches asks the ledger itself for due tasks.

So it is while the broker is away; and also while it is well, if a part of a queue belongs to one process
(`Broker.has_owners`): the hint may wait for a process that is busy, or dead. Then only tasks that are due for `DUE_S`
are taken, since the hints of others are on their way, and only while a thread is free. Together no task waits longer
than 2 s and the question itself while somebody is idle.

What it finds goes on as if a hint of it had come: held, then claimed through the same gates. A task that two processes
find is held by one of them, and of a claim that has been made by others the hint, or what takes its place, is dropped.
So this adds no rule to the protocol: who polls makes itself a hint, and hints may be forged.

Where parts of queues have owners, a process asks as soon as it begins, for it owns none yet, and when no more come
after many hints, for there may be more in other parts. One that finds nothing asks again after 1.0 to 1.5 s. One that
finds something goes on at once, as soon as half of what it may hold is free. It begins with the oldest, in each second
or so; then, while hints reach others, it goes on from the newest: owners come from the oldest, and would have to look
up in vain what was taken just before them.

Two that ask together get the same tasks: who could not hold all that it wanted chooses at random among a page of each
line the next time, and goes beyond them where others hold them all. For a second or so it does not try again what
others hold. Questions that find little, or take longer than `SOON_S`, take at most a tenth of the time of a process.

Used by one thread.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from workq.broker import PAGE, Delivery
from workq.broker.fair_turns import FairBuffer
from workq.inflight import Entry
from workq.ledger.due_tasks import DueTask

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger

log = logging.getLogger("workq.polling")

ASK_EVERY_S: Final = 1.0
"""At least, while nothing is found; and for so long the broker is waited for at first."""
SPREAD: Final = 0.5
"""So much of it is added by chance, so that a fleet does not ask all at once."""
SOON_S: Final = 0.2
"""When to ask again after something was found, though less than half is free."""
DUE_S: Final = 0.5
"""While the broker is well, for so long a task has to be due."""
PART: Final = 0.1
"""Of the time, at most so much is spent on questions that find less than half of what may be held, or are slow."""
PARTS: Final = 8
"""The bands take turns with so many parts of what may be held."""
TELL_EVERY_S: Final = 60.0
"""How often the ledger is told how many tasks were found so."""


class FallbackPolling:
    """When one process asks, and what it was answered."""

    def __init__(
        self, ledger: Ledger, *, me: str, rng: random.Random, clock: Callable[[], float], has_owners: bool
    ) -> None:
        self._ledger = ledger
        self._has_owners = has_owners
        self._me = me
        self._rng = rng
        self._clock = clock
        self._trouble: str | None = None
        """Why no hint can come, while that is so."""
        self._is_watching = False
        """It asks, when it is time."""
        self._is_on = False
        """It has asked since the trouble began."""
        self._next_at = self._soon_at = self._tell_at = 0.0
        self._took_s = 0.0
        """How long the last question took."""
        self.finds = has_owners
        """There may be more than was found."""
        self._is_crowded = False
        """Others took what we wanted the last time."""
        self._held: set[str] = set()
        """Others hold these."""
        self._beyond: dict[str, DueTask] = {}
        """By line: all up to this one, seen from where was begun, is held, by others or here."""
        self._is_newest = False
        """The last question began with the newest."""
        self._forget_at = 0.0
        """When all of this begins anew."""
        self._buffer = FairBuffer()
        self._rows: list[DueTask] = []
        self._ids_max = 0
        self._wanted: list[Entry] = []
        self._has_more = False
        """There were more than were wanted."""
        self._limit = 0
        self._count = 0
        """How many were found and held, and the ledger was not told yet."""

    def heard(self, deliveries: Sequence[Delivery]) -> None:
        """These have come at once. When no more come after many hints, parts of others may still have some."""
        if self._has_owners and sum(len(one.task_ids) for one in deliveries) >= PAGE:
            self.finds, self._next_at = False, 0.0

    def is_due(self, trouble: str | None, *, is_wide: bool, is_free: bool) -> bool:
        """Whether to ask now, since nothing has come.

        `trouble`: why no hint can come; `is_wide`: half of what may be held is free; `is_free`: a thread is.
        """
        now = self._clock()
        if (trouble is None) != (self._trouble is None):
            self.end()
        if trouble is None and not self._has_owners:
            return False
        if not self._is_watching:
            self._is_watching = True
            self._tell_at = now + TELL_EVERY_S
            self._next_at = now + self._pause_s()
        self._trouble = trouble
        is_due = now >= self._next_at or (self.finds and is_wide and now >= self._soon_at)
        if trouble is None:
            return is_due and is_free
        if is_due and not self._is_on:
            self._is_on = True
            log.warning("worker.polls: %s", trouble)
        return is_due

    def ask(self, bands: Sequence[str], *, ids_max: int) -> list[Entry]:
        """Up to so many due tasks of these bands, in their turns."""
        now = self._clock()
        is_newest = self._trouble is None and now < self._forget_at
        if now >= self._forget_at:
            self._held = set()
            self._forget_at = now + self._pause_s()
            self._beyond = {}
        elif is_newest is not self._is_newest:
            self._beyond = {}
        self._is_newest = is_newest
        self._ids_max = ids_max
        self._limit = max(PAGE, ids_max)
        self._next_at = now + self._pause_s()  # also when the ledger does not answer
        for_s = DUE_S if self._trouble is None else 0.0
        tasks = self._ledger.due_tasks
        if is_newest:
            self._rows = tasks.newest(bands, limit=self._limit, before=self._beyond, for_s=for_s)
        else:
            self._rows = tasks.oldest(bands, limit=self._limit, after=self._beyond, for_s=for_s)
        answered_at = self._clock()
        self._took_s = answered_at - now
        self._soon_at = answered_at + self._took_s / PART
        rows = [row for row in self._rows if row.task_id not in self._held]
        if self._is_crowded:
            self._rng.shuffle(rows)
        size = max(1, ids_max // PARTS)
        for queue, ids in _by_queue(rows).items():
            for first in range(0, len(ids), size):
                self._buffer.append(Delivery(None, queue, tuple(ids[first : first + size])))
        taken = self._buffer.take(ids_max)
        self._has_more = len(self._buffer) > 0
        self._buffer.clear()
        self._wanted = [Entry(task_id, one.queue) for one in taken for task_id in one.task_ids]
        return self._wanted

    def took(self, new: Collection[str]) -> None:
        """Of those that were answered, these are held now, and were not before."""
        now = self._clock()
        self._count += len(new)
        refused = {entry.task_id for entry in self._wanted if entry.task_id not in new}
        self._held |= refused
        self._is_crowded = bool(refused)
        beyond = self._last() if not new or not self._has_more else {}
        self._beyond |= beyond
        self.finds = bool(new) or bool(beyond) or self._has_more
        is_fruitful = 2 * len(new) >= self._ids_max
        has_other_end = self._trouble is None and bool(refused) and not self._is_newest
        if (is_fruitful or has_other_end) and self._took_s <= SOON_S:
            self._soon_at = now
        pause_s = SOON_S if self.finds else self._pause_s()
        self._next_at = max(now + pause_s, self._soon_at)
        if now >= self._tell_at:
            self.tell()

    def tell(self) -> None:
        """Tell the ledger how many tasks were found since it was told last."""
        self._tell_at = self._clock() + TELL_EVERY_S
        if self._count:
            reason = {} if self._trouble is None else {"reason": self._trouble}
            self._ledger.history.note("polled", detail={"tasks": self._count, **reason}, worker=self._me)
            self._count = 0

    def end(self) -> None:
        """Hints come again, or come no longer."""
        self.tell()
        if self._is_on:
            log.info("worker.hints_come", extra={"worker": self._me})
        self._trouble, self._is_watching, self._is_on = None, False, False
        self.finds, self._is_crowded, self._forget_at = False, False, 0.0

    def _last(self) -> dict[str, DueTask]:
        """The last of each line of which there may be more, seen from where was begun."""
        last = {row.queue: row for row in self._rows}  # they come in their order
        count = Counter(row.queue for row in self._rows)
        return {queue: row for queue, row in last.items() if count[queue] >= self._limit}

    def _pause_s(self) -> float:
        return ASK_EVERY_S * self._rng.uniform(1.0, 1.0 + SPREAD)


def _by_queue(rows: Sequence[DueTask]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        found[row.queue].append(row.task_id)
    return found
