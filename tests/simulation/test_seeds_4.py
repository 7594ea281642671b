"""The short run, part 4 of 4: a file is what two processes of the test run can share."""

from __future__ import annotations

import pytest

from tests.simulation.run import check

FIRST, CHUNKS, SEEDS = 241, 5, 5


@pytest.mark.parametrize("first", [FIRST + SEEDS * chunk for chunk in range(CHUNKS)])
def test_any_faults_then_all_heals_and_nothing_is_lost_or_run_without_a_claim(first: int) -> None:
    for seed in range(first, first + SEEDS):
        check(seed)
