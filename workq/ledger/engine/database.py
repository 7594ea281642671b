"""One SQL database: its engine, its clock, and transactions that either stand, fail, or say that nobody knows.

Everything embedded shares this: the ledger always, and the broker and the in-flight store where they are rows too.
SQLite has one writer, so its write transactions begin IMMEDIATE and queue on one lock inside the process before they
queue on the file. All times are the database's own clock. Isolation, and how long a server may stay silent: connect.py.

On failure: a transient refusal (deadlock, lock timeout, "database is locked") is tried again until a deadline; a lost
connection once at once, because a pooled connection may simply be old. Every transaction that workq runs this way is a
conditional write that may be repeated. What stays broken is LedgerUnavailable; CommitUnknown when it broke in COMMIT.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Delete, Engine, Executable, Update, bindparam, event
from sqlalchemy.exc import DBAPIError, DisconnectionError, IntegrityError, InvalidRequestError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import Float

from workq.errors import Refused
from workq.ledger.engine import after_commit
from workq.ledger.engine.connect import file_engine, server_engine
from workq.ledger.engine.failures import DatabaseErrors, is_lost, is_transient, without_values
from workq.ledger.engine.instants import plus
from workq.ledger.engine.kept_rows import KeptRows, NewRow
from workq.ledger.engine.prepared import DriverOf, Kept, Trace
from workq.ledger.engine.sqlite_file import LedgerFile
from workq.ledger.engine.sqlite_writer import NotInTurn, Writer, begin_reading, begin_writing
from workq.ledger.engine.url import ledger_url
from workq.ledger.engine.user_transaction import Entered
from workq.ledger.schema import shared_tables
from workq.values.jitter import jitter
from workq.values.time_limit import whole

if TYPE_CHECKING:
    from workq.ledger.engine.postgresql import SessionSign

T = TypeVar("T")


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
        self._errors = DatabaseErrors(self.url)
        self.namespace = namespace
        self.dialect = self.url.get_backend_name()
        self.tables = shared_tables(namespace, self.dialect)
        self.clock_offset_s = 0.0
        """Added to the database's clock in every statement. Always 0 outside of tests, which move it."""
        self._statement_timeout_s = statement_timeout_s
        self.trace: Trace | None = None
        """Is told of each kept statement that is sent. None outside of tests."""
        self._statements: dict[str, Kept] = {}
        self._rows: dict[str, KeptRows] = {}
        self.writer = Writer()
        """On SQLite alone it is asked for a turn."""
        self.file: LedgerFile | None = None
        if self.dialect == "sqlite":
            self.file = LedgerFile(self.url.database or "", makes=makes, origin=origin)
        self._entered: set[int] = set()
        """The threads that are inside of `transaction`."""
        self.is_pooled = False
        """A pooler answered on one of its connections: every statement is in a transaction (see postgresql.py)."""
        self.sign_refusal: str | None = None
        """Why one of its sessions may not give its sign of life. Then none of this process counts any more."""
        self._sign: SessionSign | None = None
        self.engine = self._open()
        self._commits_itself = self._open(commits_itself=True) if self.dialect == "postgresql" else None
        """For single statements, on PostgreSQL: without the round trips of BEGIN and COMMIT."""
        os.register_at_fork(after_in_child=_reopening(weakref.ref(self)))

    @property
    def where(self) -> str:
        """The URL for messages: without its password and its query."""
        return self._errors.where

    def give_sign(self, sign: SessionSign) -> None:
        """From now on each session gives this sign of life. On PostgreSQL alone, and not behind a pooler."""
        self._sign = sign
        for engine in self.engines:
            engine.dispose()  # those that are open give none

    def refuse_sign(self, reason: str) -> None:
        """A session may not give its sign, and those that are opened from now on do not try."""
        self.sign_refusal, self._sign = reason, None

    @property
    def gives_sign(self) -> bool:
        """Whether its sessions give one."""
        return self._sign is not None

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
            found = self._statements[name] = self._keep(make())
        return found

    def kept_rows(self, name: str, make: Callable[[], NewRow]) -> KeptRows:
        """Rows of one shape that are written all the time: the statements are put together once (see kept_rows.py)."""
        found = self._rows.get(name)
        if found is None:
            found = self._rows[name] = KeptRows(make(), self._keep, self.engine.dialect)
        return found

    def _keep(self, statement: Executable) -> Kept:
        return Kept(statement, self.engine, self._commits_itself, trace=lambda: self.trace)

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
            raise self._errors.unavailable(error) from error
        except (PoolTimeout, DisconnectionError) as error:
            raise self._errors.unconnected(error) from error

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
                if is_lost(error) and not lost_before and time.monotonic() < deadline:
                    lost_before = True
                    continue
                if is_transient(error) and time.monotonic() < deadline:
                    _pause()
                    continue
                raise self._errors.unavailable(error) from error
            except (PoolTimeout, DisconnectionError) as error:
                raise self._errors.unconnected(error) from error

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
                lost = is_lost(error)
                unknown = unknown or (committing and lost)
                if lost and not lost_before and time.monotonic() < deadline:
                    lost_before = True
                    continue
                if is_transient(error) and time.monotonic() < deadline:
                    _pause()
                    continue
                raise self._errors.unavailable(error, unknown=unknown) from error
            except (PoolTimeout, DisconnectionError) as error:
                raise self._errors.unconnected(error, unknown=unknown) from error

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
                raise self._errors.unavailable(error, unknown=committing and is_lost(error)) from error
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
                lost = is_lost(error)
                if time.monotonic() < deadline and (is_transient(error) or (lost and not lost_before)):
                    lost_before = lost_before or lost
                    _pause()
                    continue
                raise self._errors.unavailable(error) from error
            except (PoolTimeout, DisconnectionError) as error:
                raise self._errors.unconnected(error) from error

    def translate(self, error: SQLAlchemyError) -> Exception:
        """An error of the caller's own connection, in our words."""
        return self._errors.unavailable(error) if isinstance(error, DBAPIError) else error

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
            raise self._errors.not_in_turn(error) from error

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
                _pause()

    def _reopen(self) -> None:
        """In a forked child: the parent's connections are not ours, and its lock may be held for ever."""
        self.writer = Writer()
        self._entered = set()
        self._sign = None
        if self.file is not None:
            self.file.reopen()
        for engine in self.engines:
            engine.dispose(close=False)

    def _open(self, *, commits_itself: bool = False) -> Engine:
        if self.file is not None:
            wait_s = self._statement_timeout_s / 2
            engine = file_engine(self.url, self.file, wait_s=wait_s)
            self._begin_immediate(engine, self.file, wait_s=wait_s)
            return engine

        def found_pooler() -> None:
            self.is_pooled = True

        timeout_s = self._statement_timeout_s
        return server_engine(
            self.url,
            statement_timeout_s=timeout_s,
            commits_itself=commits_itself,
            on_pooled=found_pooler,
            sign=lambda: self._sign,
        )

    def _begin_immediate(self, engine: Engine, file: LedgerFile, *, wait_s: float) -> None:
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


def _pause() -> None:
    """Before a try that follows another: whoever was in the way may be gone by then."""
    time.sleep(jitter.uniform(0.002, 0.03))


def _reopening(database: weakref.ref[Database]) -> Callable[[], None]:
    def reopen() -> None:
        if (found := database()) is not None:
            found._reopen()

    return reopen
