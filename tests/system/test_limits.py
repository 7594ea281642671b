"""Limits under fire: workers are killed all the while; no window has too many starts, no instant too many at once."""

from __future__ import annotations

import random
import time

import pytest

from tests.system.fleet import wait_until
from tests.system.legs import Leg
from tests.system.witness import Line
from workq import State
from workq.limits.ledger.limits import Limits

AT_ONCE = 8
IN_A_SECOND = 100


def reaped_at(leg: Leg) -> dict[tuple[str, int], float]:
    """When the ledger has taken back attempts whose worker died: from then on their places are free."""
    reaped = leg.app.stores.ledger.questions.happened(["reaped"], within_s=3600.0, limit=100_000)
    return {(one.task_id, one.attempt): one.at.timestamp() for one in reaped if one.task_id and one.attempt}


def most_at_once(lines: list[Line], reaped: dict[tuple[str, int], float]) -> int:
    """How many ran together, at most, until they ended or were taken back."""
    ends = {(line.task_id, line.attempt): line.at for line in lines if line.what == "end"}
    changes = []
    for line in lines:
        if line.what == "start":
            attempt = line.task_id, line.attempt
            ended_at = min(ends.get(attempt, float("inf")), reaped.get(attempt, float("inf")))
            changes += [(line.at, 1), (ended_at, -1)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def most_in_a_second(lines: list[Line]) -> int:
    """How many started in one second, at most, wherever it begins."""
    starts = sorted(line.at for line in lines if line.what == "start")
    most = first = 0
    for last, at in enumerate(starts):
        while starts[first] <= at - 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


@pytest.mark.timeout(1200)
def test_a_rate_and_a_concurrency_hold_for_the_whole_fleet_while_workers_are_killed(
    fast_leg: Leg, long_run: bool
) -> None:
    leg = fast_leg
    count, kills = (3_000, 10) if long_run else (300, 3)
    rng = random.Random(5)
    call = leg["note"].options(limit="endpoint:example.org", rate=f"{IN_A_SECOND}/s", concurrency=AT_ONCE)
    call.enqueue_many((number, 0.03) for number in range(count))
    fleets = [leg.fleet(processes=2, threads=4) for _ in range(2)]
    try:
        for number in range(kills):
            wait_until(lambda: leg.states()[State.SUCCEEDED] > 0, timeout_s=60, what="they work")
            time.sleep(rng.uniform(0.3, 1.0))
            fleets[number % 2].kill()
            fleets[number % 2] = leg.fleet(processes=2, threads=4)
        leg.wait_settled(timeout_s=900 if long_run else 120)
        for fleet in fleets:
            fleet.wait_whole(2, timeout_s=30)
    finally:
        for fleet in fleets:
            fleet.terminate()
        statuses = [fleet.wait(60) for fleet in fleets]

    lines, reaped = leg.testimony(), reaped_at(leg)
    starts = [line.at for line in lines if line.what == "start"]
    per_s = len(starts) / (max(starts) - min(starts))
    print(
        f"{leg.name}: {count} tasks, {kills} kills: at most {most_at_once(lines, reaped)} at once, "
        f"{most_in_a_second(lines)} starts in a second, {per_s:.0f} /s on the whole"
    )
    assert statuses == [0, 0]
    assert leg.states()[State.SUCCEEDED] == count
    assert most_at_once(lines, reaped) <= AT_ONCE
    assert most_in_a_second(lines) <= IN_A_SECOND


def test_each_endpoint_has_its_own_limit_and_what_has_none_is_not_slowed(leg: Leg) -> None:
    with leg.fleet(processes=2, threads=4) as fleet:
        wait_until(lambda: len(leg.app.stores.ledger.questions.workers()) == 2, timeout_s=30, what="both workers serve")
        for key in ("a", "b"):
            one_at_once = leg["note"].options(limit=f"endpoint:{key}", concurrency=1)
            one_at_once.enqueue_many((number, 0.05) for number in range(10))
        leg["note"].enqueue_many((number,) for number in range(100, 200))
        leg.wait_settled(timeout_s=60)
        fleet.terminate()
        assert fleet.wait(20) == 0

    lines = leg.testimony()
    limited = {
        task.id: task.limit.key for task in leg.app.stores.ledger.questions.tasks(limit=1000) if task.limit is not None
    }
    for key in ("endpoint:a", "endpoint:b"):
        of_key = [line for line in lines if limited.get(line.task_id) == key]
        assert most_at_once(of_key, {}) == 1
        assert sum(line.what == "end" for line in of_key) == 10
    assert max(leg.starts().values()) == 1
    assert all(row.parked == row.running == 0 for row in leg.app.stores.ledger.part(Limits).all())


def test_a_draining_worker_waits_for_what_its_limit_holds_back(leg: Leg) -> None:
    leg["note"].options(rate="10/s").enqueue_many((number,) for number in range(15))

    with leg.fleet(processes=1, threads=4, drain=True) as fleet:
        assert fleet.wait(60) == 0

    assert leg.states()[State.SUCCEEDED] == 15
    assert most_in_a_second(leg.testimony()) <= 10
