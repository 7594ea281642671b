"""The ledger: reachable, of the right schema, with a clock that agrees; and what its dialect says (see beside)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, select

from workq.config import Settings, masked
from workq.config.sqlite import is_there, sqlite_file
from workq.diagnose.doctor import dialects, host
from workq.diagnose.doctor.check import Check, Level, line
from workq.diagnose.doctor.host import require, skew
from workq.errors import SchemaMismatch

if TYPE_CHECKING:
    from workq.ledger.engine.database import Database


def look(settings: Settings) -> Iterator[Check]:
    """Everything about the ledger.

    Raises:
        NoLedger: there is none. LedgerUnavailable, ConfigError: it cannot be looked at.
    """
    url = settings.ledger
    scheme = url.partition("://")[0].partition("+")[0]
    file = sqlite_file(url)
    if file is not None:
        yield from dialects.place(url, file, origin=settings.origins.get("ledger", "default"))
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
        try:
            migrate.require_current(database)
            version = migrate.status(database).version
            yield Check("ledger", Level.OK, f"schema version {version}, namespace {settings.namespace!r}")
            yield from host.exposed_ledger(database)
        except SchemaMismatch as error:
            yield Check("ledger", Level.ERROR, line(error))
    finally:
        database.close()


def _clock(database: Database) -> Iterator[Check]:
    with database.read() as tx:
        asked = datetime.now(UTC)
        theirs: datetime = tx.execute(select(database.now())).scalar_one()
        told = datetime.now(UTC)
    if database.dialect != "sqlite":
        yield skew("the ledger", theirs, asked, told)


_Server = Callable[[Connection], str]
_Checks = Callable[[Connection, "Database"], Iterator[Check]]
_DIALECTS: Final[dict[str, tuple[_Server, _Checks]]] = {
    "sqlite": (dialects.sqlite_server, dialects.sqlite_checks),
    "postgresql": (dialects.postgresql_server, dialects.postgresql_checks),
    "mysql": (dialects.mysql_server, dialects.mysql_checks),
    "mariadb": (dialects.mysql_server, dialects.mysql_checks),
}
