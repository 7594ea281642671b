"""A handler's transaction: however often it dies in the middle, its writes and its task's success stand once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.system.bank import BOUNDARIES
from tests.system.fleet import REPOSITORY
from tests.system.legs import Leg

CRASHES_LONG = 10_000
CRASHES_SHORT = 90


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
