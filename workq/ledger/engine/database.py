"""One SQL database: its engine, its clock, and transactions that either stand, fail, or say that nobody knows.

Everything embedded shares this: the ledger always, and the broker and the in-flight store where they are rows too.
Isolation is READ COMMITTED on servers; SQLite has one writer, so its write transactions begin IMMEDIATE and queue on
one lock inside the process before they queue on the file. All times are the database's own clock.

On failure: a transient refusal (deadlock, lock timeout, "database is locked") is tried again until a deadline; a lost
connection once at once, because a pooled connection may simply be old. Every transaction that workq runs this way is a
conditional write that may be repeated. What stays broken is LedgerUnavailable; CommitUnknown when it broke in COMMIT.
A server that stays silent for 1.5 times the statement timeout is given up: no call waits for ever.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Delete, Engine, Executable, Update, bindparam, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    InvalidRequestError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float

from workq.config import check_ledger_url, masked
from workq.errors import CommitUnknown, ConfigError, LedgerUnavailable, MissingExtra, Refused, SchemaMismatch
from workq.ledger.engine import after_commit
from workq.ledger.engine.cures import cure_of, patience_of, right_of
from workq.ledger.engine.descriptors import guard_descriptors
from workq.ledger.engine.instants import plus
from workq.ledger.engine.mysql import with_tls
from workq.ledger.engine.prepared import DriverOf, Kept, Trace
from workq.ledger.engine.sqlite_file import LedgerFile
from workq.ledger.engine.sqlite_writer import (
    NotInTurn,
    WaitingConnection,
    Writer,
    begin_reading,
    begin_writing,
    when_free,
)
from workq.ledger.engine.user_transaction import Entered
from workq.ledger.schema import Tables
from workq.values.time_limit import whole

T = TypeVar("T")

_rng: Final = Random()
"""Not the application's: that may be seeded, and its next number is the application's own."""

DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mysql+pymysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
    "mariadb+pymysql": "mysql+pymysql",
}
_EXTRA = {"postgresql": "postgres", "mysql": "mysql"}
_TRANSIENT_SQLSTATES = frozenset({"40P01", "40001", "55P03"})  # deadlock, serialization, lock timeout
_ENDING_SQLSTATES = frozenset({"57P01", "57P02", "57P03"})  # shut down, crashed, starting; 08...: a pooler's
_TRANSIENT_ERRNOS = frozenset({1205, 1213, 1305, 3572})
"""Lock wait timeout, deadlock, a savepoint that is gone because a deadlock took its transaction along, NOWAIT."""
_MISSING_SQLSTATES = frozenset({"42P01", "42703"})  # undefined table, undefined column
_MISSING_ERRNOS = frozenset({1054, 1146})
_IDLE: Final = 0
"""libpq's word for a connection outside of any transaction and statement."""
_MISSING_TEXTS = ("no such table", "no such column", "has no column named")


def ledger_url(url: str) -> URL:
    """The SQLAlchemy URL of a ledger, with the driver that workq uses.

    Raises:
        ConfigError: it is not of the right form (see workq.config); the message shows that form, and no password.
    """
    try:
        parsed = _one_url(check_ledger_url(url))
    except ConfigError as error:
        raise ConfigError(f"ledger: {error}") from None
    except (ArgumentError, ValueError):  # from None: the original error may show a part of the password
        raise ConfigError(f"ledger: not a URL that SQLAlchemy can read: {masked(url)}") from None
    driver = DRIVERS[parsed.drivername]
    return parsed.set(drivername=driver)


def _one_url(url: str) -> URL:
    """SQLAlchemy reads several hosts from the query alone."""
    scheme, _, rest = url.partition("://")
    place, slash, tail = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    if "," not in hosts or scheme == "sqlite":
        return make_url(url)
    each = [make_url(f"{scheme}://{one}") for one in hosts.split(",")]
    several = {
        "host": ",".join(one.host or "" for one in each),
        "port": ",".join(str(one.port or 5432) for one in each),
    }
    return make_url(f"{scheme}://{login}{at}{slash}{tail}").update_query_dict(several)


