"""Jobs: split once however many split, counted once however often it is told, and ended once, with what follows."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import delete

from tests.contract.given import OTHER_THAN_DEFAULT, Clock, at_once, chunks
from tests.contract.ledger.job_steps import AGAIN, BAD, CALLBACKS, OPTIONS, WHO, JobSteps, job_of
from workq.errors import LedgerUnavailable, NotFound, Refused
from workq.jobs.ledger import gate
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import Begun, Callback, Collect, Ending, IfRunning, JobOptions, JobState, NewJob
from workq.ledger import Evidence, Which
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.options import OF_EACH_TASK
from workq.values.task import (
    Cancelled,
    Claim,
    Dead,
    Done,
    Failed,
    FailedItem,
    HandedBack,
    NewSubtask,
    Outcome,
    Result,
    Settlement,
    Snoozed,
    State,
    Worked,
)


class JobsContract(JobSteps):
    # -- begin

    def test_it_begins_with_the_task_that_reads_its_source(self, ledger: Ledger, job: NewJob) -> None:
        again = ledger.part(JobLedger).jobs.begin_job(job)

        row = self.stands(ledger, job)
        assert (again, row.state, row.split, row.total) == (Begun(job.id, True), JobState.PLANNING, 0, None)
        assert [task.id for task in ledger.questions.tasks()] == [job.splitter.id]
        assert self.task(ledger, job.splitter.id).job_id == job.id
        assert ledger.part(JobLedger).questions.job(codec.new_task_id()) is None

    def test_while_one_has_not_ended_another_of_its_name_and_key_is_refused_or_joins_it(
        self, ledger: Ledger, job: NewJob
    ) -> None:
        with pytest.raises(Refused, match=f"{job.id} has not ended"):
            ledger.part(JobLedger).jobs.begin_job(job_of())

        joined = ledger.part(JobLedger).jobs.begin_job(job_of(if_running=IfRunning.JOIN))
        keyed = ledger.part(JobLedger).jobs.begin_job(job_of(key="v3"))

        assert joined == Begun(job.id, False)
        assert keyed.created
        assert len(ledger.part(JobLedger).questions.jobs()) == 2

    def test_of_many_at_once_one_begins(self, ledger: Ledger) -> None:
        jobs = [job_of(if_running=IfRunning.JOIN) for _ in range(8)]

        begun = at_once(8, lambda number: ledger.part(JobLedger).jobs.begin_job(jobs[number]))

        assert [one.created for one in begun].count(True) == 1
        assert len({one.id for one in begun}) == len(ledger.part(JobLedger).questions.jobs()) == 1

    # -- split

    def test_a_page_and_its_cursor_are_recorded_together_and_once(self, ledger: Ledger, job: NewJob) -> None:
        page = chunks(2)
        first = ledger.part(JobLedger).jobs.split_job(job.id, page, after=0, cursor=20, is_last=False)
        again = ledger.part(JobLedger).jobs.split_job(job.id, page, after=0, cursor=20, is_last=False)
        another = ledger.part(JobLedger).jobs.split_job(job.id, chunks(2), after=0, cursor=20, is_last=False)

        row = self.stands(ledger, job)
        assert (first.room, again.room, another.room) == (2, 2, None)
        assert [one.is_elsewhere for one in (first, again, another)] == [False, False, True]
        assert (row.state, row.cursor, row.subtasks, row.open_subtasks, row.split) == (JobState.RUNNING, 20, 2, 2, 20)
        assert len(ledger.questions.tasks(name="index")) == 2

    def test_of_two_splitters_at_once_one_makes_each_page(self, ledger: Ledger, job: NewJob) -> None:
        splits = at_once(
            6, lambda _: ledger.part(JobLedger).jobs.split_job(job.id, chunks(1), after=0, cursor=10, is_last=False)
        )

        assert sorted(one.room is None for one in splits) == [False, *[True] * 5]
        assert self.stands(ledger, job).subtasks == len(ledger.questions.tasks(name="index")) == 1

    def test_when_its_window_is_full_its_splitter_is_woken_once_half_of_it_is_done(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        claims = self.running(ledger, worker, job, 4)
        self.settle(ledger, splitting, Snoozed(3600.0, "its window is full"))

        early = ledger.outcomes.settle([Settlement(claims[0], Done())])
        half = ledger.outcomes.settle([Settlement(claims[1], Done())])
        later = ledger.outcomes.settle([Settlement(claims[2], Done())])

        woken = [hint.task_id for settled in (early, half, later) for one in settled for hint in one.follows]
        assert woken == [job.splitter.id]
        assert [claim.task_id for claim in ledger.claims.claim(woken, by=worker.id)] == woken

    def test_when_half_of_its_window_is_done_before_its_splitter_has_left_off_that_is_due_at_once(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        claims = self.running(ledger, worker, job, 4)
        early = [
            hint
            for one in ledger.outcomes.settle([Settlement(claim, Done()) for claim in claims])
            for hint in one.follows
        ]
        assert early == [], "it still runs"

        [left] = ledger.outcomes.settle(
            [Settlement(splitting, Snoozed(3600.0, "its window is full", awaits_room=True))]
        )

        assert self.marked(ledger, left.follows) == [job.splitter.id]
        assert ledger.questions.has_due(["default"]), "a drain does not leave"
        assert len(ledger.claims.claim([job.splitter.id], by=worker.id)) == 1

    def test_a_splitter_whose_window_others_have_filled_again_is_woken_by_those(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        claims = self.running(ledger, worker, job, 4)
        added = chunks(4)
        ledger.outcomes.settle([Settlement(claims[0], Done()), Settlement(claims[1], Done())])
        ledger.outcomes.settle([Settlement(claims[2], Worked(succeeded=10, added=tuple(added)))])

        [left] = ledger.outcomes.settle(
            [Settlement(splitting, Snoozed(3600.0, "its window is full", awaits_room=True))]
        )
        assert left.follows == (), "five are open, and it has four"
        again = ledger.claims.claim([one.task_id for one in added], by=worker.id)
        woken = [
            hint.task_id
            for claim in again
            for one in ledger.outcomes.settle([Settlement(claim, Done())])
            for hint in one.follows
        ]

        assert woken == [job.splitter.id]

    def test_a_splitter_that_is_to_be_read_on_later_is_not_due_before_though_there_is_room(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        self.split(ledger, job, 1)

        [left] = ledger.outcomes.settle([Settlement(splitting, Snoozed(3600.0, "its source raised"))])

        assert left.follows == ()
        assert ledger.claims.claim([job.splitter.id], by=worker.id) == []

    def test_of_a_paused_one_no_page_is_recorded_and_that_is_told(self, ledger: Ledger, job: NewJob) -> None:
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        paused = ledger.part(JobLedger).jobs.split_job(job.id, chunks(1), after=0, cursor=10, is_last=True)
        ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)
        ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO)
        cancelled = ledger.part(JobLedger).jobs.split_job(job.id, chunks(1), after=0, cursor=10, is_last=True)

        assert [(one.room, one.is_paused) for one in (paused, cancelled)] == [(None, True), (None, False)]
        assert self.stands(ledger, job).subtasks == 0

    def test_one_whose_splitter_has_left_off_before_its_end_gets_another(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        self.split(ledger, job, 1)
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        self.settle(ledger, splitting, Done())

        tended = [ledger.part(JobLedger).care.tend_job(job.id) for _ in range(2)]

        row = self.stands(ledger, job)
        assert row.split_task != job.splitter.id
        assert [hint.task_id for one in tended for hint in one.hints] == [row.split_task]
        assert [claim.name for claim in ledger.claims.claim([row.split_task], by=worker.id)] == ["index.split"]

    def test_items_that_no_subtask_can_carry_have_failed(self, ledger: Ledger, job: NewJob) -> None:
        ledger.part(JobLedger).jobs.split_job(job.id, [], after=0, cursor=1, is_last=True, failed=[BAD])

        row = self.stands(ledger, job)
        assert (row.state, row.split, row.failed) == (JobState.COMPLETED_WITH_FAILURES, 1, 1)
        assert [item for _, item in ledger.part(JobLedger).questions.failed_items(job.id)] == [BAD]

    def test_an_empty_one_succeeds_and_what_follows_is_enqueued(self, ledger: Ledger, job: NewJob) -> None:
        split = ledger.part(JobLedger).jobs.split_job(job.id, [], after=0, cursor=None, is_last=True)

        assert self.stands(ledger, job).state is JobState.SUCCEEDED
        assert self.followers(ledger) == ["on.complete", "on.success"]
        assert len(split.hints) == 2

    # -- count

    def test_each_item_is_counted_once_however_often_it_is_told(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        claims = self.running(ledger, worker, job, 4, is_last=True)
        outcomes: list[Outcome] = [
            Done(),
            Worked(7, 2, (BAD,)),
            Worked(4, 1, (), again='{"a":[[9]],"k":{}}', delay_s=0.0, error="boom"),
            Dead("bad_arguments", "TypeError"),
        ]
        batch = [Settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)]

        states = [[one.state for one in ledger.outcomes.settle(batch)] for _ in range(3)]

        row = self.stands(ledger, job)
        assert states == [[State.SUCCEEDED, State.DEAD, State.WAITING, State.DEAD]] * 3
        assert (row.succeeded, row.skipped, row.failed, row.retried) == (10 + 7 + 4, 3, 1 + 10, 5)
        assert (row.open_subtasks, row.state) == (1, JobState.RUNNING)
        assert self.row(database, claims[2].task_id).payload == '{"a":[[9]],"k":{}}'
        assert [(item.item, item.error) for _, item in ledger.part(JobLedger).questions.failed_items(job.id)][:1] == [
            ("3", "ValueError: boom")
        ]
        assert len(ledger.part(JobLedger).questions.failed_items(job.id)) == 11

    def test_what_is_tried_again_is_of_those_items_alone_and_ends_the_job(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        self.settle(ledger, claim, Worked(9, again='{"a":[[9]],"k":{}}', delay_s=0.0, error="boom"))
        [again] = ledger.claims.claim([claim.task_id], by=worker.id)
        settled = self.settle(ledger, again, Done())

        row = self.stands(ledger, job)
        assert (again.payload, again.failures) == ('{"a":[[9]],"k":{}}', 1)
        assert (row.state, row.succeeded, row.total) == (JobState.SUCCEEDED, 10, 10)
        assert len(settled.follows) == 2

    @pytest.mark.parametrize("outcome", [Failed(0.0, "boom"), Snoozed(0.0), HandedBack()])
    def test_what_runs_again_as_a_whole_counts_for_nothing_yet(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, outcome: Outcome
    ) -> None:
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        self.settle(ledger, claim, outcome)

        row = self.stands(ledger, job)
        assert (row.done, row.open_subtasks, row.retried) == (0, 1, 10 if isinstance(outcome, Failed) else 0)

    def test_a_result_that_comes_late_is_not_counted(self, ledger: Ledger, worker: Incarnation, job: NewJob) -> None:
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={}))
        [other] = self.claim_elsewhere(ledger, [claim.task_id])
        late = self.settle(ledger, claim, Done())
        before = self.stands(ledger, job).done
        self.settle(ledger, other, Done())

        row = self.stands(ledger, job)
        assert (late.state, before, row.succeeded, row.state) == (None, 0, 10, JobState.SUCCEEDED)

    def test_its_subtasks_and_what_follows_have_the_options_that_it_was_given(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        options = {one.name: OTHER_THAN_DEFAULT[one.name] for one in OF_EACH_TASK}
        callback = Callback(Ending.COMPLETE, "on.complete", "default", **options)
        job = job_of(JobOptions(queue="default", callbacks=(callback,), **options))
        ledger.part(JobLedger).jobs.begin_job(job)

        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        self.settle(ledger, claim, Worked(10))

        [follower] = [task for task in ledger.questions.tasks() if task.name == "on.complete"]
        for task in (self.task(ledger, claim.task_id), follower):
            assert {name: getattr(task, name) for name in options} == options

    def test_two_that_are_the_last_end_it_once(self, ledger: Ledger, worker: Incarnation, job: NewJob) -> None:
        claims = self.running(ledger, worker, job, 4, is_last=True)

        at_once(4, lambda number: ledger.outcomes.settle([Settlement(claims[number], Done())]))

        row = self.stands(ledger, job)
        assert (row.state, row.succeeded, row.open_subtasks) == (JobState.SUCCEEDED, 40, 0)
        assert self.followers(ledger) == ["on.complete", "on.success"]

    @pytest.mark.parametrize(
        ("last", "state"),
        [
            ("a subtask succeeds", JobState.SUCCEEDED),
            ("items of it fail", JobState.COMPLETED_WITH_FAILURES),
            ("a subtask dies", JobState.COMPLETED_WITH_FAILURES),
            ("its handler cancels it", JobState.COMPLETED_WITH_FAILURES),
            ("its process dies", JobState.COMPLETED_WITH_FAILURES),
            ("its source ends", JobState.SUCCEEDED),
            ("its source has failed", JobState.FAILED),
            ("too many have failed", JobState.FAILED),
            ("it was cancelled", JobState.CANCELLED),
        ],
    )
    def test_whatever_comes_last_the_job_ends_once_and_what_follows_is_there_once(
        self, ledger: Ledger, worker: Incarnation, last: str, state: JobState
    ) -> None:
        job = job_of(replace(OPTIONS, crashes_max=1, failed_max=0 if last == "too many have failed" else None))
        ledger.part(JobLedger).jobs.begin_job(job)
        is_split = last not in ("its source ends", "its source has failed")
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        first, second = self.running(ledger, worker, job, 2, is_last=is_split)
        self.settle(ledger, first, Done())
        outcomes: dict[str, Outcome] = {
            "items of it fail": Worked(9, 0, (BAD,)),
            "too many have failed": Worked(9, 0, (BAD,)),
            "a subtask dies": Dead("budget", "boom"),
            "its handler cancels it": Cancelled("by itself"),
            "it was cancelled": Cancelled("as asked"),
        }
        if last == "it was cancelled":
            ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO)
        if last == "its process dies":
            self.settle(ledger, splitting, Done())

        for _ in range(2):
            if last == "its process dies":
                ledger.workers.reap(worker.id, Evidence("SIGKILL", started={second.task_id: second.attempt}))
            else:
                ledger.outcomes.settle([Settlement(second, outcomes.get(last, Done()))])
            if last == "its source ends":
                ledger.part(JobLedger).jobs.split_job(job.id, [], after=2, cursor=20, is_last=True)
            if last == "its source has failed":
                ledger.outcomes.settle([Settlement(splitting, Dead("its source", "boom"))])
            ledger.part(JobLedger).care.tend_job(job.id)

        row = self.stands(ledger, job)
        follows = {JobState.SUCCEEDED: ["on.complete", "on.success"], JobState.CANCELLED: ["on.cancel", "on.complete"]}
        assert (row.state, row.open_subtasks, row.done) == (state, 0, 20)
        assert ledger.part(JobLedger).care.miscounts(job.id) == {}
        assert self.followers(ledger) == follows.get(state, ["on.complete", "on.failure"])

    def test_what_was_settled_elsewhere_a_sweep_counts_once(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [first, second] = self.running(ledger, worker, job, 2, is_last=True)
        ledger.decisions.cancel(first.task_id, who="ada", why="?")
        ledger.decisions.cancel(second.task_id, who="ada", why="?")
        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={}))
        before = self.stands(ledger, job)

        for _ in range(2):
            ledger.part(JobLedger).care.tend_job(job.id)

        row = self.stands(ledger, job)
        assert (before.done, before.open_subtasks) == (0, 2)
        assert (row.cancelled, row.open_subtasks, row.state) == (20, 0, JobState.COMPLETED_WITH_FAILURES)
        assert self.followers(ledger) == ["on.complete", "on.failure"]

    def test_a_subtask_of_a_job_that_was_removed_is_a_task_like_any_other(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        ids = self.split(ledger, job, 2)
        [first] = ledger.claims.claim(ids[:1], by=worker.id)
        with database.engine.begin() as connection:
            connection.execute(job_tables(database).job.delete())

        settled = self.settle(ledger, first, Done())
        [second] = ledger.claims.claim(ids[1:], by=worker.id)

        assert (settled.state, self.settle(ledger, second, Done()).state) == (State.SUCCEEDED, State.SUCCEEDED)

    # -- failures

    def test_more_failures_than_it_may_have_fail_it_and_cancel_what_has_not_started(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        job = job_of(JobOptions(queue="default", window=4, failed_max=1, callbacks=CALLBACKS))
        ledger.part(JobLedger).jobs.begin_job(job)
        ids = self.split(ledger, job, 3)
        [claim] = ledger.claims.claim(ids[:1], by=worker.id)
        self.settle(ledger, claim, Worked(8, 0, (BAD, BAD)))
        ledger.part(JobLedger).care.tend_job(job.id)

        row = self.stands(ledger, job)
        assert (row.state, row.failed, row.cancelled, row.succeeded) == (JobState.FAILED, 2, 20, 8)
        assert "max_failures is 1" in (row.error or "")
        assert [self.state(ledger, task_id) for task_id in ids[1:]] == [State.CANCELLED] * 2
        assert self.followers(ledger) == ["on.complete", "on.failure"]

    def test_a_job_whose_source_has_failed_does_what_was_read_and_goes_on_at_its_cursor_when_a_person_says_so(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        ids = self.split(ledger, job, 2)
        self.settle(ledger, splitting, Dead("failures_max reached", "OSError: disk"))
        ledger.part(JobLedger).care.tend_job(job.id)
        between = self.stands(ledger, job)
        for claim in ledger.claims.claim(ids, by=worker.id):
            self.settle(ledger, claim, Done())
        failed = self.stands(ledger, job)
        followed = self.followers(ledger)

        _, hints = ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)

        row = self.stands(ledger, job)
        assert (between.state, failed.state, failed.succeeded) == (JobState.RUNNING, JobState.FAILED, 20)
        assert "OSError: disk" in (failed.error or "")
        assert followed == ["on.complete", "on.failure"]
        assert (row.state, row.cursor, row.error) == (JobState.RUNNING, 20, None)
        assert [claim.task_id for claim in ledger.claims.claim([hint.task_id for hint in hints], by=worker.id)] == [
            row.split_task
        ]
        split = ledger.part(JobLedger).jobs.split_job(job.id, [], after=2, cursor=20, is_last=True)
        assert (split.room, self.stands(ledger, job).state) == (4, JobState.SUCCEEDED)

    def test_a_job_whose_splitter_dies_has_failed_in_that_transaction(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)

        for _ in range(2):
            ledger.outcomes.settle([Settlement(splitting, Dead("not retried: BadSource", "BadSource: line 7"))])

        row = self.stands(ledger, job)
        assert (row.state, row.error) == (JobState.FAILED, "its source failed after 0 items: BadSource: line 7")
        assert self.followers(ledger) == ["on.complete", "on.failure"]

    def test_one_that_has_failed_of_too_many_failures_does_not_go_on(self, ledger: Ledger, worker: Incarnation) -> None:
        job = job_of(replace(OPTIONS, failed_max=0))
        ledger.part(JobLedger).jobs.begin_job(job)
        [claim] = self.running(ledger, worker, job, 1)
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        self.settle(ledger, splitting, Dead("its source", "boom"))
        ledger.part(JobLedger).care.tend_job(job.id)
        self.settle(ledger, claim, Worked(9, 0, (BAD,)))

        with pytest.raises(Refused, match=f"1 item has failed, .* workq job retry {job.id} --failed"):
            ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)

        assert self.stands(ledger, job).state is JobState.FAILED
        assert self.followers(ledger) == ["on.complete", "on.failure"], "what follows its end is there once"

    def test_it_does_not_go_on_while_another_of_its_name_has_not_ended(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [splitting] = ledger.claims.claim([job.splitter.id], by=worker.id)
        self.settle(ledger, splitting, Dead("failures_max reached", "OSError: disk"))
        ledger.part(JobLedger).care.tend_job(job.id)
        other = ledger.part(JobLedger).jobs.begin_job(job_of())

        with pytest.raises(Refused, match=f"{other.id}, of the same name and key"):
            ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)

    def test_its_failed_items_are_run_again_by_a_job_of_their_own(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [claim] = self.running(ledger, worker, job, 1)
        with pytest.raises(Refused, match="is running"):
            ledger.part(JobLedger).jobs.retry_job(job.id, chunk=None, **AGAIN)
        self.settle(ledger, claim, Worked(9, 0, (BAD,)))
        unfit = FailedItem('"object"', 0, "PayloadError: no", "e" * 16)
        ledger.part(JobLedger).jobs.split_job(job.id, [], after=1, cursor=10, is_last=True, failed=[unfit])

        begun = ledger.part(JobLedger).jobs.retry_job(
            job.id, chunk=1, rate_max=7.0, if_running=IfRunning.REFUSE, who="ada", why="again", hints=None
        )

        again = ledger.part(JobLedger).questions.job(begun.id)
        assert again is not None
        assert (again.name, again.params, again.total, again.parent_id) == (job.name, job.params, 1, None)
        assert (again.options.failed_of, again.options.chunk, again.rate_max) == (job.id, 1, 7.0)
        assert again.options.callbacks == job.options.callbacks
        assert [hint.task_id for hint in begun.hints] == [again.split_task]
        assert [item for _, item in ledger.part(JobLedger).questions.failed_items(job.id, of_subtasks=True)] == [BAD]
        with pytest.raises(NotFound, match="no job"):
            ledger.part(JobLedger).jobs.retry_job(
                codec.new_task_id(),
                chunk=None,
                rate_max=None,
                if_running=IfRunning.REFUSE,
                who="ada",
                why="again",
                hints=None,
            )

    def retry(self, ledger: Ledger, job_id: str) -> str:
        return (
            ledger.part(JobLedger)
            .jobs.retry_job(
                job_id, chunk=None, rate_max=None, if_running=IfRunning.QUEUE, who="ada", why="again", hints=None
            )
            .id
        )

    def ended_with_a_failure(self, ledger: Ledger, worker: Incarnation, job: NewJob) -> Claim:
        """One of its items has failed, the others have succeeded."""
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        self.settle(ledger, claim, Worked(9, 0, (BAD,)))
        return claim

    def test_failed_items_are_run_again_by_one_job_which_it_names(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        self.ended_with_a_failure(ledger, worker, job)
        again = self.retry(ledger, job.id)
        with pytest.raises(Refused, match=rf"job {again} \(planning\) runs its failed items again"):
            self.retry(ledger, job.id)
        [claim] = self.again_claimed(ledger, worker, again)
        self.settle(ledger, claim, Worked(0, 0, (BAD,)))

        with pytest.raises(Refused, match=f"job {again} has run its failed items again .* workq job retry {again}"):
            self.retry(ledger, job.id)

        old, new = ledger.part(JobLedger).questions.job(job.id), ledger.part(JobLedger).questions.job(again)
        assert old is not None
        assert new is not None
        assert (old.options.retried_by, new.options.failed_of) == (again, job.id)
        assert (new.options.retried_by, new.state) == (None, JobState.COMPLETED_WITH_FAILURES)
        third = ledger.part(JobLedger).questions.job(self.retry(ledger, again))
        assert third is not None
        assert third.options.failed_of == again

    def test_of_two_that_run_the_failed_items_again_at_once_one_is_refused(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        self.ended_with_a_failure(ledger, worker, job)

        def retry(_: int) -> str:
            try:
                return self.retry(ledger, job.id)
            except Refused:
                return "refused"

        answers = at_once(4, retry)

        assert sorted(answers).count("refused") == 3
        assert len(ledger.part(JobLedger).questions.jobs()) == 2

    def test_a_retry_that_was_cancelled_does_not_stand_in_the_way_of_another(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        self.ended_with_a_failure(ledger, worker, job)
        first = self.retry(ledger, job.id)
        ledger.part(JobLedger).decisions.cancel_job(first, **WHO)
        ledger.part(JobLedger).care.tend_job(first)

        second = self.retry(ledger, job.id)

        old = ledger.part(JobLedger).questions.job(job.id)
        assert old is not None
        assert old.options.retried_by == second != first

    def test_a_dead_subtask_whose_items_are_run_again_is_dead_no_more_and_keeps_its_history(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        first, second = self.running(ledger, worker, job, 2, is_last=True)
        self.settle(ledger, first, Worked(9, 0, (BAD,)))
        self.settle(ledger, second, Worked(8, 0, (BAD, BAD)))
        again = self.retry(ledger, job.id)
        assert ledger.bulk.dead_count(Which(of_job=True)) == 2, "nothing of them runs yet"

        [claim] = self.again_claimed(ledger, worker, again, upto=1)

        assert [self.state(ledger, one.task_id) for one in (first, second)] == [State.CANCELLED, State.DEAD]
        handed = self.task(ledger, first.task_id)
        assert (handed.reason, handed.error) == (f"run again by job {again}", "ValueError: boom")
        assert self.kinds(ledger, first.task_id) == ["failed", "cancelled"]
        assert self.stands(ledger, job).failed == 3
        self.settle(ledger, claim, Worked(0, 0, (BAD,)))
        assert ledger.bulk.dead_ids(Which(of_job=True), after=None, limit=9) == sorted([second.task_id, claim.task_id])

    def again_claimed(
        self, ledger: Ledger, worker: Incarnation, job_id: str, *, upto: int | None = None
    ) -> list[Claim]:
        """The subtasks of a retry, split from the failed items up to a place, which run."""
        row = ledger.part(JobLedger).questions.job(job_id)
        assert row is not None
        items = ledger.part(JobLedger).questions.failed_items(row.options.failed_of or "", of_subtasks=True)[:upto]
        page = [NewSubtask(codec.new_task_id(), f'{{"a":[[{one.item}]],"k":{{}}}}', 1) for _, one in items]
        split = ledger.part(JobLedger).jobs.split_job(job_id, page, after=0, cursor=items[-1][0], is_last=upto is None)
        assert split.room is not None
        return ledger.claims.claim([one.task_id for one in page], by=worker.id)

    def test_a_job_without_failed_items_has_nothing_to_run_again(self, ledger: Ledger, job: NewJob) -> None:
        ledger.part(JobLedger).jobs.split_job(job.id, [], after=0, cursor=None, is_last=True)

        with pytest.raises(Refused, match="no failed items"):
            ledger.part(JobLedger).jobs.retry_job(job.id, chunk=None, **AGAIN)

    def test_a_dead_subtask_is_not_sent_back_by_itself(self, ledger: Ledger, worker: Incarnation, job: NewJob) -> None:
        [claim] = self.running(ledger, worker, job, 1)
        self.settle(ledger, claim, Dead("bad_arguments", "TypeError"))

        hints, refused = ledger.bulk.revive_dead([claim.task_id], who="ada", why="?")

        assert (hints, list(refused)) == ([], [claim.task_id])
        assert f"workq job retry {job.id}" in refused[claim.task_id]
        with pytest.raises(Refused, match="which has counted its items"):
            ledger.decisions.revive(claim.task_id, who="ada", why="?")
        assert self.state(ledger, claim.task_id) is State.DEAD

    # -- one at a time

    def test_one_that_is_queued_begins_when_the_one_before_has_ended(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        queued, third = job_of(if_running=IfRunning.QUEUE), job_of(if_running=IfRunning.QUEUE)
        begun = [ledger.part(JobLedger).jobs.begin_job(one) for one in (queued, third)]
        early = ledger.claims.claim([queued.splitter.id], by=worker.id)
        ledger.part(JobLedger).care.tend_job(queued.id)
        still = ledger.claims.claim([queued.splitter.id], by=worker.id)
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        settled = self.settle(ledger, claim, Done())

        assert [one.created for one in begun] == [True, True]
        assert (early, still) == ([], [])
        assert queued.splitter.id in [hint.task_id for hint in settled.follows]
        assert len(ledger.claims.claim([queued.splitter.id], by=worker.id)) == 1
        assert ledger.claims.claim([third.splitter.id], by=worker.id) == [], "it is behind that one"

    def test_a_queued_one_whose_turn_nobody_has_told_begins_with_a_sweep(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        queued = job_of(if_running=IfRunning.QUEUE)
        ledger.part(JobLedger).jobs.begin_job(queued)
        j = job_tables(database).job
        with database.engine.begin() as connection:  # whoever ended the first died behind its commit
            connection.execute(
                j.update()
                .where(j.c.id == job.id)
                .values(state="cancelled", live_key=None, ended_at=database.now(), is_split=1)
            )

        tended = ledger.part(JobLedger).care.tend_job(queued.id)

        assert self.marked(ledger, tended.hints) == [queued.splitter.id]
        assert len(ledger.claims.claim([queued.splitter.id], by=worker.id)) == 1

    def test_a_queued_one_that_is_paused_and_resumed_still_waits(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        queued = job_of(if_running=IfRunning.QUEUE)
        ledger.part(JobLedger).jobs.begin_job(queued)
        ledger.part(JobLedger).decisions.pause_job(queued.id, **WHO)
        _, hints = ledger.part(JobLedger).decisions.resume_job(queued.id, **WHO)

        assert hints == []
        assert ledger.claims.claim([queued.splitter.id], by=worker.id) == []
        ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO)
        assert len(ledger.claims.claim([queued.splitter.id], by=worker.id)) == 1

    def test_one_that_replaces_another_begins_when_that_is_cancelled(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [claim] = self.running(ledger, worker, job, 1)
        queued, other = job_of(if_running=IfRunning.QUEUE), job_of(if_running=IfRunning.REPLACE)
        ledger.part(JobLedger).jobs.begin_job(queued)
        ledger.part(JobLedger).jobs.begin_job(other)
        meanwhile = self.stands(ledger, job).state
        early = ledger.claims.claim([other.splitter.id], by=worker.id)
        self.settle(ledger, claim, Cancelled("as asked"))

        assert (meanwhile, early) == (JobState.CANCELLING, [])
        assert self.stands(ledger, job).state is self.stands(ledger, queued).state is JobState.CANCELLED
        assert f"replaced by job {other.id}" in (self.stands(ledger, job).why or "")
        assert len(ledger.claims.claim([other.splitter.id], by=worker.id)) == 1

    def test_of_several_that_replace_each_other_at_once_the_last_one_stays(self, ledger: Ledger, job: NewJob) -> None:
        others = [job_of(if_running=IfRunning.REPLACE) for _ in range(8)]

        begun = at_once(8, lambda number: ledger.part(JobLedger).jobs.begin_job(others[number]))
        again = [
            ledger.part(JobLedger).jobs.begin_job(one) for one in others
        ]  # as after a commit whose answer was lost

        assert all(one.created for one in (*begun, *again))
        open_jobs = [row for row in ledger.part(JobLedger).questions.jobs() if row.state is not JobState.CANCELLED]
        assert [row.state for row in open_jobs] == [JobState.PLANNING]
        assert open_jobs[0].created_at == max(row.created_at for row in ledger.part(JobLedger).questions.jobs())
        assert self.stands(ledger, job).state is JobState.CANCELLED

    def test_one_that_was_cancelled_before_its_turn_leaves_no_task_behind(self, ledger: Ledger, job: NewJob) -> None:
        queued = job_of(if_running=IfRunning.QUEUE)
        ledger.part(JobLedger).jobs.begin_job(queued)

        ledger.part(JobLedger).decisions.cancel_job(queued.id, **WHO)

        assert self.stands(ledger, queued).state is JobState.CANCELLED
        assert self.state(ledger, queued.splitter.id) is State.CANCELLED

    # -- people

    def test_a_paused_one_starts_nothing_and_goes_on_where_it_was(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        ids = self.split(ledger, job, 3)
        [first] = ledger.claims.claim(ids[:1], by=worker.id)
        pausing = ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        refused = ledger.claims.claim([*ids[1:], job.splitter.id], by=worker.id)
        split = ledger.part(JobLedger).jobs.split_job(job.id, chunks(1), after=3, cursor=40, is_last=False)
        self.settle(ledger, first, Done())
        paused = self.stands(ledger, job)

        resumed, hints = ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)

        assert (pausing.state, refused, split.room) == (JobState.PAUSING, [], None)
        assert resumed is not None
        assert (paused.state, paused.who, resumed.state) == (JobState.PAUSED, "eve@host", JobState.RUNNING)
        assert set(self.marked(ledger, hints)) == {*ids[1:], job.splitter.id}
        assert len(ledger.claims.claim([hint.task_id for hint in hints], by=worker.id)) == 3

    def test_what_whoever_resumed_it_has_not_let_go_a_sweep_does(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        ids = [*self.split(ledger, job, 3), job.splitter.id]
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        refused = ledger.claims.claim(ids, by=worker.id)
        paused = ledger.part(JobLedger).care.tend_job(job.id)
        j = job_tables(database).job
        with database.engine.begin() as connection:  # whoever resumed it died behind its first commit
            connection.execute(j.update().values(state="running", paused_at=None))

        tended = [ledger.part(JobLedger).care.tend_job(job.id) for _ in range(2)]

        assert (refused, paused.hints) == ([], ())
        assert [{hint.task_id for hint in one.hints} for one in tended] == [set(ids), set()]
        assert len(ledger.claims.claim(ids, by=worker.id)) == 4

    def test_one_that_goes_on_in_the_middle_of_a_claim_leaves_nothing_parked(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = [*self.split(ledger, job, 3), job.splitter.id]
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        hold_back, hints = gate._held_back, list[str]()

        def resume() -> None:
            hints.extend(hint.task_id for hint in ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)[1])

        def resumed_first(*arguments: Any) -> list[gate.TaskOfJob]:
            resuming.start()
            resuming.join(timeout=0.5)  # on SQLite it waits for this transaction
            return hold_back(*arguments)

        resuming = threading.Thread(target=resume)
        monkeypatch.setattr(gate, "_held_back", resumed_first)

        claims = ledger.claims.claim(ids, by=worker.id)
        resuming.join()

        assert sorted([*hints, *(claim.task_id for claim in claims)]) == sorted(ids)

    def test_a_cancelled_one_starts_nothing_from_that_moment_and_ends_when_nothing_runs(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        ids = self.split(ledger, job, 4)
        [first] = ledger.claims.claim(ids[:1], by=worker.id)

        cancelling, _ = ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO)
        refused = ledger.claims.claim([*ids[1:], job.splitter.id], by=worker.id)
        is_asked = self.task(ledger, first.task_id).is_cancel_requested
        self.settle(ledger, first, Cancelled("as asked"))

        row = self.stands(ledger, job)
        assert (cancelling.state, refused, is_asked) == (JobState.CANCELLING, [], True)
        assert (row.state, row.cancelled, row.open_subtasks) == (JobState.CANCELLED, 40, 0)
        assert self.followers(ledger) == ["on.cancel", "on.complete"]
        with pytest.raises(Refused, match="cannot be resumed"):
            ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)
        assert ledger.part(JobLedger).jobs.begin_job(job_of()).created, "its name is free"

    def test_what_a_cancel_has_left_undone_is_refused_at_the_claim_and_a_sweep_does_it(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        ids = self.split(ledger, job, 4)
        j = job_tables(database).job
        with database.engine.begin() as connection:  # whoever cancelled it died behind its first commit
            connection.execute(j.update().values(state="cancelling"))

        assert ledger.claims.claim(ids[:1], by=worker.id) == []
        for _ in range(2):
            ledger.part(JobLedger).care.tend_job(job.id)
        row = self.stands(ledger, job)
        assert (row.state, row.cancelled) == (JobState.CANCELLED, 40)

    def test_a_rate_spaces_the_starts_and_without_it_all_may_start(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, clock: Clock
    ) -> None:
        ids = self.split(ledger, job, 4)
        ledger.part(JobLedger).decisions.throttle_job(job.id, rate_max=5.0, **WHO)

        now = ledger.claims.claim(ids, by=worker.id)
        clock.forward(2.1)
        then = ledger.claims.claim(ids, by=worker.id)
        ledger.part(JobLedger).decisions.throttle_job(job.id, rate_max=None, **WHO)
        clock.forward(4.0)
        rest = ledger.claims.claim(ids, by=worker.id)

        assert [len(now), len(then), len(rest)] == [1, 1, 2], "ten items at five a second take two seconds"

    def test_another_rate_holds_at_once_for_what_waits_for_its_slot(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, clock: Clock
    ) -> None:
        ids = self.split(ledger, job, 4)
        ledger.part(JobLedger).decisions.throttle_job(job.id, rate_max=0.001, **WHO)
        [first] = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, first, Failed(3600.0, "boom"))
        slow = ledger.claims.claim(ids, by=worker.id)

        _, hints = ledger.part(JobLedger).decisions.throttle_job(job.id, rate_max=10.0, **WHO)
        one = ledger.claims.claim(ids, by=worker.id)
        clock.forward(1.1)
        another = ledger.claims.claim(ids, by=worker.id)
        _, rest = ledger.part(JobLedger).decisions.throttle_job(job.id, rate_max=None, **WHO)

        assert slow == []
        assert {hint.task_id for hint in hints} == set(ids) - {first.task_id}, "a retry keeps its time"
        assert (len(one), len(another), len(rest)) == (1, 1, 1)
        assert len(ledger.claims.claim(ids, by=worker.id)) == 1

    def test_slots_of_a_rate_that_is_gone_a_sweep_gives_up(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        ids = self.split(ledger, job, 4)
        ledger.part(JobLedger).decisions.throttle_job(job.id, rate_max=0.001, **WHO)
        [first] = ledger.claims.claim(ids, by=worker.id)
        slow = ledger.part(JobLedger).care.tend_job(job.id)
        j = job_tables(database).job
        with database.engine.begin() as connection:  # whoever throttled it died behind the first commit
            connection.execute(j.update().values(rate_max=0.002, slot_at=None))

        tended = [ledger.part(JobLedger).care.tend_job(job.id) for _ in range(2)]
        again = ledger.claims.claim(ids, by=worker.id)
        late = ledger.part(JobLedger).care.tend_job(job.id)

        assert (slow.hints, late.hints) == ((), ())
        assert [{hint.task_id for hint in one.hints} for one in tended] == [set(ids) - {first.task_id}, set()]
        assert len(again) == 1

    def test_what_is_not_there_or_over_is_told(self, ledger: Ledger, job: NewJob) -> None:
        ledger.part(JobLedger).jobs.split_job(job.id, [], after=0, cursor=None, is_last=True)

        for deed in (
            ledger.part(JobLedger).decisions.pause_job,
            ledger.part(JobLedger).decisions.cancel_job,
            ledger.part(JobLedger).decisions.resume_job,
        ):
            with pytest.raises(NotFound, match="no job"):
                deed(codec.new_task_id(), **WHO)
            with pytest.raises(Refused, match="is succeeded"):
                deed(job.id, **WHO)

    def test_what_counts_is_the_same_as_what_is_there(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        claims = self.running(ledger, worker, job, 4)
        self.settle(ledger, claims[0], Done())
        self.settle(ledger, claims[1], Worked(3, 1, (BAD,), again='{"a":[[1,2,3,4,5]],"k":{}}', error="boom"))

        row = self.stands(ledger, job)
        s = job_tables(database).subtask
        with database.engine.connect() as connection:
            left = sum(one.items_left for one in connection.execute(s.select().where(s.c.ended_at.is_(None))))
        assert row.split == row.done + left == 40

    def test_force_does_not_wait_for_what_runs(self, ledger: Ledger, worker: Incarnation, job: NewJob) -> None:
        claims = self.running(ledger, worker, job, 2)
        paused = ledger.part(JobLedger).decisions.pause_job(job.id, **WHO, is_forced=True)
        again = ledger.part(JobLedger).decisions.pause_job(job.id, **WHO, is_forced=True)
        ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO)
        waits = self.stands(ledger, job).state
        cancelled, _ = ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO, is_forced=True)
        late = self.settle(ledger, claims[0], Done())

        assert (paused.state, again.state) == (JobState.PAUSING, JobState.PAUSED)
        assert (waits, cancelled.state, cancelled.cancelled) == (JobState.CANCELLING, JobState.CANCELLED, 20)
        assert late.state is State.SUCCEEDED, "the task is its own"
        assert self.stands(ledger, job).succeeded == 0

    @pytest.mark.parametrize("text", ["NUL \x00 end", "a lone surrogate \ud800", "w" * 5_000])
    def test_what_is_parked_of_a_job_whose_row_is_gone_runs_when_a_person_resumes_it(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, text: str
    ) -> None:
        ids = self.split(ledger, job, 2)
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        assert ledger.claims.claim(ids, by=worker.id) == []
        j = job_tables(ledger.database).job
        ledger.database.written(delete(j).where(j.c.id == job.id))

        row, hints = ledger.part(JobLedger).decisions.resume_job(job.id, who=text, why=text)

        [event] = [
            one
            for one in ledger.questions.happened(["job"], within_s=60.0, limit=9)
            if one.detail["what"] == "unparked"
        ]
        kept = text.replace("\x00", "\\x00").replace("\ud800", "\\ud800")[:200]
        assert (event.detail["who"], event.detail["why"]) == (kept, kept)
        assert row is None
        assert sorted(one.task_id for one in hints) == sorted(ids)
        assert [one.task_id for one in ledger.claims.claim(ids, by=worker.id)] == ids

    def test_the_parked_splitter_of_a_job_that_has_ended_is_cancelled_by_a_sweep_at_the_latest(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The ledger went away between the end of the job and that."""
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        assert ledger.claims.claim([job.splitter.id], by=worker.id) == []

        def away(*_: object, **__: object) -> None:
            raise LedgerUnavailable("it went away")

        with monkeypatch.context() as patched:
            patched.setattr(ledger.part(JobLedger).care, "withdraw_job", away)
            ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO)
        left = (
            self.stands(ledger, job).state,
            self.state(ledger, job.splitter.id),
            ledger.part(JobLedger).care.open_jobs(limit=9),
        )
        ledger.part(JobLedger).care.tend_job(job.id)

        assert left == (JobState.CANCELLED, State.WAITING, [job.id])
        assert self.state(ledger, job.splitter.id) is State.CANCELLED
        assert ledger.part(JobLedger).care.open_jobs(limit=9) == []

    @pytest.mark.parametrize("fails_first", [True, False], ids=["failing", "cancelling"])
    def test_one_that_is_cancelled_stays_so_though_more_has_failed_than_may(
        self, ledger: Ledger, worker: Incarnation, fails_first: bool
    ) -> None:
        job = job_of(JobOptions(queue="default", window=4, failed_max=0, callbacks=CALLBACKS))
        ledger.part(JobLedger).jobs.begin_job(job)
        first, second = self.running(ledger, worker, job, 2)
        if fails_first:
            self.settle(ledger, first, Worked(9, 0, (BAD,)))
            ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO, is_forced=True)
        else:
            ledger.part(JobLedger).decisions.cancel_job(job.id, **WHO)
            self.settle(ledger, first, Worked(9, 0, (BAD,)))
        self.settle(ledger, second, Done())
        ledger.part(JobLedger).care.tend_job(job.id)

        row = self.stands(ledger, job)
        assert (row.state, row.error, row.failed) == (
            JobState.CANCELLED,
            "1 item has failed, and max_failures is 0" if fails_first else None,
            1,
        )
        assert self.followers(ledger) == ["on.cancel", "on.complete"]

    def test_the_parked_of_a_job_that_was_removed_run_when_a_person_says_so(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        ids = self.split(ledger, job, 2)
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        assert ledger.claims.claim(ids, by=worker.id) == []
        with database.engine.begin() as connection:
            connection.execute(job_tables(database).job.delete())

        found, hints = ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)

        assert found is None
        assert {hint.task_id for hint in hints} == set(ids)
        assert len(ledger.claims.claim(ids, by=worker.id)) == 2

    # -- the counts

    def test_counts_that_somebody_has_changed_are_found_and_counted_again(
        self, ledger: Ledger, worker: Incarnation, job: NewJob, database: Database
    ) -> None:
        claims = self.running(ledger, worker, job, 3, is_last=True)
        self.settle(ledger, claims[0], Worked(8, 1, (BAD,)))
        fine = ledger.part(JobLedger).care.miscounts(job.id)
        j = job_tables(database).job
        with database.engine.begin() as connection:
            connection.execute(j.update().values(succeeded=5, failed=2, open_subtasks=1))

        found = ledger.part(JobLedger).care.miscounts(job.id)
        ledger.part(JobLedger).care.recount_job(job.id, by=self.BY)

        assert fine == {}
        assert found == {"succeeded": (5, 8), "failed": (2, 1), "open_subtasks": (1, 2)}
        assert ledger.part(JobLedger).care.miscounts(job.id) == {}
        for claim in claims[1:]:
            self.settle(ledger, claim, Done())
        row = self.stands(ledger, job)
        assert (row.state, row.succeeded, row.failed) == (JobState.COMPLETED_WITH_FAILURES, 28, 1)

    def test_results_that_somebody_has_removed_are_found(
        self, ledger: Ledger, worker: Incarnation, database: Database
    ) -> None:
        job = job_of(replace(OPTIONS, collect=Collect.ALL))
        ledger.part(JobLedger).jobs.begin_job(job)
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        told = tuple(Result(str(number), "7") for number in range(5))
        self.settle(ledger, claim, Worked(10, told=5, results=told))
        fine = ledger.part(JobLedger).care.miscounts(job.id)
        r = job_tables(database).job_result
        with database.engine.begin() as connection:
            connection.execute(r.delete().where(r.c.item.in_(["1", "2"])))

        found = ledger.part(JobLedger).care.miscounts(job.id)
        ledger.part(JobLedger).care.recount_job(job.id, by=self.BY)

        assert (fine, found) == ({}, {"results": (5, 3)})
        assert (self.stands(ledger, job).results, ledger.part(JobLedger).care.miscounts(job.id)) == (3, {})

    def test_a_payload_that_somebody_has_changed_counts_for_no_more_than_was_made(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        [first, second] = self.running(ledger, worker, job, 2, is_last=True)
        self.settle(ledger, first, Worked(700, 0, (BAD,) * 12))
        self.settle(ledger, second, Worked(3, again='{"a":[[1]],"k":{}}', error="boom"))
        [again] = ledger.claims.claim([second.task_id], by=worker.id)
        self.settle(ledger, again, Worked(99, 99))

        row = self.stands(ledger, job)
        assert (row.split, row.done, row.failed, row.succeeded, row.skipped) == (20, 20, 10, 10, 0)
        assert ledger.part(JobLedger).care.miscounts(job.id) == {}

    def test_what_ended_long_ago_is_removed_with_all_that_is_of_it(
        self, ledger: Ledger, worker: Incarnation, database: Database, clock: Clock
    ) -> None:
        job = job_of(replace(OPTIONS, collect=Collect.ALL))
        ledger.part(JobLedger).jobs.begin_job(job)
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        self.settle(ledger, claim, Worked(9, 0, (BAD,), told=1, results=(Result("1", "2"),)))
        running = job_of()
        ledger.part(JobLedger).jobs.begin_job(running)
        kept: dict[str, Any] = {"retention_s": 60.0, "dead_retention_s": 600.0}
        clock.forward(61.0)
        early = ledger.part(JobLedger).care.prune_jobs(limit=10, **kept)
        clock.forward(600.0)
        foreseen = ledger.part(JobLedger).care.prune_jobs(limit=10, **kept, dry_run=True)
        cut = ledger.part(JobLedger).care.prune_jobs(limit=1, **kept)
        removed = ledger.part(JobLedger).care.prune_jobs(limit=10, **kept)

        tables = job_tables(database)
        with database.engine.connect() as connection:
            of_jobs = tables.subtask, tables.failed_item, tables.job_result
            left = [len(connection.execute(one.select()).all()) for one in of_jobs]
        assert [one.jobs for one in (early, foreseen, cut, removed)] == [0, 1, 0, 1]
        assert (cut.subtasks, removed.subtasks, removed.failed_items, removed.results) == (1, 0, 1, 1)
        assert [one.id for one in ledger.part(JobLedger).questions.jobs()] == [running.id]
        assert left == [0, 0, 0]

    def test_a_transaction_of_its_handler_counts_all_of_its_items(
        self, ledger: Ledger, worker: Incarnation, job: NewJob
    ) -> None:
        claims = self.running(ledger, worker, job, 2, is_last=True)
        with ledger.transactions.transaction(claims[0]):
            pass
        with pytest.raises(ValueError, match="boom"), ledger.transactions.transaction(claims[1]):
            raise ValueError("boom")

        row = self.stands(ledger, job)
        assert (row.succeeded, row.open_subtasks) == (10, 1)

    # -- results

    @pytest.mark.parametrize(("collect", "kept"), [("none", 0), ("count", 0), ("sample", 100), ("all", 130)])
    def test_results_are_kept_once_however_often_they_are_told(
        self, ledger: Ledger, worker: Incarnation, collect: str, kept: int
    ) -> None:
        job = job_of(replace(OPTIONS, collect=Collect(collect)))
        ledger.part(JobLedger).jobs.begin_job(job)
        first, second = self.running(ledger, worker, job, 2, is_last=True)
        told = [tuple(Result(f'"{name}{number}"', "7") for number in range(65)) for name in "ab"]
        batch = [
            Settlement(first, Worked(10, told=65, results=told[0])),
            Settlement(second, Worked(8, told=65, results=told[1], again='{"a":[[1,2]],"k":{}}', error="boom")),
        ]

        for _ in range(3):
            ledger.outcomes.settle(batch)

        pages = [ledger.part(JobLedger).questions.job_results(job.id, limit=60)]
        while pages[-1]:
            pages.append(ledger.part(JobLedger).questions.job_results(job.id, after=pages[-1][-1][0], limit=60))
        found = [result for page in pages for _, result in page]
        assert self.stands(ledger, job).results == 130
        assert found == [*told[0], *told[1]][:kept] or found == [*told[1], *told[0]][:kept]

    def test_a_late_attempt_has_no_results(self, ledger: Ledger, worker: Incarnation) -> None:
        job = job_of(replace(OPTIONS, collect=Collect.ALL))
        ledger.part(JobLedger).jobs.begin_job(job)
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={}))
        [other] = self.claim_elsewhere(ledger, [claim.task_id])
        for one, value in ((claim, "1"), (other, "2")):
            self.settle(ledger, one, Worked(10, told=1, results=(Result('"a"', value),)))

        assert [result for _, result in ledger.part(JobLedger).questions.job_results(job.id)] == [Result('"a"', "2")]

    def test_a_result_that_could_not_be_kept_says_why(self, ledger: Ledger, worker: Incarnation) -> None:
        job = job_of(replace(OPTIONS, collect=Collect.ALL))
        ledger.part(JobLedger).jobs.begin_job(job)
        [claim] = self.running(ledger, worker, job, 1, is_last=True)
        told = (Result('"a"', None, "result_error: no JSON"),)
        self.settle(ledger, claim, Worked(10, told=1, results=told))

        assert tuple(result for _, result in ledger.part(JobLedger).questions.job_results(job.id)) == told

    def test_its_end_is_told(self, ledger: Ledger, job: NewJob) -> None:
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)
        ledger.part(JobLedger).jobs.split_job(job.id, [], after=0, cursor=None, is_last=True)

        told = [event.detail["what"] for event in ledger.questions.happened(["job"], within_s=60.0, limit=10)]
        assert told == ["paused", "resumed", "succeeded"]
