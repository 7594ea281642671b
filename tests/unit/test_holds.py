"""What a process knows to be its own: two claims of one task at once, and claims of which only the ledger tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.contract.given import new
from tests.unit.process import Process, opened
from workq import State
from workq.inflight import Entry
from workq.values.task import Claim, Done, Failed, HandedBack, OnCrash, Settlement


@pytest.fixture(params=[True, False], ids=["one database", "three stores"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    with opened(tmp_path, is_direct=request.param) as process:
        yield process


def look(process: Process, count: int) -> None:
    """So many of its looks at what the ledger says of it."""
    for _ in range(count):
        process.now += process.wq.settings.times.worker_beat_s
        process.heart.beat()


def granted(process: Process, task_id: str) -> Claim:
    """It is claimed, and the process does not know of it yet."""
    [claim] = process.stores.ledger.claims.claim([task_id], by=process.me.id)
    return claim


def known(process: Process, task_id: str) -> Claim:
    """It is held and claimed, as the intake and dispatch do it."""
    process.stores.inflight.hold([Entry(task_id, "default")], by=process.me.id)
    process.held.add([Entry(task_id, "default")])
    claim = granted(process, task_id)
    process.held.claimed([claim])
    return claim


def recorded(process: Process, *, on_crash: OnCrash = OnCrash.AGAIN) -> str:
    [task] = process.stores.ledger.tasks.record(new(1, name="work", on_crash=on_crash))
    return task.id


def put_back(process: Process, task_id: str) -> None:
    """The ledger is restored from a backup in which the task was not claimed yet."""
    database = process.wq.stores.broker.database  # type: ignore[attr-defined]  # it is embedded
    t = database.tables.task
    older = {"state": "ready", "attempt": 0, "token": None, "worker": None, "started_at": None}
    database.run(lambda tx: tx.execute(update(t).where(t.c.id == task_id).values(older)))


def two_attempts(process: Process) -> tuple[Claim, Claim]:
    """One has failed, and the answer to its settlement has not come yet; the next is claimed by the same process."""
    first = known(process, recorded(process))
    process.stores.ledger.outcomes.settle([Settlement(first, Failed(0.0, "ValueError: no"))])
    return first, known(process, first.task_id)


def test_a_late_answer_about_one_attempt_leaves_the_next_where_it_is(process: Process) -> None:
    first, second = two_attempts(process)

    process.held.settled([first])
    look(process, 3)

    assert process.state(second.task_id) is State.RUNNING


def test_after_a_restore_a_late_answer_leaves_the_same_attempt_of_another_claim_where_it_is(process: Process) -> None:
    """The ledger forgot the first claim while it ran, and counts the same attempt again."""
    first = known(process, recorded(process))
    put_back(process, first.task_id)
    second = known(process, first.task_id)
    assert second.attempt == first.attempt

    process.held.settled([first])
    look(process, 3)

    assert process.state(second.task_id) is State.RUNNING
    assert [hold.task_id for hold in process.stores.inflight.held_by(process.me.id)] == [second.task_id]


def test_after_a_restore_two_claims_of_one_attempt_have_a_line_each(process: Process) -> None:
    first = known(process, recorded(process))
    put_back(process, first.task_id)
    second = known(process, first.task_id)
    lines = process.pool.lines
    for claim in (first, second):
        process.pool.take(claim, None, None, HandedBack())

    process.pool.settled([Settlement(first, HandedBack())])
    process.pool.settled([Settlement(second, HandedBack())])

    assert (process.pool.is_idle, process.pool.lines) == (True, lines)


def test_what_the_ledger_says_runs_here_and_is_unknown_is_returned_at_the_second_look_at_no_cost(
    process: Process,
) -> None:
    ledger = process.stores.ledger
    forgotten, mine = granted(process, recorded(process)), known(process, recorded(process))

    look(process, 1)
    assert process.state(forgotten.task_id) is State.RUNNING, "it may just be being claimed"
    look(process, 1)
    task = ledger.questions.get(forgotten.task_id)

    assert process.state(mine.task_id) is State.RUNNING
    assert task is not None
    assert (task.state, task.failures, task.crashes, task.attempt) == (State.READY, 0, 0, 1)
    [event] = ledger.questions.history(forgotten.task_id)
    assert (event.kind, event.detail["kind"], event.detail["charged"]) == ("reaped", "forgotten", "nothing")
    process.wq.producer.relay.flush(timeout_s=30.0)
    assert forgotten.task_id in process.hinted(), "no sweep has to find it"
    [late] = ledger.outcomes.settle([Settlement(forgotten, Done())])
    assert late.state is None


def test_when_the_last_attempt_is_settled_nothing_is_held(process: Process) -> None:
    _, second = two_attempts(process)

    process.held.settled([second])
    look(process, 2)

    assert process.state(second.task_id) is State.READY, "nobody here knows of it, though by the ledger it runs here"


def test_a_claim_whose_answer_is_on_its_way_is_not_taken_for_forgotten(process: Process) -> None:
    task_id = recorded(process)

    with process.held.claiming():
        claim = granted(process, task_id)
        look(process, 4)
        assert process.state(task_id) is State.RUNNING
        process.held.claimed([claim])
    look(process, 4)

    assert process.state(task_id) is State.RUNNING


def test_a_claim_whose_answer_was_lost_is_returned(process: Process) -> None:
    task_id = recorded(process)

    with process.held.claiming():
        granted(process, task_id)
        look(process, 2)
    look(process, 2)

    assert process.state(task_id) is State.READY


def test_a_claim_that_comes_while_another_is_awaited_for_long_is_returned_when_both_are_answered(
    process: Process,
) -> None:
    """No look is lost by what was asked for between two of them."""
    task_id = recorded(process)

    look(process, 1)
    with process.held.claiming():
        granted(process, task_id)
        look(process, 1)
    with process.held.claiming():
        look(process, 2)

    assert process.state(task_id) is State.READY


def test_a_person_is_asked_about_what_was_forgotten_where_a_crash_is_a_persons_question(process: Process) -> None:
    """It may have begun, in what the ledger has forgotten."""
    claim = granted(process, recorded(process, on_crash=OnCrash.ASK))

    look(process, 2)

    task = process.stores.ledger.questions.get(claim.task_id)
    assert task is not None
    assert (task.state, task.reason) == (State.DEAD, "worker_lost: a person decides")
    assert "nothing is known of its attempt" in (task.error or "")


def test_each_attempt_has_a_line_of_its_own_until_it_is_settled(process: Process) -> None:
    first, second = two_attempts(process)
    lines = process.pool.lines
    for claim in (first, second):
        process.pool.take(claim, None, None, HandedBack())

    process.pool.settled([Settlement(second, HandedBack())])
    assert (process.pool.is_idle, process.pool.lines) == (False, lines - 1)
    process.pool.settled([Settlement(first, HandedBack())])
    assert (process.pool.is_idle, process.pool.lines) == (True, lines)
