"""A consumer of embedded hints: it marks rows as its own, and deletes them when they are acked.

When the database does not answer, `fetch` waits and returns nothing, and an ack is dropped: the delivery comes again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Integer, bindparam, case, delete, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.broker import QUARANTINE_BODY_MAX, Delivery
from workq.broker.embedded.wakeup import LOOK_MAX_S
from workq.broker.fair_turns import QueueTurns, Rotation
from workq.errors import LedgerUnavailable
from workq.ledger.engine.database import Database
from workq.ledger.engine.instants import instant, unread
from workq.ledger.engine.prepared import Kept
from workq.ledger.hint_rows import as_bytes, body_of, quarantine_row
from workq.values.codec import Envelope, decode_hint

if TYPE_CHECKING:
    from workq.broker.embedded import EmbeddedBroker

T = TypeVar("T")

RUN_S: Final = 5.0
CLOSE_S: Final = 2.0
SLACK: Final = timedelta(seconds=2.0)
WHOLE_EVERY_S: Final = 1.0
WHOLE_PART: Final = 0.02
"""Of the time, at most so much is spent on looks from the beginning."""
BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)

Rows = Sequence[tuple[Any, ...]]
VISIBILITY_S: Final = 30.0
"""How long a delivery may stay unacked before it comes again. A worker acks after its hold, not after its run."""


@dataclass(frozen=True, slots=True)
class TakenRow:
    """Which row a delivery was, and its body for the quarantine."""

    id: int
    body: bytes


def is_free(database: Database) -> ColumnElement[bool]:
    """Nobody has the row, or not any more."""
    hint = database.tables.hint
    return or_(hint.c.consumer.is_(None), hint.c.delivered_at < database.now(-VISIBILITY_S))


def unmark(database: Database, name: str, connection: Connection) -> None:
    """Give back what a consumer of this name has."""
    hint = database.tables.hint
    connection.execute(update(hint).where(hint.c.consumer == name).values(consumer=None, delivered_at=None))


def remove(database: Database, row_ids: Sequence[int], connection: Connection) -> None:
    """Delete those of these rows that nobody has."""
    hint = database.tables.hint
    connection.execute(delete(hint).where(hint.c.id.in_(row_ids), is_free(database)))


def delivery_of(hint: Envelope | str, queue: str, row_id: int, body: bytes, deliveries: int) -> Delivery:
    """A delivery of a row whose body was decoded to `hint`."""
    row, again = TakenRow(row_id, body), deliveries > 1
    if isinstance(hint, str):
        return Delivery(row, queue, (), 0, again, hint, deliveries - 1)
    return Delivery(row, queue, hint.task_ids, hint.looks, again, marker=hint.marker)


class ScanFloor:
    """Of one consumer. Not thread-safe.

    A row that was taken stays in its index as a dead version until no transaction is old enough to see it. One that
    idles, a long dump or a replica that lags holds that up, and a look from the beginning reads all of them again each
    time: the collapse that queues on SKIP LOCKED are known for. So a look begins a little before the oldest row that
    was seen last. A look from the beginning follows every second, or more rarely where it takes long.

    What becomes visible below the floor waits for that look: a row whose writer took longer than `SLACK` to commit, or
    that a consumer had taken and gave back. The times compared are the database's own.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, datetime] = {}
        self._whole_at: dict[str, float] = {}
        """When to look from the beginning again."""

    def look(self, queue: str, ask: Callable[[datetime], Rows]) -> Rows:
        """Rows of a queue. `ask` answers those from an instant on, oldest first; each begins with when it is due."""
        began = self._clock()
        since = self._since.get(queue, BEGINNING)
        is_whole = began >= self._whole_at.get(queue, began)
        rows = ask(BEGINNING if is_whole else since)
        if is_whole:
            took_s = self._clock() - began
            self._whole_at[queue] = began + max(WHOLE_EVERY_S, took_s / WHOLE_PART)
        if rows:
            oldest: datetime = rows[0][0] - SLACK
            self._since[queue] = oldest if is_whole else max(since, oldest)
        return rows


