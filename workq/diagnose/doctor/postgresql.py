"""PostgreSQL: what makes it forget commits, refuse writes, or fill up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from workq.diagnose.doctor.check import Check, Level
from workq.ledger.engine.migrate import encoding_error

if TYPE_CHECKING:
    from workq.ledger.engine.database import Database

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
SELECT count(*), extract(epoch FROM clock_timestamp() - min(prepared)) FROM pg_prepared_xacts
WHERE database = current_database()
"""
_SLOTS: Final = "SELECT slot_name FROM pg_replication_slots WHERE NOT active AND (xmin IS NOT NULL OR database IS NULL)"


def server(tx: Connection) -> str:
    """Its name and version."""
    return f"PostgreSQL {_show(tx, 'server_version')}"


def checks(tx: Connection, database: Database) -> Iterator[Check]:
    """What its settings and its sessions say."""
    if database.is_pooled:
        yield Check(
            "ledger",
            Level.OK,
            "reached through a pooler, such as PgBouncer: nothing is prepared, and limits are set for each transaction",
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
            "lasts, vacuum removes nothing that is newer, and claims get slower; end it, and set "
            "idle_in_transaction_session_timeout",
        )
    prepared: Any = tx.exec_driver_sql(_PREPARED).first()
    if prepared is not None and prepared[0] and float(prepared[1]) > OPEN_MAX_S:
        yield Check(
            "ledger",
            Level.WARNING,
            f"{prepared[0]} prepared transactions are open, the oldest for {float(prepared[1]):.0f} s, and keep vacuum "
            "from its work: COMMIT PREPARED or ROLLBACK PREPARED them",
        )
    try:
        slots = [str(row[0]) for row in tx.exec_driver_sql(_SLOTS)]
    except DBAPIError:  # hidden from this user
        slots = []
    if slots:
        yield Check(
            "ledger",
            Level.WARNING,
            f"nobody reads replication slot {', '.join(slots[:5])}: it keeps WAL and dead rows until the disk is full; "
            "drop it with pg_drop_replication_slot",
        )


def _show(tx: Connection, name: str) -> str:
    return str(tx.exec_driver_sql(f"SHOW {name}").scalar())
