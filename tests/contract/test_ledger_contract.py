"""The ledger's promises on each database."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, create_engine, text

from tests.contract.databases import OnMariaDB, OnPostgreSQL, OnSQLite
from workq.ledger import Ledger
from workq.ledger.database import Database
from workq.task import Claim

pytest.register_assert_rewrite("tests.contract.ledger")

from tests.contract.ledger import LedgerContract  # noqa: E402 - its assertions explain themselves from here on
from tests.contract.ledger.rules import Walk  # noqa: E402 - as above


class TestSQLite(OnSQLite, LedgerContract):
    @pytest.mark.parametrize("seed", range(100, 115))
    def test_longer_sequences_of_operations_keep_the_rules(self, ledger: Ledger, database: Database, seed: int) -> None:
        Walk(ledger, database, seed).run(steps=300)


class TestPostgreSQL(OnPostgreSQL, LedgerContract):
    def test_in_a_handlers_transaction_its_statements_are_planned_as_the_server_is_set_up(
        self, ledger: Ledger, claimed: Claim, database: Database
    ) -> None:
        def settings(connection: Connection) -> tuple[str, ...]:
            return tuple(connection.execute(text(f"SHOW {name}")).scalar_one() for name in ("enable_seqscan", "jit"))

        plain = create_engine(database.url)
        with plain.connect() as connection:
            theirs = settings(connection)
        plain.dispose()
        with ledger.transaction(claimed) as connection:
            within = settings(connection)
        with database.engine.connect() as connection:
            afterwards = settings(connection)

        assert (within, afterwards) == (theirs, ("off", "off"))
        assert theirs[0] == "on"


class TestMariaDB(OnMariaDB, LedgerContract):
    pass
