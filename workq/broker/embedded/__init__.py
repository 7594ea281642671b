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

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, and_, case, func, or_, select
from sqlalchemy.sql import text

from workq.broker import Browsed, Depth, Hint, See
from workq.broker.embedded.consumer import CLOSE_S, EmbeddedConsumer, is_free, remove, unmark
from workq.broker.embedded.wakeup import Wakeup
from workq.errors import BrokerUnavailable, LedgerUnavailable
from workq.ledger.engine.database import Database
from workq.ledger.hint_rows import as_bytes, body_of, insert_hints
from workq.values.codec import Envelope, decode_hint, encode_hint
from workq.values.hint import HintRow

_BROWSED_AT_ONCE: Final = 500
_VERSION: Final = {
    "sqlite": "SELECT sqlite_version()",
    "postgresql": "SHOW server_version",
    "mysql": "SELECT VERSION()",
}


class EmbeddedBroker:
    """The port of the broker, on the ledger's own database."""

    is_transactional = True
    rows_from_s = math.inf
    horizon_s = 3.2e8  # a little more than the longest delay, ten years: what is due later stands behind another
    unit_s = 0.0
    is_late = False
    is_listable = True
    has_owners = False
    tells_position = False

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
        self.database.run(partial(unmark, self.database, name), deadline_s=CLOSE_S)
        self.wake()

    def depths(self, queues: Sequence[str], *, with_consumers: bool = False) -> Mapping[str, Depth]:  # noqa: ARG002 - told anyway
        hint, database = self.database.tables.hint, self.database
        free = is_free(database)
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

    def position(self, queue: str) -> str | None:
        """None: it proves losses by markers."""

    def has_passed(self, queue: str, position: str) -> bool:  # noqa: ARG002 - it is of another broker
        return False

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
                    self.database.run(partial(remove, self.database, gone))
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
            select(hint.c.id, hint.c.due_at, body_of(self.database).label("body"))
            .where(*is_due)
            .order_by(hint.c.due_at, hint.c.id)
            .limit(_BROWSED_AT_ONCE)
        ).all()

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
