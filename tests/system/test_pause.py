"""A paused queue starts nothing, whatever is restarted or lost meanwhile; when it is resumed, nothing is missing."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
import redis

from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State

WHO = "eve@host"
QUIET_S = 1.5
"""How long nothing may start."""


def settled_down(leg: Leg) -> int:
    """Wait until nothing runs; how many have started by then."""
    time.sleep(0.3)  # a claim that began before the pause may still be on its way
    wait_until(lambda: leg.states()[State.RUNNING] == 0, timeout_s=30, what="what ran has ended")
    return len(leg.starts())


def stays(leg: Leg, started: int) -> None:
    """Nobody starts anything."""
    time.sleep(QUIET_S)
    assert len(leg.starts()) == started


def test_nothing_of_it_starts_while_others_go_on(fast_leg: Leg) -> None:
    leg, ledger = fast_leg, fast_leg.app.stores.ledger
    for number in range(400):
        leg["note"].enqueue(number=number, seconds=0.01)
    with leg.fleet(processes=2, threads=2, queues="witness,other") as fleet:
        wait_until(lambda: len(leg.starts()) > 20, timeout_s=30, what="some have started")
        ledger.pauses.pause("witness", who=WHO, why="the mail server moves")
        started = settled_down(leg)
        leg["note"].options(queue="other").enqueue_many({"number": number} for number in range(400, 500))
        wait_until(lambda: len(leg.starts()) == started + 100, timeout_s=30, what="the other queue goes on")
        leg["note"].enqueue(number=500)
        stays(leg, started + 100)

        assert ledger.pauses.resume("witness", who=WHO, why="it has moved")
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(60) == 0
    assert sorted(leg.starts().values()) == [1] * 501


def test_a_pause_with_an_end_ends_by_itself_and_a_worker_that_drains_leaves(fast_leg: Leg) -> None:
    leg, ledger = fast_leg, fast_leg.app.stores.ledger
    leg["note"].enqueue_many({"number": number} for number in range(50))
    ledger.pauses.pause("witness", who=WHO, why="?")
    with leg.fleet(processes=1, drain=True) as fleet:
        assert fleet.wait(60) == 0
    assert not leg.starts()

    made = ledger.pauses.pause("witness", who=WHO, why="?", for_s=3.0)
    assert made.ends_at is not None
    with leg.fleet(processes=1, threads=2) as fleet:
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(60) == 0
    assert min(line.at for line in leg.testimony()) >= made.ends_at.timestamp()
    assert sorted(leg.starts().values()) == [1] * 50


@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
def test_it_survives_a_restart_of_everything_and_a_wipe_of_all_but_the_ledger(
    leg_name: str, open_leg: OpenLeg, request: pytest.FixtureRequest
) -> None:
    leg = open_leg(leg_name, divide=10.0)
    ledger = leg.app.stores.ledger
    leg["note"].enqueue_many({"number": number, "seconds": 0.01} for number in range(300))
    with leg.fleet(processes=2, threads=2) as fleet:
        wait_until(lambda: len(leg.starts()) > 20, timeout_s=30, what="some have started")
        ledger.pauses.pause("witness", who=WHO, why="?")
        fleet.kill()
    if leg_name == "servers":
        leg.lose_hints()
        with closing(redis.Redis.from_url(request.getfixturevalue("redis_server").url)) as admin:
            admin.flushall()
    with leg.fleet(processes=2, threads=2) as fleet:
        fleet.wait_whole(2, timeout_s=30)
        started = settled_down(leg)
        stays(leg, started)
        ledger.pauses.resume("witness", who=WHO, why="?")
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(60) == 0
    starts = leg.starts()
    assert len(starts) == 300
    assert sum(starts.values()) <= 300 + 4, "what ran when it was killed"
