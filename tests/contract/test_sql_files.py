"""The files of `sql/` are made from the tables: what stands there is what would be made, on every dialect."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData

from tests.contract.sql_files import BY_HAND, DIALECTS, SQL, Unwritable, Writer, files
from workq.ledger.columns import TableSpace, identity, optional, required, word
from workq.ledger.schema import SCHEMA_VERSION, Tables
from workq.slices import every_table

NEXT = SCHEMA_VERSION + 1
Change = Callable[[MetaData, TableSpace], None]


def test_the_files_are_those_that_the_tables_make() -> None:
    made = files()

    assert {path: path.read_text(encoding="utf-8") for path in made} == made
    assert {path.name for path in made} >= {"schema.sql"}


# ------------------------------------------------------------------------------------------------------- a next version


def colours(metadata: MetaData, space: TableSpace) -> None:
    """A column with a default, one without, an index over an old table, and a table that refers to it."""
    task = metadata.tables["workq_task"]
    task.append_column(optional("colour", word(20), "what people see", since=NEXT))
    task.append_column(required("shade", Integer(), default=0, since=NEXT))
    index = space.index("task_by_colour", "colour", doc="one colour", where="colour IS NOT NULL", since=NEXT)
    assert index is not None
    task.append_constraint(index)
    space.table(
        "paint",
        "Paints that are used.",
        required("id", identity()),
        required("name", word(20), "of its colour", since=NEXT),
        space.index("paint_by_name", "name", since=NEXT),
        since=NEXT,
    )


def changed(by: Change) -> Callable[[Tables], MetaData]:
    """The tables of a next version."""

    def tables_of(tables: Tables) -> MetaData:
        metadata = every_table(tables)
        space = TableSpace(tables.namespace, tables.dialect)
        space.metadata = metadata
        by(metadata, space)
        return metadata

    return tables_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SQL, tmp_path / "sql"))


def test_a_next_version_has_a_file_of_what_came_with_it(folder: Path) -> None:
    made = files("colours of tasks", version=NEXT, folder=folder, tables=changed(colours))

    texts = {dialect: made[folder / dialect / f"00{NEXT}_colours_of_tasks.sql"] for dialect in DIALECTS}
    for text in texts.values():
        assert f"-- workq, schema {NEXT}, for" in text
        assert "colours of tasks." in text
        assert "-- What people see.\nALTER TABLE workq_task ADD COLUMN colour VARCHAR(20);" in text
        assert text.count("ALTER TABLE workq_task ADD COLUMN") == 2
        assert "workq_paint (" in text
        assert text.endswith(f"UPDATE workq_meta SET value = '{NEXT}' WHERE name = 'schema_version';\n")
    assert "ADD COLUMN shade INTEGER DEFAULT 0 NOT NULL;" in texts["postgresql"]
    assert "CREATE INDEX workq_task_by_colour ON workq_task (colour) WHERE colour IS NOT NULL;" in texts["sqlite"]
    assert "ALTER TABLE workq_task ADD KEY workq_task_by_colour (colour);" in texts["mysql"]
    assert "KEY workq_paint_by_name (name)" in texts["mysql"]


def test_the_file_of_a_next_version_makes_of_an_older_ledger_what_a_new_one_is(folder: Path) -> None:
    made = files("colours", version=NEXT, folder=folder, tables=changed(colours))
    older = [path.read_text(encoding="utf-8") for path in sorted((SQL / "sqlite").glob("[0-9]*.sql"))]

    with closing(sqlite3.connect(":memory:")) as upgraded, closing(sqlite3.connect(":memory:")) as new:
        for text in (*older, made[folder / "sqlite" / f"00{NEXT}_colours.sql"]):
            upgraded.executescript(text)
        new.executescript(made[folder / "sqlite" / "schema.sql"])

        assert shape_of(upgraded) == shape_of(new)
        assert ("colour", "VARCHAR(20)", 0) in shape_of(new)["workq_task"]


def test_what_a_person_has_written_into_a_file_stays_when_it_is_made_again(folder: Path) -> None:
    path = folder / "mysql" / f"00{NEXT}_colours.sql"
    for one, text in files("colours", version=NEXT, folder=folder, tables=changed(colours)).items():
        one.write_text(text, encoding="utf-8")
    by_hand = f"{BY_HAND}tasks that are there.\nUPDATE workq_task SET colour = 'red'\n    WHERE colour IS NULL;"
    text = path.read_text(encoding="utf-8").replace("-- Last: ", f"{by_hand}\n\n-- Last: ")
    path.write_text(text, encoding="utf-8")

    assert files(version=NEXT, folder=folder, tables=changed(colours))[path] == text


def test_a_version_without_a_file_needs_a_title(folder: Path) -> None:
    with pytest.raises(Unwritable, match=f"version {NEXT} has no file yet"):
        files(version=NEXT, folder=folder, tables=changed(colours))


def test_a_column_that_is_newer_than_the_schema_is_refused() -> None:
    with pytest.raises(Unwritable, match=f"since={NEXT}: set SCHEMA_VERSION"):
        files(tables=changed(colours))


def test_a_column_that_an_older_worker_cannot_leave_out_is_refused(folder: Path) -> None:
    def sizes(metadata: MetaData, _space: TableSpace) -> None:
        metadata.tables["workq_task"].append_column(required("size", Integer(), since=NEXT))

    with pytest.raises(Unwritable, match=r"workq_task\.size: .* old workers leave it out"):
        files("sizes", version=NEXT, folder=folder, tables=changed(sizes))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_text_beside_a_column_stands_in_the_sql(dialect: str) -> None:
    text = Writer(dialect, SCHEMA_VERSION).schema().replace("\n    -- ", " ")
    told: list[Column[Any]] = [
        column
        for table in every_table(Tables("workq", dialect)).tables.values()
        for column in table.columns
        if column.doc
    ]

    assert [str(column) for column in told if str(column.doc) not in text] == []
    assert len(told) > 140


def shape_of(file: sqlite3.Connection) -> dict[str, Any]:
    """Tables with their columns, and indexes."""
    names = file.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    return {
        name: sorted((row[1], row[2], row[3]) for row in file.execute(f"PRAGMA table_info({name})"))
        if kind == "table"
        else " ".join(str(sql).split())
        for kind, name, sql in names
    }
