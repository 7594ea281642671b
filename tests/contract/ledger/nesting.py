"""What a job's handler adds to it, and jobs in jobs: none ends before all of it has, and each is there once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from tests.contract.given import at_once, chunks
from tests.contract.ledger.job_steps import BAD, WHO, JobSteps, job_of
from workq.errors import Refused
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import JobOptions, JobState, NewJob, nested_id
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Done, Failed, Settlement, State, Worked


def nested_in(outer: NewJob, *, params: str = '{"a":[],"k":{}}') -> NewJob:
    """A job to begin in another."""
    inner = job_of(JobOptions(queue="default"), name="inner", parent_id=outer.id)
    new_id = nested_id(outer.id, inner.name, None, params)
    return replace(inner, id=new_id, key=new_id, params=params)


class NestingContract(JobSteps):
    @pytest.fixture
    def outer(self, ledger: Ledger, worker: Incarnation, job: NewJob) -> Claim:
        """The last subtask of a job, which runs."""
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        return claim

    def end(self, ledger: Ledger, job: NewJob, *, failed: bool = False) -> list[str]:
        """A nested job that has had nothing, or an item that nothing can carry, ends; answers who gets hints."""
        split = ledger.part(JobLedger).jobs.split_job(
            job.id, [], after=0, cursor=None, is_last=True, failed=[BAD] if failed else []
        )
        return [hint.task_id for hint in split.hints]

    # -- from inside

    def test_what_is_added_is_there_when_the_subtask_is_settled_and_the_job_goes_on(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, outer: Claim
    ) -> None:
        added = tuple(chunks(2, size=3))

        settled = self.settle(ledger, outer, Worked(10, added=added))

        row = self.stands(ledger, job)
        assert (row.state, row.total, row.split, row.subtasks, row.open_subtasks) == (JobState.RUNNING, 16, 16, 3, 2)
        assert [hint.task_id for hint in settled.follows] == [one.task_id for one in added]
        claims = ledger.claims.claim([one.task_id for one in added], by=worker.id)
        ledger.outcomes.settle([Settlement(claim, Done()) for claim in claims])
        assert self.stands(ledger, job).state is JobState.SUCCEEDED
        assert ledger.part(JobLedger).care.miscounts(job.id) == {}

    def test_it_is_added_once_however_often_the_settlement_is_told(
        self, ledger: Ledger, job: NewJob, outer: Claim
    ) -> None:
        worked = Settlement(outer, Worked(9, again=outer.payload, added=tuple(chunks(1))))

        for _ in range(3):
            ledger.outcomes.settle([worked])

        row = self.stands(ledger, job)
        assert (row.subtasks, row.open_subtasks, row.split) == (2, 2, 20)

    def test_what_an_attempt_adds_that_was_taken_away_is_not_there(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, outer: Claim
    ) -> None:
        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={}))

        settled = self.settle(ledger, outer, Worked(10, added=tuple(chunks(1))))

        assert (settled.state, self.stands(ledger, job).subtasks) == (None, 1)

    def test_its_splitter_goes_on_beside_what_is_added(self, ledger: Ledger, worker: Incarnation, job: NewJob) -> None:
        [claim] = self.running(ledger, worker, job, 1)
        self.settle(ledger, claim, Worked(10, added=tuple(chunks(1))))

        page = chunks(1)
        splits = [
            ledger.part(JobLedger).jobs.split_job(job.id, page, after=1, cursor=20, is_last=True) for _ in range(2)
        ]

        row = self.stands(ledger, job)
        assert [split.room for split in splits] == [2, 2], "the same page, told again"
        assert (row.subtasks, row.read_subtasks, row.total, row.is_split) == (3, 2, 30, True)

    def test_it_can_be_added_in_the_handlers_own_transaction(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, outer: Claim
    ) -> None:
        added = tuple(chunks(1))
        with ledger.transactions.transaction(outer, succeeds=lambda: Worked(0, added=tuple(added))) as connection:
            connection.execute(text("SELECT 1"))

        settled = self.settle(ledger, outer, Done())

        assert (self.stands(ledger, job).open_subtasks, settled.state) == (1, State.SUCCEEDED)
        assert [hint.task_id for hint in settled.follows] == [one.task_id for one in added]

    def test_nothing_is_added_in_a_transaction_that_was_rolled_back(
        self, ledger: Ledger, job: NewJob, outer: Claim
    ) -> None:
        with (
            pytest.raises(OSError, match="disk"),
            ledger.transactions.transaction(outer, succeeds=lambda: Worked(0, added=tuple(chunks(1)))),
        ):
            raise OSError("disk")

        assert self.stands(ledger, job).subtasks == 1

    # -- jobs in jobs

    def test_a_job_ends_after_those_that_are_nested_in_it(self, ledger: Ledger, job: NewJob, outer: Claim) -> None:
        inner = nested_in(job)
        ledger.part(JobLedger).jobs.begin_job(inner)

        self.settle(ledger, outer, Done())
        before = self.stands(ledger, job).state, self.followers(ledger)
        hinted = self.end(ledger, inner)

        assert before == (JobState.RUNNING, [])
        assert self.stands(ledger, job).state is JobState.SUCCEEDED
        assert self.followers(ledger) == ["on.complete", "on.success"]
        assert len(hinted) == 2, "what follows the outer one is hinted by whoever ends the inner one"
        assert [row.id for row in ledger.part(JobLedger).questions.jobs(parent_id=job.id)] == [inner.id]

    def test_with_failures_in_one_that_is_nested_it_has_failures(
        self, ledger: Ledger, job: NewJob, outer: Claim
    ) -> None:
        inner = nested_in(job)
        ledger.part(JobLedger).jobs.begin_job(inner)
        self.end(ledger, inner, failed=True)

        self.settle(ledger, outer, Done())

        row = self.stands(ledger, job)
        assert (row.state, row.failed) == (JobState.COMPLETED_WITH_FAILURES, 0)

    def test_a_handler_that_runs_again_begins_no_second_one(self, ledger: Ledger, job: NewJob, outer: Claim) -> None:
        same, other = nested_in(job), nested_in(job, params='{"a":[],"k":{"part":2}}')

        begun = [ledger.part(JobLedger).jobs.begin_job(one) for one in (same, nested_in(job), other)]

        assert [one.created for one in begun] == [True, False, True]
        assert len(ledger.part(JobLedger).questions.jobs(parent_id=job.id)) == 2
        self.settle(ledger, outer, Failed(0.0, "boom"))
        self.end(ledger, same)
        assert ledger.part(JobLedger).jobs.begin_job(nested_in(job)).id == same.id
        assert self.stands(ledger, same).state is JobState.SUCCEEDED

    def test_in_one_that_has_ended_or_is_about_to_nothing_is_begun(
        self, ledger: Ledger, job: NewJob, outer: Claim
    ) -> None:
        ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO)

        with pytest.raises(Refused, match="is cancelling; nothing is begun in it any more"):
            ledger.part(JobLedger).jobs.begin_job(nested_in(job))

    def test_of_many_at_once_that_end_the_last_ends_the_outer_one_once(
        self, ledger: Ledger, job: NewJob, outer: Claim
    ) -> None:
        inner = [nested_in(job, params=f'{{"a":[],"k":{{"part":{part}}}}}') for part in range(4)]
        for one in inner:
            ledger.part(JobLedger).jobs.begin_job(one)
        self.settle(ledger, outer, Done())

        at_once(4, lambda number: self.end(ledger, inner[number]))

        assert self.stands(ledger, job).state is JobState.SUCCEEDED
        assert self.followers(ledger) == ["on.complete", "on.success"]

    def test_who_died_after_the_last_nested_one_ended_leaves_the_rest_to_a_sweep(
        self, ledger: Ledger, job: NewJob, outer: Claim, database: Database
    ) -> None:
        inner = nested_in(job)
        ledger.part(JobLedger).jobs.begin_job(inner)
        self.settle(ledger, outer, Done())
        j = job_tables(database).job
        with database.engine.begin() as connection:  # as if nobody had looked at the outer one
            connection.execute(j.update().where(j.c.id == inner.id).values(state="succeeded", live_key=None))
        before = self.stands(ledger, job).state

        ledger.part(JobLedger).care.tend_job(job.id)

        assert (before, self.stands(ledger, job).state) == (JobState.RUNNING, JobState.SUCCEEDED)

    def test_it_takes_them_along_when_it_is_paused_and_resumed(self, ledger: Ledger, job: NewJob, outer: Claim) -> None:
        first, second = nested_in(job), nested_in(job, params='{"a":[],"k":{"part":2}}')
        ledger.part(JobLedger).jobs.begin_job(first)
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        ledger.part(JobLedger).jobs.begin_job(second)
        paused = [self.stands(ledger, one).state for one in (first, second)]
        ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)

        assert paused == [JobState.PAUSED, JobState.PAUSED]
        assert [self.stands(ledger, one).state for one in (job, first, second)] == [
            JobState.RUNNING,
            JobState.PLANNING,
            JobState.PLANNING,
        ]

    @pytest.mark.parametrize("is_forced", [False, True])
    def test_cancelled_it_is_when_they_are(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, outer: Claim, is_forced: bool
    ) -> None:
        inner = nested_in(job)
        ledger.part(JobLedger).jobs.begin_job(inner)
        [running] = self.running(ledger, worker, inner, 1)
        ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO, is_forced=is_forced)
        self.settle(ledger, outer, Done())
        between = self.stands(ledger, job).state
        ledger.part(JobLedger).care.tend_job(job.id)
        self.settle(ledger, running, Done())
        ledger.part(JobLedger).care.tend_job(job.id)

        assert between is (JobState.CANCELLED if is_forced else JobState.CANCELLING)
        assert [self.stands(ledger, one).state for one in (job, inner)] == [JobState.CANCELLED] * 2
        assert self.followers(ledger) == ["on.cancel", "on.complete"]
