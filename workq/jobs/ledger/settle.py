"""What a job counts of its subtasks as they are settled: its after-settle counter.

A chunk of which some items failed goes on with those alone, or is dead when nothing is to be tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection, bindparam, update

from workq.jobs.ledger.care import JobCare
from workq.jobs.ledger.changes import Change, Rest, Wishes, by_job
from workq.jobs.ledger.counts import JobCounts
from workq.ledger.after_settle import Afterwards
from workq.ledger.answers import Settled
from workq.ledger.engine.database import Database
from workq.values.task import Dead, Done, Failed, HandedBack, Settlement, Snoozed, State, Unhandled, Worked


class SubtaskCounter:
    """Counts subtasks; what their job wants because of it is done after the commit."""

    def __init__(self, database: Database, *, job_counts: JobCounts, job_care: JobCare) -> None:
        self.database = database
        self._job_counts = job_counts
        self._job_care = job_care

    def plain(self, one: Settlement) -> Settlement:
        outcome = one.outcome
        if not isinstance(outcome, Worked):
            return one
        if outcome.again is not None:
            return Settlement(one.claim, Failed(outcome.delay_s, outcome.error))
        if outcome.failed:
            said = outcome.failed[0].error.strip().partition("\n")[0]  # in its handler's words: so they are grouped
            return Settlement(one.claim, Dead(f"items failed: {said}", outcome.failed[0].error))
        return Settlement(one.claim, Done())

    def count_settled(
        self, tx: Connection, settlements: Sequence[Settlement], settled: Sequence[Settled]
    ) -> Afterwards:
        wishes = Wishes()
        self._narrow(tx, settlements, settled)
        self._job_counts.count(tx, _changes(settlements, settled), wishes)
        return partial(self._job_care.fulfil, wishes)

    def _narrow(self, tx: Connection, settlements: Sequence[Settlement], settled: Sequence[Settled]) -> None:
        """Subtasks of which some items are tried again: from now on they are of those alone."""
        t = self.database.tables.task
        rows = [
            {
                "b_id": one.claim.task_id,
                "b_attempt": one.claim.attempt,
                "b_token": one.claim.token,
                "b_payload": one.outcome.again,
            }
            for one, result in zip(settlements, settled, strict=True)
            if isinstance(one.outcome, Worked) and one.outcome.again is not None and result.state is State.WAITING
        ]
        if rows:
            mine = update(t).where(
                t.c.id == bindparam("b_id"), t.c.attempt == bindparam("b_attempt"), t.c.token == bindparam("b_token")
            )
            tx.execute(mine.values(payload=bindparam("b_payload")), rows)


def _changes(settlements: Sequence[Settlement], settled: Sequence[Settled]) -> dict[str, list[Change]]:
    """What jobs count of these, by their ids."""
    return by_job(
        [
            (one.claim.job_id, change)
            for one, result in zip(settlements, settled, strict=True)
            if one.claim.job_id is not None and (change := _change(one, result.state)) is not None
        ]
    )


def _change(one: Settlement, state: State | None) -> Change | None:
    """None: it came late, or goes on as it was."""
    if state is None:
        return None
    change = Change(one.claim.task_id, one.claim.attempt)
    if isinstance(one.outcome, Worked):
        worked = one.outcome
        change = replace(
            change,
            succeeded=worked.succeeded,
            skipped=worked.skipped,
            failed=worked.failed,
            added=worked.added,
            told=worked.told,
            results=worked.results,
        )
    match state:
        case State.SUCCEEDED:
            return replace(change, rest=Rest.SUCCEEDED)
        case State.CANCELLED:
            return replace(change, rest=Rest.CANCELLED)
        case State.DEAD:
            return replace(change, rest=Rest.FAILED)
        case _:
            if isinstance(one.outcome, HandedBack):
                return None
            # a snooze changes no count; but its job may be pausing, and wait for this one
            awaits_room = isinstance(one.outcome, Snoozed) and one.outcome.awaits_room
            return replace(change, is_retried=not isinstance(one.outcome, Snoozed | Unhandled), awaits_room=awaits_room)
