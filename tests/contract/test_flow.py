"""The full history: an event for each move of each task, written by the database, whoever moves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.databases import OnMariaDB, OnPostgreSQL, OnSQLite
from tests.contract.given import Clock
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence, history_trigger
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Failed


class FlowContract(Steps):
    def moves(self, ledger: Ledger, task_id: str) -> list[tuple[str | None, str, int | None, str | None]]:
        return [
            (event.detail.get("from"), event.detail["to"], event.attempt, event.worker)
            for event in ledger.questions.history(task_id)
            if event.kind == "moved"
        ]

    @pytest.fixture
    def full(self, database: Database) -> Iterator[None]:
        assert history_trigger.keep(database, is_full=True)
        yield
        history_trigger.keep(database, is_full=False)

    @pytest.mark.usefixtures("full")
    def test_each_move_of_a_life_is_kept_with_who_made_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        first = self.run_one(ledger, worker, failures_max=3)
        self.settle(ledger, first, Failed(5.0, "boom"))
        clock.forward(6.0)
        ledger.upkeep.promote(limit=9)
        [second] = ledger.claims.claim([first.task_id], by=worker.id)
        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={first.task_id: 2}))
        [third] = self.claim_elsewhere(ledger, [first.task_id])
        by = self.task(ledger, first.task_id).worker
        self.settle(ledger, third, Done())

        assert second.attempt == 2
        assert self.moves(ledger, first.task_id) == [
            (None, "ready", 0, None),
            ("ready", "running", 1, worker.id),
            ("running", "waiting", 1, worker.id),
            ("waiting", "ready", 1, None),
            ("ready", "running", 2, worker.id),
            ("running", "ready", 2, worker.id),
            ("ready", "running", 3, by),
            ("running", "succeeded", 3, by),
        ]

    @pytest.mark.usefixtures("full")
    def test_of_many_each_has_its_own_and_what_people_do_is_there(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 50)
        ledger.claims.claim(ids[:40], by=worker.id)
        ledger.decisions.cancel(ids[49], who="ada", why="?")
        ledger.decisions.revive(ids[49], who="ada", why="?")

        moves = [[(before, after) for before, after, _, _ in self.moves(ledger, task_id)] for task_id in ids]

        assert moves[:40] == [[(None, "ready"), ("ready", "running")]] * 40
        assert moves[40:49] == [[(None, "ready")]] * 9
        assert moves[49] == [(None, "ready"), ("ready", "cancelled"), ("cancelled", "ready")]

    def test_it_is_kept_from_when_it_is_asked_for_until_it_is_not_wanted(
        self, ledger: Ledger, database: Database
    ) -> None:
        answers, counts = [], []
        for is_full in (False, True, True, False, False):
            answers.append(history_trigger.keep(database, is_full=is_full))
            [task_id] = self.record(ledger)
            counts.append((history_trigger.is_kept(database), len(self.moves(ledger, task_id))))

        assert answers == [False, True, False, True, False]
        assert counts == [(False, 0), (True, 1), (True, 1), (False, 0), (False, 0)]


class TestSQLite(OnSQLite, FlowContract):
    pass


class TestPostgreSQL(OnPostgreSQL, FlowContract):
    pass


class TestMariaDB(OnMariaDB, FlowContract):
    pass
