"""The same worlds, driven by Hypothesis: where something fails, it looks for the shortest way there.

Nothing befalls these worlds by chance. Each rule is one thing that happens: time passes, the next call of a store fails
in some way, a store or a process is struck, somebody enqueues. At the end all heals, and all must come to rest.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.simulation.later import Moving
from tests.simulation.processes import Nemesis, Producing, Setting, Supervisor, Sweeper
from tests.simulation.run import database, inside, rest
from tests.simulation.world import Plan, World

BLOWS = ("purge", "purge_ladder", "delete_queue", "wipe_broker", "cut", "redis_wipe", "redis_back", "broker_back")
OTHERS = ("repeat_hint", "forge", "stop", "person", "clock", "part", "pause_queue")
CALLS = ("slow", "pause", "crash_before", "crash_after", "fail_before", "fail_after", "repeat", "down")


class SmallWorld(RuleBasedStateMachine):
    """Few tasks, two workers, one sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()

    @initialize(seed=st.integers(0, 7), is_supervised=st.booleans())
    def begin(self, seed: int, is_supervised: bool) -> None:
        plan = replace(
            Plan.of(seed),
            kind="any",
            workers=2,
            sweepers=1,
            rate=0.0,
            nemeses=(),
            is_supervised=is_supervised,
            limit=2,
            every_s=None,
        )
        self.world = World(seed, plan, is_traced=True)
        database().begin_run(self.world)
        self.stack.enter_context(inside(self.world))
        self.setting = Setting(self.world, database())
        Supervisor(self.setting)
        Sweeper(self.setting)
        if plan.is_moved:
            Moving(self.setting)
        self.nemesis = Nemesis(self.setting)
        self.advance(1.0)

    @rule(count=st.integers(1, 3))
    def enqueue(self, count: int) -> None:
        Producing(self.setting, count).strand.wake()
        self.advance(0.0)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.5, 3.0, 20.0, 60.0]))
    def advance(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    @rule(kind=st.sampled_from(CALLS), seconds=st.sampled_from([0.01, 1.0, 10.0]))
    def something_befalls_the_next_call(self, kind: str, seconds: float) -> None:
        self.world.forced.append(kind)
        self.advance(seconds)

    @rule(which=st.sampled_from(BLOWS + OTHERS))
    def strike(self, which: str) -> None:
        self.nemesis.strike(which, self.world.rng)

    @invariant()
    def all_invariants_hold(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.violations, "\n".join([*(self.world.trace or []), *self.world.violations])

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.forced.clear()
            if not self.world.violations:
                rest(self.world, self.setting, self.nemesis)
        self.stack.close()
        if hasattr(self, "world"):
            assert not self.world.violations, "\n".join([*(self.world.trace or []), *self.world.violations])


TestSmallWorld = SmallWorld.TestCase
TestSmallWorld.settings = settings(
    max_examples=12,  # `make simulate` has thousands of larger worlds
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
