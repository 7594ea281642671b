"""Letters: what each message needs to be sent, and where it stands. Questions alone."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, and_, func, literal, or_, select

from workq.ledger.answers import BEHIND_S
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.instants import instant, unread
from workq.ledger.engine.states import CLAIMABLE, ENDED, found
from workq.ledger.named_instants import left_s
from workq.messages.ledger.known_destinations import document_in, policy_in
from workq.messages.ledger.tables import message_tables
from workq.messages.values import TASK_NAME, EndedMessage, Letter, MessagePosition, MessageRow, WhichMessages
from workq.values import codec
from workq.values.task import State


class Letters:
    """Messages, as they are read."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def letters(self, message_ids: Sequence[str]) -> dict[str, Letter]:
        """What is needed to send these now, by their ids; one that is gone is missing in the answer."""
        given, query = {"b_ids": in_order(message_ids)}, self.database.kept("letters", self._letters_statement)
        rows = self.database.ask(lambda tx: query.rows(tx, given))
        return {row[0]: _letter(*row) for row in rows}

    def _letters_statement(self) -> Select[Any]:
        tables = message_tables(self.database)
        m, d, w = tables.message, tables.destination, tables.waiting_message
        is_waited_for = select(w.c.task_id).where(w.c.destination == d.c.name).correlate(d).exists()
        return (
            select(
                *(m.c.id, m.c.sending, m.c.body, m.c.is_binary, m.c.content_type, m.c.message_key, m.c.headers),
                *(d.c.name, d.c.kind, d.c.options, d.c.sealed, d.c.policy, d.c.state, d.c.failures),
                *(unread(d.c.rests_until), unread(d.c.changed_at), unread(self.database.now()), is_waited_for),
            )
            .join(d, d.c.name == m.c.destination)
            .where(among(m.c.id, self.database.dialect, item="TEXT"))
        )

    def message(self, message_id: str) -> MessageRow | None:
        """One message, or None."""
        m = message_tables(self.database).message
        query = self._rows().where(m.c.id == message_id)
        row = self.database.ask(lambda tx: tx.execute(query).first())
        return None if row is None else _message_row(row)

    def body(self, message_id: str) -> bytes | None:
        """What is sent, or None: it is kept no longer, or never was."""
        m = message_tables(self.database).message
        query = select(m.c.body, m.c.is_binary).where(m.c.id == message_id)
        row = self.database.ask(lambda tx: tx.execute(query).first())
        return None if row is None else _bytes(row.body, is_binary=bool(row.is_binary))

    def all(self, which: WhichMessages, *, limit: int = 100, after: str | None = None) -> list[MessageRow]:
        """Messages from the newest, a page at a time: `after` is the last id of the page before."""
        m = message_tables(self.database).message
        query = self._rows().where(*self.which_messages(which)).order_by(m.c.created_at.desc(), m.c.id.desc())
        if after is not None:
            last = select(m.c.created_at).where(m.c.id == after).scalar_subquery()
            query = query.where((m.c.created_at < last) | ((m.c.created_at == last) & (m.c.id < after)))
        rows = self.database.ask(lambda tx: tx.execute(query.limit(limit)).all())
        return [_message_row(row) for row in rows]

    def counts(self, which: WhichMessages, *, before: datetime | None = None) -> dict[str, int]:
        """How many there are, in each state in which there are any; `removed`: whose tasks are kept no longer.

        `before`: of those that were recorded until then.
        """
        m, t = message_tables(self.database).message, self.database.tables.task
        query = (
            select(t.c.state, func.count().label("n"))
            .select_from(m.outerjoin(t, t.c.id == m.c.task_id))
            .where(*self.which_messages(which))
            .group_by(t.c.state)
        )
        if before is not None:
            query = query.where(m.c.created_at <= literal(before, m.c.created_at.type))
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return {row.state or "removed": row.n for row in rows}

    def removed(self, which: WhichMessages) -> dict[State | None, int]:
        """How many there are whose tasks are kept no longer, by how those had ended.

        None: not recorded, as a worker of the schema before 17 has removed the task.
        """
        m, t = message_tables(self.database).message, self.database.tables.task
        query = (
            select(m.c.ended, func.count().label("n"))
            .select_from(m.outerjoin(t, t.c.id == m.c.task_id))
            .where(t.c.id.is_(None), *self.which_messages(which))
            .group_by(m.c.ended)
        )
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return {None if row.ended is None else State(row.ended): row.n for row in rows}

    def overdue(self, destination: str) -> int:
        """How many messages to a destination are due, and neither sent nor given up."""
        m, t = message_tables(self.database).message, self.database.tables.task
        query = (
            select(func.count())
            .select_from(m.join(t, t.c.id == m.c.task_id))
            .where(m.c.destination == destination, m.c.due_at <= self.database.now(), t.c.state.not_in(ENDED))
        )
        return self.database.ask(lambda tx: int(tx.execute(query).scalar_one()))

    def ended(self, *, within_s: float, limit: int) -> list[EndedMessage]:
        """How messages have ended lately, from the newest."""
        m, t = message_tables(self.database).message, self.database.tables.task
        query = (
            select(t.c.state, t.c.attempt, t.c.settled_at, m.c.due_at, m.c.sending)
            .join_from(t, m, m.c.task_id == t.c.id)
            .where(found(t.c.state, *ENDED), t.c.settled_at > self.database.now(-within_s), t.c.name == TASK_NAME)
            .order_by(t.c.settled_at.desc())
            .limit(limit)
        )
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [
            EndedMessage(State(row.state), row.attempt, row.sending, left_s(row.settled_at, row.due_at)) for row in rows
        ]

    def which_messages(self, which: WhichMessages) -> list[Any]:
        """As conditions on messages and their tasks."""
        m, t, now = message_tables(self.database).message, self.database.tables.task, self.database.now
        conditions: list[Any] = []
        if which.destination is not None:
            conditions.append(m.c.destination == which.destination)
        if which.state is not None:
            conditions.append(t.c.state == which.state.value)
        if which.since_s is not None:
            conditions.append(m.c.created_at >= now(-which.since_s))
        if which.until_s is not None:
            conditions.append(m.c.created_at < now(-which.until_s))
        return [and_(*conditions)] if conditions else []

    def _rows(self) -> Select[Any]:
        m, t = message_tables(self.database).message, self.database.tables.task
        of_message = [one for one in m.c if one.name != "body"]
        of_task = [
            t.c[name]
            for name in ("state", "attempt", "failures", "error", "reason", "result", "settled_at", "waits_for")
        ]
        next_at = t.c.due_at.label("next_at"), self.database.now(BEHIND_S).label("behind")
        return select(*of_message, *of_task, *next_at).outerjoin(t, t.c.id == m.c.task_id)


