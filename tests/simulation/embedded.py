"""One database for all three stores, in a simulated world: the real embedded broker and leases, on SimDatabase.

What is replaced is the waiting. An operator can delete rows of hints, or write some. A world reads what there is as it
reads the servers in memory: the names are those of broker.py and inflight.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection

from tests.simulation import broker, inflight
from tests.simulation.ledger import BEGAN, SimDatabase, instant
from workq.broker import Hint
from workq.broker.embedded import EmbeddedBroker
from workq.broker.embedded.wakeup import Wakeup
from workq.values.codec import Envelope, decode_hint

T = TypeVar("T")


class OneLook(Wakeup):
    """A consumer looks once a step; its strand decides when to look again."""

    def __init__(self) -> None:
        """Nothing is opened."""

    def until(self, look: Callable[[], tuple[T | None, float]], wait_s: float) -> T | None:
        return look()[0]

    def close(self) -> None:
        """Nothing to give back."""


class SimEmbeddedBroker(EmbeddedBroker):
    """The broker of one process. `on_written` is told of hints that a transaction writes, which may yet fail."""

    on_written: Callable[[Sequence[Hint]], None]

    def watch(self, wait: Callable[[float], bool]) -> Wakeup:
        return OneLook()

    def insert(self, hints: Sequence[Hint], connection: Connection) -> None:
        super().insert(hints, connection)
        self.on_written(hints)


class HintRows(broker.Server):
    """The table of hints, seen and damaged from outside."""

    def __init__(self, database: SimDatabase) -> None:
        super().__init__(lambda: database.world.now)
        self._database = database
        self._table = database.tables.hint.name

    def put(self, queue: str, body: bytes, *, delay_s: float = 0.0, returns: int = 0, passes: int = 0) -> None:
        envelope = decode_hint(body)
        size = len(envelope.task_ids) if isinstance(envelope, Envelope) else 0
        self._execute(
            f"INSERT INTO {self._table} (queue, due_at, body, size, deliveries) VALUES (?, ?, ?, ?, 0)",
            (queue, instant(self.now() + delay_s), body.decode(), size),
        )

    def ids(self) -> list[str]:
        return [task_id for message in self.messages() for task_id in message.ids]

    def messages(self) -> Iterable[broker.Message]:
        rows = self._database.raw.execute(f"SELECT id, queue, body FROM {self._table} ORDER BY id").fetchall()
        for serial, queue, text in rows:
            body = text.encode()
            envelope = decode_hint(body)
            yield broker.Message(serial, queue, body, envelope.task_ids if isinstance(envelope, Envelope) else ())

    def purge(self, queue: str) -> int:
        """Whatever is in it: the delayed, too."""
        return self._delete([message for message in self.messages() if message.queue == queue])

    def wipe(self) -> int:
        return self._delete(list(self.messages()))

    def repeat(self, message: broker.Message) -> None:
        self.put(message.queue, message.body)

    def _delete(self, messages: Sequence[broker.Message]) -> int:
        self.on_lost([task_id for message in messages for task_id in message.ids])
        for message in messages:
            self._execute(f"DELETE FROM {self._table} WHERE id = ?", (message.serial,))
        return len(messages)

    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        if self._database.raw.in_transaction:  # whoever is in the middle of one is not disturbed: as a lock would do
            return
        self._database.raw.execute(statement, values)


class LeaseRows(inflight.Server):
    """The table of leases, seen from outside."""

    def __init__(self, database: SimDatabase) -> None:
        self._database = database
        super().__init__(lambda: database.world.now)
        self._seen = inflight.State()

    @property
    def state(self) -> inflight.State:
        """Always the same object, filled anew."""
        lease = self._database.tables.lease.name
        rows = self._database.raw.execute(f"SELECT worker, expires_at, reaped_at FROM {lease}").fetchall()
        seen = self._seen
        seen.leases = {worker: _seconds(expires_at) for worker, expires_at, reaped_at in rows if reaped_at is None}
        seen.lost = {worker for worker, _, reaped_at in rows if reaped_at is not None}
        return seen

    @state.setter
    def state(self, state: inflight.State) -> None:
        """The table is what there is."""


def _seconds(at: str) -> float:
    return (datetime.fromisoformat(at) - BEGAN.replace(tzinfo=None)).total_seconds()
