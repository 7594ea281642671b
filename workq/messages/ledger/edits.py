"""Edits: a person changes a destination that is there; its kind stays.

How a message is sent is read when it is (its options, URL and deadline). What its task has from its destination (a
limit, how often it may fail) is written to the tasks that are open, page by page. An edit that was interrupted there is
finished by the same edit once more.

Locks: destinations; the pages, tasks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, Update, select, update

from workq.errors import Refused
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import guarded
from workq.ledger.history import History
from workq.messages.ledger.known_destinations import encoded_policy
from workq.messages.ledger.letters import behind
from workq.messages.ledger.tables import message_tables
from workq.messages.values import (
    DestinationPolicy,
    DestinationRow,
    MessagePosition,
    NewDestination,
    limit_of_destination,
)
from workq.values import codec
from workq.values.task import State

_OPEN: Final = (State.READY, State.WAITING, State.RUNNING)
AT_ONCE: Final = 500
"""Tasks that are written in one transaction."""


class DestinationEdits:
    """Changes destinations."""

    def __init__(self, database: Database, *, history: History) -> None:
        self.database = database
        self._history = history

    def edit(self, before: DestinationRow, after: NewDestination, *, what: str, who: str, why: str) -> None:
        """Let a destination be as it is `after`, if it is still as `before`. `what`: the names of what was changed.

        Raises:
            Refused: somebody else has changed it, or removed it, in this moment.
        """
        d, now = message_tables(self.database).destination, self.database.now
        is_as_before = (
            d.c.name == before.name,
            d.c.kind == before.kind,
            d.c.changed_at == before.changed_at,
            d.c.sealed.is_(None) if before.sealed is None else d.c.sealed == before.sealed,
            d.c.policy == encoded_policy(before.policy),
        )
        values = {
            "options": codec.encode(after.options, path="options"),
            "sealed": after.sealed,
            "policy": encoded_policy(after.policy),
            "changed_at": now(),
        }

        def write(tx: Connection) -> None:
            if not tx.execute(update(d).where(*is_as_before).values(values)).rowcount:
                row = tx.execute(select(d.c.options, d.c.sealed, d.c.policy).where(d.c.name == before.name)).first()
                if row is not None and tuple(row) == (values["options"], values["sealed"], values["policy"]):
                    return  # of a commit that we could not see
                raise Refused(f"destination {before.name!r} was changed by somebody else in this moment; try again")
            self._history.decided(tx, f"destination {before.name} edited: {what}", who=who, why=why)

        self.database.run(write)

    def spread(self, destination: str, policy: DestinationPolicy) -> int:
        """Let the open tasks of a destination have what its policy says; answers how many there are. Repeatable."""
        m, t = message_tables(self.database).message, self.database.tables.task
        limit = limit_of_destination(destination, policy)
        values: dict[str, Any] = {
            "failures_max": policy.failures_max,
            "limit_most": policy.concurrency,
            "limit_rate": policy.rate,
        }
        if limit is not None:  # one that is taken away stays without a bound: some may wait in its line
            values["limit_key"] = limit.key
        page = (
            select(m.c.created_at, m.c.id, t.c.id.label("task_id"))
            .join_from(m, t, t.c.id == m.c.task_id)
            .where(m.c.destination == destination, guarded(t.c.state, *_OPEN))
            .order_by(m.c.created_at, m.c.id)
            .limit(AT_ONCE)
        )
        mine = update(t).where(among(t.c.id, self.database.dialect), guarded(t.c.state, *_OPEN)).values(values)
        count, after = 0, None
        while rows := self._rows(page.where(*behind(self.database, after))):
            ids = {"b_ids": in_order(str(row.task_id) for row in rows)}
            self.database.run(partial(_execute, mine, ids))
            after = MessagePosition(rows[-1].created_at, rows[-1].id)
            count += len(rows)
        return count

    def _rows(self, page: Select[Any]) -> Sequence[Row[Any]]:
        return self.database.ask(lambda tx: tx.execute(page).all())


def _execute(statement: Update, given: dict[str, Any], tx: Connection) -> None:
    tx.execute(statement, given)