class Database:
    """The engine of one ledger and the tables of one namespace in it. Thread-safe; reopens after a fork."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "workq",
        statement_timeout_s: float = 10.0,
        makes: bool = True,
        origin: str = "argument",
    ) -> None:
        """`makes`: a SQLite file that is not there is made by the first connection. `origin`: who has named the URL.

        Raises:
            ConfigError: the URL is wrong; MissingExtra: its client library is not installed.
        """
        self.url = ledger_url(url)
        self.namespace = namespace
        self.dialect = self.url.get_backend_name()
        self.tables = Tables(namespace, self.dialect)
        self.clock_offset_s = 0.0
        """Added to the database's clock in every statement. Always 0 outside of tests, which move it."""
        self._statement_timeout_s = statement_timeout_s
        self.trace: Trace | None = None
        """Is told of each kept statement that is sent. None outside of tests."""
        self._statements: dict[str, Kept] = {}
        self.writer = Writer()
        """On SQLite alone it is asked for a turn."""
        self.file: LedgerFile | None = None
        if self.dialect == "sqlite":
            self.file = LedgerFile(self.url.database or "", makes=makes, origin=origin)
        self._entered: set[int] = set()
        """The threads that are inside of `transaction`."""
        self.is_pooled = False
        """A pooler answered on one of its connections: every statement is in a transaction (see postgresql.py)."""
        self.engine = self._open()
        self._commits_itself = self._open(commits_itself=True) if self.dialect == "postgresql" else None
        """For single statements, on PostgreSQL: without the round trips of BEGIN and COMMIT."""
        os.register_at_fork(after_in_child=_reopening(weakref.ref(self)))

    @property
    def where(self) -> str:
        """The URL for messages: without its password and its query."""
        return masked(self.url.render_as_string(hide_password=True))

    @property
    def engines(self) -> list[Engine]:
        """All that connect to this database."""
        return [self.engine] if self._commits_itself is None else [self.engine, self._commits_itself]

    def now(self, plus_s: ColumnElement[Any] | float = 0.0) -> ColumnElement[Any]:
        """The database's clock in a statement, plus some seconds (a number, or a bound parameter of the caller).

        The offset is asked for when the statement runs, so that statements can be kept.
        """
        given = plus_s if isinstance(plus_s, ColumnElement) else None
        constant_s = 0.0 if isinstance(plus_s, ColumnElement) else float(plus_s)
        offset = bindparam(None, callable_=lambda: constant_s + self.clock_offset_s, type_=Float(), unique=True)
        return plus(offset) if given is None else plus(given, offset)

    def kept(self, name: str, make: Callable[[], Executable]) -> Kept:
        """A statement that is sent all the time: put together once (see prepared.py)."""
        found = self._statements.get(name)
        if found is None:
            found = self._statements[name] = Kept(make(), self.engine, self._commits_itself, trace=lambda: self.trace)
        return found

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """For what only reads. A pooled connection that the server has closed is an error here, not in `ask`.

        Each statement sees the newest committed state, on servers; on SQLite all of them see the same.

        Raises:
            LedgerUnavailable: the database did not answer.
        """
        deadline = time.monotonic() + self._statement_timeout_s
        try:
            with whole(), self._connected(self._commits_itself or self.engine, deadline) as connection:
                yield connection.execution_options(workq_read=True)
        except DBAPIError as error:
            raise self._unavailable(error) from error
        except (PoolTimeout, DisconnectionError) as error:
            raise self._unconnected(error) from error

    def ask(self, question: Callable[[Connection], T], *, sorts: bool = True) -> T:
        """Answer a question that only reads; ask again once if the connection was lost: it may simply have been old.

        Each statement sees the newest committed state, on servers; on SQLite all of them see the same.

        `sorts=False`: an index has the rows in order, and PostgreSQL shall take no other. Where nearly all rows are
        dead, its statistics are of nothing, and all indexes look alike to it.

        Raises:
            LedgerUnavailable: the database did not answer. SchemaMismatch: a table or column is missing.
        """
        deadline = time.monotonic() + self._statement_timeout_s
        lost_before = False
        while True:
            try:
                engine = self._commits_itself or self.engine
                with whole(), self._connected(engine, deadline) as connection, self._planned(connection, sorts=sorts):
                    return question(connection.execution_options(workq_read=True))
            except DBAPIError as error:
                if _is_lost(error) and not lost_before and time.monotonic() < deadline:
                    lost_before = True
                    continue
                if _is_transient(error) and time.monotonic() < deadline:
                    time.sleep(_rng.uniform(0.002, 0.03))
                    continue
                raise self._unavailable(error) from error
            except (PoolTimeout, DisconnectionError) as error:
                raise self._unconnected(error) from error

    @contextmanager
    def _planned(self, connection: Connection, *, sorts: bool) -> Iterator[None]:
        if sorts or self.dialect != "postgresql":
            yield
            return
        if connection.engine is self.engine:
            connection.exec_driver_sql("SET LOCAL enable_sort = off")
            yield
            return
        connection.exec_driver_sql("SET enable_sort = off")
        try:
            yield
        finally:
            if not connection.invalidated:  # with a lost connection, what was set on it is gone
                connection.exec_driver_sql("SET enable_sort = on")

    def run(self, change: Callable[[Connection], T], *, deadline_s: float | None = None, is_single: bool = False) -> T:
        """Run `change` in one write transaction, again if the database asks for it. `change` must be repeatable.

        `is_single`: it sends one statement, which PostgreSQL then commits by itself, without two more round trips.

        The deadline (by default the statement timeout) ends the repetitions, not a statement that is under way.

        Raises:
            LedgerUnavailable: it did not stand; CommitUnknown: the connection broke in COMMIT, so it may stand.
            SchemaMismatch: a table or column is missing.
        """
        deadline = time.monotonic() + (self._statement_timeout_s if deadline_s is None else deadline_s)
        lost_before = unknown = False
        engine = (self._commits_itself if is_single else None) or self.engine
        while True:
            committing = False
            try:
                with whole(), self._turn(is_short=True), self._connected(engine, deadline) as connection:
                    committing = connection.engine is self._commits_itself
                    decisions = after_commit.begin(connection)
                    answer = change(connection)
                    committing = True
                    connection.commit()
                after_commit.tell(decisions)
                return answer
            except IntegrityError as error:
                raise without_values(error) from None
            except DBAPIError as error:
                lost = _is_lost(error)
                unknown = unknown or (committing and lost)
                if lost and not lost_before and time.monotonic() < deadline:
                    lost_before = True
                    continue
                if _is_transient(error) and time.monotonic() < deadline:
                    time.sleep(_rng.uniform(0.002, 0.03))
                    continue
                raise self._unavailable(error, unknown=unknown) from error
            except (PoolTimeout, DisconnectionError) as error:
                raise self._unconnected(error, unknown=unknown) from error

    def written(self, statement: Update | Delete) -> int:
        """How many rows a statement wrote, in a transaction of its own. Raises as `run`."""
        return self.run(lambda tx: tx.execute(statement).rowcount)

    @contextmanager
    def transaction(
        self, *, begin: Callable[[Connection], None], conclude: Callable[[Connection], None]
    ) -> Iterator[Connection]:
        """One write transaction of somebody else's statements, between the first of ours and the last.

        It is committed when the block ends; what the block raises rolls it back, and passes as it is. Only `begin` is
        repeated. Until it ends, nobody else of this process writes, on SQLite.

        Raises:
            LedgerUnavailable: it did not stand; CommitUnknown: the connection broke in COMMIT, so it may stand.
            Refused: it was ended inside of the block, or the block has entered another one.
        """
        if self.is_entered:
            raise Refused("transaction(): this thread is inside of one already; use its connection")
        with whole(), self._turn(is_short=False), ExitStack() as stack:
            connection, theirs = self._begun(begin, stack)
            decisions = after_commit.begin(connection)
            self._entered.add(threading.get_ident())
            try:
                yield connection
            finally:
                self._entered.discard(threading.get_ident())
            committing = False
            try:
                theirs.end()
                conclude(connection)
                committing = True
                connection.commit()
            except DBAPIError as error:
                raise self._unavailable(error, unknown=committing and _is_lost(error)) from error
        after_commit.tell(decisions)

    @property
    def is_entered(self) -> bool:
        """Whether this thread is inside of `transaction`."""
        return threading.get_ident() in self._entered

    def _begun(self, begin: Callable[[Connection], None], stack: ExitStack) -> tuple[Connection, Entered]:
        deadline = time.monotonic() + self._statement_timeout_s
        lost_before = False
        while True:
            try:
                with ExitStack() as tried:
                    connection = tried.enter_context(self._connected(self.engine, deadline))
                    begin(connection)
                    theirs = Entered(connection)
                    stack.enter_context(tried.pop_all())
                    return connection, theirs
            except DBAPIError as error:
                lost = _is_lost(error)
                if time.monotonic() < deadline and (_is_transient(error) or (lost and not lost_before)):
                    lost_before = lost_before or lost
                    time.sleep(_rng.uniform(0.002, 0.03))
                    continue
                raise self._unavailable(error) from error
            except (PoolTimeout, DisconnectionError) as error:
                raise self._unconnected(error) from error

    def translate(self, error: SQLAlchemyError) -> Exception:
        """An error of the caller's own connection, in our words."""
        return self._unavailable(error) if isinstance(error, DBAPIError) else error

    def close(self) -> None:
        """Close the pool. Repeatable."""
        for engine in self.engines:
            engine.dispose()

    @contextmanager
    def _turn(self, *, is_short: bool) -> Iterator[None]:
        if self.dialect != "sqlite":
            yield
            return
        try:
            with self.writer.turn(is_short=is_short):
                yield
        except NotInTurn as error:
            if not error.is_interrupted:
                raise self._busy() from error
            raise LedgerUnavailable(
                f"the ledger at {self.where} is being written by this thread, which a signal has interrupted; "
                "nothing was recorded. Let the signal handler set a flag, and enqueue afterwards"
            ) from error

    def _unavailable(self, error: DBAPIError, *, unknown: bool = False) -> Exception:
        reason = next(iter(str(error.orig).strip().splitlines()), type(error).__name__)
        if self.url.password:
            reason = reason.replace(str(self.url.password), "***")
        if _is_missing_table(error):
            return SchemaMismatch(f"the ledger at {self.where} lacks workq's tables ({reason}). Run: workq db migrate")
        if unknown:
            return CommitUnknown(
                f"the ledger at {self.where} broke off while it committed ({reason}); repeat with the same ids"
            )
        if isinstance(error.orig, Exception) and type(error).__name__ in ("IntegrityError", "DataError"):
            return error
        right = right_of(error.orig, statement=error.statement, user=self.url.username)
        cure = right or cure_of(self.dialect, error.orig)
        unavailable = LedgerUnavailable(f"cannot use the ledger at {self.where} ({reason}). {cure} Try: workq doctor")
        unavailable.patience_s = patience_of(self.dialect, error.orig)
        return unavailable

    def _connected(self, engine: Engine, deadline: float) -> Connection:
        """A connection that the server has not closed; where it closes one after the other, others until the deadline.

        Nothing was sent on them: nothing is repeated by it. Behind a pooler no statement commits itself.
        """
        while True:
            try:
                connection = (self.engine if self.is_pooled else engine).connect()
                if connection.engine is self.engine or not self.is_pooled:
                    return connection
                connection.close()  # opening it has told of a pooler
            except InvalidRequestError as error:  # the pool's word for two of them in a row, the second of them new
                if time.monotonic() >= deadline:
                    raise DisconnectionError("the server closes each connection at once") from error
                time.sleep(_rng.uniform(0.002, 0.03))

    def _unconnected(self, error: PoolTimeout | DisconnectionError, *, unknown: bool = False) -> LedgerUnavailable:
        if isinstance(error, PoolTimeout):
            return self._busy(unknown=unknown)
        kind = CommitUnknown if unknown else LedgerUnavailable
        return kind(f"cannot use the ledger at {self.where} ({error}). Try: workq doctor")

    def _busy(self, *, unknown: bool = False) -> LedgerUnavailable:
        kind = CommitUnknown if unknown else LedgerUnavailable
        return kind(f"no free connection to the ledger at {self.where}: too many threads of this process wait for it")

    def _reopen(self) -> None:
        """In a forked child: the parent's connections are not ours, and its lock may be held for ever."""
        self.writer = Writer()
        self._entered = set()
        if self.file is not None:
            self.file.reopen()
        for engine in self.engines:
            engine.dispose(close=False)

    def _open(self, *, commits_itself: bool = False) -> Engine:
        url, options = self.url, dict[str, Any]()
        if self.dialect == "sqlite":
            options["connect_args"] = {"check_same_thread": False, "timeout": self._statement_timeout_s / 2}
            options["pool_size"] = 8
            options["max_overflow"] = 24
        elif self.dialect == "postgresql":
            options["connect_args"] = {
                "client_encoding": "utf8",
                "connect_timeout": 3,
                "keepalives": 1,
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": int(self._statement_timeout_s * 1500),
            }
            options["isolation_level"] = "AUTOCOMMIT" if commits_itself else "READ COMMITTED"
            if commits_itself:
                options["pool_reset_on_return"] = None  # there is nothing to roll back
        else:
            timeout_s = self._statement_timeout_s * 1.5
            options["connect_args"] = {
                "connect_timeout": 3,
                "read_timeout": timeout_s,
                "write_timeout": timeout_s,
                "charset": "utf8mb4",
            }
            options["isolation_level"] = "READ COMMITTED"
            url, tls = with_tls(url)
            if tls is not None:
                options["connect_args"]["ssl"] = tls
        if self.dialect != "sqlite":
            options |= {"pool_size": 4, "max_overflow": 28, "pool_recycle": 1800, "pool_timeout": 10}
        try:
            engine = create_engine(url, hide_parameters=True, **options)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            extra = _EXTRA.get(self.dialect, self.dialect)
            raise MissingExtra(
                f"ledger: {self.dialect}:// needs a client library; install the extra [{extra}]"
            ) from error
        if self.file is not None:
            self.file.watch(engine)
            self._begin_immediate(engine, self.file, wait_s=self._statement_timeout_s / 2)
            return engine
        guard_descriptors(engine)
        if self.dialect == "postgresql":
            _limit_silence(engine, self._statement_timeout_s * 1.5)
            _notice_closed(engine)
            self._keep_set(engine)
        else:
            _on_connect(
                engine,
                # the second part, for which see PostgreSQL above, is a comment to MySQL, which has no such limit
                f"SET SESSION innodb_lock_wait_timeout = {max(1, int(self._statement_timeout_s / 2))} "
                f"/*M!100300 , SESSION idle_transaction_timeout = {max(1, math.ceil(self._statement_timeout_s))} */",
                "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",  # what is too long is not cut
            )
        return engine

    def _keep_set(self, engine: Engine) -> None:
        from workq.ledger.engine.postgresql import keep_set

        settings: dict[str, str | int] = {
            "statement_timeout": int(self._statement_timeout_s * 1000),
            "lock_timeout": int(self._statement_timeout_s * 500),
            # a plan made while a table was small would read all of it later on: everything has its index here
            "enable_seqscan": "off",
            "jit": "off",  # else what must read all of a small table, at the price of that, is compiled first
            # a process that is stopped inside a transaction must not keep its rows from those who reap it
            "idle_in_transaction_session_timeout": int(self._statement_timeout_s * 1000),
        }

        def found_pooler() -> None:
            self.is_pooled = True

        keep_set(engine, settings, on_pooled=found_pooler)

    def _begin_immediate(self, engine: Engine, file: LedgerFile, *, wait_s: float) -> None:
        @event.listens_for(engine, "connect")
        def _connected(raw: WaitingConnection, _record: Any) -> None:
            raw.isolation_level = None  # the driver begins nothing by itself: we do, below
            # several processes may make the same new file a WAL one: SQLite then refuses some of them without waiting
            when_free(lambda: raw.execute("PRAGMA journal_mode=WAL"), wait_s=wait_s)
            raw.is_wal = raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            raw.execute("PRAGMA synchronous=FULL")

        @event.listens_for(engine, "begin")
        def _began(connection: Connection) -> None:
            file.check()
            if connection.get_execution_options().get("workq_read", False):
                with DriverOf(connection, "BEGIN") as raw:
                    begin_reading(raw, wait_s=wait_s)
            else:
                with DriverOf(connection, "BEGIN IMMEDIATE") as raw:
                    begin_writing(raw, wait_s=wait_s, is_short=self.writer.is_short)
                self.writer.begun()


