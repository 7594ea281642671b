"""A transaction of the caller's: whether it leads to this ledger, and what is said when it cannot see what bars it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError

from workq.errors import ConfigError, KeyConflict
from workq.ledger.engine.database import Database
from workq.ledger.engine.failures import is_overtaken
from workq.ledger.engine.url import shown_url

_DEFAULT_PORTS: Final = {"postgresql": 5432, "mysql": 3306}

T = TypeVar("T")


def record_within(connection: Any, database: Database, write: Callable[[Connection, bool], T], *, what: str) -> T:
    """`write` in a transaction of a caller: once, and once more where a row was there, which is then told True.

    Raises:
        KeyConflict: `what` is there, and this transaction does not see it.
    """
    tx = core_connection(connection, database)
    try:
        begin_in_sqlite(tx)
        try:
            with tx.begin_nested():
                return write(tx, False)
        except IntegrityError:
            with tx.begin_nested():
                return write(tx, True)
    except IntegrityError as error:
        raise unseen(what, error, database) from None
    except DBAPIError as error:
        raise unseen(what, error, database) from error


def unseen(what: str, error: DBAPIError, database: Database) -> Exception:
    """What an error in a transaction of a caller says; of one that cannot see what bars it, in words of its own."""
    if not isinstance(error, IntegrityError) and not is_overtaken(error):
        return database.translate(error)
    return KeyConflict(
        f"{what} was recorded in a transaction that yours does not see, as it began before: roll it back, and send "
        "again"
    )


def reads_the_past(database: Database) -> bool:
    """Whether a caller's transaction reads what was there when it began, where nobody has said otherwise.

    There a row that bars an insert is read with a lock, which sees the newest.
    """
    return database.dialect == "mysql"


def begin_in_sqlite(tx: Connection) -> None:
    """Python's driver does not begin a transaction for a savepoint: releasing it would commit, against the caller."""
    if tx.dialect.name == "sqlite" and not getattr(tx.connection.dbapi_connection, "in_transaction", True):
        tx.exec_driver_sql("BEGIN IMMEDIATE")


def _commits_each_statement(connection: Connection) -> bool:
    options = connection.get_execution_options()
    level = options.get("isolation_level") or getattr(connection.dialect, "_on_connect_isolation_level", None)
    return str(level).upper() == "AUTOCOMMIT"


def core_connection(given: Any, database: Database) -> Connection:
    """The caller's SQLAlchemy connection, also out of a session, if it leads to this ledger."""
    connection = given
    if not isinstance(given, Connection):
        of_session = getattr(given, "connection", None)
        if callable(of_session) and not inspect.iscoroutinefunction(of_session):
            connection = of_session()
    if not isinstance(connection, Connection):
        raise ConfigError(
            f"connection: need an SQLAlchemy Connection or Session, got {_class_of(given)}; "
            "for an AsyncSession use `await session.run_sync(lambda s: task.options(connection=s).enqueue(...))`"
        )
    if connection.closed:
        raise ConfigError("connection: it is closed; pass one with an open transaction")
    if _commits_each_statement(connection):
        raise ConfigError(
            "connection: it is in AUTOCOMMIT, so that nothing would stand or fall together; open a transaction, or "
            "leave connection= out"
        )
    if _places(database.url).isdisjoint(_places(connection.engine.url)):
        raise ConfigError(
            f"connection: it leads to {shown_url(connection.engine.url)}, but the ledger is {database.where}; "
            "a task can only share a transaction with its own ledger. Use the same host, port and database in both URLs"
        )
    return connection


def _class_of(given: object) -> str:
    """With its module: there is more than one class of the name Connection."""
    kind = type(given)
    return f"{kind.__module__}.{kind.__qualname__}"


def _places(url: URL) -> set[tuple[str, ...]]:
    """Which databases a URL leads to, however it is spelled: one of each host that it names.

    Two names of one remote host count as two places.
    """
    backend = url.get_backend_name().replace("mariadb", "mysql")
    if backend == "sqlite":
        return {(backend, str(Path((url.database or "").removeprefix("file:")).resolve()))}
    hosts = [url.host] if url.host else _each(url.query.get("host")) or ["localhost"]
    ports = [str(url.port)] if url.port else _each(url.query.get("port")) or [""]
    places: set[tuple[str, ...]] = set()
    for host, port in zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=False):
        is_folder = host.startswith("/")
        if not is_folder and host.count(":") == 1:  # SQLAlchemy's other form of several hosts
            host, _, port = host.partition(":")
        if is_folder or host in ("127.0.0.1", "::1", ""):  # a socket's folder is this host, too
            host = "localhost"
        port = port or str(_DEFAULT_PORTS.get(backend, 0))
        places.add((backend, host.lower(), port, url.database or url.username or ""))
    return places


def _each(values: str | tuple[str, ...] | None) -> list[str]:
    return [one for value in ([values] if isinstance(values, str) else values or ()) for one in value.split(",")]
