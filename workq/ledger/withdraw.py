"""Many tasks that nobody wants any more: counted, found and cancelled by what they have in common, page by page.

A page is decided in one transaction that locks its rows, with an event for each. What does not run is cancelled; what
runs is asked. Neither is found again: so whoever is interrupted begins again with those that are left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import WhichOpen
from workq.ledger.engine.states import CLAIMABLE, found, guarded
from workq.ledger.history import Appending, who_and_why
from workq.values import codec
from workq.values.lane import meant
from workq.values.task import State

_OPEN: Final = (*CLAIMABLE, State.RUNNING)


class Withdrawing(Appending):
    """The part of the ledger that cancels many."""

    def open_count(self, which: WhichOpen) -> Mapping[State, int]:
        """How many they are, in each state in which there are any."""
        t = self.database.tables.task

        def count(tx: Connection) -> dict[State, int]:
            counted: dict[State, int] = {}
            for state in _chosen(which.states):
                query = select(func.count()).select_from(t).where(*self._in(state), *self._like(which))
                counted[state] = int(tx.execute(query).scalar_one())
            return {state: number for state, number in counted.items() if number}

        return self.database.ask(count)

    def open_ids(self, which: WhichOpen, *, limit: int) -> list[str]:
        """Some of those of whom no cancel was asked yet, in no order; none, when there are no more."""
        c = self.database.tables.task.c

        def look(tx: Connection) -> list[str]:
            ids: list[str] = []
            for state in _chosen(which.states):  # one after the other: each is one range of an index
                unasked = [c.cancel_requested_at.is_(None)] if state is State.RUNNING else []
                query = select(c.id).where(*self._in(state), *unasked, *self._like(which)).limit(limit - len(ids))
                ids += tx.execute(query).scalars()
                if len(ids) >= limit:
                    break
            return ids

        return list(dict.fromkeys(self.database.ask(look)))

    def cancel_all(
        self, task_ids: Sequence[str], *, states: Collection[State], who: str, why: str
    ) -> tuple[list[str], list[str]]:
        """As `cancel`, of many that are in one of these states, in one transaction.

        Answers who was cancelled, and who was asked. What has left these states since is in neither. Repeatable.
        """
        t, now = self.database.tables.task, self.database.now
        ids = sorted({one for one in task_ids if codec.is_task_id(one)})
        chosen = _chosen(states)
        if not ids or not chosen:
            return [], []
        by, kept = who_and_why(who, why).values()
        locked = (
            select(t.c.id, t.c.state, t.c.cancel_requested_at)
            .where(t.c.id.in_(ids), guarded(t.c.state, *chosen))
            .order_by(t.c.id)
            .with_for_update()
        )

        def decide(tx: Connection) -> tuple[list[str], list[str]]:
            rows = tx.execute(locked).all()
            waits = [row.id for row in rows if row.state in CLAIMABLE]
            runs = [row.id for row in rows if row.state == State.RUNNING and row.cancel_requested_at is None]
            if waits:
                mine = update(t).where(t.c.id.in_(waits), guarded(t.c.state, *CLAIMABLE))
                tx.execute(mine.values(state=State.CANCELLED, reason=kept, settled_at=now(), live_key=None))
                self.append(tx, "cancelled", {"reason": kept, "who": by}, task_ids=waits)
            if runs:
                mine = update(t).where(t.c.id.in_(runs), guarded(t.c.state, State.RUNNING))
                tx.execute(mine.values(cancel_requested_at=now(), reason=kept))
                self.append(tx, "cancelled", {"reason": kept, "who": by, "asked": True}, task_ids=runs)
            return waits, runs

        return self.database.run(decide)

    # -- parts

    def _in(self, state: State) -> list[ColumnElement[bool]]:
        """Both, where the index has two states: SQLite proves it by the first."""
        c = self.database.tables.task.c
        return (
            [found(c.state, state)] if state is State.RUNNING else [found(c.state, *CLAIMABLE), found(c.state, state)]
        )

    def _like(self, which: WhichOpen) -> list[ColumnElement[bool]]:
        c, now = self.database.tables.task.c, self.database.now
        chosen: list[ColumnElement[Any]] = []
        if which.name is not None:
            chosen.append(c.name == which.name)
        if which.queue is not None:
            chosen.append(c.queue.in_(meant(which.queue)))
        if which.before is not None:
            chosen.append(c.created_at <= which.before)
        if which.older_s is not None:
            chosen.append(c.created_at <= now(-which.older_s))
        if which.younger_s is not None:
            chosen.append(c.created_at > now(-which.younger_s))
        return chosen


def _chosen(states: Collection[State]) -> list[State]:
    """Of these, those in which a task is open."""
    return [state for state in _OPEN if state in states]
