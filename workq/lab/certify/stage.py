"""What the faults act on: a scratch namespace and the network before it; and the harms that they leave behind, by which
the auditor explains second starts.

The driver and the workers go through a TCP proxy for each store, the auditor does not. A store without a host of its
own (a file, a socket of the file system) has no wire; neither has one whose certificate is checked against its host's
name, nor a cluster, nor a Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError

from workq.config import LEDGER, Settings, Times, node_urls
from workq.config.kafka import is_kafka
from workq.config.sentinel import is_sentinel
from workq.diagnose.bounds import Bounds
from workq.lab.fleet import Host
from workq.lab.namespace import Namespace, Order, Store, deleting_queue, redis_client, urls_of
from workq.lab.proxy import FaultProxy
from workq.values import codec
from workq.values.task import State

WAKING_S: Final = 30.0
"""So long after a pause past its lease a process may still be leaving, with the status that says so."""
_CHECKS_THE_HOST: Final = ("amqps://", "rediss://", "sslmode=verify-full", "ssl_verify_identity", "ssl_check_hostname")
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
    times: str = ""
    """When it was queued, due and hinted last, by the ledger's clock: told where something is wrong."""


class Scratch(Namespace):
    """One scratch namespace, reached directly. The WorkQueue of the auditor belongs to it."""

    # -- faults

    def purge_queue(self) -> int:
        """Lose the hints that wait in the queue; answers how many there were."""
        if self.settings.broker is None:
            hint = self.database.tables.hint
            return self._change(delete(hint).where(hint.c.queue == self.queue, hint.c.due_at <= self.database.now()))
        if (topics := self.topics()) is not None:
            return topics.purge(self.queue)
        return self._purge([self.topology().main_queue(self.queue)])

    def purge_delays(self) -> int:
        """Lose the hints that wait for their time; answers how many there were. Rows, where these keep delays."""
        if self.settings.broker is None or self.settings.ladder == LEDGER:
            hint = self.database.tables.hint
            return self._change(delete(hint).where(hint.c.queue == self.queue, hint.c.due_at > self.database.now()))
        return self._purge([level.name for level in self.delays()])

    def delete_queue(self) -> None:
        """Delete the queue under its consumers."""
        if (topics := self.topics()) is not None:
            topics.delete(self.queue)
            return
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
        columns = (t.c.id, t.c.state, t.c.attempt, t.c.reason, t.c.payload, t.c.queued_at, t.c.due_at, t.c.published_at)
        query = select(*columns, self.database.now().label("now")).order_by(t.c.id)
        found = self.database.ask(lambda tx: tx.execute(query).all())
        return [
            FinalRow(row.id, _number(row.payload), State(row.state), row.attempt, row.reason, _times(row))
            for row in found
        ]

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
        if (topics := self.topics()) is not None:
            return topics.quarantined()
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


def _times(row: Any) -> str:
    hinted = "not hinted" if row.published_at is None else f"hinted {row.published_at:%H:%M:%S.%f}"
    return f"queued {row.queued_at:%H:%M:%S.%f}, due {row.due_at:%H:%M:%S.%f}, {hinted}; read {row.now:%H:%M:%S.%f}"


def _number(payload: str) -> int:
    arguments = codec.decode(payload)
    found = arguments["k"]["number"] if "number" in arguments.get("k", {}) else arguments["a"][0]
    return int(found)


class Wires(AbstractContextManager["Wires"]):
    """The proxies of one run. `missing` tells of each store without one, why."""

    def __init__(self, settings: Settings) -> None:
        self.urls: dict[Store, str] = {}
        """Where each store is for those who go through the proxies."""
        self.proxies: dict[Store, FaultProxy] = {}
        self.missing: dict[Store, str] = {}
        for store, url in urls_of(settings).items():
            self.urls[store] = url
            if is_kafka(url):
                self.missing[store] = "Kafka tells its own addresses, which lead around a proxy"
                continue
            if any(mark in url for mark in _CHECKS_THE_HOST):
                self.missing[store] = "TLS checks the host's name, and a proxy has another"
                continue
            if node_urls(url) != [url]:
                self.missing[store] = "the nodes of a cluster tell their own addresses, which lead around a proxy"
                continue
            if is_sentinel(url):
                self.missing[store] = "the Sentinels tell the primary's own address, which leads around a proxy"
                continue
            try:
                proxy = FaultProxy.before(url)
            except ValueError:
                self.missing[store] = "no one way to it through a network: a file, a local socket, or several hosts"
                continue
            proxy.start()
            self.proxies[store] = proxy
            self.urls[store] = proxy.url(url)

    def heal(self) -> None:
        """End all faults."""
        for proxy in self.proxies.values():
            proxy.heal()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for proxy in self.proxies.values():
            proxy.stop()


class DuplicateCause(StrEnum):
    """Why a task may have been started twice."""

    KILLED = "killed"
    PAUSED = "paused"
    CUT = "cut off"


@dataclass(frozen=True, slots=True)
class Harm:
    """What one fault did to processes (`pids`), or to everybody's way to a store (none). Times are monotonic."""

    cause: DuplicateCause
    fault: str
    at: float
    until: float
    pids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Stage:
    """What the faults act on, and what they leave behind."""

    folder: Path
    hosts: list[Host]
    scratch: Scratch
    wires: Wires
    times: Times
    rng: Random
    harms: list[Harm] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """What went wrong that should not have, whatever the fault."""
    tell: Callable[[str], None] = lambda _: None
    pile_up: Callable[[], None] = lambda: None
    """Enqueue more at once than the workers can take, so that hints wait in the queue."""

    def note(self, cause: DuplicateCause, fault: str, at: float, pids: Iterable[int] = ()) -> None:
        """A harm that has ended just now."""
        self.harms.append(Harm(cause, fault, at, time.monotonic(), frozenset(pids)))

    def good_ends(self) -> set[int | None]:
        """How a supervisor may end after SIGTERM: with 0; with 1 if one of its processes, just woken, was leaving."""
        woken = any(
            harm.cause is DuplicateCause.PAUSED and harm.until > time.monotonic() - WAKING_S for harm in self.harms
        )
        return {0, 1} if woken else {0}

    def bounds(self) -> Bounds:
        """How long recoveries may take with these times."""
        return Bounds.of(self.times)
