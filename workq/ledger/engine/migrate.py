"""The ledger's schema: which version a database has, and the steps to the newest.

The schema is plain SQL, one folder for each dialect: in the wheel at `workq/_sql`, in a checkout at `sql/`. A new
ledger gets `schema.sql`, which is the whole; an older one each `NNNN_name.sql` after its version. All are written with
the prefix `workq_`; another namespace gets its own. What was released is never edited, so that a ledger of any version
can be brought up. The row `schema_version` of the meta table says how far a ledger is; the last statement of each file
writes it.

Who decides: the database. Two migrators at once wait for each other (an advisory lock of PostgreSQL, GET_LOCK of MySQL,
the one writer of SQLite), and the second finds nothing to do. What happens on each failure:

- A statement fails, or the process dies. PostgreSQL and SQLite roll all of it back. MySQL commits each DDL statement by
  itself, so its files consist of statements that may be repeated: `migrate` again completes what it finds, by the
  numbered files from the first one on, since tables without a version may be of any.
- The user may not create tables, or a name is taken by somebody else: SchemaMismatch, with what to do.
- The ledger is newer than this code: SchemaMismatch; nothing is ever taken back.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import DBAPIError

from workq.errors import ConfigError, LedgerUnavailable, SchemaMismatch
from workq.ledger.columns import DIALECTS
from workq.ledger.engine.catalog import columns_of
from workq.ledger.engine.cures import cure_of
from workq.ledger.engine.database import Database
from workq.ledger.schema import SCHEMA_VERSION
from workq.values.names import check_namespace

__all__ = [
    "Status",
    "ensure",
    "migrate",
    "require_current",
    "statements",
    "status",
]

LOCK_WAIT_S: Final = 60.0
"""How long a migrator waits for another one."""

_WHOLE: Final = "schema.sql"
_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+) \(\n(.*)\n\)", re.DOTALL)
_NO_COLUMN: Final = ("CONSTRAINT ", "KEY ", "UNIQUE KEY ")
_DENIED_SQLSTATES: Final = frozenset({"42501"})  # PostgreSQL: insufficient_privilege
_DENIED_ERRNOS: Final = frozenset({1044, 1142, 1227, 1370})  # MySQL: access to the database, a command, a privilege
_THERE: Final = frozenset({1060, 1061})  # MySQL: a migration that broke off has added this column, or this index
_TAKEN_SQLSTATES: Final = frozenset({"42P07", "42710"})  # PostgreSQL: duplicate table, duplicate object


@dataclass(frozen=True, slots=True)
class Status:
    """Where a ledger's schema stands. `version` 0: it has none. `pending` names the files that would be applied."""

    version: int
    latest: int
    pending: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Migration:
    version: int
    name: str
    sql: str

    def statements(self) -> list[str]:
        """One by one, without comments. The files promise: a statement ends with a semicolon at the end of its line."""
        bare = "\n".join(line.partition("--")[0].rstrip() for line in self.sql.splitlines())
        return [statement.strip() for statement in re.split(r";[ \t]*(?:\n|\Z)", bare) if statement.strip()]


def status(database: Database) -> Status:
    """Which version the ledger has, which this code knows, and what is missing. Reads only.

    Raises:
        NoLedger: the database makes no file, and there is none, or it is empty or not one of SQLite.
        LedgerUnavailable: the database did not answer. ConfigError: this user may not use the file.
        SchemaMismatch: the version that is recorded is no number.
    """
    if not _may_have_tables(database):
        return Status(0, SCHEMA_VERSION, (_WHOLE,))
    with database.read() as tx:
        return _status(tx, database)


def require_current(database: Database) -> None:
    """Do nothing if the ledger's schema is the one that this code was written for.

    Raises:
        SchemaMismatch: it is missing, older or newer; the message says what to do.
        NoLedger, ConfigError, LedgerUnavailable: as `status`.
    """
    _refuse_other(status(database), database)


