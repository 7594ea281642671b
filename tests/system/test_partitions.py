"""Partitions under kills and stops: every step stands once, whoever dies, and they go on where they were; on the
embedded queue and on servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.system import workshop
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq.diagnose.audit import audit
from workq.jobs.define import Job
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JOB_ENDED, Begun, JobRow, JobState
from workq.values import codec

WHO: dict[str, Any] = {"who": "eve@host", "why": "?"}


@pytest.fixture
def fill(fast_leg: Leg) -> Job:
    """The job of the workshop whose shelves are partitions, to be begun on this leg."""
    return workshop.shelves_on(fast_leg)


def stands(leg: Leg, job: Begun) -> JobRow:
    row = leg.app.stores.ledger.part(JobLedger).questions.job(job.id)
    assert row is not None
    return row


def wait_done(leg: Leg, job: Begun, items: int) -> None:
    wait_until(lambda: stands(leg, job).done >= items, timeout_s=300, what=f"{items} items are done")


def wait_ended(leg: Leg, job: Begun) -> JobRow:
    wait_until(lambda: stands(leg, job).state in JOB_ENDED, timeout_s=600, what="the job ends")
    leg.wait_settled(timeout_s=60)
    return stands(leg, job)


def check(leg: Leg, row: JobRow) -> int:
    """Every number of each shelf stands there once, and is counted once; answers how many others there are."""
    params = codec.decode(row.params)["k"]
    shelves = {(letter, number): 1 for letter in params["shelves"] for number in range(params["to"])}
    found = workshop.read_shelves(leg.app)
    assert set(found.values()) == {1}
    assert shelves.items() <= found.items()
    assert (row.state, row.succeeded, row.done, row.split) == (JobState.SUCCEEDED, *[len(shelves)] * 3)
    assert leg.app.stores.ledger.part(JobLedger).care.miscounts(row.id) == {}
    assert audit(leg.app.stores, leg.app.settings, queues=["witness"]).findings == ()
    return len(found) - len(shelves)


@pytest.mark.one_leg
def test_under_kills_every_step_stands_once(fast_leg: Leg, fill: Job, long_run: bool) -> None:
    leg, total = fast_leg, 20_000 if long_run else 1_000
    processes, kills = (6, 40) if long_run else (2, 2)
    job = fill.run(shelves="abcd", to=total // 4, page=10, seconds=0.01, raises="")
    with leg.fleet(processes=processes, threads=2, app=workshop.APP) as fleet:
        for number in range(1, kills + 1):
            wait_done(leg, job, number * total // (kills + 2))
            wait_until(lambda: len(fleet.children()) == processes, timeout_s=60, what="all processes are there")
            assert fleet.kill_one(number) is not None
        row = wait_ended(leg, job)

    assert check(leg, row) == 0
    print(f"{leg.name}: {total} items in steps of 10, {kills} kills")


@pytest.mark.one_leg
def test_they_stop_between_two_steps_when_their_process_leaves_or_their_job_is_paused_or_cancelled(
    fast_leg: Leg, fill: Job
) -> None:
    """What was paused, or left, goes on there; what was cancelled ends, and the steps that were made stand."""
    leg, ledger = fast_leg, fast_leg.app.stores.ledger
    each = 1_500  # seconds of work: a look takes long on a busy machine
    job = fill.run(shelves="abc", to=each, page=10, seconds=0.03, raises="b")
    with leg.fleet(processes=1, threads=4, app=workshop.APP) as fleet:
        wait_done(leg, job, 120)
        fleet.terminate()
        left = fleet.wait(60)
    at_rest = stands(leg, job)
    endless = fill.options(key="endless").run(shelves="z", to=1_000_000, page=10, seconds=0.03, raises="")
    with leg.fleet(processes=1, threads=4, app=workshop.APP):
        wait_done(leg, job, at_rest.done + 90)
        ledger.part(JobLedger).decisions.pause_job(job.id, **WHO)
        wait_until(lambda: stands(leg, job).state is JobState.PAUSED, timeout_s=60, what="it is paused")
        paused = stands(leg, job)
        wait_done(leg, endless, 50)
        ledger.part(JobLedger).decisions.cancel_job(endless.id, **WHO)
        ledger.part(JobLedger).decisions.resume_job(job.id, **WHO)
        row = wait_ended(leg, job)
    cancelled = stands(leg, endless)

    assert (left, at_rest.state) == (0, JobState.RUNNING)
    assert at_rest.done < paused.done < 3 * each, "each of them in the middle"
    z = check(leg, row)
    assert (cancelled.state, cancelled.cancelled) == (JobState.CANCELLED, 1)
    assert cancelled.succeeded == z >= 50
    tasks = [task for task in ledger.questions.tasks(name="workshop.fill") if task.job_id == job.id]
    assert [(task.failures, task.crashes) for task in tasks] == [(0, 0)] * 3
    said = [event.detail.get("reason") for task in tasks for event in ledger.questions.history(task.id)]
    assert {"its worker leaves", "it raised after 3 steps: ValueError"} <= set(said)
