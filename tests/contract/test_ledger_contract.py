"""The ledger's promises on each database."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError, DisconnectionError

from tests.contract.databases import OnMariaDB, OnPostgreSQL, OnSQLite
from tests.contract.given import new
from tests.contract.ledger import LedgerContract
from tests.contract.ledger.bands import BandsOnServersContract
from tests.contract.ledger.keys import KeysOnServersContract
from tests.contract.ledger.messages import BY, new_message
from tests.contract.ledger.order import OrderOnServersContract
from tests.contract.ledger.rules import Walk
from workq.errors import KeyConflict, LedgerUnavailable
from workq.ledger.engine.database import Database
from workq.ledger.engine.failures import is_transient
from workq.ledger.sql import Ledger
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import DestinationPolicy, NewDestination
from workq.values.codec import new_task_id
from workq.values.task import Claim, State


def _one(connection: Connection) -> int:
    return int(connection.execute(text("SELECT 1")).scalar_one())


class TestSQLite(OnSQLite, LedgerContract):
    @pytest.mark.parametrize(
        "seed", [pytest.param(seed, marks=[pytest.mark.only_long] if seed > 103 else []) for seed in range(100, 115)]
    )
    def test_longer_sequences_of_operations_keep_the_rules(self, ledger: Ledger, database: Database, seed: int) -> None:
        Walk(ledger, database, seed).run(steps=300)


class TestPostgreSQL(
    OnPostgreSQL, LedgerContract, BandsOnServersContract, KeysOnServersContract, OrderOnServersContract
):
    @pytest.mark.parametrize("how_often", [1, 2, 5])
    def test_connections_that_are_closed_one_after_the_other_are_no_error_of_ours(
        self, ledger: Ledger, claimed: Claim, database: Database, how_often: int
    ) -> None:
        left = dict.fromkeys(database.engines, 0)

        def close(engine: Engine) -> Callable[..., None]:
            def checked_out(*_: object) -> None:
                if left.get(engine):
                    left[engine] -= 1
                    raise DisconnectionError("closed")

            return checked_out

        for engine in database.engines:
            event.listen(engine, "checkout", close(engine))

        def again() -> None:
            for engine in left:
                left[engine] = how_often

        again()
        assert ledger.questions.get(claimed.task_id) is not None
        again()
        [task_id] = self.record(ledger)
        again()
        [claim] = ledger.claims.claim([task_id], by=self.task(ledger, claimed.task_id).worker or "")
        again()
        with ledger.transactions.transaction(claim):
            pass
        again()
        with database.read() as connection:
            assert connection.execute(text("SELECT 1")).scalar_one() == 1
        assert self.state(ledger, task_id) is State.SUCCEEDED
        left.clear()

    def test_a_transaction_that_cannot_see_what_stands_is_told_so_in_words(self, ledger: Ledger) -> None:
        """On PostgreSQL nothing lets a REPEATABLE READ transaction read what was committed since it began."""
        ledger.part(MessageLedger).destinations.add_destination(
            NewDestination("orders", "box", {}, None, DestinationPolicy()), **BY
        )
        keyed = replace(new(1)[0], key="k")
        engine = create_engine(ledger.database.url, isolation_level="REPEATABLE READ", poolclass=NullPool)
        with engine.connect() as theirs:
            theirs.execute(select(ledger.database.tables.task.c.id)).all()
            ledger.part(MessageLedger).recorded.record([new_message("a")])
            ledger.tasks.record([keyed])
            with pytest.raises(KeyConflict, match="recorded in a transaction that yours does not see"):
                ledger.part(MessageLedger).recorded.record([new_message("a")], connection=theirs)
            with pytest.raises(KeyConflict, match="held by a task that this transaction does not see"):
                ledger.tasks.record([replace(keyed, id=new_task_id())], connection=theirs)
            theirs.rollback()

    def test_a_server_that_closes_each_connection_is_unavailable_after_a_while(self, database: Database) -> None:
        hasty = Database(database.url.render_as_string(hide_password=False), statement_timeout_s=0.3)

        def checked_out(*_: object) -> None:
            raise DisconnectionError("closed")

        for engine in hasty.engines:
            event.listen(engine, "checkout", checked_out)
        try:
            calls: list[Callable[[], object]] = [
                lambda: hasty.ask(_one),
                lambda: hasty.run(_one),
                lambda: hasty.run(_one, is_single=True),
            ]
            for call in calls:
                with pytest.raises(LedgerUnavailable, match="closes each connection at once"):
                    call()
        finally:
            hasty.close()

    def test_in_a_handlers_transaction_its_statements_are_planned_as_the_server_is_set_up(
        self, ledger: Ledger, claimed: Claim, database: Database
    ) -> None:
        def settings(connection: Connection) -> tuple[str, ...]:
            return tuple(connection.execute(text(f"SHOW {name}")).scalar_one() for name in ("enable_seqscan", "jit"))

        plain = create_engine(database.url)
        with plain.connect() as connection:
            theirs = settings(connection)
        plain.dispose()
        with ledger.transactions.transaction(claimed) as connection:
            within = settings(connection)
        with database.engine.connect() as connection:
            afterwards = settings(connection)

        assert (within, afterwards) == (theirs, ("off", "off"))
        assert theirs[0] == "on"


class TestMariaDB(OnMariaDB, LedgerContract, BandsOnServersContract, KeysOnServersContract, OrderOnServersContract):
    @pytest.fixture
    def isolated(self, ledger: Ledger) -> Engine:
        """Whose transactions may write nothing that has changed since they began: MariaDB's default since 11.6.2."""
        engine = create_engine(ledger.database.url, isolation_level="REPEATABLE READ", poolclass=NullPool)
        with engine.connect() as connection:
            if "MariaDB" not in str(connection.execute(text("SELECT version()")).scalar_one()):
                pytest.skip("MySQL, which a run may take in the place of MariaDB, has no such isolation")

        @event.listens_for(engine, "connect")
        def _connected(raw: Any, _record: object) -> None:
            raw.query("SET SESSION innodb_snapshot_isolation = ON")

        return engine

    def test_a_connection_reads_no_authorities_anew_that_it_verifies_nothing_by(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was nearly all that a connection costs."""
        url = database.url.render_as_string(hide_password=False)
        with closing(Database(url)) as first:
            assert first.ask(_one) == 1
        made: list[object] = []
        monkeypatch.setattr(ssl, "create_default_context", lambda **given: made.append(given))

        with closing(Database(url)) as second:
            assert second.ask(_one) == 1

        assert made == []

    def test_a_transaction_that_is_isolated_from_what_stands_is_told_so_in_words(
        self, ledger: Ledger, isolated: Engine
    ) -> None:
        part = ledger.part(MessageLedger)
        part.destinations.add_destination(NewDestination("orders", "box", {}, None, DestinationPolicy()), **BY)
        keyed, message = replace(new(1)[0], key="k"), new_message("a")
        calls: list[Callable[..., object]] = [
            partial(part.recorded.record, [message]),
            partial(ledger.tasks.record, [keyed]),
        ]
        for record in calls:
            with isolated.connect() as theirs:
                theirs.execute(select(ledger.database.tables.task.c.id)).all()
                record()
                with pytest.raises(KeyConflict, match="recorded in a transaction that yours does not see"):
                    record(connection=theirs)

    def test_its_own_statements_decide_by_what_is_there_when_the_lock_comes(
        self, ledger: Ledger, isolated: Engine
    ) -> None:
        with ledger.database.engine.connect() as connection:
            assert connection.execute(text("SELECT @@innodb_snapshot_isolation")).scalar_one() == 0
        tasks = ledger.database.tables.task
        with isolated.connect() as theirs:
            theirs.execute(select(tasks.c.id)).all()
            self.record(ledger)
            with pytest.raises(DBAPIError) as refused:
                theirs.execute(select(tasks.c.id).with_for_update())
        assert is_transient(refused.value), "where somebody has switched it on for every session"
