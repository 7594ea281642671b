"""The engine of a database: how it connects in each dialect, and what each new connection is told.

Isolation is READ COMMITTED on servers; where each statement commits itself, on PostgreSQL alone, it is AUTOCOMMIT.
A server that stays silent for 1.5 times the statement timeout is given up: no call waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError

from workq.errors import MissingExtra
from workq.ledger.engine import mysql
from workq.ledger.engine.descriptors import guard_descriptors
from workq.ledger.engine.sqlite_file import LedgerFile
from workq.ledger.engine.sqlite_writer import WaitingConnection, when_free

if TYPE_CHECKING:
    from workq.ledger.engine.postgresql import SessionSign

CONNECT_S: Final = 3
"""For so long one host of a server is tried."""
_EXTRA: Final = {"postgresql": "postgres", "mysql": "mysql"}
_SERVER_POOL: Final = {"pool_size": 4, "max_overflow": 28, "pool_recycle": 1800, "pool_timeout": 10}


def file_engine(url: URL, file: LedgerFile, *, wait_s: float) -> Engine:
    """An engine of a SQLite file. The driver begins no transaction by itself: the caller does (see database.py).

    `wait_s`: for so long a connection waits for a file that is another's.
    """
    waiting = {"check_same_thread": False, "timeout": wait_s}
    engine = _made(url, {"connect_args": waiting, "pool_size": 8, "max_overflow": 24})
    file.watch(engine)

    @event.listens_for(engine, "connect")
    def _connected(raw: WaitingConnection, _record: Any) -> None:
        raw.isolation_level = None
        # several processes may make the same new file a WAL one: SQLite then refuses some of them without waiting
        when_free(lambda: raw.execute("PRAGMA journal_mode=WAL"), wait_s=wait_s)
        raw.is_wal = raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        raw.execute("PRAGMA synchronous=FULL")

    return engine


def server_engine(
    url: URL,
    *,
    statement_timeout_s: float,
    commits_itself: bool,
    on_pooled: Callable[[], None],
    sign: Callable[[], SessionSign | None],
) -> Engine:
    """An engine of a server.

    Args:
        url: with the driver (see url.py).
        statement_timeout_s: for so long a statement may run.
        commits_itself: each statement is a transaction of its own. On PostgreSQL alone.
        on_pooled: is told of each new connection on which a pooler answers.
        sign: the sign of life that each new session gives. On PostgreSQL alone.
    """
    if url.get_backend_name() == "postgresql":
        engine = _made(url, _postgresql(statement_timeout_s, commits_itself=commits_itself) | _SERVER_POOL)
        guard_descriptors(engine)
        from workq.ledger.engine import postgresql  # needs psycopg, which the engine has found

        postgresql.limit_silence(engine, statement_timeout_s * 1.5)
        postgresql.notice_closed(engine)
        postgresql.keep_set(engine, postgresql.settings_of(statement_timeout_s), on_pooled=on_pooled, sign=sign)
        return engine
    plain, tls = mysql.with_tls(url)
    options = _mysql(statement_timeout_s) | _SERVER_POOL
    if tls is not None:
        options["connect_args"]["ssl"] = tls
    engine = _made(plain, options)
    guard_descriptors(engine)
    if tls is None:
        mysql.share_tls(engine)
    mysql.set_session(engine, statement_timeout_s)
    return engine


def _made(url: URL, options: dict[str, Any]) -> Engine:
    try:
        return create_engine(url, hide_parameters=True, **options)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        dialect = url.get_backend_name()
        raise MissingExtra(
            f"ledger: {dialect}:// needs a client library; install the extra [{_EXTRA.get(dialect, dialect)}]"
        ) from error


def _postgresql(statement_timeout_s: float, *, commits_itself: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "connect_args": {
            "client_encoding": "utf8",
            "connect_timeout": CONNECT_S,
            "keepalives": 1,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": int(statement_timeout_s * 1500),
        },
        "isolation_level": "AUTOCOMMIT" if commits_itself else "READ COMMITTED",
    }
    if commits_itself:
        options["pool_reset_on_return"] = None  # there is nothing to roll back
    return options


def _mysql(statement_timeout_s: float) -> dict[str, Any]:
    silence_s = statement_timeout_s * 1.5
    return {
        "connect_args": {
            "connect_timeout": CONNECT_S,
            "read_timeout": silence_s,
            "write_timeout": silence_s,
            "charset": "utf8mb4",
        },
        "isolation_level": "READ COMMITTED",
    }
