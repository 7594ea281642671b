"""Which columns the tables of a database have, asked in one statement.

SQLAlchemy's inspector asks for each table alone, and each engine has to compile its statements first: that was half of
what it took to make a schema, and a part of each start of a process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection

_COLUMNS: Final = {
    "sqlite": (
        "SELECT lower(t.name), c.name FROM sqlite_master AS t JOIN pragma_table_xinfo(t.name) AS c "
        "WHERE t.type IN ('table', 'view') AND c.hidden <> 1 AND lower(t.name) IN ({names})"
    ),
    "postgresql": (
        "SELECT t.relname, c.attname FROM pg_catalog.pg_class AS t LEFT JOIN pg_catalog.pg_attribute AS c "
        "ON c.attrelid = t.oid AND c.attnum > 0 AND NOT c.attisdropped "
        "WHERE t.relkind IN ('r', 'p', 'f', 'v', 'm') AND pg_catalog.pg_table_is_visible(t.oid) "
        "AND t.relname IN ({names})"
    ),
    "mysql": (
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name IN ({names})"
    ),
}


def columns_of(tx: Connection, tables: Iterable[str]) -> dict[str, set[str]]:
    """The columns of those of these tables that exist. Their names are our own: lower case, and nothing to quote."""
    names = ", ".join(f"'{name}'" for name in tables)
    found: dict[str, set[str]] = {}
    for table, column in tx.exec_driver_sql(_COLUMNS[tx.dialect.name].format(names=names)):
        columns = found.setdefault(table, set())
        if column is not None:  # a table of PostgreSQL may have none
            columns.add(column)
    return found
