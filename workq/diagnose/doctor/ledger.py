"""The ledger: reachable, of the right schema, with a clock that agrees; and what its dialect says.

SQLite: where its file lies, how it is written, how much room is left. PostgreSQL, MySQL and MariaDB: what makes them
forget commits, refuse writes, fill up, or cut what they store.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from workq.config import Settings, masked
from workq.config.sqlite import is_there, sqlite_file
from workq.diagnose.doctor import host
from workq.diagnose.doctor.absence import signs_given, why_unwatched
from workq.diagnose.doctor.check import Check, Level, line
from workq.diagnose.doctor.host import require, skew
from workq.errors import SchemaMismatch
from workq.ledger.engine.migrate import encoding_error
from workq.slices import every_table

if TYPE_CHECKING:
    from workq.ledger.engine.database import Database


FREE_MIN_BYTES: Final = 256 * 1024 * 1024
"""Less room than this on the disk of the file is a finding: a full disk refuses every enqueue."""
_NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smbfs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)
OPEN_MAX_S: Final = 900.0
"""A transaction that is open for longer keeps vacuum from removing dead rows, and the hot tables grow."""
_OLDEST: Final = """
SELECT extract(epoch FROM clock_timestamp() - xact_start), pid, coalesce(state, ''), coalesce(application_name, '')
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%%')
ORDER BY xact_start LIMIT 1
"""
_PREPARED: Final = """
SELECT count(*), extract(epoch FROM clock_timestamp() - min(prepared)),
  quote_literal((array_agg(gid ORDER BY prepared))[1])
