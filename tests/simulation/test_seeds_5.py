"""The short run, part 5: worlds whose queues have parts, which begin behind the other parts of the short run."""

from __future__ import annotations

import itertools

import pytest

from tests.simulation.run import check
from tests.simulation.world import OWNED_FROM, Plan

CHUNKS, SEEDS = 3, 5


def owned() -> list[int]:
    return list(
        itertools.islice((seed for seed in itertools.count(OWNED_FROM) if Plan.of(seed).is_owned), CHUNKS * SEEDS)
    )


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_any_faults_then_all_heals_and_nothing_is_lost_or_run_without_a_claim(chunk: int) -> None:
    for seed in owned()[SEEDS * chunk : SEEDS * (chunk + 1)]:
        check(seed)
