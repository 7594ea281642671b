"""Which bands of priority are in use: a row each, for ever. Those of normal priority always are, and have none.

A band's row stands before its first task does, so workers never have to look into all tasks to find a band. It is
committed by itself, ahead of the task: the caller's transaction may last, and another producer of the same band must
not wait for it. If the task is not recorded after all, an empty band is served, which costs next to nothing. On SQLite,
where the caller has the one lock for writing, it is written in the caller's transaction.

What goes wrong: the rows are older than the tasks, because a backup was restored under producers that remember a row,
or the tasks were written by hand. The sweep sees tasks that wait in such a band, and writes its row
(recovery/lost_hints.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, insert, select
from sqlalchemy.exc import IntegrityError

from workq.ledger.engine.database import Database
from workq.values.lane import is_extra
from workq.values.task import NewTask


class Lanes:
    """Which bands of priority are in use."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.bands_met: frozenset[str] = frozenset()
        """Names of queues and bands whose first task need not be announced any more by this process."""

    def bands(self) -> frozenset[str]:
        """The bands of priority that are in use, by the names that their tasks have as `queue`; no normal one is named.

        `record` and `tick` see to it that a band is here before its first task can be seen.
        """
        statement = self.database.kept("bands", self._bands_statement)
        return frozenset(queue for (queue,) in self.database.ask(lambda tx: statement.rows(tx, {})))

    def bands_used(self, queues: Iterable[str]) -> None:
        """Those of these queues that are bands are in use, from now on. Repeatable."""
        extra = {queue for queue in queues if is_extra(queue)}
        if extra and (missing := extra - self.bands()):
            write = partial(self._write_bands, sorted(missing))
            try:
                self.database.run(write)
            except IntegrityError:  # somebody else has just written one of them
                self.database.run(write)

    def announce(self, tasks: Sequence[NewTask], *, within: Connection | None = None) -> None:
        """Before tasks are recorded (`within` the caller's transaction, if in one): the rows of their bands."""
        new = {task.queue for task in tasks} - self.bands_met
        if not new:
            return
        if within is not None and self.database.dialect == "sqlite":
            extra = {queue for queue in new if is_extra(queue)}
            if extra and (missing := extra - self.bands()):
                self._write_bands(sorted(missing), within)
                return  # it may still be rolled back: nothing to remember
        else:
            self.bands_used(new)
        self.bands_met |= new

    def _write_bands(self, queues: Sequence[str], tx: Connection) -> None:
        b = self.database.tables.band
        there = set(tx.execute(select(b.c.queue).where(b.c.queue.in_(queues))).scalars())
        for queue in queues:
            if queue not in there:
                tx.execute(insert(b).values(queue=queue, made_at=self.database.now()))

    def _bands_statement(self) -> Select[Any]:
        return select(self.database.tables.band.c.queue)