def ensure(database: Database) -> None:
    """Create the schema in an empty SQLite file; anywhere else, only require that it is current.

    What a person keeps on a server is changed by `workq db migrate`, never in passing. Atomic and repeatable; several
    processes may do it at once.

    Raises:
        SchemaMismatch: it is missing (on a server, or in a file that has tables of somebody else), older or newer.
        LedgerUnavailable: the database did not answer.
    """
    with database.read() as tx:  # one snapshot for both questions: another process may be creating it right now
        found = _status(tx, database)
        is_empty = database.dialect == "sqlite" and not inspect(tx).get_table_names()
    if is_empty:
        migrate(database)
    else:
        _refuse_other(found, database)


def migrate(database: Database) -> list[str]:
    """Bring the ledger's schema to the newest version; answers the names of the files applied, [] if it was current.

    All or nothing on PostgreSQL and SQLite. On MySQL a failure leaves what was created so far, and the version as it
    was; migrating again completes it.

    Raises:
        SchemaMismatch: the ledger is newer than this code; or the user may not create tables; or a name is taken.
        ConfigError: the database does not store all text.
        LedgerUnavailable: the database did not answer, or another migrator did not end within a minute.
    """

    def apply(tx: Connection) -> list[str]:
        with _alone(tx, database):
            _refuse_encoding(tx, database)
            found = _status(tx, database)
            if found.version > found.latest:
                _refuse_other(found, database)
            pending = _pending(tx, database, found.version)
            if pending:
                _refuse_strangers(tx, database)
            for one in pending:
                for statement in _split(one, database.namespace):
                    _execute(tx, statement, one.name, database, found.version)
            if pending:
                _verify(tx, database)
            return [one.name for one in pending]

    return database.run(apply, deadline_s=LOCK_WAIT_S)


def statements(dialect: str, namespace: str = "workq", *, after: int = 0) -> str:
    """The SQL for a DBA to read and apply, in one transaction where the dialect can: the whole schema of a new ledger.

    With `after`, what brings a ledger of that version to the newest.

    Raises:
        ConfigError: the dialect or the namespace is not one; no ledger of this code has the version `after`.
    """
    check_namespace(namespace)
    known = {"postgres": "postgresql", "mariadb": "mysql"}.get(dialect, dialect)
    if known not in DIALECTS:
        raise ConfigError(f"dialect {dialect!r} is not known; use one of {', '.join(DIALECTS)}")
    if not 0 <= after < SCHEMA_VERSION:
        raise ConfigError(f"nothing follows version {after}: use one from 1 to {SCHEMA_VERSION - 1}, or none for all")
    chosen = [one for one in _migrations(known) if one.version > after] if after else [_whole(known)]
    body = "\n".join(_in_namespace(one.sql, namespace) for one in chosen)
    return body if known == "mysql" else f"BEGIN;\n\n{body}\nCOMMIT;\n"


def _status(tx: Connection, database: Database) -> Status:
    version = _version(tx, database)
    return Status(version, SCHEMA_VERSION, tuple(one.name for one in _pending(tx, database, version)))


def _pending(tx: Connection, database: Database, version: int) -> list[_Migration]:
    """The files that bring a ledger of this version to the newest, in order."""
    if version == 0 and not _is_half_made(tx, database):
        return [_whole(database.dialect)]
    return [one for one in _migrations(database.dialect) if one.version > version]


def _is_half_made(tx: Connection, database: Database) -> bool:
    """Whether a migration of MySQL that broke off has left tables, of this version of workq or of an older one."""
    return database.dialect == "mysql" and not _columns(database).keys().isdisjoint(inspect(tx).get_table_names())


def _may_have_tables(database: Database) -> bool:
    """Whether it is worth connecting to a file that is not to be made: that would change one of somebody else."""
    if database.file is None or database.file.makes:
        return True
    try:
        return database.file.has(database.tables.meta.name)
    except sqlite3.Error as error:
        raise LedgerUnavailable(
            f"cannot use the ledger at {database.where} ({error}). {cure_of('sqlite', error)} Try: workq doctor"
        ) from error


