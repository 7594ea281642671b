"""Order keys under fire: workers are killed all the while, and no key has an inversion or an overlap."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from contextlib import closing

import pytest

from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State
from workq.order.ledger.order import Order


@pytest.mark.timeout(1500)
@pytest.mark.one_leg
def test_tasks_of_a_key_run_in_order_and_one_at_a_time_while_workers_are_killed(fast_leg: Leg, long_run: bool) -> None:
    leg = fast_leg
    keys, each, kills = (1000, 100, 20) if long_run else (20, 8, 3)
    rng = random.Random(7)
    handler = leg["note"]
    with closing(leg.app.database()) as database:
        for number in range(each):
            with database.engine.begin() as connection:
                for key in range(keys):
                    call = handler.options(order_key=f"k{key}", connection=connection)
                    call.enqueue(number=key * 1000 + number, seconds=0.002)

    fleets = [leg.fleet(processes=2, threads=4) for _ in range(2)]
    try:
        for number in range(kills):
            wait_until(lambda: leg.states()[State.SUCCEEDED] > 0, timeout_s=60, what="they work")
            time.sleep(rng.uniform(0.3, 1.0))
            fleets[number % 2].kill()
            fleets[number % 2] = leg.fleet(processes=2, threads=4)
        leg.wait_settled(timeout_s=1200 if long_run else 120)
        for fleet in fleets:
            fleet.wait_whole(2, timeout_s=30)
    finally:
        for fleet in fleets:
            fleet.terminate()
        statuses = [fleet.wait(60) for fleet in fleets]

    assert statuses == [0, 0]
    assert leg.states()[State.SUCCEEDED] == keys * each
    assert leg.app.stores.ledger.part(Order).sequences() == []
    started: dict[int, list[int]] = defaultdict(list)
    ended: dict[int, float] = {}
    overlaps = []
    for line in sorted(leg.testimony(), key=lambda line: line.at):
        given = int(line.number)
        key, number = divmod(given, 1000)
        if line.what == "start":
            if number > 0 and given - 1 not in ended:
                overlaps.append((key, number))
            started[key].append(number)
        elif line.what == "end":
            ended[given] = line.at
    inversions = [key for key, numbers in started.items() if numbers != sorted(numbers)]
    assert (inversions, overlaps) == ([], [])
    assert len(started) == keys
    assert all(sorted(set(numbers)) == list(range(each)) for numbers in started.values())
