"""Where a contract of the ledger is put to the test: an empty schema in each kind of database, emptied after each test.

A contract inherits OnDatabase; each of its test classes says on which one: `class TestSQLite(OnSQLite, Contract)`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import pytest

from workq.lab.servers import MariaDB, PostgreSQL
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES, every_table


class OnDatabase:
    """A ledger of its own for each test, in one schema for the class."""

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls) -> str:
        """An empty database."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, url: str) -> Iterator[tuple[Database, Sequence[str]]]:
        """A database with its tables, and the statements that empty them."""
        database = Database(url, namespace=f"t{secrets.token_hex(4)}")
        schema = every_table(database.tables)
        schema.create_all(database.engine)
        yield database, [f"DELETE FROM {table.name}" for table in schema.sorted_tables]
        schema.drop_all(database.engine)
        database.close()

    @pytest.fixture
    def database(self, opened: tuple[Database, Sequence[str]]) -> Iterator[Database]:
        database, emptying = opened
        yield database
        database.clock_offset_s = 0.0
        with database.engine.begin() as connection:
            for statement in emptying:
                connection.exec_driver_sql(statement)

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
