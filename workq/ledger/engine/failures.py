"""What an error of the database means: try again, the connection is lost, or an error in workq's words.

Which cure a message names: cures.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, DisconnectionError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from workq.errors import CommitUnknown, LedgerUnavailable, SchemaMismatch
from workq.ledger.engine.cures import cure_of, patience_of, right_of
from workq.ledger.engine.sqlite_writer import NotInTurn
from workq.ledger.engine.url import shown_url

_TRANSIENT_SQLSTATES: Final = frozenset({"40P01", "40001", "55P03"})  # deadlock, serialization, lock timeout
_ENDING_SQLSTATES: Final = frozenset({"57P01", "57P02", "57P03"})  # shut down, crashed, starting; 08...: a pooler's
_OVERTAKEN: Final = 1020
"""MariaDB with innodb_snapshot_isolation: a row has changed since the transaction first read; it is rolled back."""
_NO_SAVEPOINT: Final = 1305
"""It is gone, as an error has ended the whole transaction: see `_first_of`."""
_TRANSIENT_ERRNOS: Final = frozenset({_OVERTAKEN, 1205, 1213, _NO_SAVEPOINT, 3572})
"""Overtaken, lock wait timeout, deadlock, a savepoint that is gone as a deadlock took its transaction along, NOWAIT."""
_MISSING_SQLSTATES: Final = frozenset({"42P01", "42703"})  # undefined table, undefined column
_MISSING_ERRNOS: Final = frozenset({1054, 1146})
_MISSING_TEXTS: Final = ("no such table", "no such column", "has no column named")


@dataclass(frozen=True, slots=True)
class DatabaseErrors:
    """Errors of one database in workq's words, to be raised. `unknown`: the connection broke in COMMIT."""

    url: URL

    @property
    def where(self) -> str:
        """The URL for messages: without its password and its query."""
        return shown_url(self.url)

    def unavailable(self, error: DBAPIError, *, unknown: bool = False) -> Exception:
        """What the driver has said. What is about the rows themselves passes as it is."""
        error = _first_of(error)
        reason = next(iter(str(error.orig).strip().splitlines()), type(error).__name__)
        if self.url.password:
            reason = reason.replace(str(self.url.password), "***")
        if _is_missing(error):
            return SchemaMismatch(f"the ledger at {self.where} lacks workq's tables ({reason}). Run: workq db migrate")
        if unknown:
            return CommitUnknown(
                f"the ledger at {self.where} broke off while it committed ({reason}); repeat with the same ids"
            )
        if isinstance(error.orig, Exception) and type(error).__name__ in ("IntegrityError", "DataError"):
            return error
        right = right_of(error.orig, statement=error.statement, user=self.url.username)
        cure = right or cure_of(self.url.get_backend_name(), error.orig)
        unavailable = LedgerUnavailable(f"cannot use the ledger at {self.where} ({reason}). {cure} Try: workq doctor")
        unavailable.patience_s = patience_of(self.url.get_backend_name(), error.orig)
        return unavailable

    def unconnected(self, error: PoolTimeout | DisconnectionError, *, unknown: bool = False) -> LedgerUnavailable:
        """The pool gave no connection."""
        if isinstance(error, PoolTimeout):
            return self.busy(unknown=unknown)
        kind = CommitUnknown if unknown else LedgerUnavailable
        return kind(f"cannot use the ledger at {self.where} ({error}). Try: workq doctor")

    def busy(self, *, unknown: bool = False) -> LedgerUnavailable:
        """Other threads of this process have all of it."""
        kind = CommitUnknown if unknown else LedgerUnavailable
        return kind(f"no free connection to the ledger at {self.where}: too many threads of this process wait for it")

    def not_in_turn(self, error: NotInTurn) -> LedgerUnavailable:
        """This thread may not write now."""
        if not error.is_interrupted:
            return self.busy()
        return LedgerUnavailable(
            f"the ledger at {self.where} is being written by this thread, which a signal has interrupted; "
            "nothing was recorded. Let the signal handler set a flag, and enqueue afterwards"
        )


def without_values(error: IntegrityError) -> IntegrityError:
    """The same error with its first line only: PostgreSQL's detail has the whole row, and with it the payload."""
    first = next(iter(str(error.orig).splitlines()), "")
    return IntegrityError(None, None, Exception(first))


def is_transient(error: DBAPIError) -> bool:
    """The database asks for it again: a deadlock, a lock that did not come in time, a file that is locked."""
    cause = _first_of(error).orig
    if getattr(cause, "sqlstate", None) in _TRANSIENT_SQLSTATES:
        return True
    args: tuple[object, ...] = getattr(cause, "args", ())
    if args and isinstance(args[0], int):
        return args[0] in _TRANSIENT_ERRNOS
    return bool(args) and isinstance(args[0], str) and ("locked" in args[0] or "busy" in args[0])


def is_overtaken(error: DBAPIError) -> bool:
    """A row that the statement needs was written by a transaction that this one does not see."""
    return _errno(_first_of(error)) == _OVERTAKEN


def _first_of(error: DBAPIError) -> DBAPIError:
    """The error that ended the transaction, where this one only says that a savepoint has gone with it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, DBAPIError) and _errno(link) != _NO_SAVEPOINT:
            return link
        link = link.__context__
    return error


def _errno(error: DBAPIError) -> object:
    """The number by which MariaDB and MySQL know it."""
    return next(iter(getattr(error.orig, "args", ())), None)


def is_lost(error: DBAPIError) -> bool:
    """The connection has ended, or the server's last word was that it ends it: that may come before the end itself."""
    sqlstate = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or sqlstate.startswith("08") or sqlstate in _ENDING_SQLSTATES


def _is_missing(error: DBAPIError) -> bool:
    """A table or column of workq is not there."""
    cause = error.orig
    if getattr(cause, "sqlstate", None) in _MISSING_SQLSTATES:
        return True
    args: tuple[object, ...] = getattr(cause, "args", ())
    if args and isinstance(args[0], int):
        return args[0] in _MISSING_ERRNOS
    return type(cause).__module__ == "sqlite3" and any(mark in str(cause) for mark in _MISSING_TEXTS)
