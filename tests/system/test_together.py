"""Single tasks that a worker gathers into one call: few calls, each task by itself; on the embedded queue and on
servers."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from tests.system import lists
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from tests.system.lists import FAILURES_MAX, LINGER_S, POISON, Call, calls
from tests.system.witness import tell
from workq import State
from workq.handlers.handler import BatchHandler

Handlers = dict[str, BatchHandler[int, object]]


@pytest.fixture
def handlers(leg: Leg) -> Handlers:
    return lists.registered(leg.app)


def times(found: list[Call]) -> Counter[int]:
    """How often each number was given to a handler."""
    return Counter(number for call in found for number in call.numbers)


def test_a_thousand_single_tasks_are_few_calls(leg: Leg, handlers: Handlers) -> None:
    count = 1000
    handlers["stamp"].enqueue_many((number,) for number in range(count))
    with leg.fleet(processes=2, threads=4, app=lists.APP) as fleet:
        leg.wait_settled(timeout_s=120)
        fleet.terminate()
        assert fleet.wait(60) == 0

    found = calls(leg.folder)
    assert leg.states()[State.SUCCEEDED] == count
    assert times(found) == dict.fromkeys(range(count), 1)
    print(f"{leg.name}: {count} tasks in {len(found)} calls, the largest of {max(len(one.numbers) for one in found)}")
    assert len(found) <= 100, "ten would be enough, where the machine has nothing else to do"


def test_of_a_hundred_with_one_poison_task_it_alone_is_dead_after_its_budget(leg: Leg, handlers: Handlers) -> None:
    poison = handlers["stamp"].enqueue(POISON)
    handlers["stamp"].enqueue_many((number,) for number in range(99))
    with leg.fleet(processes=1, threads=4, app=lists.APP):
        leg.wait_settled(timeout_s=120)

    found = calls(leg.folder)
    states = leg.states()
    task = leg.app.get(poison.id)
    assert task is not None
    assert (states[State.SUCCEEDED], states[State.DEAD]) == (99, 1)
    assert (task.state, task.failures, task.reason) == (
        State.DEAD,
        FAILURES_MAX,
        "failures_max reached: ValueError",
    )
    halvings = math.ceil(math.log2(100)) + 1
    assert times(found)[POISON] <= FAILURES_MAX * halvings
    assert len(found) <= 60, "many fewer than there are tasks"
    good = [number for call in found if POISON not in call.numbers for number in call.numbers]
    assert sorted(good) == list(range(99)), "each of the others once in a good call"
    print(f"{leg.name}: {len(found)} calls, {times(found)[POISON]} of them with the poison task")


def test_a_worker_killed_in_the_middle_of_a_call_loses_nothing_and_charges_nobody_with_a_crash(
    leg: Leg, handlers: Handlers
) -> None:
    ids = [handlers["hold"].enqueue(number).id for number in range(8)]
    with leg.fleet(processes=1, threads=4, app=lists.APP) as fleet:
        wait_until(lambda: sum(times(calls(leg.folder)).values()) == 8, timeout_s=60, what="all have started")
        together = {number for call in calls(leg.folder) if len(call.numbers) > 1 for number in call.numbers}
        killed = fleet.kill_one()
        tell(leg.folder / "witness")
        leg.wait_settled(timeout_s=120)

    found = calls(leg.folder)
    assert len(together) >= 2
    assert leg.states()[State.SUCCEEDED] == 8
    assert times(found) == dict.fromkeys(range(8), 2)
    again = [call for call in found if call.pid != killed]
    assert all(len(call.numbers) == 1 for call in again), "they ran in company: from now on each runs alone"
    for task_id in ids:
        task = leg.app.get(task_id)
        assert task is not None
        assert (task.crashes, task.failures) == (0, 0)
        assert leg.charges(task_id) == {"suspicion": 1}


def test_a_drain_starts_a_lone_task_after_its_linger_and_ends(leg: Leg, handlers: Handlers) -> None:
    task_id = handlers["stamp"].enqueue(7).id
    with leg.fleet(processes=1, threads=4, app=lists.APP, drain=True, queues="witness") as fleet:
        assert fleet.wait(120) == 0

    [call] = calls(leg.folder)
    task = leg.app.get(task_id)
    assert task is not None
    assert (task.state, call.numbers) == (State.SUCCEEDED, (7,))
    assert task.started_at is not None
    waited_s = call.at - task.started_at.timestamp()
    print(f"{leg.name}: a lone task started {waited_s:.2f} s after its claim")
    assert waited_s >= 0.8 * LINGER_S


def test_what_waits_for_company_goes_back_at_no_cost_when_its_worker_is_told_to_end(
    leg: Leg, handlers: Handlers
) -> None:
    ids = [handlers["patient"].enqueue(number).id for number in range(3)]
    with leg.fleet(processes=1, threads=4, app=lists.APP) as fleet:
        wait_until(lambda: leg.states()[State.RUNNING] == 3, timeout_s=60, what="all are claimed")
        fleet.terminate()
        assert fleet.wait(50) == 0

    assert calls(leg.folder) == []
    for task_id in ids:
        task = leg.app.get(task_id)
        assert task is not None
        assert (task.state, task.failures, task.crashes) == (State.READY, 0, 0)
        assert leg.charges(task_id) == {}
