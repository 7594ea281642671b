"""Fallback polling: a process with room that no hint reaches asks the ledger itself for due tasks.

So it is while the broker is away; and also while it is well, if a part of a queue belongs to one process
(`Broker.has_owners`): the hint may wait for a process that is busy, or dead. Then only tasks that are due for `DUE_S`
are taken, since the hints of others are on their way, and only while a thread is free. Together no task waits longer
than 2 s and the question itself while somebody is idle.

What it finds goes on as if a hint of it had come: held, then claimed through the same gates. A task that two processes
find is held by one of them, and of a claim that has been made by others the hint, or what takes its place, is dropped.
So this adds no rule to the protocol: who polls makes itself a hint, and hints may be forged.

A process that finds nothing asks again after 1.0 to 1.5 s. One that finds something goes on at once, as soon as half of
what it may hold is free. Two that ask together get the same oldest tasks: who could not hold all that it wanted chooses
at random among the oldest `PAGE` of each line the next time, and goes behind them where others hold them all. For a
second or so it does not try again what others hold. The questions take at most a tenth of the time of a process,
however slow they are.

Used by one thread.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict
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
"""Of the time, at most so much is spent on questions."""
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
        self.finds = False
        """There may be more than was found."""
        self._is_crowded = False
        """Others took what we wanted the last time."""
        self._held: set[str] = set()
        """Others hold these."""
        self._after: dict[str, DueTask] = {}
        """By line: all up to this one is held by others."""
        self._forget_at = 0.0
        """When both begin anew."""
        self._buffer = FairBuffer()
        self._rows: list[DueTask] = []
        self._wanted: list[Entry] = []
        self._has_more = False
        """There were more than were wanted."""
        self._limit = 0
        self._count = 0
        """How many were found and held, and the ledger was not told yet."""

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
        if now >= self._forget_at:
            self._held, self._after = set(), {}
            self._forget_at = now + self._pause_s()
        self._limit = max(PAGE, ids_max)
        self._next_at = now + self._pause_s()  # also when the ledger does not answer
        for_s = DUE_S if self._trouble is None else 0.0
        self._rows = self._ledger.due_tasks.oldest(bands, limit=self._limit, after=self._after, for_s=for_s)
        answered_at = self._clock()
        self._soon_at = answered_at + (answered_at - now) / PART
        rows = [row for row in self._rows if row.task_id not in self._held]
        if self._is_crowded:
            self._rng.shuffle(rows)
        for row in rows:
            self._buffer.append(Delivery(None, row.queue, (row.task_id,)))
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
        behind = self._behind() if not new or not self._has_more else {}
        self._after |= behind
        self.finds = bool(new) or bool(behind) or self._has_more
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

    def _behind(self) -> dict[str, DueTask]:
        """The last of each line of which there may be more."""
        of: defaultdict[str, list[DueTask]] = defaultdict(list)
        for row in self._rows:
            of[row.queue].append(row)
        return {queue: max(rows) for queue, rows in of.items() if len(rows) >= self._limit}

    def _pause_s(self) -> float:
        return ASK_EVERY_S * self._rng.uniform(1.0, 1.0 + SPREAD)
