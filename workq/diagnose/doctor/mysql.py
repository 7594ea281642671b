"""MySQL and MariaDB: what makes them forget commits, refuse writes, or cut what they store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from workq.diagnose.doctor.check import Check, Level
from workq.slices import every_table

if TYPE_CHECKING:
    from workq.ledger.engine.database import Database


def server(tx: Connection) -> str:
    """Its name and version."""
    version = _variable(tx, "version") or "of unknown version"
    return f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {version}"


def checks(tx: Connection, database: Database) -> Iterator[Check]:
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
