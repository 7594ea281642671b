"""A scratch namespace: tables, queues or topics, and keys that begin with `certify_xxxxxxxx` or `bench_xxxxxxxx`.

Nothing else is touched. It is made beside the user's own: in the same database, virtual host, Kafka and Redis. A SQLite
ledger gets a file of its own in the same folder, because a file has one writer, and the application may be using it.
Everything here works on names of this namespace alone: what is purged, deleted, wiped or removed was made by this run.

What a crash leaves: the whole namespace. Its name is told at the start of a run, and `--remove NAME` of the command
that made it removes it later.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from workq import __version__
from workq.app import WorkQueue
from workq.config import Settings, Times, node_urls
from workq.config.kafka import is_kafka
from workq.config.sentinel import is_sentinel
from workq.errors import ConfigError
from workq.ledger.engine import migrate
from workq.ledger.engine.database import Database
from workq.slices import every_table

if TYPE_CHECKING:
    from pika import SelectConnection
    from pika.channel import Channel

    from workq.broker.rabbitmq.delays import DelayQueue
    from workq.lab.topics import ScratchTopics

_NAME: Final = re.compile("(certify|bench)_[0-9a-f]{8}")
_LIBRARIES: Final = ("sqlalchemy", "msgspec", "psutil", "pika", "redis", "psycopg", "PyMySQL", "confluent-kafka")
_ASK_S: Final = 10.0
_VERSION: Final = {
    "sqlite": "SELECT sqlite_version()",
    "postgresql": "SHOW server_version",
    "mysql": "SELECT VERSION()",
}
_PRODUCT: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL"}


class Store(StrEnum):
    """Which of the three."""

    LEDGER = "ledger"
    BROKER = "broker"
    INFLIGHT = "inflight"


def new_name(purpose: str) -> str:
    """A namespace that nobody has, for `certify` or `bench`."""
    return f"{purpose}_{secrets.token_hex(4)}"


def urls_of(settings: Settings) -> dict[Store, str]:
    """The stores that are servers or files of their own; an embedded one is part of the ledger."""
    urls = {Store.LEDGER: settings.ledger, Store.BROKER: settings.broker, Store.INFLIGHT: settings.inflight}
    return {store: url for store, url in urls.items() if url is not None}


def settings_for(settings: Settings, name: str, times: Times) -> Settings:
    """The same stores for another namespace; SQLite: another file in the same folder.

    Raises:
        ConfigError: the name is not one of a scratch namespace.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:60]!r} is no scratch namespace: certify_ or bench_, and eight hexadecimal digits")
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
        ladder=settings.ladder,
        times=times,
    )


def write_settings(file: Path, settings: Settings, urls: dict[Store, str]) -> Path:
    """A settings file for processes of this run, with these URLs. It holds passwords: only its owner may read it."""
    file.touch(mode=0o600)
    texts = {**{store.value: url for store, url in urls.items()}, "namespace": settings.namespace}
    texts |= {"queue_type": settings.queue_type, "ladder": settings.ladder}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in texts.items()]
    lines += ["[times]", *(f"{one.name} = {float(getattr(settings.times, one.name))!r}" for one in fields(Times))]
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return file


