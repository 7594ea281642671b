"""A handler's transaction: however often it dies in the middle, its writes and its task's success stand once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.given import incarnation
from tests.system.bank import BOUNDARIES
from tests.system.fleet import REPOSITORY
from tests.system.legs import Leg
from tests.system.witness import make_book, read_book
from workq import State
from workq.errors import Refused

CRASHES_LONG = 10_000
CRASHES_SHORT = 60
BANKS = 2
"""Processes at once, each with its own transfers."""


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
    make_book(leg.app)
    with ThreadPoolExecutor(BANKS) as pool:
        seen = list(pool.map(lambda seed: bank(leg, count // BANKS, seed), range(7, 7 + BANKS)))

    crashes = sum((Counter(one["crashes"]) for one in seen), Counter[str]())
    transfers = sum(one["transfers"] for one in seen)
    print(f"{leg.name}: {crashes.total()} crashes of {transfers} transfers: {dict(crashes)}")
    assert set(crashes) == set(BOUNDARIES)
    assert crashes.total() >= count
    assert sum(one["succeeded"] for one in seen) == transfers
    assert sum(one["right"] for one in seen) == 2 * transfers
    assert read_book(leg.app).total() == 2 * transfers


def bank(leg: Leg, crashes: int, seed: int) -> dict[str, Any]:
    """What one bank has seen."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.bank", str(crashes), str(seed)],
        cwd=REPOSITORY,
        env={**os.environ, **leg.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
