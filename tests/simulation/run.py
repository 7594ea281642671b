"""One seed, one run: first any faults, then everything heals, and all must come to rest."""

from __future__ import annotations

import logging
import math
import time as real_time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.simulation.jobs import Boss
from tests.simulation.later import Moving
from tests.simulation.ledger import SimDatabase
from tests.simulation.processes import Auditor, Nemesis, Producing, Setting, SteppedRelay, Supervisor, Sweeper, ticking
from tests.simulation.world import Plan, World
from workq.schedules.ledger import Schedules
from workq.values import failpoints

STEPS_MAX = 20_000


@dataclass
class Result:
    """What one run showed."""

    seed: int
    kind: str
    steps: int
    faults: Counter[str]
    violations: list[str]
    tasks: int
    starts: int
    duplicate_starts: int
    repaired: int
    audits: int
    rest_s: float
    """Virtual seconds from the heal until all was quiet."""
    trace: list[str] = field(default_factory=list)

    @property
    def replay(self) -> str:
        """The command that shows this run again."""
        return f".venv/bin/python -m tests.simulation.replay --seed {self.seed}"


class _EveryPoint:
    """In place of an armed failpoint: whatever point is reached, the world is asked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reached = ""
        self.point = self

    def __eq__(self, point: object) -> bool:
        self._reached = str(point)
        return True

    __hash__ = None  # type: ignore[assignment]

    def passed(self) -> None:
        self._world.reach(self._reached)


@contextmanager
def inside(world: World) -> Iterator[None]:
    """Time, chance and names of the code under test come from the world; its log is silent."""
    seeded = SimpleNamespace(token_hex=world.token_hex)
    stopped = SimpleNamespace(monotonic=lambda: world.now, time=real_time.time)
    memory = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=1 << 20))
    weighed = SimpleNamespace(Process=lambda: memory)
    patches: list[Any] = [
        mock.patch.object(failpoints, "_armed", _EveryPoint(world)),
        mock.patch("workq.ledger.claims.secrets", seeded),
        mock.patch("workq.recovery.lost_hints.new_task_id", world.new_id),
        mock.patch("workq.diagnose.audit.queues.new_task_id", world.new_id),
        mock.patch("workq.schedules.tick.new_task_id", world.new_id),
        mock.patch("workq.values.codec.new_task_id", world.new_id),
        mock.patch("workq.jobs.ledger.care.monotonic", stopped.monotonic),
        mock.patch("workq.recovery.sweep.time", stopped),
        mock.patch("workq.recovery.deaths.this_machine", return_value=None),
        mock.patch("workq.worker.lease.psutil", weighed),
    ]
    logging.disable(logging.CRITICAL)
    try:
        for patch in patches:
            patch.start()
        yield
    finally:
        mock.patch.stopall()
        logging.disable(logging.NOTSET)


def run(seed: int, database: SimDatabase, *, plan: Plan | None = None, is_traced: bool = False) -> Result:
    """Run one seed."""
    plan = Plan.of(seed) if plan is None else plan
    world = World(seed, plan, is_traced=is_traced)
    database.begin_run(world)
    with inside(world):
        setting = Setting(world, database)
        if plan.every_s is not None:
            setting.stores(setting.process("person")).ledger.part(Schedules).schedule(ticking(plan.every_s))
        Supervisor(setting)
        for _ in range(plan.sweepers):
            Sweeper(setting)
        if plan.is_moved:
            Moving(setting)
        if plan.is_job:
            Boss(setting, SteppedRelay)
        for number in range(0 if plan.is_job else plan.producers):
            Producing(setting, (plan.tasks + number) // plan.producers)
        nemesis = Nemesis(setting)
        if plan.kind != "any" and seed % 3 == 0:
            Auditor(setting)
        world.run(plan.phase_s)
        healed_at = world.now
        if not world.violations:
            rest(world, setting, nemesis)
    recorder = setting.recorder
    return Result(
        seed,
        plan.kind,
        world.steps,
        world.faults,
        world.violations,
        len(recorder.rows),
        recorder.starts.total(),
        recorder.duplicate_starts,
        recorder.repaired,
        recorder.audits,
        world.now - healed_at,
        world.trace or [],
    )


def rest(world: World, setting: Setting, nemesis: Nemesis) -> None:
    """The second phase: no more faults; everything must become terminal within a bound, and nothing be left over."""
    world.heal()
    nemesis.heal()
    setting.supervisor.next_at = world.now
    setting.supervisor.strand.wake()
    recorder = setting.recorder
    times = world.plan.times
    bound_s = (
        2 * times.lease_s  # a lease that was just renewed, and the longest handler
        + 8 * times.beat_s  # two looks, three quiet beats, the brake
        + 4 * times.sweep_s
        + 3 * (times.marker_s + times.marker_grace_s)
        + 3 * (6.0 + times.lease_s * 1.2 + 1.5)  # retries and their runs
        + 15.0  # a relay's reservation
        + times.grace_s
        + (recorder.in_line() + recorder.limited() + recorder.subtasks())
        * (2 * times.lease_s + 2 * times.sweep_s + 20.0)  # one after the other
        + (3 * times.lease_s if world.plan.is_owned else 0.0)  # sessions of the dead
        + math.ceil(recorder.gone() / world.plan.limit) * 1.3 * times.sweep_s  # so many are reaped in a pass
    )
    world.run(world.now + bound_s, done=recorder.is_quiet)
    if world.violations:
        return
    if unsettled := recorder.unsettled():
        world.violated("I2", f"not terminal {bound_s:.0f} s after the heal: {unsettled}")
    elif leftovers := recorder.leftovers():
        world.violated("I11", f"left over {bound_s:.0f} s after the heal: {leftovers}")
    recorder.check_end()


def show(result: Result) -> str:
    """A failed run as people read it."""
    trace = "\n".join(result.trace[-4000:])
    return f"{trace}\n\nseed {result.seed} ({result.kind}): {'; '.join(result.violations)}\nreplay: {result.replay}"


_database: SimDatabase | None = None


def database() -> SimDatabase:
    """The one of this process: opened once, emptied for every seed."""
    global _database
    if _database is None:
        _database = SimDatabase()
    return _database


def check(seed: int, **given: Any) -> Result:
    """Run a seed; when it fails, run it again with its trace, and raise with that."""
    result = run(seed, database(), **given)
    if result.violations:
        raise AssertionError(show(run(seed, database(), is_traced=True, **given)))
    return result
