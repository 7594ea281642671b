"""Opening: the stores that settings name, put together for one process. Nothing is contacted before, nor loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workq.config import Settings

if TYPE_CHECKING:
    from workq.broker import Broker
    from workq.enqueue.producer import Producer
    from workq.inflight import InFlight
    from workq.ledger.engine.database import Database
    from workq.ledger.sql import Ledger
    from workq.stores import Stores


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
        LedgerUnavailable: the ledger did not answer. SchemaMismatch: run `workq db migrate`. NoLedger: there is none.
    """
    from workq.enqueue.producer import Producer
    from workq.ledger.engine import migrate
    from workq.ledger.sql import Ledger
    from workq.slices import SLICES
    from workq.stores import Stores

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
            stores = Stores(ledger, open_broker(settings, database), open_inflight(settings, database))
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


def open_broker(settings: Settings, database: Database) -> Broker:
    """The broker that the settings name, or rows of the ledger's database."""
    if settings.broker is None:
        from workq.broker.embedded import EmbeddedBroker

        return EmbeddedBroker(database)
    from workq.broker.rabbitmq import RabbitMQBroker

    return RabbitMQBroker(
        settings.broker,
        namespace=settings.namespace,
        queue_type=settings.queue_type,
        ladder=settings.ladder,
        heartbeat_s=settings.times.amqp_heartbeat_s,
        confirm_s=settings.times.confirm_s,
    )


def open_inflight(settings: Settings, database: Database) -> InFlight:
    """The in-flight store that the settings name, or rows of the ledger's database."""
    if settings.inflight is None:
        from workq.inflight.embedded import EmbeddedInFlight

        return EmbeddedInFlight(database)
    from workq.inflight.redis import RedisInFlight

    return RedisInFlight(settings.inflight, namespace=settings.namespace, socket_s=settings.times.redis_socket_s)
