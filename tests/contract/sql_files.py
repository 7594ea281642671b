"""Makes the files of `sql/` from the tables: `python -m tests.contract.sql_files [TITLE]`, or `make migration`.

`schema.sql` is the whole schema of a new ledger. `NNNN_title.sql` brings a ledger from the version before: a file for
each version after FROZEN, of what the tables say came with it (`since`). The files up to FROZEN were written by hand,
ledgers of each of those versions exist, and nothing writes them again.

What the tables cannot say stands in a file itself, between a line that begins with BY_HAND and the last statement:
values for rows that are there, a column that goes. A file that is written again keeps it.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    Constraint,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from workq.ledger.columns import FROZEN
from workq.ledger.schema import SCHEMA_VERSION, Tables
from workq.slices import every_table

SQL: Final = Path(__file__).resolve().parents[2] / "sql"
DIALECTS: Final[dict[str, Dialect]] = {
    "sqlite": sqlite.dialect(),
    "postgresql": postgresql.dialect(),  # type: ignore[no-untyped-call]
    "mysql": mysql.dialect(),
}
BY_HAND: Final = "-- By hand: "
_LAST: Final = "-- Last: "
_WIDTH: Final = 120
_COMMENTS_AT: Final = 50
_SERVERS: Final = {
    "sqlite": "SQLite 3.35 or newer",
    "postgresql": "PostgreSQL 12 or newer",
    "mysql": "MySQL 8.0.16 or newer and MariaDB 10.6 or newer",
}
_FORM: Final = (
    "A statement ends with a semicolon at the end of its line; a comment has a line, or the end of a line, of its own."
)
_REPEATABLE: Final = (
    "DDL commits by itself, so every statement must be repeatable: a migration that broke off starts again from the "
    "top. `workq db migrate` takes a column or an index that is there already (errors 1060, 1061) for one that such a "
    "migration has added."
)
_NOTES: Final = {
    "sqlite": (
        "Instants are text in UTC, 'YYYY-MM-DD HH:MM:SS.mmm': they sort as they read.",
        "Times are the clock of this machine, read by SQLite in the statement that uses them.",
    ),
    "postgresql": (
        "The tables go into the first schema of the search_path. At run time workq needs SELECT, INSERT, UPDATE and "
        "DELETE on them, and USAGE on their sequences; only a migration needs CREATE. The fillfactor leaves room on "
        "each page for the next version of its rows: marked, claimed, settled.",
    ),
    "mysql": (
        "Older versions of MySQL ignore CHECK. Instants are in UTC, whatever the time zone of the server. Names and "
        "keys are compared byte by byte (utf8mb4_bin). There are no partial indexes here: those of the task table "
        "contain the settled rows too, after what they look for.",
        _REPEATABLE,
    ),
}
_FIRST_VERSION: Final = {
    "sqlite": "INSERT INTO workq_meta (name, value, at) VALUES ('schema_version', '{}', "
    "strftime('%Y-%m-%d %H:%M:%f', 'now'));",
    "postgresql": "INSERT INTO workq_meta (name, value, at) VALUES ('schema_version', '{}', CURRENT_TIMESTAMP);",
    "mysql": "INSERT IGNORE INTO workq_meta (name, value, at) VALUES ('schema_version', '{}', UTC_TIMESTAMP(6));",
}


class Unwritable(Exception):
    """What the tables say cannot become a migration; the message says why."""


class Writer:
    """The SQL of one dialect, of the tables as they stand at one version."""

    def __init__(self, dialect: str, version: int, *, tables: Callable[[Tables], MetaData] = every_table) -> None:
        self.dialect = dialect
        self.version = version
        self._dialect = DIALECTS[dialect]
        self._tables = list(tables(Tables("workq", dialect)).tables.values())

    def schema(self) -> str:
        """The whole, for a new ledger."""
        parts = [
            self._head(f"workq, schema {self.version}, for {_SERVERS[self.dialect]}.", *_NOTES[self.dialect]),
            *(part for table in self._tables if _since(table) <= self.version for part in self._create(table)),
            self._end(_FIRST_VERSION[self.dialect].format(self.version)),
        ]
        return _joined(parts)

    def migration(self, title: str, by_hand: str = "") -> str:
        """What brings a ledger from the version before to this one."""
        parts: list[str] = []
        is_read = False
        for table in self._tables:
            if _since(table) == self.version:
                parts += self._create(table)
            elif _since(table) < self.version:
                columns = [one for one in table.columns if _since(one) == self.version]
                indexes = [one for one in self._indexes(table) if _since(one) == self.version]
                is_read = is_read or bool(indexes)
                parts += [*map(self._add, columns), *map(self._create_index, indexes)]
        notes = {
            "sqlite": (),
            "postgresql": (
                "It reads a table once for an index; writers wait meanwhile." if is_read else "It rewrites no table.",
            ),
            "mysql": (_REPEATABLE,),
        }[self.dialect]
        head = self._head(f"workq, schema {self.version}, for {_SERVERS[self.dialect]}: {title}.", *notes)
        end = self._end(f"UPDATE workq_meta SET value = '{self.version}' WHERE name = 'schema_version';")
        return _joined([head, *parts, by_hand, end])

    def _head(self, title: str, *notes: str) -> str:
        how = (
            f"Apply it with `workq db migrate`, or print it for your own namespace with `workq db sql {self.dialect}`."
        )
        made = "Made from the tables in workq/ by `make migration`."
        return "\n".join(
            [*_comment(title), "--", *(line for text in (how, made, *notes, _FORM) for line in _comment(text))]
        )

    def _end(self, statement: str) -> str:
        return f"{_LAST}only now is schema {self.version} complete.\n{statement}"

    def _create(self, table: Table) -> Iterator[str]:
        compiler: Any = self._dialect.ddl_compiler(self._dialect, CreateTable(table))
        lines = [self._column(compiler, one) for one in table.columns if _since(one) <= self.version]
        lines += [(compiler.process(one), _doc(one)) for one in sorted(table.constraints, key=_rank)]
        inside = self.dialect == "mysql"
        indexes = [one for one in self._indexes(table) if _since(one) <= self.version]
        if inside:
            lines += [(self._key(one), _doc(one)) for one in indexes]
        created = "CREATE TABLE IF NOT EXISTS" if inside else "CREATE TABLE"
        options = compiler.post_create_table(table).strip()
        yield "\n".join(
            [
                *_comment(table.info["doc"]),
                f"{created} {table.name} (",
                *_aligned(lines),
                f"){' ' if options else ''}{options};",
            ]
        )
        if not inside:
            yield from map(self._create_index, indexes)

    def _column(self, compiler: Any, column: Column[Any]) -> tuple[str, str]:
        name, _, kind = compiler.get_column_specification(column).partition(" ")
        kind = kind.replace(" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "")  # as its table has it
        return f"{name:<20} {kind}", column.doc or ""

    def _add(self, column: Column[Any]) -> str:
        if not column.nullable and column.server_default is None:
            raise Unwritable(f"{column}: a column that is added is optional or has a default: old workers leave it out")
        compiler: Any = self._dialect.ddl_compiler(self._dialect, CreateTable(column.table))
        kind = re.sub(r" +", " ", self._column(compiler, column)[0])
        return "\n".join(
            [*_comment(_sentence(column.doc or "")), f"ALTER TABLE {column.table.name} ADD COLUMN {kind};"]
        )

    def _indexes(self, table: Table) -> list[Index]:
        """All of this dialect, in the order of their names: SQLAlchemy keeps them in a set."""
        return sorted(table.indexes, key=lambda one: str(one.name))

    def _create_index(self, index: Index) -> str:
        if self.dialect == "mysql":
            assert index.table is not None
            statement = f"ALTER TABLE {index.table.name} ADD {self._key(index)}"
        else:
            statement = str(CreateIndex(index).compile(dialect=self._dialect))
            if len(statement) > _WIDTH:
                statement = statement.replace(" WHERE ", "\n    WHERE ")
        return "\n".join([*_comment(_sentence(_doc(index))), f"{statement};"])

    def _key(self, index: Index) -> str:
        return f"{'UNIQUE ' if index.unique else ''}KEY {index.name} ({', '.join(one.name for one in index.columns)})"


def files(
    title: str | None = None,
    *,
    version: int = SCHEMA_VERSION,
    folder: Path = SQL,
    tables: Callable[[Tables], MetaData] = every_table,
) -> dict[Path, str]:
    """What each file that is made has to contain. A new version has no file yet: `title` says what it brings.

    Raises:
        Unwritable: a version without a file and a title; a column that old workers cannot leave out; a `since` that is
            newer than `version`, which is SCHEMA_VERSION.
    """
    made = {}
    for dialect in DIALECTS:
        newest = Writer(dialect, version, tables=tables)
        _refuse_newer(newest)
        made[folder / dialect / "schema.sql"] = newest.schema()
        for number in range(FROZEN + 1, version + 1):
            found = next((folder / dialect).glob(f"{number:04}_*.sql"), None)
            if found is not None:
                text = found.read_text(encoding="utf-8")
                what, by_hand = _title_of(text), _by_hand_of(text)
            elif title is not None:
                name = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
                found, what, by_hand = folder / dialect / f"{number:04}_{name}.sql", title, ""
            else:
                raise Unwritable(f"version {number} has no file yet: say in a word or two what it brings, NAME='...'")
            made[found] = Writer(dialect, number, tables=tables).migration(what, by_hand)
    return made


def _refuse_newer(writer: Writer) -> None:
    for table in writer._tables:
        for one in (table, *table.columns, *table.indexes):
            if _since(one) > writer.version:
                raise Unwritable(f"{one} has since={_since(one)}: set SCHEMA_VERSION in workq/ledger/schema.py to it")


def _title_of(text: str) -> str:
    head = " ".join(line.removeprefix("-- ") for line in text.partition("\n--\n")[0].splitlines())
    return head.partition(": ")[2].removesuffix(".")


def _by_hand_of(text: str) -> str:
    found = re.search(rf"^{BY_HAND}.*?(?=\n+{_LAST})", text, flags=re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def _rank(constraint: Constraint) -> tuple[int, str]:
    """The primary key first, then what must be unique, then the rules."""
    kinds = (PrimaryKeyConstraint, UniqueConstraint, CheckConstraint)
    return next(rank for rank, kind in enumerate(kinds) if isinstance(constraint, kind)), str(constraint.name)


def _joined(parts: Iterable[str]) -> str:
    """Parts with a blank line between them; what has no comment of its own stands below the one before."""
    begins = ("--", "CREATE TABLE")
    lines = [f"\n{part}" if part.startswith(begins) else part for part in parts if part]
    return "\n".join(lines).strip() + "\n"


def _since(one: Table | Column[Any] | Index) -> int:
    return int(one.info["since"])


def _doc(one: Constraint | Index) -> str:
    return str(one.info.get("doc", ""))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _comment(text: str) -> list[str]:
    return [f"-- {line}" for line in textwrap.wrap(text, _WIDTH - 3, break_on_hyphens=False)]


def _aligned(lines: list[tuple[str, str]]) -> Iterator[str]:
    """The lines of a table, each with its comment beside it, or above it where there is no room."""
    for place, (text, doc) in enumerate(lines):
        line = f"    {text}{',' if place < len(lines) - 1 else ''}"
        beside = f"{line:<{_COMMENTS_AT}}  -- {doc}"
        if doc and len(beside) > _WIDTH:
            yield from (f"    {part}" for part in textwrap.wrap(f"-- {doc}", _WIDTH - 4, subsequent_indent="-- "))
            yield line
        else:
            yield beside if doc else line


def main() -> None:
    title = " ".join(sys.argv[1:]).strip() or None
    try:
        made = files(title)
    except Unwritable as error:
        raise SystemExit(str(error)) from None
    for path, text in made.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(SQL.parent))


if __name__ == "__main__":
    main()