def without_values(error: IntegrityError) -> IntegrityError:
    """The same error with its first line only: PostgreSQL's detail has the whole row, and with it the payload."""
    first = next(iter(str(error.orig).splitlines()), "")
    return IntegrityError(None, None, Exception(first))


def _is_transient(error: DBAPIError) -> bool:
    cause = error.orig
    if getattr(cause, "sqlstate", None) in _TRANSIENT_SQLSTATES:
        return True
    args: tuple[object, ...] = getattr(cause, "args", ())
    if args and isinstance(args[0], int):
        return args[0] in _TRANSIENT_ERRNOS
    return bool(args) and isinstance(args[0], str) and ("locked" in args[0] or "busy" in args[0])


def _is_lost(error: DBAPIError) -> bool:
    """The connection has ended, or the server's last word was that it ends it: that may come before the end itself."""
    sqlstate = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or sqlstate.startswith("08") or sqlstate in _ENDING_SQLSTATES


def _is_missing_table(error: DBAPIError) -> bool:
    cause = error.orig
    if getattr(cause, "sqlstate", None) in _MISSING_SQLSTATES:
        return True
    args: tuple[object, ...] = getattr(cause, "args", ())
    if args and isinstance(args[0], int):
        return args[0] in _MISSING_ERRNOS
    return type(cause).__module__ == "sqlite3" and any(mark in str(cause) for mark in _MISSING_TEXTS)


