"""The ledger's promises on each database."""

from __future__ import annotations

import pytest

from tests.contract.databases import OnMariaDB, OnPostgreSQL, OnSQLite
from workq.ledger import Ledger
from workq.ledger.database import Database

pytest.register_assert_rewrite("tests.contract.ledger")

from tests.contract.ledger import LedgerContract  # noqa: E402 - its assertions explain themselves from here on
from tests.contract.ledger.rules import Walk  # noqa: E402 - as above


class TestSQLite(OnSQLite, LedgerContract):
    @pytest.mark.parametrize("seed", range(100, 115))
    def test_longer_sequences_of_operations_keep_the_rules(self, ledger: Ledger, database: Database, seed: int) -> None:
        Walk(ledger, database, seed).run(steps=300)


class TestPostgreSQL(OnPostgreSQL, LedgerContract):
    pass


class TestMariaDB(OnMariaDB, LedgerContract):
    pass