FROM pg_prepared_xacts WHERE database = current_database()
"""
_SLOTS: Final = "SELECT slot_name FROM pg_replication_slots WHERE NOT active AND (xmin IS NOT NULL OR database IS NULL)"


def look(settings: Settings) -> Iterator[Check]:
    """Everything about the ledger.

    Raises:
        NoLedger: there is none. LedgerUnavailable, ConfigError: it cannot be looked at.
    """
    url = settings.ledger
    scheme = url.partition("://")[0].partition("+")[0]
    file = sqlite_file(url)
    if file is not None:
        yield from place(url, file, origin=settings.origins.get("ledger", "default"))
        if not is_there(file):
            return
    else:
        require("postgresql" if scheme.startswith("postgres") else "mysql", url)

    from workq.ledger.engine import migrate
    from workq.ledger.engine.database import Database

    database = Database(
        url,
        namespace=settings.namespace,
        statement_timeout_s=settings.times.statement_s,
        makes=False,
        origin=settings.origins.get("ledger", "default"),
    )
    try:
        if file is not None and migrate.status(database).version == 0:
            migrate.require_current(database)  # raises: nothing is changed in a file of somebody else
        server, checks = _DIALECTS[database.dialect]
        with database.read() as tx:
            yield Check("ledger", Level.OK, f"{masked(url)}: {server(tx)}")
        yield from _clock(database)
        with database.read() as tx:
            yield from checks(tx, database)
            if why_unwatched(settings) is None and not database.is_pooled:
                yield from sign_rights(tx)
        try:
            migrate.require_current(database)
            version = migrate.status(database).version
            yield Check("ledger", Level.OK, f"schema version {version}, namespace {settings.namespace!r}")
            if why_unwatched(settings) is None:
                with database.read() as tx:
                    yield from signs_given(tx, database, settings)
            yield from host.exposed_ledger(database)
        except SchemaMismatch as error:
            yield Check("ledger", Level.ERROR, line(error))
    finally:
        database.close()


def sign_rights(tx: Connection) -> Iterator[Check]:
    """Whether this user may give the sign of life of a worker, and look for those of others. On PostgreSQL."""
    from workq.ledger.engine.postgresql import SIGN_RIGHTS

    may = "SELECT has_function_privilege(%s, 'EXECUTE')"
    missing = [one for one in SIGN_RIGHTS if not tx.exec_driver_sql(may, (one,)).scalar()]
    if missing:
        user = tx.exec_driver_sql("SELECT quote_ident(current_user)").scalar()
        yield Check(
            "ledger",
            Level.WARNING,
            f"this user may not call {' and '.join(missing)}: signs of life are not given or not looked for, and a "
            "dead host is found by its leases alone; GRANT EXECUTE ON FUNCTION "
            f"{', '.join(missing)} TO {user}, and restart the workers",
        )


def _clock(database: Database) -> Iterator[Check]:
    with database.read() as tx:
        asked = datetime.now(UTC)
        theirs: datetime = tx.execute(select(database.now())).scalar_one()
        told = datetime.now(UTC)
    if database.dialect != "sqlite":
        yield skew("the ledger", theirs, asked, told)


def place(url: str, file: Path, *, origin: str) -> Iterator[Check]:
    """Whether the file can be made or written there, and whether that is a good place."""
    folder = file.absolute().parent
    if not is_there(file):
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield Check(
                "ledger",
                Level.UNCHECKED,
                f"there is no file {file.absolute()} ({origin}); is it the right one? To make it: workq db migrate",
            )
        else:
            yield Check("ledger", Level.ERROR, f"{masked(url)}: cannot be created in {folder}; set WORKQ_LEDGER_URL")
            return
    elif not os.access(file, os.W_OK) or not os.access(folder, os.W_OK):
        yield Check("ledger", Level.ERROR, f"{masked(url)}: the file or its folder {folder} is not writable")
    yield from _names(url, file)
    if (kind := _filesystem(file)) in _NETWORK_FILESYSTEMS:
        yield Check(
            "ledger",
            Level.ERROR,
            f"{masked(url)} is on a network filesystem ({kind}): SQLite's locks do not hold there; "
            "use a local disk, or PostgreSQL",
        )
    free = shutil.disk_usage(folder).free
    if free < FREE_MIN_BYTES:
        yield Check(
            "ledger",
            Level.WARNING,
            f"only {free >> 20} MiB are free on the disk of {masked(url)}: when it is full, enqueue() fails and "
            "nothing can be settled; make room, or see `workq sweep --only prune`",
        )


def _names(url: str, file: Path) -> Iterator[Check]:
    """Whether the file has one name, as the log beside it has.

    A symbolic link is no second name: SQLite follows it, and keeps its log beside the file that the link leads to.
    """
    beside = "SQLite keeps its newest writes in a -wal and a -shm file beside one name"
    if is_there(file) and (names := file.stat().st_nlink) > 1:
        yield Check(
            "ledger",
            Level.WARNING,
            f"the file of {masked(url)} has {names} names (hard links): {beside}, so processes that use another name "
            "do not see them, and may damage the file; stop all, let each use the same name, and remove the others",
        )
    if any(Path(one.mountpoint) == file.resolve() for one in psutil.disk_partitions(all=True)):
        yield Check(
            "ledger",
            Level.WARNING,
            f"the file of {masked(url)} is mounted alone: {beside}, which others do not see; mount its folder",
        )


def sqlite_server(tx: Connection) -> str:
    """Its name and version."""
    return f"SQLite {tx.exec_driver_sql('SELECT sqlite_version()').scalar()}"


def sqlite_checks(tx: Connection, _database: Database) -> Iterator[Check]:
    """What the file says, opened as workq opens it."""
    mode = str(tx.exec_driver_sql("PRAGMA journal_mode").scalar())
    if mode.lower() == "wal":
        yield Check("ledger", Level.OK, "journal mode WAL")
    else:
        yield Check(
            "ledger", Level.WARNING, f"journal mode is {mode}, not WAL: readers and the writer block each other"
        )


def _filesystem(file: Path) -> str:
    real = file.resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if real.is_relative_to(one.mountpoint)]
    mount = max(mounts, key=lambda one: len(one.mountpoint), default=None)
    return "" if mount is None else mount.fstype.lower()


def postgresql_server(tx: Connection) -> str:
    """Its name and version."""
    return f"PostgreSQL {_show(tx, 'server_version')}"


def postgresql_checks(tx: Connection, database: Database) -> Iterator[Check]:
    """What its settings and its sessions say."""
    if database.is_pooled:
        yield Check(
            "ledger",
            Level.OK,
            "reached through a pooler, such as PgBouncer: nothing is prepared, limits are set for each transaction, "
            "and a dead host is found by its leases alone",
        )
    wrong = encoding_error(tx)
    if wrong is not None:
        yield Check("ledger", Level.ERROR, f"{wrong}, and move there")
    if tx.exec_driver_sql("SELECT pg_is_in_recovery()").scalar():
        yield Check("ledger", Level.ERROR, "this server is a read-only standby; the URL must name the primary")
    elif _show(tx, "default_transaction_read_only") == "on":
        yield Check(
            "ledger", Level.ERROR, "default_transaction_read_only is on: nothing can be recorded; set it to off"
        )
    for name in ("fsync", "full_page_writes"):
        if _show(tx, name) != "on":
            yield Check("ledger", Level.ERROR, f"{name} is off: a crash of the server can lose or corrupt tasks")
    if _show(tx, "synchronous_commit") == "off":
        yield Check(
            "ledger",
            Level.WARNING,
            "synchronous_commit is off: a crash of the server can lose tasks whose enqueue() had returned",
        )
    isolation = _show(tx, "default_transaction_isolation")
    if isolation != "read committed":
        yield Check(
            "ledger",
            Level.WARNING,
            f"default_transaction_isolation is {isolation}: workq's own sessions use read committed all the same, but "
            "an enqueue() in your transaction can fail there with a serialization error; be ready to repeat it",
        )
    yield from _pinned(tx)


def _pinned(tx: Connection) -> Iterator[Check]:
    """What keeps vacuum from its work."""
    oldest: Any = tx.exec_driver_sql(_OLDEST).first()
    if oldest is not None and float(oldest[0]) > OPEN_MAX_S:
        who = f"session {oldest[1]}" + (f" ({oldest[3]})" if oldest[3] else "")
        yield Check(
            "ledger",
            Level.WARNING,
            f"{who} has a transaction open for {float(oldest[0]):.0f} s, {oldest[2] or 'state hidden'}: while it "
            "lasts, vacuum removes nothing that is newer, and claims get slower; end it, as by SELECT "
            f"pg_terminate_backend({oldest[1]}), and set idle_in_transaction_session_timeout",
        )
    prepared: Any = tx.exec_driver_sql(_PREPARED).first()
    if prepared is not None and prepared[0] and float(prepared[1]) > OPEN_MAX_S:
        yield Check(
            "ledger",
            Level.WARNING,
            f"{prepared[0]} prepared transactions are open, the oldest for {float(prepared[1]):.0f} s, and keep vacuum "
            f"from its work: COMMIT PREPARED {prepared[2]}, or ROLLBACK PREPARED {prepared[2]}, and so the others",
        )
    try:
        slots = [str(row[0]) for row in tx.exec_driver_sql(_SLOTS)]
    except DBAPIError:  # hidden from this user
        slots = []
    if slots:
        drop = "; ".join(f"SELECT pg_drop_replication_slot('{one}')" for one in slots[:5])
        yield Check(
            "ledger",
            Level.WARNING,
            f"nobody reads replication slot {', '.join(slots[:5])}: it keeps WAL and dead rows until the disk is full; "
            f"drop it: {drop}",
        )


def _show(tx: Connection, name: str) -> str:
    return str(tx.exec_driver_sql(f"SHOW {name}").scalar())


def mysql_server(tx: Connection) -> str:
    """Its name and version."""
    version = _variable(tx, "version") or "of unknown version"
    return f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {version}"


def mysql_checks(tx: Connection, database: Database) -> Iterator[Check]:
    """What its settings and its tables say."""
    isolation = _variable(tx, "transaction_isolation") or _variable(tx, "tx_isolation") or "unknown"
    if isolation.replace("-", " ").upper() != "READ COMMITTED":
        yield Check("ledger", Level.ERROR, f"sessions run at {isolation}; workq needs READ COMMITTED")
    if "1" in (_variable(tx, "GLOBAL.read_only"), _variable(tx, "GLOBAL.super_read_only")):
        yield Check(
            "ledger", Level.ERROR, "read_only is on: this is a replica, or was closed; the URL must name the primary"
        )
    if _variable(tx, "innodb_flush_log_at_trx_commit") not in ("1", "3", None):
        yield Check(
            "ledger",
            Level.WARNING,
            "innodb_flush_log_at_trx_commit is not 1: a crash of the server can lose tasks that enqueue() recorded",
        )
    if _variable(tx, "log_bin") == "1" and _variable(tx, "sync_binlog") not in ("1", None):
        yield Check(
            "ledger",
            Level.WARNING,
            f"sync_binlog is {_variable(tx, 'sync_binlog')}, not 1: after a crash of the server, a replica or a "
            "restored backup may lack tasks that enqueue() recorded",
        )
    if (_variable(tx, "innodb_doublewrite") or "1").upper() in ("0", "OFF"):
        yield Check(
            "ledger", Level.ERROR, "innodb_doublewrite is off: a crash in the middle of a write can corrupt tasks"
        )
    modes = _variable(tx, "GLOBAL.sql_mode")
    if modes is not None and not {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"}.intersection(modes.split(",")):
        yield Check(
            "ledger",
            Level.WARNING,
            "sql_mode is not strict: workq's own sessions are, but in a transaction of yours what is too long is cut "
            "instead of refused; add STRICT_TRANS_TABLES",
        )
    yield from _tables(tx, database)


def _tables(tx: Connection, database: Database) -> Iterator[Check]:
    rows = tx.exec_driver_sql(
        "SELECT table_name, engine, table_collation FROM information_schema.tables WHERE table_schema = DATABASE()"
    ).all()
    ours = {table.name for table in every_table(database.tables).sorted_tables}
    for name, engine, collation in rows:
        if name not in ours:
            continue
        if str(engine).lower() != "innodb":
            yield Check("ledger", Level.ERROR, f"table {name} uses {engine}; only InnoDB has transactions")
        if not str(collation).startswith("utf8mb4"):
            yield Check("ledger", Level.ERROR, f"table {name} is {collation}; it needs utf8mb4, or some text is lost")


def _variable(tx: Connection, name: str) -> str | None:
    """A system variable; None where this server has no such one."""
    try:
        value = tx.exec_driver_sql(f"SELECT @@{name}").scalar()
    except DBAPIError:
        return None
    return None if value is None else str(value)


_Server = Callable[[Connection], str]
_Checks = Callable[[Connection, "Database"], Iterator[Check]]
_DIALECTS: Final[dict[str, tuple[_Server, _Checks]]] = {
    "sqlite": (sqlite_server, sqlite_checks),
    "postgresql": (postgresql_server, postgresql_checks),
    "mysql": (mysql_server, mysql_checks),
    "mariadb": (mysql_server, mysql_checks),
}
