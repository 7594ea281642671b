"""Worlds whose broker goes away and stays away: workers go on from the ledger, and nothing is wrong when it is back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.mutants import MUTANTS, replaced
from tests.simulation.processes import Nemesis, Producing, Setting, Supervisor, Sweeper
from tests.simulation.run import database, inside, rest
from tests.simulation.world import Plan, World
from workq.config import BINARY
from workq.worker.fetch.fallback_polling import FallbackPolling

LONG_S = 120.0
"""Virtual seconds within which all tasks end without a broker: retries, and one after the other of an order key."""


def violations(seed: int) -> list[str]:
    """What a world shows, whose broker is away from the third second on until everything has ended."""
    plan = replace(
        Plan.of(seed),
        kind="any",
        workers=2,
        tasks=8,
        rate=0.0,
        nemesis_s=5.0,
        nemeses=("pause_queue", "redis_wipe") if seed % 2 else (),
        ladder=BINARY,
        is_direct=False,
        is_job=False,
        is_ordered=seed % 3 == 0,
        is_limited=seed % 3 == 1,
        every_s=None,
    )
    world = World(seed, plan)
    database().begin_run(world)
    with inside(world):
        setting = Setting(world, database())
        Supervisor(setting)
        Sweeper(setting)
        for _ in range(2):
            Producing(setting, 8)
        nemesis = Nemesis(setting)
        world.run(3.0)
        world.down_until["broker", None] = math.inf
        world.run(plan.phase_s)
        recorder = setting.recorder
        if not world.violations:
            world.is_faulty = False
            nemesis.heal()
            world.run(world.now + LONG_S, done=lambda: bool(recorder.rows) and not recorder.unsettled())
        if not world.violations and (left := recorder.unsettled()):
            world.violated("I2", f"not terminal while the broker is away: {left}")
        if not world.violations:
            rest(world, setting, nemesis)
    return world.violations


@pytest.mark.parametrize("seed", range(1, 7))
def test_workers_go_on_while_the_broker_is_away(seed: int) -> None:
    assert violations(seed) == []


@contextmanager
def nobody_asks_the_ledger() -> Iterator[None]:
    with replaced(FallbackPolling, "is_due", lambda *_, **__: False):
        yield


@pytest.mark.parametrize(
    ("mutant", "first"),  # no seed before that one sees it
    [(nobody_asks_the_ledger, 1), (MUTANTS["claim_without_looking_whether_its_queue_is_paused"], 25)],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_bug_on_purpose_is_seen_while_the_broker_is_away(mutant: Any, first: int) -> None:
    for seed in range(first, first + 60, 2):
        with mutant():
            if violations(seed):
                return
    raise AssertionError("it survived: the worlds without a broker are blind there")
