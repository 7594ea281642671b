"""The scratch namespace of one run: tables, queues and keys that begin with `certify_xxxxxxxx`, and nothing else.

It is made beside the user's own: in the same database, virtual host and Redis. A SQLite ledger gets a file of its own
in the same folder, because a file has one writer, and the application may be using it. Everything here works on names
of this namespace alone: what is purged, deleted, wiped or removed was made by this run.

What a crash leaves: the whole namespace. Its name is told at the start of a run, and `workq certify --remove NAME`
removes it later.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, select, text

from workq import codec
from workq.app import WorkQueue
from workq.certify.wire import Store
from workq.certify.witness import QUEUE
from workq.config import Settings, Times
from workq.errors import ConfigError
from workq.ledger import migrate
from workq.ledger.database import Database
from workq.task import State

if TYPE_CHECKING:
    from pika import SelectConnection
    from pika.channel import Channel

PREFIX: Final = "certify_"
_NAME: Final = re.compile(PREFIX + "[0-9a-f]{8}")
_LOCKED_ROWS: Final = 200
_ASK_S: Final = 10.0
_VERSION: Final = {
    "sqlite": "SELECT sqlite_version()",
    "postgresql": "SHOW server_version",
    "mysql": "SELECT VERSION()",
}
_PRODUCT: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL"}


@dataclass(frozen=True, slots=True)
class Row:
    """One task as the ledger has it at the end."""

    id: str
    number: int
    state: State
    attempt: int
    reason: str | None


def new_name() -> str:
    """A namespace that nobody has."""
    return f"{PREFIX}{secrets.token_hex(4)}"


def settings_for(settings: Settings, name: str, times: Times) -> Settings:
    """The same stores for another namespace; SQLite: another file in the same folder.

    Raises:
        ConfigError: the name is not one of a scratch namespace.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:60]!r} is not a namespace of `workq certify`: certify_ and eight hexadecimal digits")
    ledger = settings.ledger
    if ledger.startswith("sqlite:///"):
        path, mark, query = ledger.removeprefix("sqlite:///").partition("?")
        ledger = f"sqlite:///{Path(path).absolute().parent / name}.db{mark}{query}"
    return Settings(
        ledger=ledger,
        broker=settings.broker,
        inflight=settings.inflight,
        namespace=name,
        queue_type=settings.queue_type,
        times=times,
    )


def write_settings(file: Path, settings: Settings, urls: dict[Store, str]) -> Path:
    """A settings file for processes of this run, with these URLs. It holds passwords: only its owner may read it."""
    file.touch(mode=0o600)
    texts = {**{store.value: url for store, url in urls.items()}, "namespace": settings.namespace}
    texts["queue_type"] = settings.queue_type
    lines = [f"{name} = {json.dumps(value)}" for name, value in texts.items()]
    lines += ["[times]", *(f"{one.name} = {float(getattr(settings.times, one.name))!r}" for one in fields(Times))]
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return file


