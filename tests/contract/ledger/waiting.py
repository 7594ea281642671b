"""Waiting for others: what a task waits for stands in its row, until the slice that parked it lets it go on."""

from __future__ import annotations

from sqlalchemy import select, update

from tests.contract.ledger.job_steps import WHO, JobSteps
from tests.contract.ledger.webhook_steps import WebhookSteps
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import NewJob
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.limits.ledger.limits import Limits
from workq.order.ledger.order import Order
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Limit, State
from workq.webhooks.ledger.sql import WebhookLedger


class WaitingContract(WebhookSteps, JobSteps):
    def waits_for(self, ledger: Ledger, task_id: str) -> str | None:
        """As the task and where it stands say it."""
        found = self.task(ledger, task_id).waits_for
        assert ledger.questions.standings([task_id])[task_id].waits_for == found
        return found

    @staticmethod
    def stored(database: Database, task_id: str) -> str | None:
        t = database.tables.task
        found = select(t.c.waits_for).where(t.c.id == task_id)
        stored: str | None = database.ask(lambda tx: tx.execute(found).scalar_one())
        return stored

    def test_a_task_that_waits_for_its_time_alone_waits_for_nothing_else(self, ledger: Ledger) -> None:
        now, later = self.record(ledger), self.record(ledger, delay_s=5.0)
        assert [self.waits_for(ledger, one) for one in (*now, *later)] == [None, None]

    def test_a_task_behind_another_of_its_order_key(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        first, second, third = self.record(ledger, 3, order_key="k")
        assert [self.waits_for(ledger, one) for one in (first, second, third)] == [None, "order", "order"]

        [claim] = ledger.claims.claim([first], by=worker.id)
        self.settle(ledger, claim, Done())
        ledger.part(Order).advance(["k"])

        assert [self.waits_for(ledger, one) for one in (second, third)] == [None, "order"]
        assert self.stored(database, second) is None

    def test_a_task_that_was_sent_back_behind_another_of_its_order_key(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        first, second = self.record(ledger, 2, order_key="k")
        ledger.decisions.cancel(first, who="eve@host", why="?")
        ledger.part(Order).advance(["k"])

        ledger.decisions.revive(first, who="eve@host", why="?")

        assert [self.waits_for(ledger, one) for one in (first, second)] == ["order", None]

    def test_a_task_whose_limit_is_reached(self, ledger: Ledger, database: Database, worker: Incarnation) -> None:
        first, second = self.record(ledger, 2, limit=Limit("mail", concurrency=1))
        [claim] = ledger.claims.claim([first, second], by=worker.id)
        assert self.waits_for(ledger, second) == "limit"

        self.settle(ledger, claim, Done())
        ledger.part(Limits).admit(["mail"])

        assert self.waits_for(ledger, second) is None
        assert self.stored(database, second) is None

    def test_a_subtask_whose_job_is_paused(
        self, ledger: Ledger, database: Database, worker: Incarnation, job: NewJob
    ) -> None:
        [subtask] = self.split(ledger, job, 1)
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        assert ledger.claims.claim([subtask], by=worker.id) == []
        assert self.waits_for(ledger, subtask) == "job"

        ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)

        assert self.waits_for(ledger, subtask) is None
        assert self.stored(database, subtask) is None

    def test_a_delivery_whose_endpoint_is_disabled(self, ledger: Ledger, database: Database) -> None:
        self.endpoint(ledger)
        [sent_to] = self.send(ledger)
        task_id = self.delivery(ledger, sent_to.delivery_id).task_id
        decisions = ledger.part(WebhookLedger).decisions
        decisions.disable_endpoint("a", who="ann", why="?")
        decisions.hold_deliveries(limit=9)  # if the decision itself has not done it
        assert self.waits_for(ledger, task_id) == "endpoint"

        decisions.enable_endpoint("a", who="ann", why="?")
        decisions.release_held("a", who="ann", why="?")

        assert self.waits_for(ledger, task_id) is None
        assert self.stored(database, task_id) is None

    def test_what_a_worker_of_schema_15_parks_and_lets_go_on_is_understood(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        """It knows no such column: it parks without the word, and it leaves the word in the row that it lets go on."""
        first, second = self.record(ledger, 2, order_key="k")
        parked_by_it, freed_by_it = second, self.record(ledger)[0]
        t = database.tables.task
        with database.engine.begin() as tx:
            tx.execute(update(t).where(t.c.id == parked_by_it).values(waits_for=None))
            tx.execute(update(t).where(t.c.id == freed_by_it).values(waits_for="limit"))

        assert self.waits_for(ledger, freed_by_it) is None
        assert [one.task_id for one in ledger.claims.claim([first, second, freed_by_it], by=worker.id)] == sorted(
            [first, freed_by_it]
        )
        assert self.state(ledger, parked_by_it) is State.WAITING
