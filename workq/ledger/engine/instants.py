"""Instants in SQL: one column type and one clock for three dialects.

PostgreSQL keeps `timestamptz`, MySQL `datetime(6)` in UTC, SQLite the text `YYYY-MM-DD HH:MM:SS.mmm` in UTC, which
sorts as it reads. `plus(s)` is the database's clock, plus seconds; it is constant within a statement, so indexes serve.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import TIMESTAMP, DateTime, String, TypeDecorator, type_coerce
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeEngine


class Instant(TypeDecorator[datetime]):
    """An aware datetime in UTC."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        if dialect.name in ("mysql", "mariadb"):
            from sqlalchemy.dialects import mysql  # with MySQL only: see `_Text` in ledger/columns.py

            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(String(23))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        value = value.astimezone(UTC)
        if dialect.name == "postgresql":
            return value
        naive = value.replace(tzinfo=None)
        if dialect.name == "sqlite":
            return naive.isoformat(sep=" ", timespec="milliseconds")
        return naive

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        return None if value is None else instant(value)


def instant(value: Any) -> datetime:
    """What a driver has read of an instant."""
    return _read(value) if isinstance(value, str) else _in_utc(value)


@lru_cache(256)
def _read(text: str) -> datetime:
    """The same instant is often in many rows: the clock's in all of them."""
    return _in_utc(datetime.fromisoformat(text))


def _in_utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def unread(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A column of instants as the driver has them, where few of many rows are looked at: see `instant`."""
    return type_coerce(column, NullType())


class _Plus(FunctionElement[datetime]):
    type = Instant()
    inherit_cache = True
    name = "plus"


def plus(*seconds: ColumnElement[Any]) -> ColumnElement[Any]:
    """The database's clock plus some seconds."""
    return _Plus(*seconds)


def _summed(element: _Plus, compiler: Any, form: str, **kw: Any) -> str:
    return " + ".join(form.format(compiler.process(one, **kw)) for one in element.clauses.clauses)


@compiles(_Plus, "postgresql")
def _postgresql(element: _Plus, compiler: Any, **kw: Any) -> str:
    seconds = _summed(element, compiler, "CAST({} AS double precision)", **kw)
    return f"(statement_timestamp() + make_interval(secs => {seconds}))"


@compiles(_Plus, "mysql", "mariadb")
def _mysql(element: _Plus, compiler: Any, **kw: Any) -> str:
    seconds = _summed(element, compiler, "({})", **kw)
    return f"(UTC_TIMESTAMP(6) + INTERVAL ROUND(({seconds}) * 1000000) MICROSECOND)"


@compiles(_Plus, "sqlite")
def _sqlite(element: _Plus, compiler: Any, **kw: Any) -> str:
    seconds = _summed(element, compiler, "({})", **kw)
    # printf: a float such as 1e-07 in a time modifier would make the whole value NULL
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', {seconds}))"
