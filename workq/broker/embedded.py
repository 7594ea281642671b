"""The broker without a broker: hints are rows beside the ledger, in the same database.

The default, on SQLite; it works on PostgreSQL and MySQL just as well, without RabbitMQ, and is how workers go on while
RabbitMQ is down. A hint can be written in the transaction that records its task, so nothing is left to relay. A
delivery marks the row with its consumer; an ack deletes it. A row that was not acked within 30 seconds, or whose
consumer left or was forgotten, is delivered again.

Who decides: the ledger; a row here is only a wake-up like any other. The order is that of `due_at`, then of arrival.

What happens when the database does not answer: `publish` answers False, `fetch` waits and returns nothing, an `ack` is
dropped and the delivery comes again. Idle consumers poll, from every 20 ms down to five times a second, reading only
(no write lock on SQLite), and look at once when this process has published.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, LargeBinary, and_, bindparam, case, cast, delete, func, insert, or_, select, update
from sqlalchemy.sql import text
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float

from workq.broker import Browsed, Delivery, Depth, Hint, See
from workq.codec import Envelope, decode_hint, encode, encode_hint
from workq.errors import BrokerUnavailable, LedgerUnavailable
from workq.ledger.database import Database

VISIBILITY_S: Final = 30.0
"""How long a delivery may stay unacked before it comes again. A worker acks after its hold, not after its run."""
POLL_MAX_S: Final = 0.2
RUN_S: Final = 5.0
CLOSE_S: Final = 2.0
DOWN_S: Final = 1.0
"""How long a consumer waits after the database did not answer."""
QUARANTINE_BODY_MAX: Final = 64 * 1024
_INSERT_MAX: Final = 1000
_BROWSED_AT_ONCE: Final = 500
_VERSION: Final = {
    "sqlite": "SELECT sqlite_version()",
    "postgresql": "SHOW server_version",
    "mysql": "SELECT VERSION()",
}


class EmbeddedBroker:
    """The port of the broker, on the ledger's own database."""

    is_transactional = True
    horizon_s = float("inf")
    is_listable = True

    def __init__(self, database: Database, *, poll_s: float = 0.02) -> None:
        self._database = database
        self._poll_s = poll_s
        self._published = threading.Condition()
        self._publishes = 0
        self._lock = threading.Lock()
        self._consumers: set[EmbeddedConsumer] = set()

    def publish(self, hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        """As the port promises; all of a call stand together, or none."""
        if not hints:
            return []
        try:
            self._database.run(lambda connection: self._insert(hints, connection), deadline_s=deadline_s)
        except LedgerUnavailable:
            return [False] * len(hints)
        self.wake()
        return [True] * len(hints)

    def publish_within(self, hints: Sequence[Hint], connection: Any) -> None:
        self._insert(hints, connection)
        self.wake()  # before the commit; a consumer that looks too early looks again in `poll_s`

    def consumer(self, queues: Sequence[str], *, name: str, prefetch: int) -> EmbeddedConsumer:
        consumer = EmbeddedConsumer(self, self._database, queues, name=name, prefetch=prefetch, poll_s=self._poll_s)
        with self._lock:
            self._consumers.add(consumer)
        return consumer

    def forget_consumer(self, name: str) -> None:
        """As the port promises.

        Raises:
            LedgerUnavailable: the database did not answer; the rows come again by themselves after 30 seconds.
        """
        self._database.run(partial(_unmark, self._database, name), deadline_s=CLOSE_S)
        self.wake()

    def depths(self, queues: Sequence[str]) -> Mapping[str, Depth]:
        hint, database = self._database.tables.hint, self._database
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
            while rows := self._database.ask(partial(self._page, queue, last)):
                gone: list[int] = []
                for row in rows:
                    found = decode_hint(_bytes(row.body))
                    if isinstance(found, str):
                        foreign += 1
                    else:
                        hints += 1
                        stays = see(Hint(queue, found.task_ids, 0.0, found.looks, found.marker))
                        gone += [] if stays else [row.id]
                if gone:
                    self._database.run(partial(_remove, self._database, gone))
                last = rows[-1].due_at, rows[-1].id
                if time.monotonic() > deadline:
                    return Browsed(hints, foreign, is_whole=False)
        except LedgerUnavailable as error:
            raise BrokerUnavailable(f"broker: {error}") from error
        return Browsed(hints, foreign, is_whole=True)

    def _page(self, queue: str, last: tuple[datetime, int] | None, connection: Connection) -> Sequence[Any]:
        """Rows that are due, after the last one."""
        hint = self._database.tables.hint
        is_due = [hint.c.queue == queue, hint.c.due_at <= self._database.now()]
        if last is not None:
            due_at, row_id = last
            is_due += [hint.c.due_at >= due_at, or_(hint.c.due_at > due_at, hint.c.id > row_id)]
        return connection.execute(
            select(hint.c.id, hint.c.due_at, self._body().label("body"))
            .where(*is_due)
            .order_by(hint.c.due_at, hint.c.id)
            .limit(_BROWSED_AT_ONCE)
        ).all()

    def _body(self) -> ColumnElement[Any]:
        """As bytes on SQLite: what somebody else wrote there may not be text."""
        hint = self._database.tables.hint
        return cast(hint.c.body, LargeBinary) if self._database.dialect == "sqlite" else hint.c.body

    def check(self) -> str:
        try:
            with self._database.read() as connection:
                version = str(connection.execute(text(_VERSION[self._database.dialect])).scalar_one())
        except LedgerUnavailable as error:
            raise BrokerUnavailable(f"broker: {error}") from error
        name = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL"}[self._database.dialect]
        if "mariadb" in version.lower():
            name = "MariaDB"
        return f"embedded in {name} {version.partition('-')[0].partition(' ')[0]}"

    def close(self) -> None:
        with self._lock:
            consumers = list(self._consumers)
        for consumer in consumers:
            consumer.close()

    def publishes(self) -> int:
        """How often this process has published so far."""
        return self._publishes

    def await_publish(self, seen: int, wait_s: float) -> None:
        """Wait until this process has published more often than `seen`, or for `wait_s`."""
        with self._published:
            self._published.wait_for(lambda: self._publishes != seen, wait_s)

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

    def _insert(self, hints: Sequence[Hint], connection: Connection) -> None:
        if any(not 0 <= one.delay_s < self.horizon_s for one in hints):
            raise ValueError("a hint can wait for 0 s or longer, not for less, nor for ever")
        statement = insert(self._database.tables.hint).values(
            due_at=self._database.now(bindparam("delay_s", type_=Float()))
        )
        rows = [
            {
                "queue": one.queue,
                "delay_s": one.delay_s,
                "body": encode_hint(Envelope(one.queue, one.task_ids, one.looks, one.marker)).decode("ascii"),
                "size": len(one.task_ids),
            }
            for one in hints
        ]
        for start in range(0, len(rows), _INSERT_MAX):
            connection.execute(statement, rows[start : start + _INSERT_MAX])


@dataclass(frozen=True, slots=True)
class Row:
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
        poll_s: float,
    ) -> None:
        self.trouble: str | None = None
        """Why nothing can arrive just now: the database did not answer when it was last asked."""
        self._broker = broker
        self._database = database
        self._queues = list(dict.fromkeys(queues))
        self._name = name
        self._prefetch = prefetch
        self._poll_s = poll_s
        self._unacked: dict[int, float] = {}
        """Ids of rows delivered and not acked, with the moment from which they may be delivered again."""
        self._is_paused = False
        self._is_closed = False

    def fetch(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        pause_s = self._poll_s
        seen = -1
        while not self._is_closed:
            if (published := self._broker.publishes()) != seen:
                seen, pause_s = published, self._poll_s
            taken = [] if self._is_paused else self._take(ids_max)
            left_s = deadline - time.monotonic()
            if taken or left_s <= 0:
                return taken
            self._broker.await_publish(seen, min(left_s, pause_s if self.trouble is None else DOWN_S))
            pause_s = min(pause_s * 2, POLL_MAX_S)
        return []

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
        self._try(partial(_unmark, self._database, self._name), deadline_s=CLOSE_S)
        self._broker.left(self)

    def _take(self, ids_max: int) -> list[Delivery]:
        now = time.monotonic()
        self._unacked = {row: until for row, until in self._unacked.items() if until > now}
        room = min(self._prefetch - len(self._unacked), max(1, ids_max))
        if room <= 0:
            return []
        try:
            # only a read, while there is nothing
            taken = self._database.run(partial(self._mark, room, ids_max), deadline_s=RUN_S) if self._is_due() else []
        except LedgerUnavailable as error:
            self.trouble = str(error)
            return []
        self.trouble = None
        if len(self._queues) > 1 and taken:  # the next queue's turn
            self._queues.append(self._queues.pop(0))
        until = now + VISIBILITY_S
        self._unacked.update((delivery.tag.id, until) for delivery in taken)
        return taken

    def _is_due(self) -> bool:
        with self._database.read() as connection:
            return any(connection.execute(self._due(queue, 1)).first() is not None for queue in self._queues)

    def _due(self, queue: str, limit: int) -> Any:
        hint = self._database.tables.hint
        return (
            select(hint.c.id, hint.c.size)
            .where(hint.c.queue == queue, hint.c.due_at <= self._database.now(), _is_free(self._database))
            .order_by(hint.c.due_at, hint.c.id)
            .limit(limit)
        )

    def _mark(self, room: int, ids_max: int, connection: Connection) -> list[Delivery]:
        """Make rows ours, in one transaction. On servers, rows that another consumer is just taking are passed over."""
        chosen: list[tuple[str, int]] = []
        size = 0
        for queue in self._queues:
            due = self._due(queue, room - len(chosen))
            if self._database.dialect != "sqlite":  # there, one writer at a time anyway
                due = due.with_for_update(skip_locked=True)
            for row_id, ids in connection.execute(due):
                if chosen and size + ids > ids_max:
                    break
                chosen.append((queue, row_id))
                size += max(1, ids)
            if size >= ids_max or len(chosen) >= room:
                break
        if not chosen:
            return []
        hint = self._database.tables.hint
        chosen_ids = [row_id for _, row_id in chosen]
        connection.execute(
            update(hint)
            .where(hint.c.id.in_(chosen_ids))
            .values(consumer=self._name, delivered_at=self._database.now(), deliveries=hint.c.deliveries + 1)
        )
        # as bytes on SQLite: what somebody else wrote there may not be text
        body = cast(hint.c.body, LargeBinary) if self._database.dialect == "sqlite" else hint.c.body
        found = {
            row_id: (_bytes(content), deliveries)
            for row_id, content, deliveries in connection.execute(
                select(hint.c.id, body, hint.c.deliveries).where(hint.c.id.in_(chosen_ids))
            )
        }
        return [_delivery(queue, row_id, *found[row_id]) for queue, row_id in chosen]

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


def _delivery(queue: str, row_id: int, body: bytes, deliveries: int) -> Delivery:
    hint = decode_hint(body)
    row, again = Row(row_id, body), deliveries > 1
    if isinstance(hint, str):
        return Delivery(row, queue, (), 0, again, hint, deliveries - 1)
    return Delivery(row, queue, hint.task_ids, hint.looks, again, marker=hint.marker)


def _bytes(body: bytes | str) -> bytes:
    return body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
