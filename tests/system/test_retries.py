"""What a handler says about its next attempt, on both legs: when it runs again, what it costs, and when never."""

from __future__ import annotations

from itertools import pairwise

from tests.system.legs import Leg
from workq import State


def test_each_way_leads_where_it_should_at_its_price_and_never_early(fast_leg: Leg) -> None:
    leg = fast_leg
    calls = [("snooze", 4, 0.5), ("retry", 1, 0.8), ("fail", 1, 0.0), ("fail", 9, 0.0), ("never", 9, 0.0)]
    leg["later"].enqueue_many((number, *call) for number, call in enumerate(calls))
    with leg.fleet(processes=1, threads=4) as fleet:
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(20) == 0

    tasks = {task.args[0]: task for task in leg.app.stores.ledger.questions.tasks(limit=10)}
    found = {number: (one.state, one.attempt, one.failures, one.crashes) for number, one in tasks.items()}
    starts = {
        number: sorted(line.at for line in leg.testimony() if line.what == "start" and line.number == str(number))
        for number in tasks
    }

    assert found == {
        0: (State.SUCCEEDED, 5, 0, 0),  # snoozed twice as often as it may fail
        1: (State.SUCCEEDED, 2, 1, 0),
        2: (State.SUCCEEDED, 2, 1, 0),
        3: (State.DEAD, 2, 2, 0),
        4: (State.DEAD, 1, 1, 0),
    }
    assert (tasks[3].reason, tasks[4].reason) == ("failures_max reached: ConnectionError", "not retried: KeyError")
    for number, wait_s in ((0, 0.5), (1, 0.8), (2, 0.4), (3, 0.4)):
        waits = [later - earlier for earlier, later in pairwise(starts[number])]
        assert waits
        assert min(waits) >= wait_s - 0.05, number

    history = leg.app.stores.ledger.questions.history(tasks[0].id)
    assert [(one.kind, one.attempt) for one in history] == [("snoozed", number) for number in range(1, 5)]
    assert all(one.detail == {"reason": "too early", "again_in_s": 0.5} for one in history)
