"""Rows of delayed hints: which are due, who has reserved them, and their end.

A row is reserved by the instant in `delivered_at`, and by nothing else: a reservation is no promise, and ends by itself
after `RESERVED_S`. Two movers never reserve one row at the same time: on servers each passes over what another is just
taking, and SQLite has one writer. A mover that was slower than its reservation publishes a second hint, which is
harmless.

What others have deleted stays in the index as a dead version until no transaction is old enough to see it. A look from
the beginning reads all of them again. So it takes a tenth of the time at most, and the looks between two of them begin
a little before the oldest row that was seen last, in the queues that are known. No look goes further than it has to:
PostgreSQL, while it takes the table for small, reads and sorts all rows from there on to find the first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Integer, Select, bindparam, delete, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float

from workq.broker import QUARANTINE_BODY_MAX, Hint, See
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import queues_where
from workq.ledger.hint_rows import as_bytes, body_of, quarantine_row
from workq.values.codec import decode_hint

RESERVED_S: Final = 5.0
"""How long a mover has for what it has taken. Longer than it waits for a confirm."""
WHOLE_PART: Final = 0.1
"""Of the time, at most so much is spent on looks from the beginning."""
WHOLE_MAX_S: Final = 5.0
"""A look that took long (its process was stopped) keeps the next one from the beginning no longer than that."""
SLACK: Final = timedelta(seconds=2.0)
"""How late a row may become visible and be found all the same by a look that does not begin at the beginning."""
BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class DueRow:
    """A row that is reserved. `due_in_s` is negative when it is late."""

    id: int
    queue: str
    body: bytes
    due_in_s: float


class DueRows:
    """The rows of one ledger, for one mover and for who asks of them. `clock` is monotonic."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._queues: list[str] = []
        self._since = BEGINNING
        self._whole_at = clock()

    def first(self, *, within_s: float) -> dict[str, float]:
        """In how many seconds the first free row of each queue is due, if within so many. It takes no lock.

        Raises:
            LedgerUnavailable: the database did not answer.
        """
        began = self._clock()
        is_whole = began >= self._whole_at
        found = self._database.ask(lambda tx: self._firsts(tx, within_s=within_s, is_whole=is_whole))
        if is_whole:
            self._queues = [queue for queue, _, _ in found]
            ended = self._clock()
            self._whole_at = ended + min(WHOLE_MAX_S, (ended - began) / WHOLE_PART)
        if found:
            oldest = min(now if due_at is None else min(due_at, now) for _, due_at, now in found) - SLACK
            self._since = oldest if is_whole else max(self._since, oldest)
        return {queue: (due_at - now).total_seconds() for queue, due_at, now in found if due_at is not None}

    def take(self, queues: Sequence[str], *, ahead_s: float, limit: int, one_of: Collection[str] = ()) -> list[DueRow]:
        """Reserve up to `limit` free rows of these queues that are due within `ahead_s`, in the order of each queue.

        Queues share: each has an equal part of what those before it have left, or a single row where it is in `one_of`.

        Raises:
            LedgerUnavailable: the database did not answer; CommitUnknown: rows may be reserved, for a while.
        """
        hint, now = self._database.tables.hint, self._database.now
        statement = self._database.kept("due hints", self._due)

        def reserve(tx: Connection) -> list[DueRow]:
            rows: list[Any] = []
            for place, queue in enumerate(queues):
                if len(rows) >= limit:
                    break
                share = 1 if queue in one_of else math.ceil((limit - len(rows)) / (len(queues) - place))
                given = {"b_queue": queue, "b_since": self._since, "b_limit": share, "b_ahead_s": ahead_s}
                rows += ((row_id, queue, body, due_at, at) for row_id, body, due_at, at in statement.rows(tx, given))
            ids = [row[0] for row in rows]
            for start in range(0, len(ids), _AT_ONCE):
                mine = update(hint).where(hint.c.id.in_(ids[start : start + _AT_ONCE]))
                tx.execute(mine.values(delivered_at=now()))
            return [
                DueRow(row_id, queue, as_bytes(body), (due_at - at).total_seconds())
                for row_id, queue, body, due_at, at in rows
            ]

        return self._database.run(reserve)

    def drop(self, row_ids: Sequence[int]) -> None:
        """Delete rows that have done their duty. Repeatable.

        Raises:
            LedgerUnavailable: they are free again after `RESERVED_S`.
        """
        hint = self._database.tables.hint

        def remove(tx: Connection) -> None:
            for start in range(0, len(row_ids), _AT_ONCE):
                tx.execute(delete(hint).where(hint.c.id.in_(row_ids[start : start + _AT_ONCE])))

        if row_ids:
            self._database.run(remove, is_single=len(row_ids) <= _AT_ONCE)

    def give_back(self, row_ids: Sequence[int]) -> None:
        """End reservations before their time. Repeatable.

        Raises:
            LedgerUnavailable: they end by themselves.
        """
        hint = self._database.tables.hint

        def free(tx: Connection) -> None:
            for start in range(0, len(row_ids), _AT_ONCE):
                mine = update(hint).where(hint.c.id.in_(row_ids[start : start + _AT_ONCE]))
                tx.execute(mine.values(delivered_at=None))

        if row_ids:
            self._database.run(free)

    def quarantine(self, row: DueRow, *, reason: str) -> None:
        """Put aside a row that is no hint of ours. Repeatable.

        Raises:
            LedgerUnavailable: it is free again after `RESERVED_S`.
        """
        which = self._database.tables.hint.c.id == row.id

        def move(tx: Connection) -> None:
            quarantine_row(
                tx,
                self._database,
                which,
                queue=row.queue,
                body=row.body,
                reason=reason,
                by=None,
                kept_max=QUARANTINE_BODY_MAX,
            )

        self._database.run(move)

    def count(self, queues: Sequence[str]) -> Mapping[str, int]:
        """How many rows of each queue are due; a queue without any is left out.

        Raises:
            LedgerUnavailable: the database did not answer.
        """
        hint = self._database.tables.hint
        due = hint.c.queue.in_(list(queues)), hint.c.due_at <= self._database.now()
        query = select(hint.c.queue, func.count()).where(*due).group_by(hint.c.queue)
        return {queue: int(rows) for queue, rows in self._database.ask(lambda tx: tx.execute(query).all())}

    def browse(self, queue: str, see: See) -> int:
        """Show what is due in a queue, and remove what shall not stay; answers how many hints were shown.

        Raises:
            LedgerUnavailable: the database did not answer.
        """
        hint = self._database.tables.hint
        due = select(hint.c.id, body_of(self._database).label("body")).where(
            hint.c.queue == queue, hint.c.due_at <= self._database.now()
        )
        rows = self._database.ask(lambda tx: tx.execute(due.order_by(hint.c.due_at, hint.c.id)).all())
        shown, gone = 0, []
        for row in rows:
            found = decode_hint(as_bytes(row.body))
            if not isinstance(found, str):
                shown += 1
                if not see(Hint(queue, found.task_ids, 0.0, found.looks, found.marker)):
                    gone.append(row.id)
        self.drop(gone)
        return shown

    def due_since(self, queue: str, task_id: str) -> datetime | None:
        """Since when the hint of a task is due and still a row; None: there is none. Reads all that are due.

        Raises:
            LedgerUnavailable: the database did not answer.
        """
        hint, now = self._database.tables.hint, self._database.now
        query = select(func.min(hint.c.due_at)).where(
            hint.c.queue == queue, hint.c.due_at <= now(), hint.c.body.contains(task_id, autoescape=True)
        )
        since: datetime | None = self._database.ask(lambda tx: tx.execute(query).scalar_one())
        return since

    def overdue(self, *, for_s: float) -> dict[str, tuple[int, float]]:
        """How many rows of each queue are due for so long, and for how long the oldest; the oldest queue first.

        Raises:
            LedgerUnavailable: the database did not answer.
        """
        hint, now = self._database.tables.hint, self._database.now
        query = (
            select(hint.c.queue, func.count(), func.min(hint.c.due_at).label("oldest"), now().label("now"))
            .where(hint.c.due_at <= now(-for_s))
            .group_by(hint.c.queue)
            .order_by("oldest", hint.c.queue)
        )
        found = self._database.ask(lambda tx: tx.execute(query).all())
        return {queue: (int(count), (clock - oldest).total_seconds()) for queue, count, oldest, clock in found}

    def _firsts(
        self, tx: Connection, *, within_s: float, is_whole: bool
    ) -> list[tuple[str, datetime | None, datetime]]:
        """Of each queue, when its first free row is due, if that is soon; and the ledger's now."""
        names = self._queues
        if is_whole:
            self._since = BEGINNING
            names = list(tx.execute(queues_where(self._database.tables.hint)).scalars())
        statement = self._database.kept("first hint to move", self._first)
        given = {"b_since": self._since, "b_ahead_s": within_s}
        firsts: list[tuple[str, datetime | None, datetime]] = []
        for name in names:
            [(due_at, now)] = statement.rows(tx, {"b_queue": name, **given})
            firsts.append((name, due_at, now))
        return firsts

    def _first(self) -> Select[Any]:
        hint = self._database.tables.hint
        first = select(hint.c.due_at).where(*self._ahead()).order_by(hint.c.due_at, hint.c.id).limit(1)
        return select(first.scalar_subquery().label("due_at"), self._database.now().label("now"))

    def _due(self) -> Select[Any]:
        hint, now = self._database.tables.hint, self._database.now
        chosen = select(hint.c.id, body_of(self._database), hint.c.due_at, now().label("now")).where(*self._ahead())
        chosen = chosen.order_by(hint.c.due_at, hint.c.id).limit(bindparam("b_limit", type_=Integer()))
        # on SQLite there is one writer at a time anyway
        return chosen if self._database.dialect == "sqlite" else chosen.with_for_update(skip_locked=True)

    def _ahead(self) -> list[ColumnElement[bool]]:
        """Free rows of one queue, from the floor on, that are due within `b_ahead_s`."""
        hint, now = self._database.tables.hint, self._database.now
        return [
            hint.c.queue == bindparam("b_queue", type_=hint.c.queue.type),
            hint.c.due_at >= bindparam("b_since", type_=hint.c.due_at.type),
            hint.c.due_at <= now(bindparam("b_ahead_s", type_=Float())),
            or_(hint.c.delivered_at.is_(None), hint.c.delivered_at < now(-RESERVED_S)),
        ]
