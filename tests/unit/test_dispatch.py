"""Suspects run alone: one process, step by step, on the real embedded stores; attempts end when a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.process import Process, opened, tasks
from workq import State
from workq.enqueue.relay import publish
from workq.ledger import Evidence
from workq.values.incarnation import Incarnation
from workq.values.task import Done
from workq.webhooks.values import TASK_NAME
from workq.worker.dispatch import SUSPECT_WAIT_MAX_S, SUSPECTS_TOGETHER_S
from workq.worker.fetch.three_stores import GIVE_BACK_AFTER_S


@pytest.fixture(params=[False, True], ids=["custody", "direct"])
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    with opened(tmp_path, is_direct=request.param) as process:
        yield process


def suspects(process: Process, count: int, *, name: str = "work") -> list[str]:
    """Tasks that ran in company when their process died; they have new hints."""
    ledger = process.stores.ledger
    *ids, company = tasks(process, count + 1, name=name)
    gone = Incarnation("host.b007.9.9.gone", "host", 4712)
    ledger.workers.join(gone, queues=["default"], threads=count)
    ledger.claims.claim([*ids, company], by=gone.id)
    reaped = ledger.workers.reap(gone.id, Evidence("SIGSEGV", started=dict.fromkeys([*ids, company], 1)))
    assert reaped is not None
    ledger.decisions.cancel(company, who="ada", why="it has played its part")
    publish(process.stores, [hint for hint in reaped.hints if hint.task_id != company], deadline_s=30.0)
    return ids


def running(process: Process) -> str:
    """A task that runs, until it is ended."""
    [task_id] = tasks(process, 1)
    process.rounds()
    assert process.runs() == {task_id}
    return task_id


def test_a_suspect_starts_when_what_runs_has_ended_and_is_settled(process: Process) -> None:
    other = running(process)
    [suspect] = suspects(process, 1)
    process.rounds()
    assert process.runs() == {other}
    assert process.state(suspect) is State.RUNNING, "claimed, and waiting"

    process.pool.finish(process.pool.taken.pop(other), [Done()])
    process.rounds(1)
    unsettled = process.runs()
    process.settle()
    process.rounds(1)

    assert (unsettled, process.runs()) == (set(), {suspect})


def test_suspects_run_one_after_the_other(process: Process) -> None:
    ids = suspects(process, 3)
    seen = []
    for _ in ids:
        process.rounds()
        [alone] = process.runs()
        seen.append(alone)
        process.end(alone)

    assert sorted(seen) == sorted(ids)
    assert process.state(ids[0]) is State.SUCCEEDED


def test_webhooks_run_in_company_again(process: Process) -> None:
    other = running(process)
    ids = suspects(process, 2, name=TASK_NAME)

    process.rounds()

    assert process.runs() == {other, *ids}


def test_nothing_that_is_held_is_started_while_a_suspect_waits_or_runs_and_all_of_it_afterwards(
    process: Process,
) -> None:
    other = running(process)
    process.pool.pace.add(0.005)  # so that it holds ahead more than it claims
    [suspect] = suspects(process, 1)
    others = {other, *tasks(process, 60)}
    process.rounds()
    first = process.runs()
    assert process.state(suspect) is State.RUNNING, "claimed in the same batch as others, and waiting"
    process.rounds()
    while_it_waits = process.runs()
    process.end(*first)
    process.rounds()
    while_it_runs = process.runs()
    process.end(suspect)
    process.rounds()

    assert 3 < len(first) < 61
    assert while_it_waits == first
    assert while_it_runs == {suspect}
    assert suspect not in process.runs()
    assert len(process.runs() & others - first) > 3


def test_what_is_held_is_handed_back_when_a_suspect_does_not_end_soon(process: Process) -> None:
    other = running(process)
    process.pool.pace.add(0.005)
    [suspect] = suspects(process, 1)
    others = {other, *tasks(process, 60)}
    process.rounds()
    first = process.runs()
    process.end(*first)
    process.rounds()
    process.forward(GIVE_BACK_AFTER_S + 0.1)

    process.rounds()

    assert process.runs() == {suspect}
    assert process.hinted() >= others - first
    assert process.stores.inflight.held_by(process.me.id)[0].task_id == suspect
    assert len(process.stores.inflight.held_by(process.me.id)) == 1


def test_of_the_suspects_that_wait_one_keeps_its_turn_and_the_others_are_handed_back_at_no_cost(
    process: Process,
) -> None:
    other = running(process)
    ids = suspects(process, 2)
    process.rounds()
    assert process.runs() == {other}
    process.forward(SUSPECTS_TOGETHER_S + 0.1)
    process.rounds()
    process.settle()

    states = sorted(process.state(suspect) for suspect in ids)
    assert states == [State.READY, State.RUNNING]
    [handed_back] = [suspect for suspect in ids if process.state(suspect) is State.READY]
    task = process.stores.ledger.questions.get(handed_back)
    assert task is not None
    assert (task.failures, task.crashes) == (0, 0)

    process.end(other)
    process.rounds(1)

    assert process.runs() == set(ids) - {handed_back}


def test_while_a_suspect_runs_for_long_those_that_wait_are_handed_back(process: Process) -> None:
    ids = set(suspects(process, 3))
    process.rounds()
    alone = process.runs()
    process.forward(SUSPECTS_TOGETHER_S + 0.1)

    process.rounds()
    process.settle()

    assert len(alone) == 1
    assert {suspect for suspect in ids if process.state(suspect) is State.READY} == ids - alone


def test_a_suspect_behind_a_handler_that_hangs_is_handed_back_in_the_end(process: Process) -> None:
    """Or the hung one would starve everybody in this process."""
    hung = running(process)
    [suspect] = suspects(process, 1)
    process.rounds()
    assert process.runs() == {hung}

    process.forward(SUSPECT_WAIT_MAX_S + 1.0)
    process.rounds(1)
    process.settle()

    assert process.state(suspect) is State.READY
    [late] = tasks(process, 1)
    process.rounds()
    assert process.runs() == {hung, late}


def test_a_process_that_leaves_hands_back_the_suspects_that_wait(process: Process) -> None:
    other = running(process)
    [suspect] = suspects(process, 1)
    process.rounds()

    assert process.intake.give_back()
    process.settle()

    assert (process.state(suspect), process.state(other)) == (State.READY, State.RUNNING)
    assert process.intake.is_empty


def test_a_suspect_does_not_start_without_a_trusted_lease(process: Process) -> None:
    other = running(process)
    [suspect] = suspects(process, 1)
    process.rounds()
    process.now += 100.0
    process.end(other)

    process.rounds(1)
    without = process.runs()
    process.forward(0.0)
    process.rounds(1)

    assert (without, process.runs()) == (set(), {suspect})