def versions_here() -> dict[str, str]:
    """workq, Python, the system and the client libraries of this machine."""
    found = {
        "workq": __version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processors": str(os.cpu_count()),
    }
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Namespace:
    """One scratch namespace, reached directly. The WorkQueue belongs to it."""

    def __init__(self, settings: Settings, app: WorkQueue) -> None:
        self.settings = settings
        self.queue = settings.namespace.partition("_")[0]
        """Where its tasks wait. It has the name of the purpose, so any command can remove what another has left."""
        self.app = app
        self.database = Database(
            settings.ledger, namespace=settings.namespace, statement_timeout_s=settings.times.statement_s
        )

    def create(self) -> None:
        """Make the tables. Queues and keys are made by whoever needs them first; on Kafka the rights are tried.

        Raises:
            LedgerUnavailable: the database did not answer. SchemaMismatch: this user may not create tables.
            ConfigError: what this user may not do on Kafka, and what to grant.
        """
        migrate.migrate(self.database)
        if (topics := self.topics()) is not None:
            topics.try_rights()

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
        self.database.run(lambda tx: every_table(self.database.tables).drop_all(tx), deadline_s=_ASK_S)

    def _remove_queues(self) -> None:
        if self.settings.broker is None:
            return
        if (topics := self.topics()) is not None:
            topics.remove()
            return
        from workq.broker.rabbitmq.delays import due_exchange

        topology, delays = self.topology(), self.delays()
        queues = [topology.main_queue(self.queue), topology.quarantine, *(level.name for level in delays)]
        exchanges = {due_exchange(self.settings.namespace), *(level.exchange for level in delays)}
        orders: list[Order] = [deleting_queue(name) for name in queues]
        self.tell([*orders, *(deleting_exchange(name) for name in exchanges)])

    def _remove_keys(self) -> None:
        if self.settings.inflight is not None:
            with redis_client(self.settings.inflight) as client:
                self.drop_keys(client)

    def drop_keys(self, client: Any) -> None:
        keys = list(client.scan_iter(match=f"{{{self.settings.namespace}}}:*", count=1000))
        for start in range(0, len(keys), 500):
            client.delete(*keys[start : start + 500])

    # -- Kafka

    def topics(self) -> ScratchTopics | None:
        """The topics of this namespace; None: the broker has no topics."""
        if not is_kafka(self.settings.broker):
            return None
        from workq.lab.topics import ScratchTopics  # needs confluent-kafka, which only Kafka asks for

        return ScratchTopics(self.settings.broker, self.settings.namespace)

    # -- RabbitMQ

    def topology(self) -> Any:
        from workq.broker.rabbitmq.delays import delays_of
        from workq.broker.rabbitmq.topology import Topology

        return Topology(self.settings.namespace, self.settings.queue_type, delays_of(self.settings.ladder))

    def delays(self) -> list[DelayQueue]:
        """The queues in which hints wait until they are due."""
        from workq.broker.rabbitmq.delays import delays_of

        return delays_of(self.settings.ladder).queues(self.settings.namespace)

    def tell(self, orders: Sequence[Order]) -> list[Any]:
        """One order after the other; what is not there (404) answers None."""
        from pika.exceptions import ChannelClosedByBroker

        from workq.broker.rabbitmq.connection import converse
        from workq.broker.rabbitmq.nodes import Address, Nodes

        if self.settings.broker is None:
            return []
        nodes = Nodes(Address.parse(self.settings.broker), heartbeat_s=20.0, connect_s=3.0)
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

        return converse(nodes, talk, name="workq scratch", deadline_s=_ASK_S)


Order = Callable[["Channel", Callable[[Any], None]], Any]


def deleting_queue(name: str) -> Order:
    return lambda channel, done: channel.queue_delete(name, callback=done)


def deleting_exchange(name: str) -> Order:
    return lambda channel, done: channel.exchange_delete(name, callback=done)


@contextmanager
def redis_client(url: str) -> Iterator[Any]:
    client = _redis(url)
    try:
        yield client
    finally:
        with suppress(Exception):
            client.close()


def _redis(url: str) -> Any:
    """A client of a server, or of all nodes of a cluster: of those in the URL, the first that answers leads to all."""
    from redis import Redis, RedisCluster
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisClusterException
    from redis.retry import Retry

    if is_sentinel(url):
        from workq.inflight.redis import RedisInFlight

        with closing(RedisInFlight(url, socket_s=_ASK_S)) as store:
            url = store.primary_url() or url
    nodes = node_urls(url)
    for node in nodes:
        retry = Retry(NoBackoff(), 0)
        if nodes == [url]:
            return Redis.from_url(url, socket_timeout=_ASK_S, socket_connect_timeout=3.0, retry=retry)
        try:
            return RedisCluster.from_url(node, socket_timeout=_ASK_S, socket_connect_timeout=3.0, retry=retry)
        except RedisClusterException:
            if node == nodes[-1]:
                raise
    return None
