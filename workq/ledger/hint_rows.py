"""Hinting: hints as rows beside their tasks, where the ledger's own database is the broker, or keeps delayed hints.

On PostgreSQL, tasks and their hints are one statement, which commits by itself: enqueueing without servers costs one
round trip. Elsewhere they are two statements of one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Insert, Integer, LargeBinary, Select, bindparam, cast, delete, func, insert, select
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import ArrayText
from workq.ledger.engine.kept_rows import NewRow
from workq.values.codec import decode_hint, encode
from workq.values.hint import HintRow

_AT_ONCE: Final = 1000
SOON_S: Final = 1.0
"""What is due within that is left: others may be taking it."""
_EARLIER, _LATER = timedelta(seconds=0.1), timedelta(seconds=5.0)
"""Around the time of a task: its row, which may have been written by a relay that was slow."""
_SEARCHED_MAX: Final = 1000
"""So many rows of others are read for them, at most."""


def insert_hints(tx: Connection, database: Database, rows: Sequence[HintRow], *, since: datetime | None = None) -> None:
    """Write hints in a transaction. `since`: when their delays began, by the ledger's clock; without it, now."""
    given: list[dict[str, Any]] = [{"b_queue": row.queue, "b_body": row.body, "b_size": row.size} for row in rows]
    for one, row in zip(given, rows, strict=True):
        one |= {"b_delay_s": row.delay_s} if since is None else {"b_due_at": since + timedelta(seconds=row.delay_s)}
    name = f"hint{', since' * (since is not None)}"
    made = database.kept_rows(name, lambda: _one(database, is_since=since is not None))
    for start in range(0, len(given), _AT_ONCE):
        made.write(tx, given[start : start + _AT_ONCE])


def _one(database: Database, *, is_since: bool) -> NewRow:
    c = database.tables.hint.c
    given = (c.queue, c.body, c.size, *[c.due_at] * is_since)
    row: dict[Any, Any] = {column: bindparam(f"b_{column.name}", type_=column.type) for column in given}
    return row if is_since else {**row, c.due_at: database.now(bindparam("b_delay_s", type_=Float()))}


def with_hints(database: Database, tasks: Insert) -> Insert:
    """On PostgreSQL: a statement that inserts tasks of one queue and delay, and the hints of `given_hints` beside them.

    The tasks' statement binds `b_queue` and `b_delay_s`.
    """
    c = database.tables.hint.c
    arrays = (
        bindparam("b_hint_bodies", type_=ArrayText("TEXT")),
        bindparam("b_hint_sizes", type_=ArrayText("BIGINT")),
    )
    each = func.unnest(*arrays).table_valued("body", "size").render_derived()
    values = {
        c.queue: bindparam("b_queue", type_=c.queue.type),
        c.due_at: database.now(bindparam("b_delay_s", type_=Float())),
        c.body: each.c.body,
        c.size: each.c.size,
    }
    hints = insert(c.queue.table).from_select(list(values), select(*values.values()))
    return tasks.add_cte(hints.cte("hinted"))


def given_hints(rows: Sequence[HintRow]) -> Mapping[str, Any]:
    """The parameters that `with_hints` adds. The rows are of one queue and delay."""
    return {"b_hint_bodies": [row.body for row in rows], "b_hint_sizes": [row.size for row in rows]}


class Waiting(NamedTuple):
    """A task that had to wait, and until when."""

    id: str
    queue: str
    due_at: datetime


def drop_hints_of(tx: Connection, database: Database, task_ids: Sequence[str]) -> None:
    """`drop_hints`, of those of these tasks that are not due. Their rows still say when they would be."""
    t = database.tables.task
    later = select(t.c.id, t.c.queue, t.c.due_at).where(t.c.id.in_(task_ids), t.c.due_at > database.now(SOON_S))
    drop_hints(tx, database, [Waiting(*row) for row in tx.execute(later)])


def drop_hints(tx: Connection, database: Database, tasks: Sequence[Waiting]) -> None:
    """Delete the rows of these tasks, which will not be run at that time: they would stay until then.

    As far as they are found among those of that time, and never one that has other tasks too: what is left is worth
    nothing when it is due.
    """
    hint = database.tables.hint
    statement = database.kept("hints around a time", lambda: _around(database))
    ids: list[int] = []
    for near in _near_each_other(tasks):
        given = {"b_queue": near[0].queue, "b_since": near[0].due_at - _EARLIER, "b_until": near[-1].due_at + _LATER}
        of_each = {(one.id,) for one in near}
        rows = statement.rows(tx, {**given, "b_limit": len(near) + _SEARCHED_MAX})
        ids += [row_id for row_id, body in rows if _tasks_in(body) in of_each]
    for start in range(0, len(ids), _AT_ONCE):
        tx.execute(delete(hint).where(hint.c.id.in_(ids[start : start + _AT_ONCE])))


def _near_each_other(tasks: Sequence[Waiting]) -> Iterator[list[Waiting]]:
    """Tasks of one queue whose rows stand together, so that one look finds them all; by their time."""
    near: list[Waiting] = []
    for one in sorted(tasks, key=lambda one: (one.queue, one.due_at)):
        if near and (one.queue != near[-1].queue or one.due_at - near[-1].due_at > _LATER):
            yield near
            near = []
        near.append(one)
    if near:
        yield near


def _tasks_in(body: bytes | str) -> tuple[str, ...]:
    found = decode_hint(as_bytes(body))
    return () if isinstance(found, str) else found.task_ids


def _around(database: Database) -> Select[Any]:
    """Rows of one queue and of so much time that have one task each."""
    c = database.tables.hint.c
    return (
        select(c.id, body_of(database))
        .where(
            c.queue == bindparam("b_queue", type_=c.queue.type),
            c.due_at > database.now(SOON_S),
            c.due_at >= bindparam("b_since", type_=c.due_at.type),
            c.due_at <= bindparam("b_until", type_=c.due_at.type),
            c.size == 1,
        )
        .order_by(c.due_at, c.id)
        .limit(bindparam("b_limit", type_=Integer()))
    )


def body_of(database: Database) -> ColumnElement[Any]:
    """As bytes on SQLite: what somebody else wrote there may not be text."""
    hint = database.tables.hint
    return cast(hint.c.body, LargeBinary) if database.dialect == "sqlite" else hint.c.body


def as_bytes(body: bytes | str) -> bytes:
    return body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")


def quarantine_row(
    tx: Connection,
    database: Database,
    *which: ColumnElement[bool],
    queue: str,
    body: bytes,
    reason: str,
    by: str | None,
    kept_max: int,
) -> None:
    """A row that is no hint of ours becomes an event, if it is still there: up to `kept_max` bytes of it are kept."""
    tables = database.tables
    detail = {
        "reason": reason,
        "queue": queue,
        "body": body[:kept_max].decode("utf-8", "backslashreplace").replace("\x00", "\\x00"),
        "bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    if tx.execute(delete(tables.hint).where(*which)).rowcount:
        content = encode(detail, path="detail", max_bytes=1024 * 1024)
        tx.execute(insert(tables.event).values(at=database.now(), kind="quarantined", worker=by, detail=content))
