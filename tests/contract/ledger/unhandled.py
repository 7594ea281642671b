"""A task whose name no worker that looks knows waits for one that does, at no cost, for so long and no longer."""

from __future__ import annotations

from sqlalchemy import delete

from tests.contract.given import Clock, incarnation
from tests.contract.ledger.job_steps import JobSteps, job_of
from workq.jobs.ledger.sql import JobLedger
from workq.ledger import NO_GROUP, CancelAnswer, Settled, Which
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Done, Failed, Snoozed, State, Unhandled

ERROR = "no handler is registered under the name 'index'"
LOOK = Unhandled(20.0, 100.0, ERROR)


class UnhandledContract(JobSteps):
    def look_again(self, ledger: Ledger, claim: Claim, clock: Clock, *, after_s: float, name: str) -> Settled:
        """Another worker looks, which does not know the name either."""
        clock.forward(after_s)
        other = incarnation(name)
        ledger.workers.join(other, queues=["default"], threads=1)
        [next_claim] = ledger.claims.claim([claim.task_id], by=other.id)
        return self.settle(ledger, next_claim, LOOK)

    def test_a_look_of_a_worker_that_does_not_know_its_name_costs_a_task_nothing(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(ledger, worker, failures_max=1, crashes_max=1)

        settled = self.settle(ledger, claim, LOOK)

        assert settled == Settled(claim.task_id, State.WAITING, 20.0)
        task = self.task(ledger, claim.task_id)
        assert (task.state, task.failures, task.crashes, task.settled_at) == (State.WAITING, 0, 0, None)
        assert (task.reason, task.error) == ("no_handler", ERROR)
        [event] = ledger.questions.history(claim.task_id)
        assert (event.kind, event.attempt, event.worker) == ("no_handler", 1, worker.id)
        assert ledger.claims.claim([claim.task_id], by=worker.id) == []
        clock.forward(21.0)
        [knowing] = ledger.claims.claim([claim.task_id], by=worker.id)
        assert self.settle(ledger, knowing, Done("7")).state is State.SUCCEEDED
        assert (self.task(ledger, claim.task_id).reason, ledger.questions.counts().unknown) == (None, [])

    def test_it_is_dead_when_the_first_look_was_so_long_ago_and_names_who_looked(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claims = ledger.claims.claim(self.record(ledger, 2), by=worker.id)
        for claim in claims:
            assert self.settle(ledger, claim, LOOK).state is State.WAITING
            assert self.look_again(ledger, claim, clock, after_s=40.0, name="second").state is State.WAITING

        led_to = [self.look_again(ledger, claim, clock, after_s=101.0, name="third") for claim in claims]

        assert [one.state for one in led_to] == [State.DEAD, State.DEAD]
        for claim in claims:
            task = self.task(ledger, claim.task_id)
            assert (task.reason, task.failures, task.attempt) == ("no_handler", 0, 3)
            assert task.error is not None
            assert task.error.startswith(f"{ERROR}: waited 100 s")
            looks = ledger.questions.history(claim.task_id)
            assert [event.kind for event in looks] == ["no_handler"] * 3
            assert all(str(event.worker) in task.error for event in looks)
        [group] = ledger.bulk.dead_groups(Which(), limit=9)
        assert (group.tasks, group.group != NO_GROUP, group.reason) == (2, True, "no_handler")

    def test_the_history_names_each_worker_that_looked_once_and_few_of_many(
        self, ledger: Ledger, claimed: Claim, clock: Clock
    ) -> None:
        look = Unhandled(1.0, 9999.0, ERROR)
        self.settle(ledger, claimed, look)
        for other in [incarnation() for _ in range(8)]:
            ledger.workers.join(other, queues=["default"], threads=1)
            for _ in range(2):
                clock.forward(2.0)
                [again] = ledger.claims.claim([claimed.task_id], by=other.id)
                self.settle(ledger, again, look)

        workers = [event.worker for event in ledger.questions.history(claimed.task_id)]
        assert len(workers) == len(set(workers)) == 5

    def test_a_task_that_ran_or_was_sent_back_meanwhile_waits_anew(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ran, slept, dead = ledger.claims.claim(self.record(ledger, 3), by=worker.id)
        for claim in (ran, slept, dead):
            self.settle(ledger, claim, LOOK)
        clock.forward(90.0)
        by_id = {one.task_id: one for one in ledger.claims.claim([ran.task_id, slept.task_id], by=worker.id)}
        self.settle(ledger, by_id[ran.task_id], Failed(1.0, "boom"))
        self.settle(ledger, by_id[slept.task_id], Snoozed(1.0))
        assert self.task(ledger, slept.task_id).reason is None
        assert self.look_again(ledger, dead, clock, after_s=20.0, name="late").state is State.DEAD
        ledger.decisions.revive(dead.task_id, who="ada", why="the workers are new")

        for claim in (ran, slept, dead):
            assert self.look_again(ledger, claim, clock, after_s=5.0, name="late").state is State.WAITING
        assert self.look_again(ledger, dead, clock, after_s=101.0, name="late").state is State.DEAD

    def test_the_counts_say_which_names_are_not_known_of_how_many_tasks_and_since_when(
        self, ledger: Ledger, worker: Incarnation, clock: Clock, database: Database
    ) -> None:
        since = ledger.questions.clock()
        for name, count in (("mail.send", 2), ("index", 1)):
            for claim in ledger.claims.claim(self.record(ledger, count, name=name), by=worker.id):
                self.settle(ledger, claim, LOOK)
            clock.forward(30.0)
        self.settle(ledger, self.run_one(ledger, worker), Failed(5.0, "boom"))

        mail, index = ledger.questions.counts().unknown

        assert (mail.name, mail.tasks, index.name, index.tasks) == ("mail.send", 2, "index", 1)
        assert 0.0 <= (mail.since - since).total_seconds() < 20.0 < (index.since - since).total_seconds()
        database.run(lambda tx: tx.execute(delete(database.tables.event)))
        assert ledger.questions.counts().unknown == [], "of what has no look in its history, nothing is said"

    def test_a_subtask_waits_for_a_worker_that_knows_it_and_counts_as_failed_in_the_end(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        job = job_of()
        ledger.part(JobLedger).jobs.begin_job(job)
        [claim] = self.running(ledger, worker, job, 1, is_last=True)

        assert self.settle(ledger, claim, LOOK).state is State.WAITING
        waits = self.stands(ledger, job)
        self.look_again(ledger, claim, clock, after_s=101.0, name="last")

        assert (waits.open_subtasks, waits.retried, waits.failed) == (1, 0, 0)
        ended = self.stands(ledger, job)
        assert (ended.open_subtasks, ended.failed) == (0, 10)

    def test_what_was_asked_to_stop_is_cancelled_by_the_look(self, ledger: Ledger, claimed: Claim) -> None:
        assert ledger.decisions.cancel(claimed.task_id, who="ada", why="not needed") is CancelAnswer.REQUESTED

        assert self.settle(ledger, claimed, LOOK).state is State.CANCELLED

        assert self.task(ledger, claimed.task_id).reason == "not needed"
