"""The checks behind `workq doctor`, as data: what was looked at, what was found, and what to do about it.

Reads only; no store is created or changed, and a SQLite file that does not exist is not made. Each store is asked for
itself, so that one which is away does not hide what is wrong with another. Passwords never appear: URLs are masked.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from workq import __version__
from workq.config import Settings, Times, masked
from workq.errors import ConfigError, SchemaMismatch, Unavailable, WorkqError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workq.ledger.database import Database

SKEW_MAX_S: Final = 2.0
"""Clocks that differ by more are a finding. Nothing depends on it but the due times that producers compute."""
RABBITMQ_MIN: Final = (3, 10)
_NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smbfs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)
_LIBRARIES: Final = (
    "sqlalchemy",
    "msgspec",
    "click",
    "apscheduler",
    "psutil",
    "rich",
    "pika",
    "redis",
    "psycopg",
    "PyMySQL",
)
_NEEDS: Final = {
    "postgresql": ("psycopg", "postgres"),
    "mysql": ("pymysql", "mysql"),
    "amqp": ("pika", "rabbitmq"),
    "redis": ("redis", "redis"),
}


class Level(StrEnum):
    """How a check ended. `warning` and `error` are findings; `unreachable` says that a server is away."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    area: str
    level: Level
    message: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a recovery may take with these settings, in seconds, once the surviving servers answer.

    `local_crash_s`: a worker process died under a living supervisor: until its tasks are claimable again.
    `dead_host_s`: supervisor and all are gone; a sweep runs elsewhere.
    `unpublished_s`: the producer died, or the broker was away, before the hint was confirmed.
    `inflight_wiped_s`: Redis was wiped and a worker died with it.
    """

    local_crash_s: float
    dead_host_s: float
    unpublished_s: float
    inflight_wiped_s: float

    @staticmethod
    def of(times: Times) -> Bounds:
        """The bounds that follow from the times.

        A dead host: its lease ends, the next sweep suspects it, and the first sweep at least 0.8 beats later reaps it;
        a beat more is left for the passes themselves.
        """
        second_look_s = times.sweep_s * max(1, math.ceil(0.8 * times.beat_s / times.sweep_s))
        dead_host_s = times.lease_s + times.sweep_s + second_look_s + times.beat_s
        return Bounds(
            local_crash_s=2.0,
            dead_host_s=dead_host_s,
            unpublished_s=times.unpublished_grace_s + times.sweep_s + times.confirm_s,
            inflight_wiped_s=max(dead_host_s, 3 * times.beat_s + times.sweep_s + second_look_s + times.beat_s),
        )


def examine(settings: Settings, *, queues: tuple[str, ...] = ()) -> list[Check]:
    """Look at everything, one store after the other. `queues` are looked for in the broker."""
    checks: list[Check] = []
    checks += _versions()
    checks += [Check("settings", Level.WARNING, warning) for warning in settings.warnings]
    for area, look in (
        ("ledger", lambda: _ledger(settings)),
        ("broker", lambda: _broker(settings, queues)),
        ("inflight", lambda: _inflight(settings)),
    ):
        checks += _guarded(area, look)
    return checks


def _guarded(area: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from look()
    except Unavailable as error:
        yield Check(area, Level.UNREACHABLE, _line(error))
    except WorkqError as error:
        yield Check(area, Level.ERROR, _line(error))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


# -- this installation


def _versions() -> Iterator[Check]:
    found = [f"{name} {version}" for name in _LIBRARIES if (version := _version_of(name)) is not None]
    yield Check("versions", Level.OK, f"workq {__version__}, Python {platform.python_version()} on {sys.platform}")
    yield Check("versions", Level.OK, ", ".join(found))
    year = datetime.now(UTC).year
    if not 2025 <= year < 2100:
        yield Check("clock", Level.WARNING, f"this host says that it is {year}; set its clock")


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _require(kind: str, url: str) -> None:
    module, extra = _NEEDS[kind]
    if find_spec(module) is None:
        raise ConfigError(f"{masked(url)} needs the client library {module}; install the extra [{extra}]")


def _skew(what: str, theirs: datetime, asked: datetime, told: datetime) -> Check:
    """Compare a server's clock with this host's, read before and after."""
    middle = asked + (told - asked) / 2
    skew_s = (theirs - middle).total_seconds()
    slack_s = (told - asked).total_seconds() / 2
    if abs(skew_s) > SKEW_MAX_S + slack_s:
        return Check(
            "clock",
            Level.WARNING,
            f"the clock of {what} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this host's; use NTP",
        )
    return Check("clock", Level.OK, f"{what} and this host agree within {SKEW_MAX_S:g} s")


# -- ledger


def _ledger(settings: Settings) -> Iterator[Check]:
    url = settings.ledger
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme == "sqlite":
        file = Path(url.removeprefix("sqlite:///").partition("?")[0])
        yield from _sqlite_place(url, file)
        if not file.exists():
            return
    else:
        _require("postgresql" if scheme.startswith("postgres") else "mysql", url)

    from workq.ledger import migrate
    from workq.ledger.database import Database

    database = Database(url, namespace=settings.namespace, statement_timeout_s=settings.times.statement_s)
    try:
        with database.read() as tx:
            yield Check("ledger", Level.OK, f"{masked(url)}: {_server(tx, database)}")
        yield from _clock(database)
        with database.read() as tx:
            yield from _DIALECTS[database.dialect](tx, database)
        try:
            migrate.require_current(database)
            version = migrate.status(database).version
            yield Check("ledger", Level.OK, f"schema version {version}, namespace {settings.namespace!r}")
        except SchemaMismatch as error:
            yield Check("ledger", Level.ERROR, _line(error))
    finally:
        database.close()


def _clock(database: Database) -> Iterator[Check]:
    from sqlalchemy import select

    with database.read() as tx:
        asked = datetime.now(UTC)
        theirs: datetime = tx.execute(select(database.now())).scalar_one()
        told = datetime.now(UTC)
    if database.dialect != "sqlite":
        yield _skew("the ledger", theirs, asked, told)


def _server(tx: Connection, database: Database) -> str:
    if database.dialect == "sqlite":
        return f"SQLite {_scalar(tx, 'SELECT sqlite_version()')}"
    if database.dialect == "postgresql":
        return f"PostgreSQL {_scalar(tx, 'SHOW server_version')}"
    version = str(_scalar(tx, "SELECT VERSION()"))
    return f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {version}"


def _scalar(tx: Connection, sql: str) -> Any:
    return tx.exec_driver_sql(sql).scalar()


def _sqlite_place(url: str, file: Path) -> Iterator[Check]:
    import psutil

    folder = file.absolute().parent
    if not file.exists():
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield Check("ledger", Level.OK, f"{masked(url)}: no such file yet; the first use creates it")
        else:
            yield Check("ledger", Level.ERROR, f"{masked(url)}: cannot be created in {folder}; set WORKQ_LEDGER_URL")
            return
    elif not os.access(file, os.W_OK) or not os.access(folder, os.W_OK):
        yield Check("ledger", Level.ERROR, f"{masked(url)}: the file or its folder {folder} is not writable")
    real = file.resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if real.is_relative_to(one.mountpoint)]
    mount = max(mounts, key=lambda one: len(one.mountpoint), default=None)
    if mount is not None and mount.fstype.lower() in _NETWORK_FILESYSTEMS:
        yield Check(
            "ledger",
            Level.ERROR,
            f"{masked(url)} is on a network filesystem ({mount.fstype}): SQLite's locks do not hold there; "
            "use a local disk, or PostgreSQL",
        )


def _sqlite(tx: Connection, _database: Database) -> Iterator[Check]:
    mode = str(_scalar(tx, "PRAGMA journal_mode"))
    if mode.lower() == "wal":
        yield Check("ledger", Level.OK, "journal mode WAL")
    else:
        yield Check(
            "ledger", Level.WARNING, f"journal mode is {mode}, not WAL: readers and the writer block each other"
        )


def _postgresql(tx: Connection, _database: Database) -> Iterator[Check]:
    if _scalar(tx, "SELECT pg_is_in_recovery()"):
        yield Check("ledger", Level.ERROR, "this server is a read-only standby; the URL must name the primary")
    for name in ("fsync", "full_page_writes"):
        if str(_scalar(tx, f"SHOW {name}")) != "on":
            yield Check("ledger", Level.ERROR, f"{name} is off: a crash of the server can lose or corrupt tasks")
    if str(_scalar(tx, "SHOW synchronous_commit")) == "off":
        yield Check(
            "ledger",
            Level.WARNING,
            "synchronous_commit is off: a crash of the server can lose tasks whose enqueue() had returned",
        )


def _mysql(tx: Connection, database: Database) -> Iterator[Check]:
    is_mariadb = "mariadb" in str(_scalar(tx, "SELECT VERSION()")).lower()
    isolation = str(_scalar(tx, f"SELECT @@{'tx_isolation' if is_mariadb else 'transaction_isolation'}"))
    if isolation.replace("-", " ").upper() != "READ COMMITTED":
        yield Check("ledger", Level.ERROR, f"sessions run at {isolation}; workq needs READ COMMITTED")
    if str(_scalar(tx, "SELECT @@innodb_flush_log_at_trx_commit")) != "1":
        yield Check(
            "ledger",
            Level.WARNING,
            "innodb_flush_log_at_trx_commit is not 1: a crash of the server can lose tasks that enqueue() recorded",
        )
    rows = tx.exec_driver_sql(
        "SELECT table_name, engine, table_collation FROM information_schema.tables WHERE table_schema = DATABASE()"
    ).all()
    ours = {table.name for table in database.tables.metadata.sorted_tables}
    for name, engine, collation in rows:
        if name not in ours:
            continue
        if str(engine).lower() != "innodb":
            yield Check("ledger", Level.ERROR, f"table {name} uses {engine}; only InnoDB has transactions")
        if not str(collation).startswith("utf8mb4"):
            yield Check("ledger", Level.ERROR, f"table {name} is {collation}; it needs utf8mb4, or some text is lost")


_DIALECTS: Final[dict[str, Callable[[Any, Any], Iterator[Check]]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
}


# -- broker


def _broker(settings: Settings, queues: tuple[str, ...]) -> Iterator[Check]:
    url = settings.broker
    if url is None:
        yield Check("broker", Level.OK, "embedded: the ledger carries the hints")
        return
    _require("amqp", url)
    host, user = urlsplit(url).hostname or "", urlsplit(url).username
    if user in (None, "guest") and not _is_loopback(host):
        yield Check(
            "broker",
            Level.WARNING,
            f"{masked(url)} logs in as guest, whom RabbitMQ admits from its own host only; create a user",
        )
    from workq.broker.rabbitmq import RabbitMQBroker

    broker = RabbitMQBroker(
        url,
        namespace=settings.namespace,
        queue_type=settings.queue_type,
        heartbeat_s=settings.times.amqp_heartbeat_s,
        confirm_s=settings.times.confirm_s,
    )
    try:
        server = broker.check()
        yield Check("broker", Level.OK, f"{masked(url)}: {server}")
        number = _number(server)
        if number and number < RABBITMQ_MIN:
            yield Check("broker", Level.WARNING, f"{server} is older than 3.10, the oldest that workq is tested with")
        yield from _queues(settings, url, queues)
    finally:
        broker.close()


def _queues(settings: Settings, url: str, queues: tuple[str, ...]) -> Iterator[Check]:
    """Whether existing queues are of the type that this application declares. Missing ones are not created."""
    from workq.broker.amqp import Address
    from workq.broker.topology import Topology

    if not queues:
        return
    topology = Topology(settings.namespace, settings.queue_type)
    for queue in queues:
        refusal = _refusal(topology, Address.parse(url), queue)
        if refusal is not None:
            yield Check("broker", Level.ERROR, refusal)


def _refusal(topology: Any, address: Any, queue: str) -> str | None:
    """Why the broker refuses our declaration of an existing queue; None if it accepts it, or there is no such queue."""
    from pika.exceptions import ChannelClosedByBroker

    from workq.broker.amqp import converse

    def talk(connection: Any, answer: Callable[[Any], None]) -> None:
        def closed(_channel: Any, reason: Exception) -> None:
            if not isinstance(reason, ChannelClosedByBroker):
                return
            if reason.reply_code == 404:
                answer("")
            elif reason.reply_code in (403, 405, 406):
                answer(str(topology.refusal(reason.reply_code, reason.reply_text)))
            else:
                answer(reason)

        def opened(channel: Any) -> None:
            channel.add_on_close_callback(closed)
            channel.queue_declare(
                topology.main_queue(queue),
                passive=True,
                callback=lambda _: topology.declare(channel, queue, lambda _: answer("")),
            )

        connection.channel(on_open_callback=opened)

    told: str = converse(
        address.parameters(name="workq doctor", heartbeat_s=20.0, connect_s=3.0), address, talk, deadline_s=5.0
    )
    return told or None


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _number(server: str) -> tuple[int, ...]:
    import re

    found = re.search(r"(\d+)\.(\d+)", server)
    return (int(found[1]), int(found[2])) if found else ()


# -- in-flight


def _inflight(settings: Settings) -> Iterator[Check]:
    url = settings.inflight
    if url is None:
        yield Check("inflight", Level.OK, "embedded: the ledger keeps holds and leases")
        return
    _require("redis", url)
    from workq.inflight.redis import RedisInFlight

    inflight = RedisInFlight(url, namespace=settings.namespace, socket_s=settings.times.redis_socket_s)
    try:
        yield Check("inflight", Level.OK, f"{masked(url)}: {inflight.check()}")
    finally:
        inflight.close()
    yield from _redis(url, settings.times.redis_socket_s)


def _redis(url: str, socket_s: float) -> Iterator[Check]:
    """What `check` does not ask. The connection was fine a moment ago: what fails now is a right that is missing."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = redis.Redis.from_url(
        url,
        socket_timeout=socket_s,
        socket_connect_timeout=socket_s,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
    try:
        asked = datetime.now(UTC)
        seconds, micros = client.time()
        told = datetime.now(UTC)
        yield _skew("Redis", datetime.fromtimestamp(int(seconds) + int(micros) / 1e6, UTC), asked, told)
        persistence: Any = client.info("persistence")
        if not int(persistence.get("aof_enabled", 0)):
            yield Check(
                "inflight",
                Level.WARNING,
                "appendonly is off: a restart of Redis forgets what workers hold; they write it again, and nobody is "
                "reaped for three beats. Set appendonly yes",
            )
    except redis.RedisError as error:
        yield Check("inflight", Level.WARNING, f"its settings cannot be read ({type(error).__name__})")
    finally:
        client.close()
