"""Worlds that prove losses by positions, and in which who is idle does not ask the ledger: only the proof finds losses.

That the marker is noted before the ends are read, and that an end now counts, is seen by position_model.py: in these
worlds the first takes a hint in a moment that hardly ever comes, and the second only makes the proof late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.simulation.mutants import replaced
from tests.simulation.partitions import PartitionedBroker
from tests.simulation.run import database, run
from tests.simulation.test_owners import only_who_has_trouble_asks
from tests.simulation.world import Plan
from workq.config import LEDGER


def violations(seed: int) -> list[str]:
    """What a world shows; nothing but the broker may lose anything there."""
    plan = replace(Plan.of(seed), is_owned=True, ladder=LEDGER, is_direct=False, is_job=False)
    with only_who_has_trouble_asks():
        return run(seed, database(), plan=plan).violations


@contextmanager
def no_position_ever_passes() -> Iterator[None]:
    with replaced(PartitionedBroker, "has_passed", lambda *_: False):
        yield


LOSING = [seed for seed in range(1, 60) if Plan.of(seed).kind == "losing" and not Plan.of(seed).is_direct][:4]


@pytest.mark.parametrize("seed", LOSING)
def test_what_the_broker_has_lost_is_sent_again(seed: int) -> None:
    assert violations(seed) == []


def test_where_no_position_ever_passes_that_is_seen() -> None:
    with no_position_ever_passes():
        assert any(violations(seed) for seed in LOSING)
