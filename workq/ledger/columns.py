"""What the tables of the ledger are written in, those of the core and those of the slices: columns, rules, indexes.

A text beside a column, an index or a table becomes a comment of the SQL that is made from it (`sql/`). `since` is the
version of the schema that brings it. What has none came with version 15 or before, whose files are history.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import (
    UUID,
    BigInteger,
    CheckConstraint,
    Column,
    Constraint,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import text
from sqlalchemy.types import TypeEngine

from workq.ledger.engine.instants import Instant

DIALECTS: Final = ("sqlite", "postgresql", "mysql")
"""Of the ledger's SQL. MariaDB has that of MySQL."""
FROZEN: Final = 15
"""The files of this version and of those before it are history: none is made from the tables any more.

What came with version 15 or before, by hand, has no `since`: it counts as this old.
"""


class _Text(TypeDecorator[str]):
    """Text that is compared byte by byte, on MySQL too, by types of its own.

    Those are imported where MySQL is: the others' dialects take a tenth of the time that a process takes to start.
    """

    impl: TypeEngine[str] | type[TypeEngine[str]] = String
    cache_ok = True

    def __init__(self, length: int | None, charset: str = "utf8mb4", *, is_fixed: bool = False) -> None:
        super().__init__()
        self.impl = Text() if length is None else String(length)
        self.length = length
        self.charset = charset
        self.is_fixed = is_fixed

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name not in ("mysql", "mariadb"):
            return self.impl_instance
        from sqlalchemy.dialects import mysql

        how: dict[str, str] = {"charset": self.charset, "collation": f"{self.charset}_bin"}
        if self.length is None:
            return dialect.type_descriptor(mysql.LONGTEXT(**how))
        return dialect.type_descriptor((mysql.CHAR if self.is_fixed else mysql.VARCHAR)(self.length, **how))


def identity() -> TypeEngine[Any]:
    """The id of a task, a job, a marker: a UUID."""
    return _Text(36, "ascii", is_fixed=True).with_variant(UUID(as_uuid=False), "postgresql")


def word(length: int) -> TypeEngine[Any]:
    """A name or key."""
    return _Text(length)


def body() -> TypeEngine[Any]:
    """Text of any length."""
    return _Text(None)


def integer() -> TypeEngine[Any]:
    """A count or a limit."""
    return Integer()


def smallint() -> TypeEngine[Any]:
    """A flag or a level."""
    return SmallInteger()


def bigint() -> TypeEngine[Any]:
    """A count that may outgrow `integer`."""
    return BigInteger()


def double() -> TypeEngine[Any]:
    """A rate, or a time in seconds or milliseconds."""
    return Double()


def instant() -> TypeEngine[Any]:
    """An aware datetime in UTC."""
    return Instant()


def required(
    name: str, kind: TypeEngine[Any], doc: str = "", *, default: int | None = None, since: int = FROZEN
) -> Column[Any]:
    """A column that is never NULL. One that is added to a table needs a default: old workers leave it out."""
    given = None if default is None else text(str(default))
    return Column(name, kind, nullable=False, server_default=given, doc=doc, info={"since": since})


def optional(name: str, kind: TypeEngine[Any], doc: str = "", *, since: int = FROZEN) -> Column[Any]:
    """A column that may be NULL."""
    return Column(name, kind, doc=doc, info={"since": since})


def numbered(doc: str = "", *, since: int = FROZEN) -> Column[Any]:
    """An id that the database counts up."""
    kind = BigInteger().with_variant(Integer(), "sqlite")
    return Column("id", kind, nullable=False, autoincrement=True, doc=doc, info={"since": since})


class TableSpace:
    """Where tables are made: the names of one namespace, the options of one dialect, one MetaData."""

    def __init__(self, namespace: str, dialect: str) -> None:
        self.namespace = namespace
        self.dialect = dialect
        self.metadata = MetaData()

    def name(self, of: str) -> str:
        """The prefix of every name is the namespace: applications share a database without seeing each other."""
        return f"{self.namespace}_{of}"

    def table(
        self,
        of: str,
        doc: str,
        *parts: Column[Any] | Constraint | Index | None,
        key: Sequence[str] = ("id",),
        since: int = FROZEN,
        **options: Any,
    ) -> Table:
        """A table with this primary key. A part that is None is another dialect's, as are some of the `options`."""
        in_innodb = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
        return Table(
            self.name(of),
            self.metadata,
            *(part for part in parts if part is not None),
            PrimaryKeyConstraint(*key, name=self.name(f"{of}_pk")),
            info={"doc": doc, "since": since},
            **self._known(in_innodb | options),
        )

    def rule(self, of: str, check: str) -> CheckConstraint:
        """What must never be stored, under a name that says the rule."""
        return CheckConstraint(check, name=self.name(of))

    def unique(self, of: str, *columns: str, doc: str = "", on: Collection[str] = DIALECTS) -> UniqueConstraint | None:
        """No two rows are alike in these columns. NULL is like nothing. None where the dialect does without."""
        if self.dialect not in on:
            return None
        return UniqueConstraint(*columns, name=self.name(of), info={"doc": doc})

    def index(
        self,
        of: str,
        *columns: str,
        doc: str = "",
        where: str | None = None,
        is_unique: bool = False,
        on: Collection[str] = DIALECTS,
        since: int = FROZEN,
    ) -> Index | None:
        """An index, of the rows `where` alone. MySQL has no such: there each row has its place in it.

        None where the dialect does without.
        """
        if self.dialect not in on:
            return None
        rows = {} if where is None else {"postgresql_where": text(where), "sqlite_where": text(where)}
        info = {"doc": doc, "since": since}
        return Index(self.name(of), *columns, unique=is_unique, info=info, **self._known(rows))

    def _known(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of this dialect alone: SQLAlchemy imports each dialect that an option names."""
        return {option: value for option, value in options.items() if option.partition("_")[0] == self.dialect}
