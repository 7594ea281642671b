"""Kept rows: new rows of one table, written again and again, a page of them at once.

PostgreSQL gets a page as one statement with an array for each column: a statement for each row costs it and its driver
several times as much. To the others the driver sends the rows as it does best.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import BindParameter, Column, ColumnElement, Connection, Executable, bindparam, func, select
from sqlalchemy import insert as insert_into
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.visitors import ExternallyTraversible, iterate, replacement_traverse
from sqlalchemy.types import TypeEngine

from workq.ledger.engine.id_lists import ArrayText
from workq.ledger.engine.prepared import Given, Kept

TEXT_MAX: Final = 32 * 2**20
"""So many characters of values go to PostgreSQL in one statement, unless one row alone has more."""

NewRow = Mapping[Column[Any], Any]
"""The columns of a table, and the expressions that are written there. Their parameters are given with each row."""


class KeptRows:
    """How rows of one shape are written into one table. Thread-safe."""

    def __init__(self, row: NewRow, keep: Callable[[Executable], Kept], dialect: Dialect) -> None:
        columns = list(row)
        table = columns[0].table
        self._each = keep(insert_into(table).values(dict(row)))
        self._page: Kept | None = None
        self._processes: Mapping[str, Callable[[Any], Any] | None] = {}
        if dialect.name == "postgresql":
            given = {one.key: one for value in row.values() for one in _given_in(value)}
            self._processes = {
                name: one.type.dialect_impl(dialect).bind_processor(dialect) for name, one in given.items()
            }
            arrays = [bindparam(name, type_=_ArrayAsText(_item_of(one.type, dialect))) for name, one in given.items()]
            page = func.unnest(*arrays).table_valued(*given, name="page").render_derived()
            values = [_read_from(page.c, value) for value in row.values()]
            self._page = keep(insert_into(table).from_select(columns, select(*values).select_from(page)))

    def write(self, tx: Connection, rows: Sequence[Given]) -> None:
        """Write them, in this order."""
        if self._page is None or len(rows) <= 1:
            if rows:
                self._each.write_each(tx, rows)
            return
        page = {name: _text_of([row[name] for row in rows], process) for name, process in self._processes.items()}
        if sum(map(len, page.values())) <= TEXT_MAX:
            self._page.write(tx, page)
            return
        half = len(rows) // 2
        self.write(tx, rows[:half])
        self.write(tx, rows[half:])


class _ArrayAsText(ArrayText):
    """An array for PostgreSQL, whose text is given: its length is looked at before it is sent."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        return None


def _item_of(kind: TypeEngine[Any], dialect: Dialect) -> str:
    """PostgreSQL's name of a type, without a length: a cast to VARCHAR(9) cuts what is longer, in silence."""
    return re.sub(r"\(\d+\)", "", kind.compile(dialect))


def _text_of(items: Iterable[Any], process: Callable[[Any], Any] | None) -> str:
    """The text of an array of these."""
    return "{" + ",".join(map(_quoted, items if process is None else map(process, items))) + "}"


def _quoted(item: Any) -> str:
    if isinstance(item, str):
        return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if item is None:
        return "NULL"
    return f'"{item.isoformat()}"' if isinstance(item, datetime) else str(item)


def _given_in(value: Any) -> Iterable[BindParameter[Any]]:
    """The parameters that are given with each row. Those of the expression itself are not among them."""
    return (one for one in iterate(value) if isinstance(one, BindParameter) and one.required)


def _read_from(page: Any, value: ColumnElement[Any]) -> ColumnElement[Any]:
    """The same expression, with a column of the page in the place of each parameter that is given."""

    def column_of(element: ExternallyTraversible, **_kw: Any) -> ExternallyTraversible | None:
        is_given = isinstance(element, BindParameter) and element.required
        return cast("ExternallyTraversible", page[element.key]) if is_given else None  # type: ignore[attr-defined]

    return cast("ColumnElement[Any]", replacement_traverse(value, {}, column_of))
