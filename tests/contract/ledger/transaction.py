"""The handler's transaction: its own writes and its task's success stand together, or neither does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, delete, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.contract.given import LONG_S, at_once, incarnation, new
from tests.contract.ledger.steps import Steps
from workq.errors import LedgerUnavailable, Refused
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Done, Failed, HandedBack, State

EFFECT = Table("effect", MetaData(), Column("task_id", String(36)), Column("number", Integer))
"""A table of the user's own, without any constraint that would help."""


def _by_a_conflict(connection: Connection, _: Database) -> None:
    """SQLite ends the transaction, as it does when the disk is full."""
    connection.execute(text("CREATE TEMPORARY TABLE IF NOT EXISTS pair (id INTEGER PRIMARY KEY)"))
    for _number in range(2):
        connection.execute(text("INSERT OR ROLLBACK INTO pair VALUES (1)"))


def _by_any_error(connection: Connection, _: Database) -> None:
    """PostgreSQL does nothing more in it."""
    connection.execute(text("SELECT 1 / 0"))


def _by_a_deadlock(connection: Connection, database: Database) -> None:
    """MariaDB ends the lighter of two that wait for each other."""
    pair = Table("pair", MetaData(), Column("id", Integer, primary_key=True), Column("number", Integer))
    pair.drop(database.engine, checkfirst=True)
    pair.create(database.engine)
    with database.engine.begin() as other:
        other.execute(insert(pair), [{"id": number, "number": 0} for number in range(1, 300)])
    locked = threading.Event()

    def heavy() -> None:
        with database.engine.connect() as other:
            other.execute(update(pair).where(pair.c.id > 1).values(number=1))
            locked.set()
            other.execute(update(pair).where(pair.c.id == 1).values(number=1))

    connection.execute(update(pair).where(pair.c.id == 1).values(number=2))
    thread = threading.Thread(target=heavy)
    thread.start()
    try:
        assert locked.wait(LONG_S)
        connection.execute(update(pair).where(pair.c.id == 2).values(number=2))
    finally:
        thread.join(LONG_S)


ending: dict[str, Callable[[Connection, Database], None]] = {
    "sqlite": _by_a_conflict,
    "postgresql": _by_any_error,
    "mysql": _by_a_deadlock,
}
"""By dialect: what ends a transaction with an error, in the server, and not only a statement of it."""


