"""Kept statements on each database: they answer, count and raise what SQLAlchemy would, and what stands is the same."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import (
    Connection,
    Executable,
    bindparam,
    create_engine,
    event,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from tests.contract.databases import OnDatabase, OnMariaDB, OnPostgreSQL, OnSQLite
from workq.ledger.engine import kept_rows
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.task import NewTask


class TooLongError(Exception):
    """What a time limit raises in the middle of anything."""


def writing(database: Database) -> Executable:
    c = database.tables.meta.c
    values = {c.name: bindparam("b_name"), c.value: bindparam("b_value"), c.at: database.now()}
    return insert(database.tables.meta).values(values)


def changing(database: Database) -> Executable:
    c = database.tables.meta.c
    return update(database.tables.meta).where(c.value == bindparam("b_old")).values(value=bindparam("b_new"))


def reading(database: Database) -> Executable:
    c = database.tables.meta.c
    return select(c.name, c.value, c.at).order_by(c.name)


class KeptContract(OnDatabase):
    def write(self, database: Database, *names: str, is_single: bool = False) -> int:
        kept = database.kept("write", lambda: writing(database))
        rows = [{"b_name": name, "b_value": "old"} for name in names]
        return database.run(lambda tx: kept.write_each(tx, rows), is_single=is_single)

    def read(self, database: Database) -> list[tuple[Any, ...]]:
        return [
            tuple(row) for row in database.ask(lambda tx: database.kept("read", lambda: reading(database)).rows(tx))
        ]

    def test_rows_come_in_the_order_of_their_columns_with_instants_that_know_their_zone(
        self, database: Database
    ) -> None:
        assert self.read(database) == []

        self.write(database, "b", "a")

        (first, old, at), (second, _, _) = self.read(database)
        assert (first, second, old) == ("a", "b", "old")
        assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)

    def test_a_write_counts_its_rows(self, database: Database) -> None:
        assert self.write(database, "a") == 1
        assert self.write(database, "b", "c") == 2
        assert self.write(database, "d", is_single=True) == 1

        kept = database.kept("change", lambda: changing(database))
        for old, new, count in [("none", "x", 0), ("old", "new", 4), ("new", "newer", 4)]:
            move = {"b_old": old, "b_new": new}
            assert database.run(partial(kept.write, given=move), is_single=True) == count
        back = [{"b_old": "newer", "b_new": "old"}, {"b_old": "old", "b_new": "last"}]
        assert database.run(lambda tx: kept.write_each(tx, back)) == 8

    def test_rows_of_a_page_stand_as_they_were_given(self, database: Database) -> None:
        c = database.tables.hint.c
        given = (c.queue, c.body, c.size, c.consumer, c.delivered_at)
        at = datetime(2026, 11, 28, 7, 30, 0, 123000, tzinfo=UTC)
        odd = ["", "NULL", '"', "\\", "{a,b}", " a\tb\n", "ü🐇", 'a\\"b']
        rows = [
            {"b_queue": "q", "b_body": body, "b_size": place, "b_consumer": body or None, "b_delivered_at": given_at}
            for place, (body, given_at) in enumerate(zip(odd * 2, [at, None] * len(odd), strict=True))
        ]

        def make() -> dict[Any, Any]:
            binds = {one: bindparam(f"b_{one.name}", type_=one.type) for one in given}
            return {**binds, c.due_at: database.now(), c.deliveries: literal_column("7")}

        database.run(lambda tx: database.kept_rows("odd", make).write(tx, rows))

        stands = select(*given, c.deliveries).order_by(c.id)
        found = [tuple(row) for row in database.ask(lambda tx: tx.execute(stands).all())]
        assert found == [(*row.values(), 7) for row in rows]

    def test_a_value_that_is_too_long_is_refused_and_never_cut(self, database: Database) -> None:
        c = database.tables.hint.c
        row: dict[Any, Any] = {
            c.queue: bindparam("b_queue", type_=c.queue.type),
            c.body: bindparam("b_body", type_=c.body.type),
        }
        row |= {c.size: literal_column("1"), c.due_at: database.now()}
        rows = [{"b_queue": "q" * length, "b_body": "x"} for length in (100, 101)]
        kept_any_length = database.dialect == "sqlite"

        with nullcontext() if kept_any_length else pytest.raises(DBAPIError):
            database.run(lambda tx: database.kept_rows("long", lambda: row).write(tx, rows))

        stands = database.ask(lambda tx: tx.execute(select(c.queue)).scalars().all())
        assert [len(one) for one in stands] == ([100, 101] if kept_any_length else [])

    def test_a_page_that_is_too_large_for_one_statement_is_written_in_parts(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kept_rows, "TEXT_MAX", 100)
        c = database.tables.hint.c
        row: dict[Any, Any] = {c.queue: literal_column("'q'"), c.body: bindparam("b_body", type_=c.body.type)}
        row |= {c.size: literal_column("1"), c.due_at: database.now()}
        bodies = [letter * length for letter, length in zip("abcdefg", (10, 200, 10, 40, 40, 40, 5), strict=True)]

        database.run(lambda tx: database.kept_rows("large", lambda: row).write(tx, [{"b_body": one} for one in bodies]))

        found = database.ask(lambda tx: tx.execute(select(c.body).order_by(c.id)).scalars().all())
        assert found == bodies

    def test_the_clock_is_asked_for_at_each_call(self, database: Database) -> None:
        self.write(database, "a")
        database.clock_offset_s = 3600.0
        self.write(database, "b")

        (_, _, before), (_, _, after) = self.read(database)
        assert timedelta(minutes=59) < after - before < timedelta(minutes=61)

    def test_what_was_written_before_an_error_does_not_stand(self, database: Database) -> None:
        def change(tx: Connection) -> None:
            database.kept("write", lambda: writing(database)).write(tx, {"b_name": "a", "b_value": "old"})
            raise TooLongError

        with pytest.raises(TooLongError):
            database.run(change)

        assert self.read(database) == []

    def test_an_error_is_sqlalchemys_and_shows_no_values(self, database: Database) -> None:
        self.write(database, "a")

        with pytest.raises(IntegrityError) as raised:
            self.write(database, "a")

        assert "old" not in str(raised.value)
        assert self.write(database, "b") == 1

    def test_what_a_caller_has_opened_is_left_to_sqlalchemy(self, database: Database) -> None:
        """It may have another driver, or one that was told to answer in another way."""
        theirs = create_engine(database.url)
        seen: list[str] = []

        @event.listens_for(theirs, "before_cursor_execute")
        def _sent(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            seen.append(statement.split()[0])

        with theirs.connect() as tx:
            given = {"b_name": "a", "b_value": "old"}
            assert database.kept("write", lambda: writing(database)).write(tx, given) == 1
            assert [row[0] for row in database.kept("read", lambda: reading(database)).rows(tx)] == ["a"]
        theirs.dispose()

        assert seen == ["INSERT", "SELECT"]
        assert self.read(database) == [], "the caller did not commit"


class TestSQLite(OnSQLite, KeptContract):
    pass


class TestMariaDB(OnMariaDB, KeptContract):
    pass


class TestPostgreSQL(OnPostgreSQL, KeptContract):
    @pytest.mark.parametrize("is_single", [False, True])
    def test_a_connection_whose_call_was_cut_short_is_not_used_again(self, database: Database, is_single: bool) -> None:
        """Else the next one would get this one's answer, or none."""
        sleeps = database.kept("sleep", lambda: select(literal_column("1")).where(func.pg_sleep(60.0).is_(None)))
        whose = database.kept("whose", lambda: select(func.pg_backend_pid()))

        def pid(tx: Connection) -> int:
            return int(whose.rows(tx)[0][0])

        def raises(*_: object) -> None:
            raise TooLongError

        before = database.run(pid, is_single=is_single)
        old = signal.signal(signal.SIGUSR1, raises)
        try:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(TooLongError):
                database.run(sleeps.rows, is_single=is_single)
        finally:
            signal.signal(signal.SIGUSR1, old)

        assert database.run(pid, is_single=is_single) != before

    def test_what_names_one_row_is_planned_for_once_and_finds_what_names_many(
        self, database: Database, ledger: Ledger
    ) -> None:
        column = database.tables.task.c.id
        seek = database.kept("seek", lambda: select(column).where(among(column, database.dialect)))
        plans = text("SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%[1]%'")
        new = [NewTask(codec.new_task_id(), "n", "q", '{"a":[],"k":{}}') for _ in range(3)]
        ids = in_order(one.id for one in ledger.tasks.record(new))

        def seek_each(tx: Connection) -> tuple[list[Any], Any]:
            rows = [seek.rows(tx, {"b_ids": [task_id]}) for task_id in ids * 10]
            return rows, tx.execute(plans).one()

        if database.is_pooled:
            pytest.skip("nothing is prepared behind a pooler")
        rows, (kept_plans, other_plans) = database.run(seek_each)

        assert rows == [[(task_id,)] for task_id in ids * 10]
        assert other_plans == 5  # PostgreSQL looks at so many before it decides
        assert kept_plans >= 10
        assert sorted(database.ask(lambda tx: seek.rows(tx, {"b_ids": ids}))) == [(task_id,) for task_id in ids]
