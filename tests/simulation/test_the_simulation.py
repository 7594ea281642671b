"""What the simulation itself promises: one seed is one run, and bugs are seen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.mutants import MUTANTS, hunt
from tests.simulation.run import database, run

QUICKLY_CAUGHT = (
    "the_token_is_made_once_for_a_process",
    "settle_without_the_state",
    "claim_without_looking_whether_it_is_due",
    "claim_without_looking_at_the_state",
    "sweep_by_the_clock_of_the_host",
    "a_split_page_loses_its_rest",
    "inbound_headers_are_copied",
    "publish_before_the_commit",
    "publish_in_a_transaction_of_the_caller_at_once",
    "the_sweep_does_not_relay",
    "reap_at_the_first_look",
    "reaping_ends_at_the_ledger",
    "a_beat_gives_the_forgotten_a_lease_again",
    "the_mover_skips_rows",
    "a_marker_overtakes_hints_that_are_still_rows",
)
"""Mutants that some hundred worlds see, where they can be seen at all. The others take more: `make simulate`."""
SEEDS_MAX = 400
FIRST_SEED = {
    "the_token_is_made_once_for_a_process": 2,
    "settle_without_the_state": 232,
    "claim_without_looking_whether_it_is_due": 7,
    "sweep_by_the_clock_of_the_host": 4,
    "a_split_page_loses_its_rest": 8,
    "inbound_headers_are_copied": 3,
    "publish_before_the_commit": 2,
    "publish_in_a_transaction_of_the_caller_at_once": 2,
    "the_sweep_does_not_relay": 45,
    "reap_at_the_first_look": 4,
    "a_beat_gives_the_forgotten_a_lease_again": 4,
    "the_mover_skips_rows": 67,
    "a_marker_overtakes_hints_that_are_still_rows": 92,
}
"""None before it sees that: to run them would only take long."""


def test_a_seed_is_the_same_run_in_every_process() -> None:
    here = run(7, database(), is_traced=True).trace
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.getcwd()}
    command = "from tests.simulation.run import *; print(*run(7, database(), is_traced=True).trace, sep='\\n')"
    elsewhere = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True, timeout=120
    )

    assert here == elsewhere.stdout.splitlines()


def test_a_run_leaves_nothing_for_the_next_one() -> None:
    first = run(11, database(), is_traced=True).trace
    run(12, database())

    assert run(11, database(), is_traced=True).trace == first


@pytest.mark.parametrize("name", QUICKLY_CAUGHT)
def test_a_bug_on_purpose_is_seen(name: str) -> None:
    caught = hunt(name, first=FIRST_SEED.get(name, 1), seeds_max=SEEDS_MAX)

    assert caught.result is not None, f"{name} survived {caught.seeds} seeds: the simulation is blind there"


@pytest.mark.parametrize("name", MUTANTS)
def test_each_bug_on_purpose_can_be_made(name: str) -> None:
    """It changes something that is there, under the name that it has now."""
    with MUTANTS[name]():
        pass


def test_there_are_at_least_eighteen_mutants() -> None:
    assert len(MUTANTS) >= 18
    assert set(QUICKLY_CAUGHT) <= set(MUTANTS)
