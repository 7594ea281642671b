"""Worlds whose broker gives each part of a queue to one worker: nobody waits behind a busy owner, or a dead one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.mutants import replaced
from tests.simulation.processes import QUEUES, Setting, SteppedRelay, Supervisor, Sweeper
from tests.simulation.run import database, inside
from tests.simulation.world import Plan, Process, World
from workq.config import LEDGER
from workq.enqueue.producer import Producer
from workq.values.task import Claim, NewTask
from workq.worker.fetch.fallback_polling import FallbackPolling

BOUND_S = 3.0
"""Virtual seconds from an enqueue to its start: two by what is promised, and the steps of the world."""
NEVER_S = 6e5


def waits_s(seed: int, how: str) -> dict[str, float]:
    """How long each task has waited for its start, while one of three workers owns a part and does nothing with it.

    No session ends, no mark is made, and the lease of who is dead lasts.
    """
    plan = replace(
        Plan.of(seed),
        kind="any",
        workers=3,
        threads=4,
        sweepers=1,
        rate=0.0,
        nemeses=(),
        is_supervised=False,
        is_owned=True,
        ladder=LEDGER,
        is_direct=False,
        is_job=False,
        is_ordered=False,
        is_limited=False,
        is_gathered=False,
        is_answered_late=False,
        every_s=None,
    )
    plan = replace(plan, times=replace(plan.times, marker_s=NEVER_S, lease_s=NEVER_S))
    world = World(seed, plan)
    database().begin_run(world)
    started: dict[str, float] = {}
    due: dict[str, float] = {}
    with inside(world):
        setting = Setting(world, database())
        supervisor = Supervisor(setting)
        Sweeper(setting)
        begins = setting.recorder.begins

        def begin(claim: Claim, process: Process) -> None:
            started.setdefault(claim.task_id, world.now)
            begins(claim, process)

        setting.recorder.begins = begin  # type: ignore[method-assign]
        world.run(8.0)
        supervisor.next_at = NEVER_S  # nobody takes the place of who dies
        idle = setting.workers[seed % 3]
        if how == "dead":
            idle.process.die()
        else:
            idle.intake._room = lambda: 0  # type: ignore[attr-defined]  # it looks as if all its threads were busy
        client = setting.process("client")
        stores = setting.stores(client)
        relay = SteppedRelay(setting, client, stores)
        producer = Producer(stores, confirm_s=10.0, relay=relay, follow=lambda _: None)
        for number in range(12):
            task_id = world.new_id()
            setting.tasks.append(task_id)
            setting.recorder.trying([task_id], {})
            due[task_id] = world.now
            producer.record([NewTask(task_id, "act", QUEUES[number % 2], '{"a":[1],"k":{}}')])
            world.run(world.now + 1.0)
        world.run(world.now + BOUND_S)
    assert world.violations == []
    return {task_id: started.get(task_id, NEVER_S) - at for task_id, at in due.items()}


@pytest.mark.parametrize("how", ["busy", "dead"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nobody_waits_behind_an_owner_that_does_nothing(how: str, seed: int) -> None:
    assert max(waits_s(seed, how).values()) <= BOUND_S


@contextmanager
def only_who_has_trouble_asks() -> Iterator[None]:
    asked = FallbackPolling.is_due

    def is_due(self: Any, trouble: str | None, **given: bool) -> bool:
        return trouble is not None and asked(self, trouble, **given)

    with replaced(FallbackPolling, "is_due", is_due):
        yield


@pytest.mark.parametrize("how", ["busy", "dead"])
def test_a_bug_on_purpose_is_seen(how: str) -> None:
    with only_who_has_trouble_asks():
        assert max(waits_s(1, how).values()) > BOUND_S