class EmbeddedConsumer:
    """A consumer, as the port promises it."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        database: Database,
        queues: Sequence[str],
        *,
        name: str,
        prefetch: int,
    ) -> None:
        self.trouble: str | None = None
        """Why nothing can arrive just now: the database did not answer when it was last asked."""
        self._broker = broker
        self._database = database
        self._turns = Rotation(queues)
        self._queues = tuple(dict.fromkeys(queues))
        """Those that it serves."""
        self._name = name
        self._prefetch = prefetch
        self._published = 0
        """How often this process had published when this consumer last looked."""
        self._floor = ScanFloor(broker.clock)
        self._watch = broker.watch(lambda wait_s: broker.await_publish(self._published, wait_s))
        self._unacked: dict[int, float] = {}
        """Ids of rows delivered and not acked, with the moment from which they may be delivered again."""
        self._is_paused = False
        self._is_closed = False
        self._is_woken = False
        broker.joined(self)

    def fetch(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        def look() -> tuple[list[Delivery] | None, float]:
            return ([], 0.0) if self._was_woken() else self._look(lambda: self._take(ids_max))

        return self._watch.until(look, wait_s) or []

    def wake(self) -> None:
        self._is_woken = True
        self._broker.wake()

    def _was_woken(self) -> bool:
        was_woken, self._is_woken = self._is_woken, False
        return was_woken

    def _look(self, take: Callable[[], T | None]) -> tuple[T | None, float]:
        """Take what is due, if anything is; and in how many seconds there is more."""
        self._published = self._broker.publishes()
        if self._is_closed or self._is_paused:
            return None, LOOK_MAX_S
        due_in_s = self._due_in_s()
        if due_in_s > 0.0:
            return None, due_in_s
        return take() or None, LOOK_MAX_S

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        ids = [delivery.tag.id for delivery in deliveries]
        if not ids:
            return
        hint = self._database.tables.hint
        gone = delete(hint).where(hint.c.id.in_(ids), hint.c.consumer == self._name)
        if self._try(lambda connection: connection.execute(gone)):
            self._drop(ids)

    def quarantine(self, delivery: Delivery, *, reason: str) -> None:
        hint, row = self._database.tables.hint, delivery.tag
        mine = hint.c.id == row.id, hint.c.consumer == self._name

        def move(tx: Connection) -> None:
            quarantine_row(
                tx,
                self._database,
                *mine,
                queue=delivery.queue,
                body=row.body,
                reason=reason,
                by=self._name,
                kept_max=QUARANTINE_BODY_MAX,
            )

        if self._try(move):
            self._drop([row.id])

    def put_back(self, delivery: Delivery, *, delay_s: float) -> None:
        hint = self._database.tables.hint
        again = (
            update(hint)
            .where(hint.c.id == delivery.tag.id, hint.c.consumer == self._name)
            .values(consumer=None, delivered_at=None, due_at=self._database.now(delay_s))
        )
        if self._try(lambda connection: connection.execute(again)):
            self._drop([delivery.tag.id])

    def set_prefetch(self, count: int) -> None:
        self._prefetch = count

    def serve(self, queues: Collection[str]) -> None:
        self._turns.serve(queues)
        self._queues = tuple(dict.fromkeys(queues))

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._broker.wake()

    def renew(self) -> None:
        """Nothing to do: each fetch asks the database."""

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watch.close()
        self._try(partial(unmark, self._database, self._name), deadline_s=CLOSE_S)
        self._broker.left(self)

    def _take(self, ids_max: int) -> list[Delivery]:
        now = time.monotonic()
        self._unacked = {row: until for row, until in self._unacked.items() if until > now}
        room = min(self._prefetch - len(self._unacked), max(1, ids_max))
        if room <= 0:
            return []
        try:
            taken = self._database.run(partial(self._mark, room, ids_max), deadline_s=RUN_S)
        except LedgerUnavailable as error:
            self.trouble = str(error)
            return []
        self.trouble = None
        self._turn(taken)
        until = now + VISIBILITY_S
        self._unacked.update((delivery.tag.id, until) for delivery in taken)
        return taken

    def _turn(self, taken: object) -> None:
        """The next queue's turn, when there was anything."""
        if taken:
            self._turns.turn(self._turns.lines[0])

    def _due_in_s(self) -> float:
        """In how many seconds a row can be taken. Only a read: it takes no lock while there is nothing."""
        hint, now = self._database.tables.hint, self._database.now

        def first() -> Any:
            # what is due later moves no floor: others come before it
            seen_at = case((hint.c.due_at < now(), hint.c.due_at), else_=now())
            free = select(seen_at.label("seen_at"), hint.c.due_at, now().label("now"))
            free = free.where(hint.c.queue == bindparam("b_queue"), self._is_ahead(), is_free(self._database))
            return free.order_by(hint.c.due_at, hint.c.id).limit(1)

        statement = self._database.kept("first hint", first)
        try:
            with self._database.read() as connection:
                found = [row for queue in self._queues for row in self._ahead(queue, statement, connection)]
        except LedgerUnavailable as error:
            self.trouble = str(error)
            return LOOK_MAX_S
        self.trouble = None
        return min((max(0.0, (due_at - now).total_seconds()) for _, due_at, now in found), default=1e9)

    def _ahead(self, queue: str, statement: Kept, connection: Connection, **given: Any) -> Rows:
        """What a statement finds in a queue, from its floor on."""

        def ask(since: datetime) -> Rows:
            rows = statement.rows(connection, {"b_queue": queue, "b_since": since, **given})
            return [(instant(rows[0][0]), *rows[0][1:]), *rows[1:]] if rows else rows

        return self._floor.look(queue, ask)

    def _in_turns(
        self, line: QueueTurns, statement: Kept, connection: Connection, *, limit: int
    ) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """What a statement finds in the bands of a queue, in their turns: up to `limit` of each, read when wanted.

        Whoever takes one tells the line. Of a transaction that is repeated both tries count: it is only about fairness.
        """
        found: dict[str, deque[tuple[Any, ...]]] = {}

        def has(name: str) -> bool:
            if name not in found:
                found[name] = deque(self._ahead(name, statement, connection, b_limit=limit))
            return bool(found[name])

        while (name := line.next(has)) is not None:
            yield name, found[name].popleft()

    def _is_ahead(self) -> ColumnElement[bool]:
        due_at = self._database.tables.hint.c.due_at
        return due_at >= bindparam("b_since", type_=due_at.type)

    def _due(self, *columns: Any) -> Any:
        """Rows to take, and to keep others from: those that another consumer is just taking are passed over."""
        hint = self._database.tables.hint
        is_due = self._is_ahead(), hint.c.due_at <= self._database.now(), is_free(self._database)
        due = (
            select(unread(hint.c.due_at), *columns)
            .where(hint.c.queue == bindparam("b_queue"), *is_due)
            .order_by(hint.c.due_at, hint.c.id)
            .limit(bindparam("b_limit", type_=Integer()))
        )
        # on SQLite there is one writer at a time anyway
        return due if self._database.dialect == "sqlite" else due.with_for_update(skip_locked=True)

    def _mark(self, room: int, ids_max: int, connection: Connection) -> list[Delivery]:
        """Make rows ours, in one transaction."""
        hint = self._database.tables.hint
        chosen: list[tuple[str, int]] = []
        size = 0
        for line in self._turns.lines:
            statement = self._database.kept("hints to mark", lambda: self._due(hint.c.id, hint.c.size))
            for queue, (_, row_id, ids) in self._in_turns(line, statement, connection, limit=room - len(chosen)):
                if chosen and size + ids > ids_max:
                    break
                chosen.append((queue, row_id))
                line.took(queue, min(ids, ids_max))
                size += max(1, ids)
                if len(chosen) >= room:
                    break
            if size >= ids_max or len(chosen) >= room:
                break
        if not chosen:
            return []
        chosen_ids = [row_id for _, row_id in chosen]
        self._make_ours(chosen_ids, connection)
        found = {
            row_id: (as_bytes(content), deliveries)
            for row_id, content, deliveries in connection.execute(
                select(hint.c.id, body_of(self._database), hint.c.deliveries).where(hint.c.id.in_(chosen_ids))
            )
        }
        return [_delivery_of(queue, row_id, *found[row_id]) for queue, row_id in chosen]

    def _make_ours(self, row_ids: Sequence[int], connection: Connection) -> None:
        hint = self._database.tables.hint
        connection.execute(
            update(hint)
            .where(hint.c.id.in_(row_ids))
            .values(consumer=self._name, delivered_at=self._database.now(), deliveries=hint.c.deliveries + 1)
        )

    def _try(self, change: Callable[[Connection], object], *, deadline_s: float = RUN_S) -> bool:
        """Run a change; False when the database did not answer."""
        try:
            self._database.run(change, deadline_s=deadline_s)
        except LedgerUnavailable as error:
            self.trouble = str(error)
            return False
        return True

    def _drop(self, ids: Iterable[int]) -> None:
        for row_id in ids:
            self._unacked.pop(row_id, None)


def _delivery_of(queue: str, row_id: int, body: bytes, deliveries: int) -> Delivery:
    return delivery_of(decode_hint(body), queue, row_id, body, deliveries)
