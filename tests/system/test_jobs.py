"""Jobs under kills: every item is handled, no subtask is made twice, the counts add up, and what follows runs once; on
the embedded queue and on servers."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.stores import database_of
from tests.system import workshop
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq.diagnose.audit import audit
from workq.jobs.define import Job, RunOptions
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import JOB_ENDED, Begun, JobRow, JobState
from workq.values.codec import new_task_id
from workq.values.task import NewSubtask, State


@pytest.fixture
def stamp(leg: Leg) -> Job:
    """The job of the workshop, to be begun on this leg."""
    return workshop.on(leg, workshop.as_job)


def stands(leg: Leg, job: Begun) -> JobRow:
    row = leg.app.stores.ledger.part(JobLedger).questions.job(job.id)
    assert row is not None
    return row


def wait_split(leg: Leg, job: Begun, items: int) -> None:
    wait_until(lambda: stands(leg, job).split >= items, timeout_s=600, what=f"{items} items are split")


def wait_done(leg: Leg, job: Begun, items: int) -> None:
    wait_until(lambda: stands(leg, job).done >= items, timeout_s=300, what=f"{items} items are done")


def wait_ended(leg: Leg, job: Begun, *, timeout_s: float) -> JobRow:
    wait_until(lambda: stands(leg, job).state in JOB_ENDED, timeout_s=timeout_s, what="the job ends")
    return stands(leg, job)


def handled(leg: Leg, total: int) -> list[int]:
    """How often each number was given to a handler."""
    times = [0] * total
    for line in leg.testimony():
        if line.what == "stamp":
            first, last, count = (int(one) for one in line.number.split("-"))
            numbers = range(first, last + 1) if last - first + 1 == count else (first, last)
            for number in numbers:
                times[number] += 1
    return times


def check_subtasks(leg: Leg, job: Begun, row: JobRow) -> None:
    """No subtask twice, and none left out: their numbers are one to the last, and their sizes the items."""
    database = database_of(leg.app)
    s = job_tables(database).subtask
    query = select(func.count(), func.count(func.distinct(s.c.number)), func.max(s.c.number), func.sum(s.c.size))
    made, distinct, last, size = database.ask(lambda tx: tx.execute(query.where(s.c.job_id == job.id)).one())
    assert made == distinct == last == row.subtasks
    assert int(size) == row.split


def check_counts(leg: Leg, row: JobRow) -> None:
    """The job's counts are the sums of its subtasks, and every task of it has ended."""
    assert row.done == row.split == row.total
    assert row.open_subtasks == 0
    assert leg.app.stores.ledger.part(JobLedger).care.miscounts(row.id) == {}
    audited = audit(leg.app.stores, leg.app.settings, queues=["witness"])
    assert audited.findings == ()


def followers(leg: Leg) -> Counter[str]:
    return Counter(line.what for line in leg.testimony() if line.what in ("complete", "success", "failure", "cancel"))


