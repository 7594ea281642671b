"""Opening: the stores that settings name, put together for one process. Nothing is contacted before, nor loaded."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from workq.config import LEDGER, Settings
from workq.config.kafka import is_kafka

if TYPE_CHECKING:
    from workq.broker import Broker
    from workq.broker.signs import BrokerSigns
    from workq.enqueue.producer import Producer
    from workq.inflight import InFlight
    from workq.ledger.engine.database import Database
    from workq.ledger.sql import Ledger
    from workq.stores import Stores

_everyone: weakref.WeakSet[OpenedOnce] = weakref.WeakSet()


class OpenedOnce:
    """The stores of one application in this process: opened when first asked for, closed at exit.

    One object serves all threads. The child of a fork opens its own connections.
    """

    def __init__(self, connect: Callable[[bool], tuple[Stores, Producer]]) -> None:
        """`connect`: opens them, and makes a SQLite file that is not there if it is given True."""
        self.is_kept = False
        """`close` does nothing."""
        self._connect = connect
        self._lock = threading.Lock()
        self._opened: tuple[Stores, Producer] | None = None
        self._inherited: list[object] = []
        _everyone.add(self)

    def get(self, *, makes: bool = True) -> tuple[Stores, Producer]:
        """The stores, and what records tasks into them."""
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened
                if opened is None:
                    opened = self._opened = self._connect(makes)
                    atexit.register(partial(_close_at_exit, weakref.ref(self)))
        return opened

    def close(self) -> None:
        """Publish what is behind, within a bound, and close every connection. They are opened again when asked for."""
        if self.is_kept:
            return
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            stores, producer = opened
            producer.close()
            stores.close()

    def forked(self) -> None:
        """In the child of a fork: never touch or free the parent's connections."""
        self.is_kept = False
        self._lock = threading.Lock()
        if self._opened is not None:
            self._inherited.append(self._opened)
            self._opened = None


def _after_fork() -> None:
    for one in list(_everyone):
        one.forked()


os.register_at_fork(after_in_child=_after_fork)


def _close_at_exit(reference: weakref.ref[OpenedOnce]) -> None:
    opened = reference()
    if opened is not None:
        opened.close()


def ledger_database(settings: Settings, *, makes: bool) -> Database:
    """A new engine on the ledger, without looking at its schema. The caller closes it.

    `makes`: a SQLite file that is not there is made when something connects.
    """
    from workq.ledger.engine.database import Database

    return Database(
        settings.ledger,
        namespace=settings.namespace,
        statement_timeout_s=settings.times.statement_s,
        makes=makes,
        origin=settings.origins.get("ledger", "default"),
    )


def open_stores(settings: Settings, *, makes: bool) -> tuple[Stores, Producer]:
    """The stores, and what records tasks into them. `makes`: a SQLite file that is not there, with its schema.

    Raises:
        LedgerUnavailable: the ledger did not answer. SchemaMismatch: it is older or newer. NoLedger: there is none.
    """
    from workq.enqueue.producer import Producer
    from workq.ledger.engine import migrate
    from workq.ledger.sql import Ledger
    from workq.slices import SLICES

    database = ledger_database(settings, makes=makes)
    try:
        if makes:
            migrate.ensure(database)
        else:
            migrate.require_current(database)
        ledger = Ledger(database, SLICES, reserved_s=1.5 * settings.times.confirm_s)
        if settings.broker is None and settings.inflight is None:
            stores = _in_one(ledger, database)
        else:
            stores = _apart(settings, ledger, database)
    except BaseException:
        database.close()
        raise
    times = settings.times
    return stores, Producer(stores, confirm_s=times.confirm_s, grace_s=times.unpublished_grace_s)


def _in_one(ledger: Ledger, database: Database) -> Stores:
    """Hints and leases are rows beside the ledger, and a claim is the hold."""
    from workq.broker.embedded import EmbeddedBroker
    from workq.inflight.embedded import ClaimsInFlight
    from workq.stores import Stores

    broker = EmbeddedBroker(database)
    return Stores(ledger, broker, ClaimsInFlight(database), direct=broker)


def _apart(settings: Settings, ledger: Ledger, database: Database) -> Stores:
    """Broker or in-flight store is a server of its own. Delayed hints that are rows have a mover to such a broker."""
    from workq.stores import Stores

    broker, inflight = open_broker(settings, database), open_inflight(settings, database)
    if settings.broker is None:
        return Stores(ledger, broker, inflight)
    from workq.broker.later import LedgerDelays
    from workq.broker.later.mover import LOOK_RARELY_S, LOOK_S, Mover

    is_ledger = settings.ladder == LEDGER
    mover = Mover(
        database,
        broker,
        look_s=LOOK_S if is_ledger else LOOK_RARELY_S,
        confirm_s=settings.times.confirm_s,
    )
    if is_ledger:
        broker = LedgerDelays(broker, database, on_written=mover.wake)
    return Stores(ledger, broker, inflight, mover=mover, signs=open_signs(settings))


def open_broker(settings: Settings, database: Database) -> Broker:
    """The server that the settings name, or rows of the ledger's database."""
    if settings.broker is None:
        from workq.broker.embedded import EmbeddedBroker

        return EmbeddedBroker(database)
    if is_kafka(settings.broker):
        from workq.broker.kafka import KafkaBroker

        return KafkaBroker(settings.broker, namespace=settings.namespace, confirm_s=settings.times.confirm_s)
    from workq.broker.rabbitmq import RabbitMQBroker

    return RabbitMQBroker(
        settings.broker,
        namespace=settings.namespace,
        queue_type=settings.queue_type,
        ladder=settings.ladder,
        heartbeat_s=settings.times.amqp_heartbeat_s,
        confirm_s=settings.times.confirm_s,
    )


def open_signs(settings: Settings) -> BrokerSigns | None:
    """Signs of life in the server that the settings name; None where it gives none."""
    if settings.broker is None or is_kafka(settings.broker):
        return None
    from workq.broker.rabbitmq.signs import RabbitMQSigns

    return RabbitMQSigns(settings.broker, namespace=settings.namespace)


def open_inflight(settings: Settings, database: Database) -> InFlight:
    """The in-flight store that the settings name, or rows of the ledger's database."""
    if settings.inflight is None:
        from workq.inflight.embedded import EmbeddedInFlight

        return EmbeddedInFlight(database)
    from workq.inflight.redis import RedisInFlight

    return RedisInFlight(settings.inflight, namespace=settings.namespace, socket_s=settings.times.redis_socket_s)