def _version(tx: Connection, database: Database) -> int:
    meta = database.tables.meta
    if not _has_meta(tx, database):
        return 0
    value = tx.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar()
    if value is None:
        return 0
    if not re.fullmatch(r"[1-9][0-9]{0,8}", value):
        raise SchemaMismatch(
            f"the ledger at {database.where} has {value[:40]!r} as its schema_version in {meta.name}: not a number. "
            "Restore that row from a backup"
        )
    return int(value)


def _has_meta(tx: Connection, database: Database) -> bool:
    name = database.tables.meta.name
    if database.dialect == "mysql":
        return inspect(tx).has_table(name)  # who may not read it is refused, not told that there is none
    return name in columns_of(tx, [name])


def encoding_error(tx: Connection) -> str | None:
    """Why this database cannot store all text, and what to do; None when it can."""
    if tx.dialect.name != "postgresql":
        return None  # MySQL's tables have an encoding of their own, and SQLite has no other
    found = tx.exec_driver_sql("SHOW server_encoding").scalar()
    if found == "UTF8":
        return None
    return (
        f"its encoding is {found}, which cannot store all that JSON can say; workq needs UTF8: "
        "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
    )


def _refuse_encoding(tx: Connection, database: Database) -> None:
    wrong = encoding_error(tx)
    if wrong is not None:
        raise ConfigError(f"the ledger at {database.where}: {wrong}, and name that one by WORKQ_LEDGER_URL")


def _refuse_other(found: Status, database: Database) -> None:
    if found.version == found.latest:
        return
    what = f"the ledger at {database.where}, namespace {database.namespace!r},"
    if found.version == 0:
        raise SchemaMismatch(f"{what} has no schema yet. Run: workq db migrate")
    if found.version < found.latest:
        raise SchemaMismatch(
            f"{what} has schema {found.version}; this code needs {found.latest}. Run: workq db migrate"
        )
    raise SchemaMismatch(f"this code knows schema {found.latest}; {what} has {found.version}. Upgrade workq")


def _execute(tx: Connection, statement: str, name: str, database: Database, version: int) -> None:
    try:
        # without parameters the drivers leave % alone, and SQLAlchemy leaves : alone
        tx.exec_driver_sql(statement, execution_options={"no_parameters": True})
    except DBAPIError as error:
        cause = error.orig
        if next(iter(getattr(cause, "args", ())), None) in _THERE:
            return
        reason = str(cause).strip().splitlines()[0]
        if _is_denied(cause):
            printed = f"workq db sql {database.dialect}{f' --from {version}' if version else ''}"
            raise SchemaMismatch(
                f"this user may not create tables in the ledger at {database.where} ({reason}). Let one who may run: "
                f"workq db migrate, or apply what this prints: {printed}"
            ) from error
        if _is_taken(cause):
            raise SchemaMismatch(
                f"{name}: in the ledger at {database.where} a name is taken by something that is not workq's "
                f"({reason}). Choose another namespace"
            ) from error
        raise


def _is_denied(cause: object) -> bool:
    if getattr(cause, "sqlstate", None) in _DENIED_SQLSTATES:
        return True
    code = next(iter(getattr(cause, "args", ())), None)
    return code in _DENIED_ERRNOS or (isinstance(code, str) and "readonly database" in code)


def _is_taken(cause: object) -> bool:
    if getattr(cause, "sqlstate", None) in _TAKEN_SQLSTATES:
        return True
    code = next(iter(getattr(cause, "args", ())), None)
    return isinstance(code, str) and "already" in code  # SQLite: table ... already exists, there is already a table ...


def _refuse_strangers(tx: Connection, database: Database) -> None:
    """A table of somebody else under our name: on MySQL, adding columns to it could not be taken back."""
    known = _columns(database)
    for table, found in columns_of(tx, known).items():
        _refuse_columns(found - known[table], table, database)


