"""Floor: how far back a look for open tasks goes, when going all the way takes too long.

Open tasks are found through indexes, in the order in which they are due. PostgreSQL and InnoDB keep the entries of what
was settled long ago as long as any transaction might see them. One that somebody has forgotten to end makes each look
read all entries since: after ten minutes at 18,000 tasks a second a look took 10 to 13 s on two cores, which is beyond
the statement timeout: sweeps repaired nothing any more, and workers lost a fifth of their rate to them.

So a look that took long, twice in a row, goes all the way again only after a hundred times as long. Until then it
begins at the floor: the oldest task that was open at the last look, or a few seconds ago. What becomes open below the
floor (a task that is returned, and loses its hint as well; a producer's transaction that was open for long, and whose
relay died) waits for the next look that goes all the way: ten minutes at most. Where looks are quick, as they are
without such a transaction, each goes all the way.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from sqlalchemy import Connection, select

from workq.errors import LedgerUnavailable
from workq.ledger.engine.database import Database
from workq.values import codec
from workq.values.clock import QUICK_S, Throttle

log = logging.getLogger("workq.ledger")

T = TypeVar("T")

MARGIN: Final = timedelta(seconds=5.0)
"""The floor is never nearer than this: what was recorded may be committed a little later."""
FIRST: Final = timedelta(seconds=60.0)
"""Where the floor is when the very first look took too long."""


class Floor:
    """What one process knows about one ledger. Thread-safe: whoever writes last is as right as the other."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._at: datetime | None = None
        self._whole: defaultdict[str, Throttle] = defaultdict(lambda: Throttle(clock))
        """When each look may go all the way again."""
        self._warned: set[str] = set()
        self.queues: frozenset[str] = frozenset()
        """Those with open tasks, by the last look for them that went all the way."""

    def ask(self, name: str, question: Callable[[Connection, datetime | None], T]) -> T:
        """Ask a question that only reads, about all open tasks (it is given None), or about those due since an instant.

        Raises:
            LedgerUnavailable: the database did not answer, and not because it had so much to read.
        """
        if self._whole[name].is_due():
            began = self._clock()
            try:
                found = self._database.ask(lambda tx: question(tx, None))
            except LedgerUnavailable:
                spent_s = self._clock() - began
                if (
                    spent_s < QUICK_S or not self._answers()
                ):  # it is away, or stood still: that says nothing of the look
                    raise
                self._pace(name, spent_s)
            else:
                self._pace(name, self._clock() - began)
                return found
        since = self._at or self._first()
        return self._database.ask(lambda tx: question(tx, since))

    def queues_known(self, tx: Connection) -> list[str]:
        """The queues that are served now, and those that had open tasks at the last look that went all the way."""
        w = self._database.tables.worker
        served = tx.execute(select(w.c.queues).where(w.c.state == "live")).scalars()
        return sorted(self.queues.union(*(codec.decode(one) for one in served)))

    def rise(self, oldest: datetime | None, *, now: datetime) -> None:
        """Every open task is due at `oldest` or later (None: there is none), as far as a look has seen."""
        self._at = min(now - MARGIN, now if oldest is None else oldest)

    def _pace(self, name: str, took_s: float) -> None:
        is_paced = self._whole[name].took(took_s)
        if took_s <= QUICK_S:
            self._warned.discard(name)
        elif is_paced and name not in self._warned:
            self._warned.add(name)
            log.warning(
                "ledger.slow_look: looking for open tasks took %.1f s (%s): is a transaction open for long somewhere? "
                "What has been open for long is looked at more rarely until it ends. Look: workq doctor",
                took_s,
                name,
            )

    def _answers(self) -> bool:
        try:
            self._first()
        except LedgerUnavailable:
            return False
        return True

    def _first(self) -> datetime:
        now: datetime = self._database.ask(lambda tx: tx.execute(select(self._database.now())).scalar_one())
        return now - FIRST
