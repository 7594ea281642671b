"""The scratch namespace of one certification: damaged on purpose, and read by the auditor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError

from workq.lab.namespace import Namespace, Order, deleting_queue, redis_client
from workq.values import codec
from workq.values.task import State

_LOCKED_ROWS: Final = 200
_UNLIMITED: Final = {
    "postgresql": "SET idle_in_transaction_session_timeout = 0",
    # to MySQL, which has no such limit, the second part is a comment
    "mysql": "SET SESSION innodb_lock_wait_timeout = 50 /*M!100300 , SESSION idle_transaction_timeout = 0 */",
}
"""A transaction of somebody else may be idle for as long as it likes."""


@dataclass(frozen=True, slots=True)
class FinalRow:
    """One task as the ledger has it at the end."""

    id: str
    number: int
    state: State
    attempt: int
    reason: str | None


class Scratch(Namespace):
    """One scratch namespace, reached directly. The WorkQueue of the auditor belongs to it."""

    # -- faults

    def purge_queue(self) -> int:
        """Lose the hints that wait in the queue; answers how many there were."""
        if self.settings.broker is None:
            hint = self.database.tables.hint
            return self._change(delete(hint).where(hint.c.queue == self.queue, hint.c.due_at <= self.database.now()))
        return self._purge([self.topology().main_queue(self.queue)])

    def purge_delays(self) -> int:
        """Lose the hints that wait for their time; answers how many there were."""
        if self.settings.broker is None:
            hint = self.database.tables.hint
            return self._change(delete(hint).where(hint.c.queue == self.queue, hint.c.due_at > self.database.now()))
        return self._purge([level.name for level in self.delays()])

    def delete_queue(self) -> None:
        """Delete the queue under its consumers."""
        queue = self.topology().main_queue(self.queue)
        self.tell([deleting_queue(queue)])

    def wipe_inflight(self) -> None:
        """Lose holds, leases and the epoch, as FLUSHALL would."""
        if self.settings.inflight is None:
            tables = self.database.tables

            def wipe(tx: Any) -> None:
                tx.execute(delete(tables.hold))
                tx.execute(delete(tables.lease))
                tx.execute(delete(tables.meta).where(tables.meta.c.name == "inflight_epoch"))

            self.database.run(wipe)
            return
        with redis_client(self.settings.inflight) as client:
            self.drop_keys(client)

    @contextmanager
    def locked_rows(self) -> Iterator[int]:
        """Somebody else's transaction has locked rows of open tasks (on SQLite: the file); how many."""
        t = self.database.tables.task
        is_open = t.c.state.in_([State.READY, State.WAITING, State.RUNNING])
        with self.database.engine.connect() as other:
            if unlimited := _UNLIMITED.get(self.database.dialect):  # it is not one of ours, which the server would end
                other.exec_driver_sql(unlimited)
            chosen = select(t.c.id).where(is_open).order_by(t.c.id.desc()).limit(_LOCKED_ROWS)
            locked = other.execute(chosen.with_for_update()).all()
            yield len(locked)
            with suppress(DBAPIError):  # the server went away meanwhile, and the locks with it
                other.rollback()
            other.invalidate()

    # -- what is there

    def rows(self) -> list[FinalRow]:
        """Every task."""
        t = self.database.tables.task
        query = select(t.c.id, t.c.state, t.c.attempt, t.c.reason, t.c.payload).order_by(t.c.id)
        found = self.database.ask(lambda tx: tx.execute(query).all())
        return [FinalRow(row.id, _number(row.payload), State(row.state), row.attempt, row.reason) for row in found]

    def settled(self, limit: int) -> dict[str, tuple[str, int, Any]]:
        """The newest tasks that are settled: state, attempt and time, which must never change again."""
        t = self.database.tables.task
        query = select(t.c.id, t.c.state, t.c.attempt, t.c.settled_at).where(t.c.settled_at.is_not(None))
        found = self.database.ask(lambda tx: tx.execute(query.order_by(t.c.id.desc()).limit(limit)).all())
        return {row.id: (row.state, row.attempt, row.settled_at) for row in found}

    def settled_of(self, task_ids: Sequence[str]) -> dict[str, tuple[str, int, Any]]:
        """The same, of these tasks."""
        t = self.database.tables.task
        query = select(t.c.id, t.c.state, t.c.attempt, t.c.settled_at)
        found: dict[str, tuple[str, int, Any]] = {}
        for start in range(0, len(task_ids), 500):
            page = query.where(t.c.id.in_(task_ids[start : start + 500]))
            rows = self.database.ask(lambda tx, page=page: tx.execute(page).all())  # type: ignore[misc]  # a lambda's default has no type
            found |= {row.id: (row.state, row.attempt, row.settled_at) for row in rows}
        return found

    def events(self, kind: str) -> list[tuple[str, int]]:
        """Task and attempt of each event of one kind."""
        e = self.database.tables.event
        query = select(e.c.task_id, e.c.attempt).where(e.c.kind == kind)
        found = self.database.ask(lambda tx: tx.execute(query).all())
        return [(row.task_id, row.attempt or 0) for row in found]

    def quarantined(self) -> int:
        """How many messages nobody could read."""
        if self.settings.broker is None:
            return len(self.events("quarantined"))
        quarantine = self.topology().quarantine
        [answer] = self.tell([lambda channel, done: channel.queue_declare(quarantine, passive=True, callback=done)])
        return 0 if answer is None else int(answer.method.message_count)

    def _purge(self, queues: Sequence[str]) -> int:
        answers = self.tell([_purging(queue) for queue in queues])
        return sum(answer.method.message_count for answer in answers if answer is not None)

    def _change(self, statement: Any) -> int:
        changed: int = self.database.run(lambda tx: tx.execute(statement).rowcount)
        return changed


def _purging(queue: str) -> Order:
    return lambda channel, done: channel.queue_purge(queue, callback=done)


def _number(payload: str) -> int:
    arguments = codec.decode(payload)
    found = arguments["k"]["number"] if "number" in arguments.get("k", {}) else arguments["a"][0]
    return int(found)
