"""A task that asks before it runs again: its process is killed, on both legs, and it is never started twice."""

from __future__ import annotations

from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State

TASKS, THREADS = 6, 2


def test_what_asks_is_not_started_again_when_everything_is_killed_and_the_rest_runs(fast_leg: Leg) -> None:
    leg, ledger = fast_leg, fast_leg.app.stores.ledger
    call = leg["note"].options(on_crash="ask")
    call.enqueue_many({"number": number, "seconds": 1.0} for number in range(TASKS))

    with leg.fleet(processes=1, threads=THREADS) as victim:
        wait_until(lambda: len(leg.starts()) >= THREADS, timeout_s=30, what="some run")
        victim.kill()
    with leg.fleet(processes=1, threads=THREADS) as fleet:
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(30) == 0

    starts = leg.starts()
    dead = [task for task in ledger.questions.tasks(limit=TASKS) if task.state is State.DEAD]
    assert set(starts.values()) == {1}, "started once each"
    assert len(starts) == TASKS
    assert 1 <= len(dead) <= THREADS
    assert {task.reason for task in dead} == {"worker_lost: a person decides"}
    assert leg.states()[State.SUCCEEDED] == TASKS - len(dead)