def _verify(tx: Connection, database: Database) -> None:
    """`CREATE TABLE IF NOT EXISTS` is silent about a table of somebody else under our name."""
    known = _columns(database)
    found = columns_of(tx, known)
    for table, columns in known.items():
        _refuse_columns(found.get(table, set()) ^ columns, table, database)


def _columns(database: Database) -> dict[str, set[str]]:
    """Each table of the whole schema with its columns, slices included: as its file says, which is made from them."""
    return {
        _in_namespace(table, database.namespace): found for table, found in _whole_columns(database.dialect).items()
    }


@cache
def _whole_columns(dialect: str) -> dict[str, set[str]]:
    created = (_TABLE.match(statement) for statement in _whole(dialect).statements())
    return {
        table[1]: {
            line.split()[0].strip('`"')
            for line in map(str.strip, table[2].splitlines())
            if line and not line.startswith(_NO_COLUMN)
        }
        for table in created
        if table is not None
    }


def _refuse_columns(differing: set[str], table: str, database: Database) -> None:
    if differing:
        raise SchemaMismatch(
            f"table {table} in the ledger at {database.where} is not workq's: its columns differ in "
            f"{', '.join(sorted(differing))}. Choose another namespace"
        )


@contextmanager
def _alone(tx: Connection, database: Database) -> Iterator[None]:
    """One migrator of this namespace at a time. SQLite needs nothing: the transaction is the only one that writes."""
    match database.dialect:
        case "postgresql":
            # an index over a big table takes longer than a statement of the queue may
            tx.execute(text("SET LOCAL statement_timeout = 0"))
            key = int.from_bytes(bytes.fromhex(_lock_name(database))[:8], "big", signed=True)
            tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
            yield
        case "mysql":
            name = f"workq:{_lock_name(database)}"
            _get_lock(tx, name, database)
            try:
                yield
                tx.commit()  # before the lock ends: the next migrator must see the version
            finally:
                try:
                    tx.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": name})
                except BaseException:
                    tx.invalidate()  # the lock ends with its connection
                    raise
        case _:
            yield


def _get_lock(tx: Connection, name: str, database: Database) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while tx.execute(text("SELECT GET_LOCK(:name, 1)"), {"name": name}).scalar() != 1:  # briefly: reads have a deadline
        if time.monotonic() > deadline:
            raise LedgerUnavailable(f"another migrator of the ledger at {database.where} did not end; try again later")


def _lock_name(database: Database) -> str:
    """Locks of MySQL are shared by all databases of the server, those of PostgreSQL by all its users."""
    return sha256(f"workq migrate {database.url.database} {database.namespace}".encode()).hexdigest()[:40]


def _split(migration: _Migration, namespace: str) -> list[str]:
    return [_in_namespace(statement, namespace) for statement in migration.statements()]


def _in_namespace(sql: str, namespace: str) -> str:
    return re.sub(r"\bworkq_", f"{namespace}_", sql)


@cache
def _whole(dialect: str) -> _Migration:
    """The whole schema at once."""
    return _Migration(SCHEMA_VERSION, _WHOLE, (_folder() / dialect / _WHOLE).read_text(encoding="utf-8"))


@cache
def _migrations(dialect: str) -> Sequence[_Migration]:
    """All numbered files of one dialect, in order."""
    found = [
        _Migration(int(match[1]), one.name, one.read_text(encoding="utf-8"))
        for one in (_folder() / dialect).iterdir()
        if (match := _FILE_NAME.fullmatch(one.name))
    ]
    found.sort(key=lambda one: one.version)
    if [one.version for one in found] != list(range(1, SCHEMA_VERSION + 1)):
        names = ", ".join(one.name for one in found) or "none"
        raise SchemaMismatch(f"this installation is damaged: its files for {dialect} are {names}; install it again")
    return found


def _folder() -> Traversable:
    """Where the SQL files are: in the wheel beside the code, in a checkout beside the package."""
    packaged = files("workq") / "_sql"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "sql"
