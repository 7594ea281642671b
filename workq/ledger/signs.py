"""Signs of life in the ledger: locks of a worker's sessions, which end with them. On PostgreSQL, without a pooler.

Each session of a worker process shares one lock, whose number follows from the worker's id. The server ends a session
of which it hears nothing (`SessionSign`), so the lock is free when no connection of the process is left. A process has
one session more than it needs, which does nothing but give the sign: a thread sees at once that it was closed, and
opens another.

A free lock is evidence, and decides nothing: see workq/recovery/absence.py. Other dialects, and a pooler, give none.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Boolean, Connection, func, literal_column, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.elements import ColumnElement

from workq.errors import LedgerUnavailable, Unavailable
from workq.ledger import Absence, AbsentWorker
from workq.ledger.engine.connect import CONNECT_S
from workq.ledger.engine.database import Database

NONE: Final = ""
"""What a worker says of its signs when it can give them no more."""
SOON_S: Final = 2.0
"""So long after the look that decided, a worker may be ended by it."""


class Signs:
    """Who can give signs in this ledger, and what opens the sessions for it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def are_given(self) -> bool:
        """Whether sessions of this database can give a sign. Known once one was opened."""
        database = self._database
        return database.dialect == "postgresql" and not database.is_pooled and database.sign_refusal is None

    @property
    def refusal(self) -> str | None:
        """Why the server refuses the sign of this process, and what to grant; None: it does not."""
        from workq.ledger.engine.postgresql import SIGN_RIGHTS

        reason = self._database.sign_refusal
        cure = f"Grant this user EXECUTE on {' and '.join(SIGN_RIGHTS)}, and restart"
        return None if reason is None else f"ledger: {reason}. {cure}"

    @property
    def back_s(self) -> float:
        """Within so many seconds every process has a session again, after the server was away: each host is tried."""
        hosts = str(self._database.url.query.get("host", "")).count(",") + 1
        return 2.0 * CONNECT_S * hosts

    def give(self, worker: str, *, heard_s: float) -> SignSession:
        """Let each session of this process give the sign of `worker`, and one session more. Needs `are_given`."""
        from workq.ledger.engine.postgresql import SessionSign

        self._database.give_sign(SessionSign(worker, heard_s, self._database.refuse_sign))
        return SignSession(self._database)

    def watch(self, *, heard_s: float, clock: Callable[[], float] = time.monotonic) -> SignSession:
        """A session that asks who is absent. With all of this process it ends after a silence of `heard_s`."""
        from workq.ledger.engine.postgresql import SessionSign

        if not self._database.gives_sign:
            self._database.give_sign(SessionSign(None, heard_s, self._database.refuse_sign))
        return SignSession(self._database, clock=clock)


class SignSession:
    """One session beside the pool, kept open. Used by one thread; `close` by any."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._is_closed = False
        self._since = clock()

    @property
    def lasts_s(self) -> float:
        """For how long it has been open, without a break; 0 while it is not."""
        return 0.0 if self._connection is None else self._clock() - self._since

    def keep(self) -> None:
        """Open it, if it is not open any more. Asks the server nothing while it is.

        Raises:
            LedgerUnavailable: it cannot be opened now.
        """
        from workq.ledger.engine.postgresql import is_broken

        if self._connection is not None:
            raw: Any = self._connection.connection.dbapi_connection
            if raw is not None and not is_broken(raw):
                return
            self._drop()
        try:
            connection = self._database.engines[-1].connect()
            connection.detach()
        except SQLAlchemyError as error:
            raise self._unavailable(error) from error
        with self._lock:
            self._connection, self._since = connection, self._clock()
        if self._is_closed:
            self._drop()

    def absent(self, *, silent_s: float) -> Sequence[AbsentWorker]:
        """The live workers that give signs, have not beaten for `silent_s`, and of which no session is here.

        Raises:
            LedgerUnavailable: it did not answer, and nothing is known.
        """
        self.keep()
        connection = self._connection
        if connection is None:
            raise LedgerUnavailable("ledger: its session was closed")
        w, now = self._database.tables.worker, self._database.now
        asked = select(w.c.id, w.c.signs, now().label("now")).where(
            w.c.state == "live", w.c.signs.is_not(None), w.c.beat_at <= now(-silent_s), _is_free(w.c.id)
        )
        try:
            rows = connection.execute(asked).all()
        except SQLAlchemyError as error:
            self._drop()
            raise self._unavailable(error) from error
        return [AbsentWorker(row.id, row.signs, row.now) for row in rows]

    def close(self) -> None:
        """End it, and the sign with it. Repeatable."""
        self._is_closed = True
        self._drop()

    def _unavailable(self, error: SQLAlchemyError) -> Exception:
        translated = self._database.translate(error)
        return translated if isinstance(translated, Unavailable) else LedgerUnavailable(f"ledger: {error}")

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken in any way
                raw: Any = connection.connection.dbapi_connection
                raw.close()
                connection.close()


def absent_by(database: Database, absence: Absence) -> list[ColumnElement[bool]]:
    """The conditions under which a worker's claims end because it is absent, in the statement that ends them.

    It takes the lock of the worker's sign, until its transaction ends: a session of that worker which is opened
    meanwhile waits, and finds it reaped.
    """
    w, now = database.tables.worker, database.now
    return [
        w.c.signs.is_not(None),
        w.c.beat_at <= now(-absence.for_s),
        now(-SOON_S) <= absence.looked_at,
        _is_free(w.c.id),
    ]


def _is_free(worker: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether nobody gives this worker's sign. Takes it for the rest of the transaction."""
    return func.pg_try_advisory_xact_lock(func.hashtextextended(worker, literal_column("0")), type_=Boolean())
