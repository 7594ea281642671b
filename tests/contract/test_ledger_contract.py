"""The ledger's promises on each database."""

from __future__ import annotations

from pathlib import Path

import pytest

from workq.ledger import Ledger
from workq.ledger.database import Database
from workq.testing.servers import MariaDB, PostgreSQL

pytest.register_assert_rewrite("tests.contract.ledger")

from tests.contract.ledger import LedgerContract, Walk  # noqa: E402 - its assertions explain themselves from here on


class TestSQLite(LedgerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        folder: Path = tmp_path_factory.mktemp("ledger")
        return f"sqlite:///{folder / 'workq.db'}"

    @pytest.mark.parametrize("seed", range(100, 115))
    def test_longer_sequences_of_operations_keep_the_rules(self, ledger: Ledger, database: Database, seed: int) -> None:
        Walk(ledger, database, seed).run(steps=300)


class TestPostgreSQL(LedgerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, postgres_server: PostgreSQL) -> str:
        return postgres_server.create_database("ledger_contract")


class TestMariaDB(LedgerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, mariadb_server: MariaDB) -> str:
        return mariadb_server.create_database("ledger_contract")
