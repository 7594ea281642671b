"""Who is cut off from the stores, and who is not."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from workq import Times
from workq.supervisor.child import CutoffWatch, Reach, WayToStores
from workq.worker.crash_board import CrashBoard

TIMES = Times()
LOOK_S = 0.5


class Machine:
    """A supervisor and one process, on one clock."""

    def __init__(self, board: CrashBoard) -> None:
        self.now = 1000.0
        self.board = board
        self.reach = Reach(TIMES, clock=lambda: self.now)
        self.watch = CutoffWatch(TIMES, clock=lambda: self.now)
        board.introduce("host.1.2.3")

    def live(
        self, seconds: float, *, process: bool = True, runs: bool = True, supervisor: bool = True, drains: bool = False
    ) -> float | None:
        """So much time passes: whether the process reaches the stores, its threads run, its supervisor reaches them."""
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            if process:
                self.board.reached(self.now)
            if runs:
                self.board.runs(self.now)
            for way in WayToStores:
                if supervisor:
                    self.reach.had(way)
                else:
                    self.reach.missed(way)
            found = self.watch.cut_off_s(self.board, self.reach, is_draining=drains)
            if found is not None:
                return found
        return None


@pytest.fixture
def machine() -> Iterator[Machine]:
    board = CrashBoard.create(lines=1)
    made = Machine(board)
    assert made.live(60) is None
    yield made
    board.remove()


def test_a_process_that_reaches_no_store_for_a_lease_and_a_call_is_cut_off(machine: Machine) -> None:
    found = machine.live(600, process=False)

    assert found == pytest.approx(TIMES.lease_s + TIMES.statement_s, abs=2 * LOOK_S)


def test_one_that_has_to_leave_is_cut_off_before_its_grace_is_over(machine: Machine) -> None:
    found = machine.live(600, process=False, drains=True)

    assert found is not None
    assert found < TIMES.grace_s


def test_nobody_is_cut_off_while_the_stores_are_away_for_the_supervisor_too(machine: Machine) -> None:
    assert machine.live(600, process=False, supervisor=False) is None
    assert machine.reach.since == math.inf


def test_when_the_stores_are_back_a_process_has_as_long_again_to_reach_them(machine: Machine) -> None:
    machine.live(600, process=False, supervisor=False)

    assert machine.live(TIMES.lease_s, process=False) is None
    assert machine.live(60) is None


def test_a_process_whose_threads_do_not_run_is_not_cut_off(machine: Machine) -> None:
    """Its handler holds the interpreter lock, or it is stopped."""
    assert machine.live(600, process=False, runs=False) is None
    assert machine.live(TIMES.lease_s, process=False) is None
    assert machine.live(60) is None