def _reopening(database: weakref.ref[Database]) -> Callable[[], None]:
    def reopen() -> None:
        if (found := database()) is not None:
            found._reopen()

    return reopen


def _limit_silence(engine: Engine, silence_s: float) -> None:
    from workq.ledger.engine.postgresql import connecting

    connect = connecting(silence_s=silence_s)

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, args: list[Any], parameters: dict[str, Any]) -> Any:
        return connect(*args, **parameters)


def _notice_closed(engine: Engine) -> None:
    """An idle connection with something to read was closed by the server: it is replaced before anything is sent on it.

    Else a statement that commits itself would be lost on it, and nobody could say whether it stands. So is one on which
    a statement was cut short.
    """

    @event.listens_for(engine, "checkout")
    def _checked_out(raw: Any, _record: Any, _proxy: Any) -> None:
        is_idle = not raw.closed and raw.pgconn.transaction_status == _IDLE
        if not is_idle or _is_readable(raw.fileno()):
            raise DisconnectionError("this connection was closed")


def _is_readable(descriptor: int) -> bool:
    """Whether there is something to read now, or the other side has closed."""
    if not hasattr(select, "poll"):  # where eventlet has patched; `select` is its own there
        return bool(select.select([descriptor], [], [], 0)[0])
    look = select.poll()
    look.register(descriptor, select.POLLIN)
    return bool(look.poll(0))


def _on_connect(engine: Engine, *statements: str) -> None:
    @event.listens_for(engine, "connect")
    def _connected(raw: Any, _record: Any) -> None:
        try:
            with raw.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            raw.commit()
        except BaseException:
            raw.close()  # the pool does not know it yet
            raise
