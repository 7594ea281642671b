"""Partitions: a step's writes, its cursor and the count of its items stand together and once, or none of them does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import insert

from tests.contract.given import LONG_S, Clock, at_once, new_job
from tests.contract.ledger.job_steps import AGAIN, CALLBACKS, WHO, JobSteps
from tests.contract.ledger.transaction import EFFECT, TransactionContract
from workq.errors import Refused
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import Bookmark, JobOptions, JobRow, JobState, NewJob, NewStep, Stepped
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Cancelled, Claim, Dead, Done, Failed, NewSubtask, Snoozed, State

PARTITIONED = JobOptions(queue="default", chunk=1, window=20, is_partitioned=True, callbacks=CALLBACKS)


class PartitionsContract(TransactionContract, JobSteps):
    @pytest.fixture
    def pull(self, ledger: Ledger, effects: Callable[[], int]) -> NewJob:
        """A job of partitions that has just begun, and a table for what they write."""
        job = new_job(PARTITIONED, name="pull")
        ledger.part(JobLedger).jobs.begin_job(job)
        return job

    @pytest.fixture
    def eu(self, ledger: Ledger, worker: Incarnation, pull: NewJob) -> Claim:
        """Its only partition, which runs."""
        [claim] = self.partitions(ledger, worker, pull, "eu", is_last=True)
        return claim

    @staticmethod
    def partitions(
        ledger: Ledger, worker: Incarnation, job: NewJob, *names: str, is_last: bool = False, cursor: str | None = None
    ) -> list[Claim]:
        """They run."""
        made = [
            NewSubtask(codec.new_task_id(), codec.encode({"a": [name, None], "k": {}}, path="args"), 1, cursor)
            for name in names
        ]
        split = ledger.part(JobLedger).jobs.split_job(
            job.id, made, after=0, cursor=len(names), total=len(names), is_last=is_last
        )
        assert split.room is not None
        claims = ledger.claims.claim([one.task_id for one in made], by=worker.id)
        assert len(claims) == len(names)
        return claims

    def step(
        self, ledger: Ledger, claim: Claim, cursor: Any, *, steps: int = 0, items: int = 10, writes: bool = True
    ) -> Stepped:
        """One step, with an effect of its own."""
        said: list[Stepped] = []
        encoded = None if cursor is None else codec.encode(cursor, path="cursor")
        with ledger.part(JobLedger).steps.step(
            claim, NewStep(steps, encoded, items), on_stood=said.append
        ) as connection:
            if writes:
                self.act(connection, claim)
        return said[0]

    @staticmethod
    def stood_after_all(stepped: Stepped) -> None:
        pytest.fail(f"it stands: {stepped}")

    @classmethod
    def as_it_stands(cls, ledger: Ledger, job: NewJob) -> JobRow:
        """Its counts are the sums of its subtasks."""
        assert ledger.part(JobLedger).care.miscounts(job.id) == {}
        return cls.stands(ledger, job)

    # -- a step

    def test_its_writes_its_cursor_and_its_items_stand_together_and_the_task_goes_on(
        self, ledger: Ledger, pull: NewJob, eu: Claim, effects: Callable[[], int]
    ) -> None:
        begins = ledger.part(JobLedger).steps.bookmark(eu)
        said = [self.step(ledger, eu, {"page": 2}), self.step(ledger, eu, {"page": 3}, steps=1, items=5)]

        row = self.as_it_stands(ledger, pull)
        assert (begins, ledger.part(JobLedger).steps.bookmark(eu)) == (Bookmark(None, 0), Bookmark({"page": 3}, 2))
        assert said == [Stepped(JobState.RUNNING)] * 2
        assert (effects(), self.state(ledger, eu.task_id)) == (2, State.RUNNING)
        assert (row.succeeded, row.split, row.total, row.open_subtasks) == (15, 16, None, 1), "itself, until it is done"

    def test_what_its_block_raises_leaves_nothing_of_it(
        self, ledger: Ledger, pull: NewJob, eu: Claim, effects: Callable[[], int]
    ) -> None:
        def act() -> None:
            with ledger.part(JobLedger).steps.step(
                eu, NewStep(0, "1", 10), on_stood=self.stood_after_all
            ) as connection:
                self.act(connection, eu)
                self.fail(connection)

        with pytest.raises(LookupError, match="no such order"):
            act()

        assert (
            effects(),
            ledger.part(JobLedger).steps.bookmark(eu).steps,
            self.as_it_stands(ledger, pull).succeeded,
        ) == (
            0,
            0,
            0,
        )

    def test_the_last_one_is_the_success_of_its_task_and_the_end_of_its_job(
        self, ledger: Ledger, pull: NewJob, eu: Claim, effects: Callable[[], int]
    ) -> None:
        self.step(ledger, eu, 1)
        said = self.step(ledger, eu, None, steps=1, items=3)
        again = self.settle(ledger, eu, Done())

        row = self.as_it_stands(ledger, pull)
        assert (said.state, again.state, self.state(ledger, eu.task_id)) == (
            JobState.SUCCEEDED,
            State.SUCCEEDED,
            State.SUCCEEDED,
        )
        assert (row.state, row.succeeded, row.split, row.open_subtasks) == (JobState.SUCCEEDED, 13, 13, 0)
        assert effects() == 2
        assert self.followers(ledger) == ["on.complete", "on.success"]
        with pytest.raises(Refused, match="does not run any more"):
            self.step(ledger, eu, None, steps=2)

    def test_a_partition_that_ends_without_a_last_step_is_no_item_itself(
        self, ledger: Ledger, worker: Incarnation, pull: NewJob
    ) -> None:
        empty, full = self.partitions(ledger, worker, pull, "eu", "us", is_last=True)
        self.settle(ledger, empty, Done())
        self.step(ledger, full, 1)
        self.settle(ledger, full, Done())

        row = self.as_it_stands(ledger, pull)
        assert (row.state, row.succeeded, row.split, row.subtasks) == (JobState.SUCCEEDED, 10, 10, 2)

    def test_a_step_that_is_made_twice_stands_once(
        self, ledger: Ledger, pull: NewJob, eu: Claim, effects: Callable[[], int]
    ) -> None:
        def make(number: int) -> Stepped | Refused:
            try:
                return self.step(ledger, eu, number)
            except Refused as error:
                return error

        made = at_once(6, make)

        refused = [one for one in made if isinstance(one, Refused)]
        assert len(refused) == 5
        assert all("made twice" in str(one) for one in refused)
        assert (
            effects(),
            ledger.part(JobLedger).steps.bookmark(eu).steps,
            self.as_it_stands(ledger, pull).succeeded,
        ) == (
            1,
            1,
            10,
        )

    def test_the_steps_of_many_partitions_at_once_are_each_counted(
        self, ledger: Ledger, worker: Incarnation, pull: NewJob, effects: Callable[[], int]
    ) -> None:
        claims = self.partitions(ledger, worker, pull, *"abcdef", is_last=True)

        def play(number: int) -> None:
            for steps in range(4):
                self.step(ledger, claims[number], None if steps == 3 else steps, steps=steps, items=number)

        at_once(6, play)

        row = self.as_it_stands(ledger, pull)
        assert (row.state, row.succeeded, effects()) == (JobState.SUCCEEDED, 4 * sum(range(6)), 24)

    # -- the fence

    def test_a_zombies_step_is_refused_and_the_partition_goes_on_behind_its_last_one(
        self,
        ledger: Ledger,
        worker: Incarnation,
        pull: NewJob,
        eu: Claim,
        effects: Callable[[], int],
        database: Database,
    ) -> None:
        self.step(ledger, eu, "first")

        def take_away() -> None:
            ledger.workers.reap(worker.id, Evidence("SIGKILL", started={eu.task_id: 1}))

        if database.dialect == "sqlite":  # nobody else can write during its block
            take_away()
            with pytest.raises(Refused, match="attempt 1 does not run any more"):
                self.step(ledger, eu, "late", steps=1)
        else:
            self.found_out_late(ledger, eu, take_away)

        [again] = self.claim_elsewhere(ledger, [eu.task_id])
        assert ledger.part(JobLedger).steps.bookmark(again) == Bookmark("first", 1)
        self.step(ledger, again, "second", steps=1)
        with pytest.raises(Refused, match="attempt 1 does not run any more"):
            self.step(ledger, eu, "later still", steps=2)
        assert ledger.part(JobLedger).steps.bookmark(again) == Bookmark("second", 2)
        assert (effects(), self.as_it_stands(ledger, pull).succeeded) == (2, 20)

    def found_out_late(self, ledger: Ledger, claim: Claim, take_away: Callable[[], None]) -> None:
        """It is taken away while its block has written already."""

        def act() -> None:
            with ledger.part(JobLedger).steps.step(
                claim, NewStep(1, '"late"', 10), on_stood=self.stood_after_all
            ) as connection:
                self.act(connection, claim)
                thread = threading.Thread(target=take_away)
                thread.start()
                thread.join(LONG_S)
                assert not thread.is_alive(), "whoever reaps does not wait for a handler"

        with pytest.raises(Refused, match="attempt 1 does not run any more"):
            act()

    def test_a_step_gives_its_task_the_whole_budget_again(
        self, ledger: Ledger, worker: Incarnation, eu: Claim, database: Database
    ) -> None:
        self.settle(ledger, eu, Failed(0.0, "boom"))
        [claim] = ledger.claims.claim([eu.task_id], by=worker.id)
        before = claim.failures
        self.step(ledger, claim, 1)
        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={eu.task_id: claim.attempt}))
        [again] = self.claim_elsewhere(ledger, [eu.task_id])

        assert (before, again.failures, again.crashes) == (1, 0, 1)

    def test_a_subtask_that_somebody_has_removed_has_no_cursor_to_go_on_from(
        self, ledger: Ledger, eu: Claim, effects: Callable[[], int], database: Database
    ) -> None:
        with database.engine.begin() as connection:
            connection.execute(job_tables(database).subtask.delete())

        with pytest.raises(Refused, match="was removed"):
            ledger.part(JobLedger).steps.bookmark(eu)
        with pytest.raises(Refused, match="was removed"):
            self.step(ledger, eu, 1)
        assert effects() == 0

    def test_without_its_jobs_row_a_partition_goes_on(
        self, ledger: Ledger, eu: Claim, effects: Callable[[], int], database: Database
    ) -> None:
        with database.engine.begin() as connection:
            connection.execute(job_tables(database).job.delete())

        assert self.step(ledger, eu, 1) == Stepped(None)
        assert self.step(ledger, eu, None, steps=1) == Stepped(None)
        assert (effects(), self.state(ledger, eu.task_id)) == (2, State.SUCCEEDED)

    # -- failures

    def test_a_dead_one_is_one_failed_item_and_who_retries_it_goes_on_behind_its_last_step(
        self, ledger: Ledger, worker: Incarnation, pull: NewJob, eu: Claim
    ) -> None:
        self.step(ledger, eu, {"page": 7})
        self.settle(ledger, eu, Dead("failures_max reached", "OSError: away"))

        row = self.as_it_stands(ledger, pull)
        [(_, failed)] = ledger.part(JobLedger).questions.failed_items(pull.id, of_subtasks=True)
        begun = ledger.part(JobLedger).jobs.retry_job(pull.id, chunk=50, **AGAIN)
        again = ledger.part(JobLedger).questions.job(begun.id)
        assert again is not None
        assert (row.state, row.succeeded, row.failed, row.split) == (JobState.COMPLETED_WITH_FAILURES, 10, 1, 11)
        assert (failed.item, failed.cursor) == ('"eu"', '{"page":7}')
        assert (again.total, again.options.chunk) == (None, 1), "a partition is a subtask of its own"

        once_more = replace(pull, id=again.id)
        [claim] = self.partitions(ledger, worker, once_more, "eu", cursor=failed.cursor, is_last=True)
        assert ledger.part(JobLedger).steps.bookmark(claim) == Bookmark({"page": 7}, 0)
        self.settle(ledger, claim, Dead("failures_max reached", "OSError: away"))
        [(_, failed)] = ledger.part(JobLedger).questions.failed_items(again.id)
        assert failed.cursor == '{"page":7}', "it has not lost its place"

    def test_a_share_of_failures_is_one_of_the_partitions(
        self, ledger: Ledger, worker: Incarnation, effects: Callable[[], int]
    ) -> None:
        job = new_job(replace(PARTITIONED, failed_share_max=0.25), name="pull")
        ledger.part(JobLedger).jobs.begin_job(job)
        claims = self.partitions(ledger, worker, job, *"abcd", is_last=True)
        self.step(ledger, claims[0], 1, items=10_000)
        states = []
        for claim in claims[:2]:
            self.settle(ledger, claim, Dead("failures_max reached", "OSError: away"))
            states.append(self.as_it_stands(ledger, job).state)

        assert states == [JobState.RUNNING, JobState.FAILING]
        assert "2 of 2 partitions" in (self.as_it_stands(ledger, job).error or "")

    # -- people

    def test_a_pause_is_told_at_the_next_step_and_it_goes_on_there_when_it_is_resumed(
        self, ledger: Ledger, worker: Incarnation, pull: NewJob, eu: Claim
    ) -> None:
        ledger.part(JobLedger).decisions.pause_job(pull.id, **WHO)
        told = self.step(ledger, eu, 1)
        waits = self.as_it_stands(ledger, pull).state
        self.settle(ledger, eu, Snoozed(0.0, "its job is pausing"))
        paused = self.as_it_stands(ledger, pull).state
        parked = ledger.claims.claim([eu.task_id], by=worker.id)
        _, hints = ledger.part(JobLedger).decisions.resume_job(pull.id, **WHO)
        [claim] = ledger.claims.claim([eu.task_id], by=worker.id)

        assert (told.state, waits, paused, parked) == (JobState.PAUSING, JobState.PAUSING, JobState.PAUSED, [])
        assert eu.task_id in [hint.task_id for hint in hints]
        assert (ledger.part(JobLedger).steps.bookmark(claim), claim.failures) == (Bookmark(1, 1), 0)

    def test_a_cancel_is_told_at_the_next_step_which_stands(
        self, ledger: Ledger, pull: NewJob, eu: Claim, effects: Callable[[], int]
    ) -> None:
        ledger.part(JobLedger).decisions.cancel_job(pull.id, **WHO)
        told = self.step(ledger, eu, 1)
        self.settle(ledger, eu, Cancelled("its job is cancelling"))

        row = self.as_it_stands(ledger, pull)
        assert (told.state, effects()) == (JobState.CANCELLING, 1)
        assert (row.state, row.succeeded, row.cancelled) == (JobState.CANCELLED, 10, 1)

    def test_when_its_job_was_cancelled_by_force_no_step_of_it_stands(
        self, ledger: Ledger, pull: NewJob, eu: Claim, effects: Callable[[], int]
    ) -> None:
        self.step(ledger, eu, 1)
        ledger.part(JobLedger).decisions.cancel_job(pull.id, **WHO)
        ledger.part(JobLedger).decisions.cancel_job(pull.id, **WHO, is_forced=True)
        for cursor in (2, None):
            with pytest.raises(Refused, match="does not wait for it any more"):
                self.step(ledger, eu, cursor, steps=1)

        row = self.as_it_stands(ledger, pull)
        assert (row.state, row.succeeded, row.cancelled, effects()) == (JobState.CANCELLED, 10, 1, 1)
        assert self.state(ledger, eu.task_id) is State.RUNNING

    def test_with_a_rate_the_next_step_has_a_slot_when_the_items_of_this_one_are_paid(
        self, ledger: Ledger, worker: Incarnation, pull: NewJob, clock: Clock
    ) -> None:
        eu, us = self.partitions(ledger, worker, pull, "eu", "us")
        ledger.part(JobLedger).decisions.throttle_job(pull.id, rate_max=5.0, **WHO)
        first, second = self.step(ledger, eu, 1), self.step(ledger, us, 1)
        for claim in (eu, us):
            self.settle(ledger, claim, Snoozed(0.0, "its job has no slot yet"))
        ids = [eu.task_id, us.task_id]
        early = ledger.claims.claim(ids, by=worker.id)
        clock.forward(2.1)
        one = ledger.claims.claim(ids, by=worker.id)
        _, hints = ledger.part(JobLedger).decisions.throttle_job(pull.id, rate_max=None, **WHO)

        assert 1.5 < first.wait_s <= 2.0 < 3.0 < second.wait_s <= 4.0, "ten items at five a second are two seconds"
        assert (early, [claim.task_id for claim in one]) == ([], [eu.task_id])
        assert us.task_id in [hint.task_id for hint in hints]

    # -- what else may end it

    def test_a_transaction_of_its_handler_ends_it_without_an_item(
        self, ledger: Ledger, pull: NewJob, eu: Claim, effects: Callable[[], int]
    ) -> None:
        with ledger.transactions.transaction(eu) as connection:
            connection.execute(insert(EFFECT).values(task_id=eu.task_id, number=1))

        row = self.as_it_stands(ledger, pull)
        assert (row.state, row.succeeded, row.split, effects()) == (JobState.SUCCEEDED, 0, 0, 1)
