"""Many rows named in one parameter, so that a statement has the same text for one row and for a thousand.

`id IN (?, ?, ...)` has another text for each number of ids: SQLAlchemy renders it anew, the driver reads it anew, and
PostgreSQL prepares nothing. Here the ids are one value: an array to PostgreSQL, JSON to SQLite. MySQL can do neither on
an index of ASCII text, and gets its list.

PostgreSQL takes an array whose length it does not know for ten rows, and so it plans anew for each call with one id,
which costs it twice as much as carrying out the claim of that task. Where there is one, it is told so (`OF_ONE`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Text, bindparam, cast, func, select
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

IDS: Final = "b_ids"
"""The parameter that names the rows, unless told otherwise."""
OF_ONE: Final = {"is_of_one": True}
"""Given to `compile` as `compile_kwargs`: the parameter `IDS` names one row."""

_encoder = msgspec.json.Encoder()


class _Items(TypeDecorator[Any]):
    """A list of values of one type of PostgreSQL's: task ids, unless told otherwise."""

    impl = Text
    cache_ok = True

    def __init__(self, item: str) -> None:
        super().__init__()
        self.item = item

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ArrayText(self.item) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value if dialect.name == "postgresql" else _encoder.encode(value).decode()


class ArrayText(UserDefinedType[Any]):
    """An array for PostgreSQL, written as its text: the driver would search every item for what to escape.

    The server is told its type, and can plan for it.
    """

    cache_ok = True
    render_bind_cast = True

    def __init__(self, item: str) -> None:
        self.item = item

    def get_col_spec(self, **_kw: Any) -> str:
        return f"{self.item}[]"

    def bind_processor(self, dialect: Dialect) -> Any:  # noqa: ARG002 - SQLAlchemy's signature
        return _array_of_numbers if self.item == "BIGINT" else _array_text


def _array_of_numbers(items: Sequence[int]) -> str:
    return "{" + ",".join(map(str, items)) + "}"


def _array_text(items: Sequence[str]) -> str:
    if not items:
        return "{}"
    return '{"' + '","'.join([item.replace("\\", "\\\\").replace('"', '\\"') for item in items]) + '"}'


class _AnyOf(FunctionElement[Any]):
    """PostgreSQL's `any(array)`, or the only item of the array."""

    inherit_cache = True


@compiles(_AnyOf)
def _compile_any_of(element: _AnyOf, compiler: SQLCompiler, *, is_of_one: bool = False, **how: Any) -> str:
    [given] = element.clauses
    text = compiler.process(given, **how)
    return f"({text})[1]" if is_of_one and given.key == IDS else f"any({text})"


def among(column: ColumnElement[Any], dialect: str, *, name: str = IDS, item: str = "UUID") -> ColumnElement[bool]:
    """Whether a column of task ids (or of BIGINT) is one of those in the parameter `name`, given `in_order`."""
    if dialect == "mysql":
        return column.in_(bindparam(name, expanding=True))
    given: ColumnElement[Any] = bindparam(name, type_=_Items(item))
    if dialect == "postgresql":
        return column == _AnyOf(given)
    return column.in_(select(func.json_each(given).table_valued("value").c.value))


def in_order(ids: Iterable[str]) -> list[str]:
    """The ids for a statement that locks rows: once each, and in the order of all, so that two rarely deadlock."""
    return sorted(set(ids))


def as_text(column: ColumnElement[Any], dialect: str) -> ColumnElement[Any]:
    """A column of ids, for statements that answer many: PostgreSQL's driver would make an object of each."""
    return cast(column, Text).label(column.key) if dialect == "postgresql" else column
