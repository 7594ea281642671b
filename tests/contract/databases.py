"""Where a contract of the ledger is put to the test: an empty schema in each kind of database, emptied after each test.

A contract inherits OnDatabase; each of its test classes says on which one: `class TestSQLite(OnSQLite, Contract)`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

import pytest
from pymysql.constants import CLIENT
from sqlalchemy import Connection, create_engine

from workq.lab.servers import MariaDB, PostgreSQL
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES, every_table


def _one_by_one(connection: Connection, statements: Sequence[str]) -> None:
    raw = connection.connection.driver_connection
    assert raw is not None
    for one in statements:
        raw.execute(one)


def _all_at_once(connection: Connection, statements: Sequence[str]) -> None:
    """In one message to the server. One for each table costs as much as a whole test of the ledger does."""
    raw = connection.connection.driver_connection
    assert raw is not None
    with closing(raw.cursor()) as cursor:
        cursor.execute("; ".join(statements))
        while cursor.nextset():
            pass


_EMPTYING: Final = {"sqlite": _one_by_one, "postgresql": _all_at_once, "mysql": _all_at_once}
_TAKING_MANY: Final = {"mysql": {"client_flag": CLIENT.MULTI_STATEMENTS}}


class OnDatabase:
    """A ledger of its own for each test, in one schema for the class."""

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls) -> str:
        """An empty database."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, url: str) -> Iterator[tuple[Database, Callable[[], None]]]:
        """A database with its tables, and what empties them."""
        database = Database(url, namespace=f"t{secrets.token_hex(4)}")
        schema = every_table(database.tables)
        schema.create_all(database.engine)
        empty = _EMPTYING[database.dialect]
        emptier = create_engine(database.url, connect_args=_TAKING_MANY.get(database.dialect, {}))
        statements = [f"DELETE FROM {table.name}" for table in schema.sorted_tables]

        def empty_all() -> None:
            with emptier.begin() as connection:
                empty(connection, statements)

        yield database, empty_all
        emptier.dispose()
        schema.drop_all(database.engine)
        database.close()

    @pytest.fixture
    def database(self, opened: tuple[Database, Callable[[], None]]) -> Iterator[Database]:
        database, empty = opened
        yield database
        database.clock_offset_s = 0.0
        empty()

    @pytest.fixture
    def ledger(self, database: Database) -> Ledger:
        return Ledger(database, SLICES)


class OnSQLite:
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'workq.db'}"


class OnPostgreSQL:
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, postgres_server: PostgreSQL) -> str:
        return postgres_server.create_database()


class OnMariaDB:
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, mariadb_server: MariaDB) -> str:
        return mariadb_server.create_database()