@pytest.mark.one_leg
def test_killed_in_the_middle_of_the_split_it_makes_no_subtask_twice_and_leaves_none_out(
    leg: Leg, stamp: Job, long_run: bool
) -> None:
    total = 1_000_000 if long_run else 60_000
    began = time.monotonic()
    # so slow that the splitter, which is a window ahead at most, has much to do when a part is done
    job = stamp.run(to=total, seconds=0.02)
    for part in range(1, 4):
        with leg.fleet(processes=2, threads=2, app=workshop.APP):
            wait_split(leg, job, part * total // 6)
            assert not stands(leg, job).is_split
    with leg.fleet(processes=2, threads=2, app=workshop.APP):
        row = wait_ended(leg, job, timeout_s=1200)
        leg.wait_settled(timeout_s=60)

    assert (row.state, row.succeeded, row.total) == (JobState.SUCCEEDED, total, total)
    times = handled(leg, total)
    assert min(times) >= 1, f"{times.count(0)} numbers were never handled"
    check_subtasks(leg, job, row)
    check_counts(leg, row)
    assert followers(leg) == {"complete": 1, "success": 1}
    print(f"{leg.name}: {total} items, {sum(times) - total} handled again, in {time.monotonic() - began:.0f} s")


@pytest.mark.parametrize(
    "bad", [pytest.param(0, id="all_good", marks=pytest.mark.only_long), pytest.param(997, id="some_bad")]
)
def test_under_kills_the_counts_add_up_and_what_follows_runs_once(
    leg: Leg, stamp: Job, long_run: bool, bad: int
) -> None:
    total = 160_000 if long_run else 12_000
    processes, kills = (16, 20) if long_run else (3, 5)
    job = stamp.run(to=total, bad=bad, seconds=0.02)
    with leg.fleet(processes=processes, threads=2, app=workshop.APP) as fleet:
        wait_until(lambda: len(fleet.children()) == processes, timeout_s=60, what="all processes are there")
        for number in range(kills):
            wait_done(leg, job, number * total // (kills + 1))
            assert fleet.kill_one(number) is not None
            wait_until(lambda: len(fleet.children()) == processes, timeout_s=60, what="it is started again")
        row = wait_ended(leg, job, timeout_s=600)
        leg.wait_settled(timeout_s=120)

    failed = len(range(0, total, bad)) if bad else 0
    assert (row.succeeded, row.failed, row.total) == (total - failed, failed, total)
    assert row.state is (JobState.COMPLETED_WITH_FAILURES if bad else JobState.SUCCEEDED)
    check_subtasks(leg, job, row)
    check_counts(leg, row)
    assert followers(leg) == {"complete": 1, "failure" if bad else "success": 1}
    results = [
        result for _, result in leg.app.stores.ledger.part(JobLedger).questions.job_results(job.id, limit=100_000)
    ]
    told = [number for number in range(0, total, 10) if not (bad and number % bad == 0)]
    assert sorted((int(one.item), int(one.value or 0)) for one in results) == [(one, -one) for one in told]
    assert row.results == len(told)
    items = [item for _, item in leg.app.stores.ledger.part(JobLedger).questions.failed_items(job.id, limit=10_000)]
    assert sorted(int(item.item) for item in items) == (list(range(0, total, bad)) if bad else [])
    print(f"{leg.name}: {total} items, {kills} kills of {processes} processes, {row.retried} items tried again")


@pytest.mark.one_leg
def test_what_is_added_from_inside_is_there_once_and_the_job_ends_after_all_that_is_nested_in_it(leg: Leg) -> None:
    """Under kills, with a handler of which three calls in ten fail when they have added all they had; and what follows
    its end kills its process the first time."""
    job = workshop.on(leg, workshop.as_tree).run()
    paths = [f"{root}{below}" for root in range(10) for below in _below(3)]
    with leg.fleet(processes=2, threads=2, app=workshop.APP) as fleet:
        for number in range(3):
            wait_until(lambda: len(fleet.children()) == 2, timeout_s=60, what="both processes are there")
            wait_done(leg, job, (number + 1) * len(paths) // 5)
            assert fleet.kill_one(number) is not None
        row = wait_ended(leg, job, timeout_s=300)
        nested = leg.app.stores.ledger.part(JobLedger).questions.jobs(parent_id=job.id)
        leg.wait_settled(timeout_s=60)

    assert (row.state, row.succeeded, row.total) == (JobState.SUCCEEDED, len(paths), len(paths))
    lines = leg.testimony()
    assert {line.number for line in lines if line.what == "tree"} == set(paths)
    check_subtasks(leg, job, row)
    check_counts(leg, row)
    assert [(one.state, one.succeeded) for one in nested] == [(JobState.SUCCEEDED, 4)] * 10
    assert all(one.ended_at is not None and one.ended_at <= row.ended_at for one in nested if row.ended_at)
    assert {line.number for line in lines if line.what == "leaf"} == {
        f"{n}.{leaf}" for n in range(10) for leaf in range(4)
    }
    assert followers(leg) == {"complete": 1}
    print(f"{leg.name}: {row.total} items, {row.retried} of them tried again, {len(nested)} jobs nested")


def _below(depth: int) -> list[str]:
    """All ways down, so many steps at most, with that of none."""
    return ["", *(f".{branch}{below}" for branch in range(4) for below in _below(depth - 1))] if depth else [""]


def test_a_job_that_is_paused_throttled_and_resumed_loses_nothing(leg: Leg, stamp: Job) -> None:
    ledger = leg.app.stores.ledger
    job = stamp.options(rate=300.0).run(to=6_000)  # it must not be over before it is paused, however slow the machine
    who: dict[str, Any] = {"who": "eve@host", "why": "?"}
    with leg.fleet(processes=1, threads=2, app=workshop.APP):
        wait_done(leg, job, 300)
        ledger.part(JobLedger).decisions.pause_job(job.id, **who)
        wait_until(lambda: stands(leg, job).state is JobState.PAUSED, timeout_s=60, what="it is paused")
        paused = stands(leg, job).done
        time.sleep(1.0)
        still = stands(leg, job).done
        ledger.part(JobLedger).decisions.throttle_job(job.id, rate_max=None, **who)
        leg.app.producer.relay.offer(ledger.part(JobLedger).decisions.resume_job(job.id, **who)[1])
        row = wait_ended(leg, job, timeout_s=120)
        leg.wait_settled(timeout_s=60)

    assert paused == still < 6_000
    assert (row.state, row.succeeded) == (JobState.SUCCEEDED, 6_000)
    assert min(handled(leg, 6_000)) >= 1
    check_counts(leg, row)


def test_a_cancelled_job_stays_cancelled_through_a_restart_of_everything(leg: Leg, stamp: Job, long_run: bool) -> None:
    """With so many subtasks outstanding; how long the command took is printed."""
    outstanding = 10_000 if long_run else 1_000
    ledger = leg.app.stores.ledger
    new = stamp.new_job(RunOptions(), {"to": outstanding})
    job = ledger.part(JobLedger).jobs.begin_job(new)
    for after in range(0, outstanding, 500):
        page = [
            NewSubtask(new_task_id(), f'{{"a":[[{number}]],"k":{{"to":1}}}}', 1) for number in range(after, after + 500)
        ]
        assert (
            ledger.part(JobLedger).jobs.split_job(job.id, page, after=after, cursor=after + 500, is_last=False).room
            is not None
        )

    began = time.perf_counter()
    ledger.part(JobLedger).decisions.cancel_job(job.id, who="eve@host", why="?")
    took_s = time.perf_counter() - began

    with leg.fleet(processes=1, threads=2, app=workshop.APP):
        row = wait_ended(leg, job, timeout_s=120)
        leg.wait_settled(timeout_s=120)
    assert (row.state, row.cancelled) == (JobState.CANCELLED, outstanding)
    assert [line for line in leg.testimony() if line.what == "stamp"] == []
    assert followers(leg) == {"complete": 1, "cancel": 1}
    assert leg.states()[State.CANCELLED] == outstanding + 1
    print(f"{leg.name}: cancelled with {outstanding} subtasks outstanding in {took_s:.2f} s")
