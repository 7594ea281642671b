"""The destination's start gate: whether the destination of a message takes any now. Decided at the claim.

A task that sends a message is recorded, hinted and fetched as any other. Only where its destination is disabled, or has
failed and confirmed nothing since, the gate has a say:

    it is disabled     the message waits in the destination's line (line.py)
    it rests           one message, the probe, is due when the rest ends; the others wait in the line
    its rest is over   the probe is sent; the others wait in the line until something was confirmed

So a destination that hangs is tried by one message at a time, of all processes together. A probe that is not heard of
in its time, as its process has died, is followed by another one.

Locks: tasks in the order of their ids, then destinations: whoever ends a rest or enables a destination waits for this,
and finds in the line whom the gate has put there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Integer, Select, and_, literal_column, not_, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.ledger.start import StartCandidate
from workq.messages.ledger.known_destinations import policy_in
from workq.messages.ledger.line import PROBE_S, WAITS, probe_of, stand_in_line
from workq.messages.ledger.tables import message_tables
from workq.messages.values import TASK_NAME, DestinationState
from workq.values.task import State


class DestinationGate:
    """What the destination of a message has to say."""

    name = WAITS

    def concerns(self, database: Database) -> ColumnElement[bool]:
        d = message_tables(database).destination
        is_in_trouble = or_(d.c.state == _disabled(), d.c.failures > literal_column("0"))
        return and_(_sends_a_message(database), _is_so(database, is_in_trouble))

    def columns(self, database: Database) -> Sequence[ColumnElement[Any]]:
        return (message_tables(database).message.c.destination,)

    def joined(self, database: Database, rows: Select[Any]) -> Select[Any]:
        m = message_tables(database).message
        return rows.outerjoin(m, m.c.task_id == database.tables.task.c.id)

    def is_open(self, database: Database) -> ColumnElement[bool]:
        d, t = message_tables(database).destination, database.tables.task
        is_not_the_probe = or_(d.c.rests_until > database.now(), d.c.probe.is_(None), d.c.probe != t.c.id)
        keeps_back = or_(d.c.state == _disabled(), and_(d.c.failures > literal_column("0"), is_not_the_probe))
        return not_(and_(_sends_a_message(database), _is_so(database, keeps_back)))

    def ask(
        self, tx: Connection, database: Database, candidates: Sequence[StartCandidate]
    ) -> Mapping[str, float | None]:
        t = database.tables.task
        passed = [one.id for one in candidates if not one.may_start]  # the claim refuses it, whatever is said here
        of: dict[str, list[str]] = {}
        for one in candidates:
            if one.may_start:
                of.setdefault(one.knows[self.name][0], []).append(one.id)
        if of:
            locks = select(t.c.id).where(among(t.c.id, database.dialect)).order_by(t.c.id).with_for_update()
            tx.execute(locks, {"b_ids": in_order(task_id for ids in of.values() for task_id in ids)}).all()
        for destination in sorted(of):
            passed += _let_pass(tx, database, destination, of[destination])
        return dict.fromkeys(passed)


def _let_pass(tx: Connection, database: Database, destination: str, task_ids: Sequence[str]) -> list[str]:
    """Those of these tasks that may start; the others wait."""
    d, t, now = message_tables(database).destination, database.tables.task, database.now
    columns = d.c.state, d.c.failures, d.c.policy, d.c.rests_until, d.c.probe, d.c.probe_until
    row = tx.execute(select(*columns, now().label("now")).where(d.c.name == destination).with_for_update()).first()
    if row is None or (row.state != DestinationState.DISABLED.value and not row.failures):  # a moment ago it failed
        return list(task_ids)
    probe = None if row.state == DestinationState.DISABLED.value else probe_of(row, task_ids)
    if others := [one for one in task_ids if one != probe]:
        stand_in_line(tx, database, others)
    if probe is None:
        return []
    rest_s = 0.0 if row.rests_until is None else (row.rests_until - row.now).total_seconds()
    until_s = rest_s if rest_s > 0.0 else policy_in(row.policy).timeout_s
    tried = {"probe": probe, "probe_until": now(until_s + PROBE_S)}
    tx.execute(update(d).where(d.c.name == destination).values(tried))
    if rest_s <= 0.0:
        return [probe]
    later = update(t).where(t.c.id == probe, guarded(t.c.state, *CLAIMABLE))
    tx.execute(later.values(state=State.WAITING, due_at=row.rests_until))
    return []


def _sends_a_message(database: Database) -> ColumnElement[bool]:
    return database.tables.task.c.name == literal_column(f"'{TASK_NAME}'")


def _is_so(database: Database, of_destination: ColumnElement[bool]) -> ColumnElement[bool]:
    """In a statement about tasks: whether this holds for the destination of the message that a row sends.

    One look inside the other, not EXISTS and a join: PostgreSQL may answer those by reading all messages of such
    destinations, for one task.
    """
    tables, t = message_tables(database), database.tables.task
    m, d = tables.message, tables.destination
    one = literal_column("1", Integer())
    is_so = select(one).where(d.c.name == m.c.destination, of_destination).correlate(m, t).scalar_subquery()
    return select(is_so).where(m.c.task_id == t.c.id).limit(one).correlate(t).scalar_subquery().is_not(None)


def _disabled() -> ColumnElement[Any]:
    return literal_column(f"'{DestinationState.DISABLED.value}'")
