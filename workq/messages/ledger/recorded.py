"""Recording: messages and the tasks that send them are recorded in one transaction, ours or the caller's.

An id is recorded once: whoever sends the same id again gets the message that stands, whatever it says. Repeatable after
a commit that was lost: the ids are made before it.

Messages with an order key stand in line as tasks of one order key do (see order/ledger/positions.py): in the order of
the commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Select, bindparam, case, literal_column, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import Float

from workq.errors import KeyConflict
from workq.ledger import HintRows, Unpublished
from workq.ledger.callers_transaction import reads_the_past, record_within
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.kept_rows import NewRow
from workq.ledger.named_instants import LedgerClock, left_at
from workq.ledger.tasks import Tasks
from workq.messages.ledger.known_destinations import policy_in, unknown_destination
from workq.messages.ledger.tables import message_tables
from workq.messages.levels import begun_ms, on_levels
from workq.messages.values import DestinationPolicy, NewMessage, SentMessage, task_of_message
from workq.values import codec
from workq.values.task import NewTask

_GIVEN = (
    *("id", "destination", "task_id", "body", "is_binary", "content_type", "message_key", "headers"),
    *("order_key", "intake"),
)


Look = Callable[[Connection, Sequence[NewMessage]], dict[str, tuple[str, str]]]


class RecordedMessages:
    """Records messages."""

    def __init__(self, database: Database, *, tasks: Tasks) -> None:
        self.database = database
        self._tasks = tasks

    def record(
        self, messages: Sequence[NewMessage], *, connection: Any = None, hints: HintRows | None = None
    ) -> tuple[list[SentMessage], list[Unpublished]]:
        """Record messages in one transaction, ours or the caller's: all, or none.

        Answers them in the same order, those that stand since they were recorded before among them, and the hints that
        are to be sent.

        Raises:
            NotFound: there is no such destination. KeyConflict: an id was recorded before, to another destination; or
                since the caller's transaction began, which does not see it (REPEATABLE READ, on PostgreSQL).
        """
        if not messages:
            return [], []
        if connection is None:
            try:
                recorded, tasks = self.database.run(partial(self._record, messages, hints, None))
            except IntegrityError:  # an id is there already
                recorded, tasks = self.database.run(partial(self._record, messages, hints, self._standing))
        else:

            def write(tx: Connection, is_again: bool) -> tuple[list[SentMessage], list[NewTask]]:
                return self._record(messages, hints, self._standing_now if is_again else None, tx)

            recorded, tasks = record_within(connection, self.database, write, what="one of these messages")
        fresh = [] if hints is not None else [Unpublished(one.id, one.queue, 0, one.delay_s) for one in tasks]
        return recorded, fresh

    def record_in(
        self, tx: Connection, messages: Sequence[NewMessage], hints: HintRows | None
    ) -> tuple[list[SentMessage], list[Unpublished]]:
        """`record`, in a transaction of ours that is open and does more. Raises as `record`; and IntegrityError, where
        another transaction has recorded one of the ids in this moment: then the whole of it is to be tried again."""
        recorded, tasks = self._record(messages, hints, self._standing, tx)
        return recorded, [] if hints is not None else [Unpublished(one.id, one.queue, 0, one.delay_s) for one in tasks]

    def _record(
        self, messages: Sequence[NewMessage], hints: HintRows | None, look: Look | None, tx: Connection
    ) -> tuple[list[SentMessage], list[NewTask]]:
        """The messages, and the tasks whose turn it is. `look`: for ids that are there already, one of which is."""
        policies = {name: self._policy(tx, name) for name in sorted({one.destination for one in messages})}
        if any(one.at is not None and policies[one.destination].levels_s for one in messages):
            now = begun_ms(LedgerClock(tx, self.database).now())  # the level is that of the ledger's clock, too
            messages = left_at(messages, now)
        standing = {} if look is None else look(tx, messages)
        recorded: list[SentMessage] = []
        new: list[NewMessage] = []
        for one in messages:
            there = standing.get(one.id)
            if there is None:
                standing[one.id] = one.task_id, one.destination
                delay_s, at = on_levels(one.delay_s, one.at, policies[one.destination].levels_s)
                new.append(replace(one, delay_s=delay_s, at=at) if delay_s != one.delay_s else one)
                recorded.append(SentMessage(one.id, one.task_id))
            elif there[1] != one.destination:
                raise KeyConflict(
                    f"message {one.id!r} was sent before, to {there[1]!r}; another message needs another message_id"
                )
            else:
                recorded.append(SentMessage(one.id, there[0], created=there[0] == one.task_id))
        if not new:
            return recorded, []
        for is_exact in (False, True):
            if rows := [_row(one) for one in new if (one.at is not None) is is_exact]:
                name = f"message{', at' * is_exact}"
                self.database.kept_rows(name, partial(self._new_row, is_exact=is_exact)).write(tx, rows)
        tasks = self._tasks.insert(tx, [_task(one, policies[one.destination]) for one in new], hints)
        return recorded, [one for one in tasks if one.waits_for is None]

    def _policy(self, tx: Connection, name: str) -> DestinationPolicy:
        found = self.database.kept("policy of a destination", self._policy_query).rows(tx, {"b_name": name})
        if not found:
            raise unknown_destination(name)
        return policy_in(found[0][0])

    def _standing(
        self, tx: Connection, messages: Sequence[NewMessage], *, is_newest: bool = False
    ) -> dict[str, tuple[str, str]]:
        """Tasks and destinations of those of these ids that are there."""
        name = f"messages that stand{', newest' * is_newest}"
        query = self.database.kept(name, partial(self._standing_query, is_newest=is_newest))
        rows = query.rows(tx, {"b_ids": in_order(one.id for one in messages)})
        return {message_id: (task_id, destination) for message_id, task_id, destination in rows}

    def _standing_now(self, tx: Connection, messages: Sequence[NewMessage]) -> dict[str, tuple[str, str]]:
        """`_standing`, in a transaction of a caller, which may read what was there when it began."""
        return self._standing(tx, messages, is_newest=reads_the_past(self.database))

    def _policy_query(self) -> Select[Any]:
        c = message_tables(self.database).destination.c
        return select(c.policy).where(c.name == bindparam("b_name", type_=c.name.type))

    def _standing_query(self, *, is_newest: bool) -> Select[Any]:
        c, dialect = message_tables(self.database).message.c, self.database.dialect
        query = select(c.id, as_text(c.task_id, dialect), c.destination).where(among(c.id, dialect, item="TEXT"))
        return query.with_for_update(read=True) if is_newest else query

    def _new_row(self, *, is_exact: bool) -> NewRow:
        c, now = message_tables(self.database).message.c, self.database.now
        at = bindparam("b_at", type_=c.due_at.type)
        due = case((at > now(), at), else_=now()) if is_exact else now(bindparam("b_delay_s", type_=Float()))
        return {
            **{c[name]: bindparam(f"b_{name}", type_=c[name].type) for name in _GIVEN},
            c.sending: literal_column("1"),
            c.due_at: due,
            c.created_at: now(),
        }


def _row(one: NewMessage) -> dict[str, Any]:
    due = {"b_delay_s": one.delay_s} if one.at is None else {"b_at": one.at}
    return due | {
        "b_id": one.id,
        "b_destination": one.destination,
        "b_task_id": one.task_id,
        "b_body": one.body,
        "b_is_binary": int(one.is_binary),
        "b_content_type": one.content_type,
        "b_message_key": one.key,
        "b_headers": codec.encode(one.headers, path="headers") if one.headers else None,
        "b_order_key": one.order_key,
        "b_intake": one.intake,
    }


def _task(one: NewMessage, policy: DestinationPolicy) -> NewTask:
    return task_of_message(
        one.task_id, one.id, one.destination, policy, order_key=one.order_key, delay_s=one.delay_s, at=one.at
    )
