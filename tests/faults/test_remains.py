"""What a process of this machine had done and not settled is settled by any sweep there, whoever wakes, and when.

The workers here are processes that only exist: the test writes their boards for them, and kills or stops them.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.stores import database_of
from workq import State, WorkQueue
from workq.diagnose.meters import RestartCause, measure
from workq.lab import standstill
from workq.ledger.engine import migrate
from workq.recovery.apply import apply
from workq.recovery.plan import make
from workq.recovery.sweep import sweep
from workq.values.codec import new_task_id
from workq.values.incarnation import Incarnation, this_machine
from workq.values.task import Claim, Done, NewTask, OnCrash, Settlement
from workq.worker.crash_board import CrashBoard


class Machine:
    """An embedded queue, and one worker process of this machine with three claims: ended, running, only claimed."""

    def __init__(self, folder: Path, *, supervisor: int, on_crash: OnCrash = OnCrash.AGAIN) -> None:
        self.wq = WorkQueue(ledger=f"sqlite:///{folder / 'workq.db'}")
        self.ledger, self.database = self.wq.stores.ledger, database_of(self.wq)
        migrate.migrate(self.database)
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.me = Incarnation(f"host.{self.process.pid}.x", "host", self.process.pid, this_machine(), supervisor)
        self.wq.stores.inflight.join(self.me.id, lease_s=30.0)
        self.ledger.workers.join(self.me, queues=["default"], threads=1)
        tasks = [NewTask(new_task_id(), "note", "default", '{"a":[],"k":{}}', on_crash=on_crash) for _ in range(3)]
        ids = [one.id for one in self.ledger.tasks.record(tasks)]
        self.ended, self.running, self.claimed = self.ledger.claims.claim(ids, by=self.me.id)
        self.board = CrashBoard.create(lines=8)
        self.board.introduce(self.me.id)
        struct.pack_into("<I", self.board._map, 251, self.process.pid)
        for line, claim in enumerate((self.ended, self.running)):
            self.board.start(line, claim.task_id, claim.attempt, started_at=1.0, hard_at=0.0)
        self.board.ended(0, Settlement(self.ended, Done('"done"')))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.board.remove()
        self.wq.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        standstill.stop(psutil.Process(self.process.pid))

    def forward(self, seconds: float) -> None:
        self.database.clock_offset_s += seconds

    def let_its_lease_end(self) -> None:
        """Both looks of a sweep find it silent."""
        self.forward(31.0)
        sweep(self.wq.stores, self.wq.settings)
        self.forward(5.0)

    def states(self) -> list[State | None]:
        found = [self.ledger.questions.get(one.task_id) for one in (self.ended, self.running, self.claimed)]
        return [one.state if one is not None else None for one in found]

    def reaped(self, claim: Claim) -> dict[str, Any]:
        """What its end cost one claim."""
        [event] = [event for event in self.ledger.questions.history(claim.task_id) if event.kind == "reaped"]
        return event.detail

    def run_again(self) -> None:
        other = Incarnation("host.other", "host", 1)
        self.ledger.workers.join(other, queues=["default"], threads=1)
        claims = self.ledger.claims.claim([self.running.task_id, self.claimed.task_id], by=other.id)
        self.ledger.outcomes.settle([Settlement(one, Done("1")) for one in claims])


@pytest.fixture
def nobody() -> int:
    """The pid of a process that is gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Its supervisor lives: it may be stopped itself."""
    one = Machine(tmp_path, supervisor=psutil.Process().pid)
    yield one
    one.close()


@pytest.fixture
def orphaned(tmp_path: Path, nobody: int) -> Iterator[Machine]:
    """Its supervisor is gone."""
    one = Machine(tmp_path, supervisor=nobody)
    yield one
    one.close()


def test_what_had_ended_is_settled_before_a_silent_worker_of_this_machine_is_reaped(machine: Machine) -> None:
    """Its supervisor is stopped, and another one's sweep, or its own when it wakes, is faster than its look."""
    machine.kill()
    machine.let_its_lease_end()

    sweep(machine.wq.stores, machine.wq.settings)

    assert machine.states() == [State.SUCCEEDED, State.READY, State.READY]
    running, claimed = machine.reaped(machine.running), machine.reaped(machine.claimed)
    assert (running["kind"], running["started"], running["charged"]) == ("lease", True, "presence")
    assert (claimed["started"], claimed["charged"]) == (False, "nothing")
    assert CrashBoard.of(machine.me.id) is not None, "its supervisor lives, and finds it when it wakes"


def test_what_had_ended_is_settled_before_a_stopped_worker_of_this_machine_is_reaped(machine: Machine) -> None:
    machine.stop()
    machine.let_its_lease_end()

    sweep(machine.wq.stores, machine.wq.settings)

    assert machine.states() == [State.SUCCEEDED, State.READY, State.READY]
    late = [Settlement(machine.ended, Done('"done"')), Settlement(machine.running, Done("2"))]
    assert [one.state for one in machine.ledger.outcomes.settle(late)] == [State.SUCCEEDED, None], (
        "it wakes, and settles, too"
    )


def test_what_lives_and_is_only_slow_is_left_to_settle_by_itself(machine: Machine) -> None:
    machine.let_its_lease_end()

    sweep(machine.wq.stores, machine.wq.settings)

    assert machine.states() == [State.READY] * 3, "its board may change at any moment"


def test_a_plan_that_is_applied_settles_what_had_ended_first(orphaned: Machine) -> None:
    orphaned.kill()
    stores, settings = orphaned.wq.stores, orphaned.wq.settings
    plan = make(stores, settings)

    done = apply(stores, settings, plan, plan_digest="d")

    assert (done.applied["reap"], done.refused) == (1, [])
    assert orphaned.states() == [State.SUCCEEDED, State.READY, State.READY]
    assert orphaned.reaped(orphaned.claimed)["charged"] == "nothing"


@pytest.mark.parametrize("fate", ["kill", "stop"])
def test_the_meters_count_what_had_begun_and_tell_what_nobody_saw(machine: Machine, fate: str) -> None:
    getattr(machine, fate)()
    machine.let_its_lease_end()
    sweep(machine.wq.stores, machine.wq.settings)
    machine.run_again()

    found = measure(machine.ledger, machine.wq.settings.times, within_s=3600.0)

    if fate == "kill":
        assert (found.duplicates, found.assumed, found.starts) == ({RestartCause.LEASE: 1}, 0, 4)
    else:
        assert (found.duplicates, found.assumed) == ({RestartCause.LEASE: 2}, 2), "a stopped process may go on"
        machine.ledger.outcomes.settle([Settlement(machine.running, Done("late"))])
        assert measure(machine.ledger, machine.wq.settings.times, within_s=3600.0).assumed == 1


def test_of_a_machine_that_was_killed_and_started_again_only_what_had_begun_counts_twice(orphaned: Machine) -> None:
    orphaned.kill()

    sweep(orphaned.wq.stores, orphaned.wq.settings)
    orphaned.run_again()

    found = measure(orphaned.ledger, orphaned.wq.settings.times, within_s=3600.0)
    assert (found.duplicates, found.assumed, found.starts) == ({RestartCause.GONE: 1}, 0, 4)
    assert CrashBoard.of(orphaned.me.id) is None