class TransactionContract(Steps):
    @pytest.fixture
    def effects(self, database: Database) -> Iterator[Callable[[], int]]:
        """How many effects other transactions see."""
        EFFECT.create(database.engine, checkfirst=True)
        with database.engine.begin() as connection:
            connection.execute(delete(EFFECT))

        def count() -> int:
            with database.engine.connect() as connection:
                found: int = connection.execute(select(func.count()).select_from(EFFECT)).scalar_one()
                return found

        yield count
        EFFECT.drop(database.engine)

    @staticmethod
    def within(ledger: Ledger, claim: Claim, *steps: Callable[[Connection], object]) -> None:
        """One transaction of the claim's handler."""
        with ledger.transactions.transaction(claim) as connection:
            for step in steps:
                step(connection)

    @staticmethod
    def fail(_: Connection) -> None:
        raise LookupError("no such order")

    @staticmethod
    def act(connection: Connection, claim: Claim) -> None:
        connection.execute(insert(EFFECT).values(task_id=claim.task_id, number=claim.attempt))

    def test_the_writes_and_the_success_stand_together(
        self, ledger: Ledger, worker: Incarnation, effects: Callable[[], int]
    ) -> None:
        claim = self.run_one(ledger, worker, key="order 7")
        with ledger.transactions.transaction(claim) as connection:
            self.act(connection, claim)

        task = self.task(ledger, claim.task_id)
        assert (effects(), task.state, task.result, task.attempt) == (1, State.SUCCEEDED, None, 1)
        assert task.settled_at is not None
        assert ledger.tasks.record(new(key="order 7"))[0].created, "its key is free"

    def test_nobody_sees_half_of_it(
        self, ledger: Ledger, claimed: Claim, effects: Callable[[], int], database: Database
    ) -> None:
        seen: list[tuple[int, State]] = []

        def look() -> None:
            seen.append((effects(), self.state(ledger, claimed.task_id)))

        with ledger.transactions.transaction(claimed) as connection:
            self.act(connection, claimed)
            if database.dialect != "sqlite":  # where a look of this test would wait for the writer
                other = threading.Thread(target=look)
                other.start()
                other.join(LONG_S)
        look()

        assert seen[:-1] == [(0, State.RUNNING)] * (database.dialect != "sqlite")
        assert seen[-1] == (1, State.SUCCEEDED)

    def test_what_the_block_raises_rolls_back_and_the_attempt_goes_on(
        self, ledger: Ledger, claimed: Claim, effects: Callable[[], int]
    ) -> None:
        with pytest.raises(LookupError, match="no such order"):
            self.within(ledger, claimed, lambda tx: self.act(tx, claimed), self.fail)
        assert (effects(), self.state(ledger, claimed.task_id)) == (0, State.RUNNING)

        with ledger.transactions.transaction(claimed) as connection:
            self.act(connection, claimed)
        assert (effects(), self.state(ledger, claimed.task_id)) == (1, State.SUCCEEDED)

    def test_a_zombies_writes_roll_back_however_late_it_was_found_out(
        self, ledger: Ledger, worker: Incarnation, claimed: Claim, effects: Callable[[], int], database: Database
    ) -> None:
        def take_away(_: object = None) -> None:
            thread = threading.Thread(
                target=lambda: ledger.workers.reap(worker.id, Evidence("SIGKILL", started={claimed.task_id: 1}))
            )
            thread.start()
            thread.join(LONG_S)
            assert not thread.is_alive(), "whoever reaps does not wait for a handler"

        if database.dialect == "sqlite":  # nobody else can write between its first statement and its last
            take_away()
        else:
            with pytest.raises(Refused, match="attempt 1 does not run any more"):
                self.within(ledger, claimed, lambda tx: self.act(tx, claimed), take_away)
        assert (effects(), self.state(ledger, claimed.task_id)) == (0, State.READY)

        begun: list[object] = []
        with pytest.raises(Refused, match="attempt 1 does not run any more"):
            self.within(ledger, claimed, begun.append)
        assert begun == [], "nothing is begun in vain"
        [winner] = self.claim_elsewhere(ledger, [claimed.task_id])
        with ledger.transactions.transaction(winner) as connection:
            self.act(connection, winner)
        assert effects() == 1

    def test_an_attempt_that_was_handed_back_or_has_ended_cannot_enter(
        self, ledger: Ledger, worker: Incarnation, effects: Callable[[], int]
    ) -> None:
        for outcome in (HandedBack(), Failed(1.0, "boom"), Done()):
            claim = self.run_one(ledger, worker)
            self.settle(ledger, claim, outcome)
            with pytest.raises(Refused):
                self.within(ledger, claim, partial(self.act, claim=claim))
        assert effects() == 0

    def test_it_succeeds_once_and_what_is_settled_afterwards_changes_nothing(
        self, ledger: Ledger, claimed: Claim, effects: Callable[[], int]
    ) -> None:
        with ledger.transactions.transaction(claimed) as connection:
            self.act(connection, claimed)
        with pytest.raises(Refused):
            self.within(ledger, claimed, lambda tx: self.act(tx, claimed))

        assert self.settle(ledger, claimed, Done('{"rows":7}')).state is State.SUCCEEDED
        assert self.kinds(ledger, claimed.task_id) == []
        assert self.settle(ledger, claimed, Failed(1.0, "boom")).state is None
        assert self.kinds(ledger, claimed.task_id) == ["late_result"]
        task = self.task(ledger, claimed.task_id)
        assert (effects(), task.state, task.result, task.error) == (1, State.SUCCEEDED, None, None)

    def test_tasks_that_are_recorded_in_it_share_its_fate(self, ledger: Ledger, claimed: Claim) -> None:
        given_up, kept = new(3), new(3)
        with pytest.raises(LookupError):
            self.within(ledger, claimed, lambda tx: ledger.tasks.record(given_up, connection=tx), self.fail)
        with ledger.transactions.transaction(claimed) as connection:
            ledger.tasks.record(kept, connection=connection)

        assert [ledger.questions.get(one.id) for one in given_up] == [None] * 3
        assert [self.state(ledger, one.id) for one in kept] == [State.READY] * 3

    @pytest.mark.parametrize("how", ["commit", "rollback"])
    def test_a_block_that_ends_it_by_itself_is_refused(
        self, ledger: Ledger, claimed: Claim, effects: Callable[[], int], how: str
    ) -> None:
        def act(connection: Connection) -> None:
            self.act(connection, claimed)

        with pytest.raises(Refused, match="transaction"):
            self.within(ledger, claimed, act, methodcaller(how), act)
        assert (effects(), self.state(ledger, claimed.task_id)) == (0, State.RUNNING)

    def test_a_commit_whose_refusal_is_swallowed_does_not_stand_either(
        self, ledger: Ledger, claimed: Claim, effects: Callable[[], int]
    ) -> None:
        def swallow(connection: Connection) -> None:
            with pytest.raises(Refused, match="commits by itself"):
                connection.commit()

        with pytest.raises(Refused, match="ended inside"):
            self.within(ledger, claimed, lambda tx: self.act(tx, claimed), swallow)
        assert (effects(), self.state(ledger, claimed.task_id)) == (0, State.RUNNING)

    def test_an_error_that_has_ended_it_is_not_swallowed(
        self, ledger: Ledger, claimed: Claim, effects: Callable[[], int], database: Database
    ) -> None:
        def swallow(connection: Connection) -> None:
            with pytest.raises(DBAPIError):
                ending[database.dialect](connection, database)

        def go_on(connection: Connection) -> None:
            with suppress(DBAPIError, Refused):
                self.act(connection, claimed)

        with pytest.raises(Refused, match=r"ended .* so its task has not succeeded"):
            self.within(ledger, claimed, lambda tx: self.act(tx, claimed), swallow, go_on)
        assert (effects(), self.state(ledger, claimed.task_id)) == (0, State.RUNNING)

        def swallow_in_a_savepoint(connection: Connection) -> None:
            savepoint = connection.begin_nested()
            with pytest.raises(DBAPIError):
                connection.execute(text("SELECT nobody FROM nowhere"))
            savepoint.rollback()

        self.within(ledger, claimed, swallow_in_a_savepoint, lambda tx: self.act(tx, claimed))
        assert (effects(), self.state(ledger, claimed.task_id)) == (1, State.SUCCEEDED)

    def test_tasks_that_are_recorded_after_it_was_ended_do_not_stand_either(
        self, ledger: Ledger, claimed: Claim, database: Database
    ) -> None:
        tasks = new(3)

        def swallow(connection: Connection) -> None:
            with pytest.raises(DBAPIError):
                ending[database.dialect](connection, database)
            with suppress(DBAPIError, Refused, LedgerUnavailable):
                ledger.tasks.record(tasks, connection=connection)

        with pytest.raises(Refused, match="ended"):
            self.within(ledger, claimed, swallow)
        assert [ledger.questions.get(one.id) for one in tasks] == [None] * 3

    def test_savepoints_and_sessions_are_the_handlers_own(
        self, ledger: Ledger, claimed: Claim, effects: Callable[[], int]
    ) -> None:
        with ledger.transactions.transaction(claimed) as connection:
            savepoint = connection.begin_nested()
            self.act(connection, claimed)
            savepoint.rollback()
            with connection.begin_nested():
                self.act(connection, claimed)
            with Session(connection) as session:
                session.execute(insert(EFFECT).values(task_id=claimed.task_id, number=2))
                session.commit()  # of a session that was given a transaction: it flushes
        assert (effects(), self.state(ledger, claimed.task_id)) == (2, State.SUCCEEDED)

    def test_a_thread_is_inside_of_one_at_a_time(
        self, ledger: Ledger, worker: Incarnation, claimed: Claim, effects: Callable[[], int]
    ) -> None:
        other = self.run_one(ledger, worker)
        elsewhere: list[bool] = []
        before = ledger.transactions.is_entered
        with ledger.transactions.transaction(claimed) as connection:
            self.act(connection, claimed)
            inside = ledger.transactions.is_entered
            thread = threading.Thread(target=lambda: elsewhere.append(ledger.transactions.is_entered))
            thread.start()
            thread.join(LONG_S)
            with pytest.raises(Refused, match="inside of one already"):
                self.within(ledger, other)
        assert (before, inside, ledger.transactions.is_entered, elsewhere) == (False, True, False, [False])
        assert (effects(), self.state(ledger, other.task_id)) == (1, State.RUNNING)

    def test_a_cancel_that_was_only_asked_for_does_not_undo_what_was_done(
        self, ledger: Ledger, claimed: Claim, effects: Callable[[], int]
    ) -> None:
        ledger.decisions.cancel(claimed.task_id, who="ada", why="not needed")
        with ledger.transactions.transaction(claimed) as connection:
            self.act(connection, claimed)
        assert (effects(), self.state(ledger, claimed.task_id)) == (1, State.SUCCEEDED)

    def test_transactions_of_many_threads_each_stand(self, ledger: Ledger, effects: Callable[[], int]) -> None:
        workers = [incarnation() for _ in range(8)]
        claims: list[Claim] = []
        for one in workers:
            ledger.workers.join(one, queues=["default"], threads=4)
            claims += ledger.claims.claim(self.record(ledger), by=one.id)

        def run(number: int) -> Any:
            with ledger.transactions.transaction(claims[number]) as connection:
                self.act(connection, claims[number])

        at_once(8, run)
        assert effects() == 8
        assert {self.state(ledger, one.task_id) for one in claims} == {State.SUCCEEDED}
