"""What operators ask of a ledger is answered alike on each database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import insert, update

from tests.contract.databases import OnDatabase, OnMariaDB, OnPostgreSQL, OnSQLite
from workq.ledger import Company
from workq.ledger.engine.database import Database
from workq.ledger.engine.states import NOTED, SUSPECT
from workq.ledger.sql import Ledger
from workq.slices import SLICES
from workq.values.codec import new_task_id
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Failed, NewTask, Settlement, State


class QuestionsContract(OnDatabase):
    """The same questions everywhere; a subclass says only where the ledger is."""

    @pytest.fixture
    def ledger(self, database: Database) -> Ledger:
        ledger = Ledger(database, SLICES)
        ledger.workers.join(Incarnation("me", "host", 1), queues=["q"], threads=4)
        return ledger

    def record(self, ledger: Ledger, queue: str = "q", *, delay_s: float = 0.0) -> str:
        task = NewTask(new_task_id(), "index", queue, '{"a":[],"k":{}}', delay_s)
        ledger.tasks.record([task])
        return task.id

    def test_where_a_task_stands_has_every_time_and_unknown_ids_are_missing(self, ledger: Ledger) -> None:
        task_id = self.record(ledger)
        found = ledger.questions.standings([task_id, new_task_id(), "no id"])
        (claim,) = ledger.claims.claim([task_id], by="me")
        running = ledger.questions.standings([task_id])[task_id]
        ledger.outcomes.settle([Settlement(claim, Failed(60.0, "boom"))])
        waits = ledger.questions.standings([task_id])[task_id]

        assert set(found) == {task_id}
        ready = found[task_id]
        assert (ready.state, ready.attempt, ready.worker, ready.published_at) == (State.READY, 0, None, None)
        assert ready.due_at <= ready.now
        assert (running.state, running.attempt, running.worker) == (State.RUNNING, 1, "me")
        assert running.started_at is not None
        assert (waits.failures, waits.failures_max, waits.error) == (1, 5, "boom")
        assert waits.due_at - waits.now > timedelta(seconds=50)

    def test_more_ids_than_one_statement_takes_are_answered_all(self, ledger: Ledger) -> None:
        ids = [self.record(ledger) for _ in range(12)]
        from workq.ledger import questions

        before, questions.IDS_AT_ONCE = questions.IDS_AT_ONCE, 5
        try:
            assert set(ledger.questions.standings(ids)) == set(ids)
        finally:
            questions.IDS_AT_ONCE = before

    def test_older_tasks_are_those_of_the_queue_that_could_be_claimed_and_were_due_before(self, ledger: Ledger) -> None:
        first, claimed, second, last = (self.record(ledger) for _ in range(4))
        self.record(ledger, "other")
        self.record(ledger, delay_s=60.0)
        ledger.claims.claim([claimed], by="me")
        at = ledger.questions.standings([first, second, last])

        assert [ledger.questions.older(at[one]) for one in (first, second, last)] == [0, 1, 2]

    def test_company_is_what_the_same_worker_runs_besides(self, ledger: Ledger) -> None:
        ids = [self.record(ledger) for _ in range(4)]
        ledger.workers.join(Incarnation("other", "host", 2), queues=["q"], threads=4)
        ledger.claims.claim(ids[:3], by="me")
        ledger.claims.claim(ids[3:], by="other")
        t = ledger.database.tables.task
        ledger.database.run(lambda tx: tx.execute(update(t).where(t.c.id == ids[1]).values(is_suspect=SUSPECT)))
        ledger.database.run(lambda tx: tx.execute(update(t).where(t.c.id == ids[2]).values(is_suspect=NOTED)))
        at = ledger.questions.standings(ids)

        assert ledger.questions.company(at[ids[0]]) == Company(2, 1)
        assert ledger.questions.company(at[ids[1]]) == Company(2, 0)
        assert ledger.questions.company(at[ids[3]]) == Company(0, 0)
        assert ledger.questions.occupied(["me", "other", "nobody"]) == {"me": 3, "other": 1}

    def test_what_happened_is_the_newest_of_the_kinds_within_the_time_oldest_first(self, ledger: Ledger) -> None:
        ledger.history.note("manual", detail={"n": 0})
        ledger.database.clock_offset_s = 100.0
        for number in range(1, 4):
            ledger.history.note("manual", detail={"n": number})
        ledger.history.note("quarantined", detail={"n": 9})

        def numbers(*kinds: str, within_s: float, limit: int = 10) -> list[object]:
            return [one.detail["n"] for one in ledger.questions.happened(kinds, within_s=within_s, limit=limit)]

        assert numbers("manual", within_s=50.0) == [1, 2, 3]
        assert numbers("manual", within_s=50.0, limit=2) == [2, 3]
        assert numbers("manual", "quarantined", within_s=1000.0) == [0, 1, 2, 3, 9]

    def test_begun_are_those_that_run_and_those_that_succeeded_within_the_time(self, ledger: Ledger) -> None:
        old, new, running, ready = (self.record(ledger) for _ in range(4))
        (claim,) = ledger.claims.claim([old], by="me")
        ledger.outcomes.settle([Settlement(claim, Done())])
        ledger.database.clock_offset_s = 100.0
        (claim,) = ledger.claims.claim([new], by="me")
        ledger.outcomes.settle([Settlement(claim, Done())])
        ledger.claims.claim([running], by="me")

        assert ledger.questions.begun(within_s=50.0) == 2
        assert ledger.questions.begun(within_s=500.0) == 3
        assert ledger.questions.standings([ready])[ready].state is State.READY

    def test_when_somebody_swept_is_told_and_not_known_before(self, ledger: Ledger) -> None:
        never = ledger.questions.swept_for_s()
        meta, now = ledger.database.tables.meta, ledger.database.now
        ledger.database.run(lambda tx: tx.execute(insert(meta).values(name="swept", value="{}", at=now(-90.0))))
        swept_for_s = ledger.questions.swept_for_s()

        assert never is None
        assert swept_for_s is not None
        assert 90.0 <= swept_for_s < 120.0


class TestSQLite(OnSQLite, QuestionsContract):
    pass


class TestPostgreSQL(OnPostgreSQL, QuestionsContract):
    pass


class TestMariaDB(OnMariaDB, QuestionsContract):
    pass
