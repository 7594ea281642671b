"""A handler's transaction: however often it dies in the middle, its writes and its task's success stand once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.contract.given import incarnation
from tests.system.bank import BOUNDARIES
from tests.system.fleet import REPOSITORY
from tests.system.legs import Leg
from workq import State
from workq.errors import Refused

CRASHES_LONG = 10_000
CRASHES_SHORT = 90


def test_what_is_enqueued_inside_belongs_to_it_and_runs_once_it_stands(leg: Leg) -> None:
    ledger = leg.app.stores.ledger
    me = incarnation()
    ledger.join(me, queues=["witness"], threads=1)
    [claim] = ledger.claim([leg["note"].enqueue(0).id], by=me.id)
    with ledger.transaction(claim) as connection:
        with pytest.raises(Refused, match=r"options\(connection=connection\)"):
            leg["note"].enqueue(1)
        with pytest.raises(Refused, match=r"options\(connection=connection\)"):
            leg["note"].enqueue_many([{"number": 2}])
        inside = leg["note"].options(connection=connection).enqueue(3)
    outside = leg["note"].enqueue(4)
    ledger.leave(me.id)

    with leg.fleet(processes=1, drain=True) as fleet:
        assert fleet.wait(60) == 0

    assert sorted(line.number for line in leg.testimony() if line.what == "end") == ["3", "4"]
    assert set(leg.starts()) == {inside.id, outside.id}
    assert leg.states()[State.SUCCEEDED] == 3


@pytest.mark.timeout(3600)
def test_effects_stand_exactly_once_wherever_the_handler_dies(leg: Leg, long_run: bool) -> None:
    count = CRASHES_LONG if long_run else CRASHES_SHORT
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.bank", str(count), "7"],
        cwd=REPOSITORY,
        env={**os.environ, **leg.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)

    print(f"{leg.name}: {seen}")
    assert set(seen["crashes"]) == set(BOUNDARIES)
    assert sum(seen["crashes"].values()) >= count
    assert seen["succeeded"] == seen["transfers"]
    assert (seen["right"], seen["rows"]) == (2 * seen["transfers"], 2 * seen["transfers"])