class Scratch:
    """One scratch namespace, reached directly. The WorkQueue of the auditor belongs to it."""

    def __init__(self, settings: Settings, app: WorkQueue) -> None:
        self.settings = settings
        self.app = app
        self.database = Database(
            settings.ledger, namespace=settings.namespace, statement_timeout_s=settings.times.statement_s
        )

    def create(self) -> None:
        """Make the tables. Queues and keys are made by whoever needs them first.

        Raises:
            LedgerUnavailable: the database did not answer. SchemaMismatch: this user may not create tables.
        """
        migrate.migrate(self.database)

    # -- faults

    def purge_queue(self) -> int:
        """Lose the hints that wait in the queue; answers how many there were."""
        if self.settings.broker is None:
            hint = self.database.tables.hint
            return self._change(delete(hint).where(hint.c.queue == QUEUE, hint.c.due_at <= self.database.now()))
        return self._purge([self._topology().main_queue(QUEUE)])

    def purge_delays(self) -> int:
        """Lose the hints that wait for their time; answers how many there were."""
        if self.settings.broker is None:
            hint = self.database.tables.hint
            return self._change(delete(hint).where(hint.c.queue == QUEUE, hint.c.due_at > self.database.now()))
        return self._purge(self._delay_names())

    def delete_queue(self) -> None:
        """Delete the queue under its consumers."""
        queue = self._topology().main_queue(QUEUE)
        self._tell([lambda channel, done: channel.queue_delete(queue, callback=done)])

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
        with _redis(self.settings.inflight) as client:
            self._drop_keys(client)

    @contextmanager
    def locked_rows(self) -> Iterator[int]:
        """Somebody else's transaction has locked rows of open tasks (on SQLite: the file); how many."""
        t = self.database.tables.task
        is_open = t.c.state.in_([State.READY, State.WAITING, State.RUNNING])
        with self.database.engine.connect() as other:
            chosen = select(t.c.id).where(is_open).order_by(t.c.id.desc()).limit(_LOCKED_ROWS)
            locked = other.execute(chosen.with_for_update()).all()
            yield len(locked)
            other.rollback()

    # -- what is there

    def rows(self) -> list[Row]:
        """Every task."""
        t = self.database.tables.task
        query = select(t.c.id, t.c.state, t.c.attempt, t.c.reason, t.c.payload).order_by(t.c.id)
        found = self.database.ask(lambda tx: tx.execute(query).all())
        return [Row(row.id, _number(row.payload), State(row.state), row.attempt, row.reason) for row in found]

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
            rows = self.database.ask(lambda tx, page=page: tx.execute(page).all())  # type: ignore[misc]
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
        quarantine = self._topology().quarantine
        [answer] = self._tell([lambda channel, done: channel.queue_declare(quarantine, passive=True, callback=done)])
        return 0 if answer is None else int(answer.method.message_count)

    def versions(self) -> dict[str, str]:
        """The servers as they name themselves."""
        dialect = self.database.dialect
        told = str(self.database.ask(lambda tx: tx.execute(text(_VERSION[dialect])).scalar_one()))
        product = "MariaDB" if "mariadb" in told.lower() else _PRODUCT[dialect]
        found = {Store.LEDGER.value: f"{product} {told}"}
        stores = self.app.stores
        found[Store.BROKER.value] = stores.broker.check() if self.settings.broker else "embedded in the ledger"
        found[Store.INFLIGHT.value] = stores.inflight.check() if self.settings.inflight else "embedded in the ledger"
        return found

    # -- the end

    def close(self) -> None:
        """Close connections."""
        self.app.close()
        self.database.close()

    def remove(self) -> list[str]:
        """Remove everything of this namespace; answers what could not be removed, and why. Repeatable."""
        left = []
        for what, do in (("queues", self._remove_queues), ("keys", self._remove_keys), ("tables", self._remove_tables)):
            try:
                do()
            except Exception as error:  # the rest is removed all the same
                left.append(f"{what} of {self.settings.namespace}: {error}")
        return left

    def _remove_tables(self) -> None:
        if self.database.dialect == "sqlite":
            self.database.close()
            file = Path(str(self.database.url.database))
            for suffix in ("", "-wal", "-shm", "-journal"):
                file.with_name(file.name + suffix).unlink(missing_ok=True)
            return
        self.database.run(lambda tx: self.database.tables.metadata.drop_all(tx), deadline_s=_ASK_S)

    def _remove_queues(self) -> None:
        if self.settings.broker is None:
            return
        from workq.broker import ladder

        topology, delays = self._topology(), self._delay_names()
        queues = [topology.main_queue(QUEUE), topology.quarantine, *delays]
        exchanges = [ladder.due_exchange(self.settings.namespace), *delays]
        orders: list[_Order] = [_deleting_queue(name) for name in queues]
        self._tell([*orders, *(_deleting_exchange(name) for name in exchanges)])

    def _remove_keys(self) -> None:
        if self.settings.inflight is not None:
            with _redis(self.settings.inflight) as client:
                self._drop_keys(client)

    def _drop_keys(self, client: Any) -> None:
        keys = list(client.scan_iter(match=f"{{{self.settings.namespace}}}:*", count=1000))
        for start in range(0, len(keys), 500):
            client.delete(*keys[start : start + 500])

    def _change(self, statement: Any) -> int:
        changed: int = self.database.run(lambda tx: tx.execute(statement).rowcount)
        return changed

    # -- RabbitMQ

    def _topology(self) -> Any:
        from workq.broker.topology import Topology

        return Topology(self.settings.namespace, self.settings.queue_type)

    def _delay_names(self) -> list[str]:
        from workq.broker import ladder

        return [level.name for level in ladder.levels(self.settings.namespace)]

    def _purge(self, queues: Sequence[str]) -> int:
        answers = self._tell([_purging(queue) for queue in queues])
        return sum(answer.method.message_count for answer in answers if answer is not None)

    def _tell(self, orders: Sequence[_Order]) -> list[Any]:
        """One order after the other; what is not there (404) answers None."""
        from pika.exceptions import ChannelClosedByBroker

        from workq.broker.amqp import Address, converse

        if self.settings.broker is None:
            return []
        address = Address.parse(self.settings.broker)
        answers: list[Any] = []

        def talk(connection: SelectConnection, answer: Callable[[list[Any] | Exception], None]) -> None:
            def go_on(channel: Channel) -> None:
                if len(answers) == len(orders):
                    answer(answers)
                    return

                def done(frame: Any) -> None:
                    answers.append(frame)
                    go_on(channel)

                orders[len(answers)](channel, done)

            def closed(_channel: Channel, reason: Exception) -> None:
                if not isinstance(reason, ChannelClosedByBroker):
                    return
                if reason.reply_code != 404:
                    answer(reason)
                    return
                answers.append(None)
                begin()

            def opened(channel: Channel) -> None:
                channel.add_on_close_callback(closed)
                go_on(channel)

            def begin() -> None:
                connection.channel(on_open_callback=opened)

            begin()

        parameters = address.parameters(name="workq certify", heartbeat_s=20.0, connect_s=3.0)
        return converse(parameters, address, talk, deadline_s=_ASK_S)


_Order = Callable[["Channel", Callable[[Any], None]], Any]


def _purging(queue: str) -> _Order:
    return lambda channel, done: channel.queue_purge(queue, callback=done)


def _deleting_queue(name: str) -> _Order:
    return lambda channel, done: channel.queue_delete(name, callback=done)


def _deleting_exchange(name: str) -> _Order:
    return lambda channel, done: channel.exchange_delete(name, callback=done)


@contextmanager
def _redis(url: str) -> Iterator[Any]:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = Redis.from_url(url, socket_timeout=_ASK_S, socket_connect_timeout=3.0, retry=Retry(NoBackoff(), 0))
    try:
        yield client
    finally:
        with suppress(Exception):
            client.close()


def _number(payload: str) -> int:
    arguments = codec.decode(payload)
    found = arguments["k"]["number"] if "number" in arguments.get("k", {}) else arguments["a"][0]
    return int(found)
