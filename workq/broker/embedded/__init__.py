"""The broker without a broker: hints are rows beside the ledger, in the same database.

The default, on SQLite; it works on PostgreSQL and MySQL just as well, without RabbitMQ, and is how workers go on while
RabbitMQ is down. A hint can be written in the transaction that records its task, so nothing is left to relay. A
delivery marks the row with its consumer; an ack deletes it. A row that was not acked within 30 seconds, or whose
consumer left or was forgotten, is delivered again.

Who decides: the ledger; a row here is only a wake-up like any other. The order is that of `due_at`, then of arrival.

What happens when the database does not answer: `publish` answers False, `fetch` waits and returns nothing, an `ack` is
dropped and the delivery comes again. Idle consumers look again and again (see wakeup.py), reading only: no write lock
on SQLite.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import (
    Connection,
    Integer,
    LargeBinary,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.sql import text
from sqlalchemy.sql.elements import ColumnElement

from workq.broker import Browsed, Delivery, Depth, Hint, See
from workq.broker.embedded.scan_floor import Rows, ScanFloor
from workq.broker.embedded.wakeup import LOOK_MAX_S, Wakeup
from workq.broker.fair_turns import QueueTurns, Rotation
from workq.errors import BrokerUnavailable, LedgerUnavailable
from workq.ledger.engine.database import Database
from workq.ledger.engine.instants import instant, unread
from workq.ledger.engine.prepared import Kept
from workq.ledger.hint_rows import insert_hints
from workq.values.codec import Envelope, decode_hint, encode, encode_hint
from workq.values.hint import HintRow

T = TypeVar("T")

VISIBILITY_S: Final = 30.0
"""How long a delivery may stay unacked before it comes again. A worker acks after its hold, not after its run."""
RUN_S: Final = 5.0
CLOSE_S: Final = 2.0
QUARANTINE_BODY_MAX: Final = 64 * 1024
_BROWSED_AT_ONCE: Final = 500
_VERSION: Final = {
    "sqlite": "SELECT sqlite_version()",
    "postgresql": "SHOW server_version",
    "mysql": "SELECT VERSION()",
}


class EmbeddedBroker:
    """The port of the broker, on the ledger's own database."""

    is_transactional = True
    horizon_s = 3.2e8  # a little more than the longest delay, ten years: what is due later stands behind another
    unit_s = 0.0
    is_late = False
    is_listable = True

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.database = database
        self.clock = clock
        self._published = threading.Condition()
        self._publishes = 0
        self._lock = threading.Lock()
        self._consumers: set[EmbeddedConsumer] = set()

    def waits_s(self, delay_s: float) -> float:
        return delay_s

    def publish(self, hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        """As the port promises; all of a call stand together, or none."""
        if not hints:
            return []
        try:
            self.database.run(lambda connection: self.insert(hints, connection), deadline_s=deadline_s)
        except LedgerUnavailable:
            return [False] * len(hints)
        self.wake()
        return [True] * len(hints)

    def rows(self, hints: Sequence[Hint]) -> list[HintRow]:
        if any(not 0 <= one.delay_s < self.horizon_s for one in hints):
            raise ValueError("a hint can wait for 0 s or longer, not for less, nor for ever")
        return [
            HintRow(
                one.queue,
                encode_hint(Envelope(one.queue, one.task_ids, one.looks, one.marker)).decode("ascii"),
                len(one.task_ids),
                one.delay_s,
            )
            for one in hints
        ]

    def consumer(self, queues: Sequence[str], *, name: str, prefetch: int) -> EmbeddedConsumer:
        return EmbeddedConsumer(self, self.database, queues, name=name, prefetch=prefetch)

    def joined(self, consumer: EmbeddedConsumer) -> None:
        """A consumer began: it is closed with the broker."""
        with self._lock:
            self._consumers.add(consumer)

    def forget_consumer(self, name: str) -> None:
        """As the port promises.

        Raises:
            LedgerUnavailable: the database did not answer; the rows come again by themselves after 30 seconds.
        """
        self.database.run(partial(_unmark, self.database, name), deadline_s=CLOSE_S)
        self.wake()

    def depths(self, queues: Sequence[str]) -> Mapping[str, Depth]:
        hint, database = self.database.tables.hint, self.database
        free = _is_free(database)
        wanted = list(dict.fromkeys(queues))
        query = (
            select(
                hint.c.queue,
                func.sum(case((and_(free, hint.c.due_at <= database.now()), 1), else_=0)),
                func.sum(case((free, 0), else_=1)),
            )
            .where(hint.c.queue.in_(wanted))
            .group_by(hint.c.queue)
        )
        try:
            with database.read() as connection:
                rows = connection.execute(query).all()
        except LedgerUnavailable as error:
            raise BrokerUnavailable(f"broker: {error}") from error
        # who listens is not written down anywhere
        found = {queue: Depth(int(ready), int(unacked), None) for queue, ready, unacked in rows}
        return {queue: found.get(queue, Depth(0, 0, None)) for queue in wanted}

    def browse(self, queue: str, see: See, *, deadline_s: float) -> Browsed:
        """As the port promises: rows are read, a page at a time, delivered ones too."""
        deadline = time.monotonic() + deadline_s
        hints = foreign = 0
        last: tuple[datetime, int] | None = None
        try:
            while rows := self.database.ask(partial(self._page, queue, last)):
                gone: list[int] = []
                for row in rows:
                    found = decode_hint(as_bytes(row.body))
                    if isinstance(found, str):
                        foreign += 1
                    else:
                        hints += 1
                        stays = see(Hint(queue, found.task_ids, 0.0, found.looks, found.marker))
                        gone += [] if stays else [row.id]
                if gone:
                    self.database.run(partial(_remove, self.database, gone))
                last = rows[-1].due_at, rows[-1].id
                if time.monotonic() > deadline:
                    return Browsed(hints, foreign, is_whole=False)
        except LedgerUnavailable as error:
            raise BrokerUnavailable(f"broker: {error}") from error
        return Browsed(hints, foreign, is_whole=True)

    def _page(self, queue: str, last: tuple[datetime, int] | None, connection: Connection) -> Sequence[Any]:
        """Rows that are due, after the last one."""
        hint = self.database.tables.hint
        is_due = [hint.c.queue == queue, hint.c.due_at <= self.database.now()]
        if last is not None:
            due_at, row_id = last
            is_due += [hint.c.due_at >= due_at, or_(hint.c.due_at > due_at, hint.c.id > row_id)]
        return connection.execute(
            select(hint.c.id, hint.c.due_at, self.body().label("body"))
            .where(*is_due)
            .order_by(hint.c.due_at, hint.c.id)
            .limit(_BROWSED_AT_ONCE)
        ).all()

    def body(self) -> ColumnElement[Any]:
        """As bytes on SQLite: what somebody else wrote there may not be text."""
        hint = self.database.tables.hint
        return cast(hint.c.body, LargeBinary) if self.database.dialect == "sqlite" else hint.c.body

    def check(self) -> str:
        try:
            with self.database.read() as connection:
                version = str(connection.execute(text(_VERSION[self.database.dialect])).scalar_one())
        except LedgerUnavailable as error:
            raise BrokerUnavailable(f"broker: {error}") from error
        name = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL"}[self.database.dialect]
        if "mariadb" in version.lower():
            name = "MariaDB"
        return f"embedded in {name} {version.partition('-')[0].partition(' ')[0]}"

    def close(self) -> None:
        with self._lock:
            consumers = list(self._consumers)
        for consumer in consumers:
            consumer.close()

    def watch(self, wait: Callable[[float], bool]) -> Wakeup:
        """What tells a consumer when to look. A simulation replaces it."""
        return Wakeup(self.database, wait)

    def publishes(self) -> int:
        """How often this process has published so far."""
        return self._publishes

    def await_publish(self, seen: int, wait_s: float) -> bool:
        """Wait until this process has published more often than `seen`, or for `wait_s`; answers whether it has."""
        with self._published:
            return self._published.wait_for(lambda: self._publishes != seen, wait_s)

    def left(self, consumer: EmbeddedConsumer) -> None:
        """A consumer was closed: what it gave back is there for others."""
        with self._lock:
            self._consumers.discard(consumer)
        self.wake()

    def wake(self) -> None:
        """Let idle consumers of this process look at once."""
        with self._published:
            self._publishes += 1
            self._published.notify_all()

    def insert(self, hints: Sequence[Hint], connection: Connection) -> None:
        """Write hints in a transaction; whoever waits for them is not woken."""
        insert_hints(connection, self.database, self.rows(hints))


@dataclass(frozen=True, slots=True)
class TakenRow:
    """Which row a delivery was, and its body for the quarantine."""

    id: int
    body: bytes


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
        tables, row = self._database.tables, delivery.tag
        kept = row.body[:QUARANTINE_BODY_MAX].decode("utf-8", "backslashreplace").replace("\x00", "\\x00")
        detail = {
            "reason": reason,
            "queue": delivery.queue,
            "body": kept,
            "bytes": len(row.body),
            "sha256": hashlib.sha256(row.body).hexdigest(),
        }

        def move(connection: Connection) -> None:
            mine = delete(tables.hint).where(tables.hint.c.id == row.id, tables.hint.c.consumer == self._name)
            if connection.execute(mine).rowcount:
                connection.execute(
                    insert(tables.event).values(
                        at=self._database.now(),
                        kind="quarantined",
                        worker=self._name,
                        detail=encode(detail, path="detail", max_bytes=1024 * 1024),
                    )
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
        self._try(partial(_unmark, self._database, self._name), deadline_s=CLOSE_S)
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
            free = free.where(hint.c.queue == bindparam("b_queue"), self._is_ahead(), _is_free(self._database))
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
        is_due = self._is_ahead(), hint.c.due_at <= self._database.now(), _is_free(self._database)
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
                select(hint.c.id, self._broker.body(), hint.c.deliveries).where(hint.c.id.in_(chosen_ids))
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


def _is_free(database: Database) -> ColumnElement[bool]:
    """Nobody has the row, or not any more."""
    hint = database.tables.hint
    return or_(hint.c.consumer.is_(None), hint.c.delivered_at < database.now(-VISIBILITY_S))


def _remove(database: Database, row_ids: Sequence[int], connection: Connection) -> None:
    hint = database.tables.hint
    connection.execute(delete(hint).where(hint.c.id.in_(row_ids), _is_free(database)))


def _unmark(database: Database, name: str, connection: Connection) -> None:
    hint = database.tables.hint
    connection.execute(update(hint).where(hint.c.consumer == name).values(consumer=None, delivered_at=None))


def _delivery_of(queue: str, row_id: int, body: bytes, deliveries: int) -> Delivery:
    return delivery_of(decode_hint(body), queue, row_id, body, deliveries)


def delivery_of(hint: Envelope | str, queue: str, row_id: int, body: bytes, deliveries: int) -> Delivery:
    """A delivery of a row whose body was decoded to `hint`."""
    row, again = TakenRow(row_id, body), deliveries > 1
    if isinstance(hint, str):
        return Delivery(row, queue, (), 0, again, hint, deliveries - 1)
    return Delivery(row, queue, hint.task_ids, hint.looks, again, marker=hint.marker)


def as_bytes(body: bytes | str) -> bytes:
    return body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