def behind(database: Database, after: MessagePosition | None) -> list[Any]:
    """As conditions: messages that were recorded behind this one, in the order of the index of their destination."""
    if after is None:
        return []
    m = message_tables(database).message
    at = literal(after.created_at, m.c.created_at.type)
    return [m.c.created_at >= at, or_(m.c.created_at > at, m.c.id > after.id)]


def _letter(
    message_id: str,
    sending: int,
    body: str | None,
    is_binary: int,
    content_type: str,
    key: str | None,
    headers: str | None,
    destination: str,
    kind: str,
    options: str,
    sealed: str | None,
    policy: str,
    state: str,
    failures: int,
    rests_until: Any,
    changed_at: Any,
    now: Any,
    is_waited_for: Any,
) -> Letter:
    left_s = 0.0 if rests_until is None else (instant(rests_until) - instant(now)).total_seconds()
    return Letter(
        id=message_id,
        sending=sending,
        body=_bytes(body, is_binary=bool(is_binary)),
        content_type=content_type,
        key=key,
        headers={} if headers is None else document_in(headers),
        destination=destination,
        kind=kind,
        options=document_in(options),
        sealed=sealed,
        policy=policy_in(policy),
        state=state,
        is_failing=failures > 0,
        rests_s=max(0.0, left_s),
        changed_at=str(changed_at),
        is_waited_for=bool(is_waited_for),
    )


def _bytes(body: str | None, *, is_binary: bool) -> bytes | None:
    if body is None:
        return None
    return b64decode(body) if is_binary else body.encode()


def _message_row(row: Row[Any]) -> MessageRow:
    state = None if row.state is None else State(row.state)
    result = None if row.result is None else codec.decode(row.result)
    return MessageRow(
        id=row.id,
        destination=row.destination,
        task_id=str(row.task_id),
        sending=row.sending,
        state=state,
        content_type=row.content_type,
        key=row.message_key,
        headers={} if row.headers is None else dict(document_in(row.headers)),
        order_key=row.order_key,
        attempts=row.attempt or 0,
        failures=row.failures or 0,
        error=row.error,
        reason=row.reason,
        where=result if isinstance(result, str) else None,
        created_at=row.created_at,
        due_at=row.due_at,
        next_at=row.next_at if state in CLAIMABLE and row.next_at < row.behind else None,
        waits_for=row.waits_for if state in CLAIMABLE and row.next_at >= row.behind else None,
        settled_at=row.settled_at,
    )
