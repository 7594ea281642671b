"""The in-flight store where hints, claims and leases are rows of one database: there, a claim is the hold.

A worker that takes a hint and claims its tasks in one transaction (one_database.py) has nothing in hand that no row
tells of: what it holds are the tasks that run under its name. So nothing is written for a hold, and leases are all that
a beat keeps. Rows of `hold` are shown beside the claims and obeyed as ever: a worker of an older version writes them,
in a rolling upgrade.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, select

from workq.inflight import Hold
from workq.inflight.embedded import EmbeddedInFlight
from workq.ledger.states import found
from workq.values.task import State


class ClaimsInFlight(EmbeddedInFlight):
    """Leases as rows; what is held are the rows of running tasks. Thread-safe. The database belongs to the caller."""

    def held_by(self, worker: str) -> list[Hold]:
        """See the port. What has a row of `hold` as well is told once, by that row."""
        rows = super().held_by(worker)
        return rows + self._claimed(self._database.tables.task.c.worker == worker, rows)

    def holds(self, queue: str, *, claimed: bool = True) -> list[Hold]:
        """See the port. What has a row of `hold` as well is told once, by that row."""
        rows = super().holds(queue)
        if not claimed:  # all that run: where a transaction stays open, the versions of all that ever ran
            return rows
        return rows + self._claimed(self._database.tables.task.c.queue == queue, rows)

    def _claimed(self, which: ColumnElement[bool], told: list[Hold]) -> list[Hold]:
        c = self._database.tables.task.c
        query = select(c.id, c.queue, c.worker, c.attempt, c.started_at, self._now().label("now"))
        known = {hold.task_id for hold in told}
        return [
            Hold(row.id, row.queue, row.worker, row.attempt, max(0.0, (row.now - row.started_at).total_seconds()))
            for row in self._read(query.where(found(c.state, State.RUNNING), which, c.worker.is_not(None)))
            if row.id not in known
        ]
