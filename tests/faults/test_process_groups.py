"""What a handler has started ends with its process, before the next attempt begins."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.test_task_behaviour import record, settled
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State

pytestmark = pytest.mark.one_leg

APP = "tests.faults.forking:wq"


def is_running(pid: int) -> bool:
    """Whether that process lives; one that nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Shells:
    """A leg whose tasks start programs, and those programs."""

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self.folder = Path(leg.environ["WITNESS"]).parent

    def start(self, how: str, *, handler: str = "shell") -> str:
        """Run the handler until its programs run; the task's id."""
        task_id = record(self.leg, name=f"forking.{handler}", payload=f'{{"a":["{how}"],"k":{{}}}}', failures_max=2)
        wait_until(lambda: self.leg.starts()[task_id] > 0, timeout_s=30, what="its programs run")
        return task_id

    def pids(self, how: str) -> list[int]:
        """The program in the group of its consumer process, and the one that has left it."""
        return [int(line) for line in (self.folder / f"witness.{how}").read_text(encoding="ascii").splitlines()]

    def said(self) -> dict[str, str]:
        """By way of ending: whether the programs of the first attempt ran when the second began."""
        lines = (self.folder / "witness.said").read_text(encoding="ascii").splitlines()
        return {how: saw for _, how, saw in (line.split(" ") for line in lines)}

    def kill(self) -> None:
        """End what is left."""
        for path in self.folder.glob("witness.*"):
            if path.suffix in (".limit", ".crash", ".cancel", ".grace", ".alone"):
                for pid in self.pids(path.suffix[1:]):
                    if is_running(pid):
                        psutil.Process(pid).kill()


@pytest.fixture
def shells(fast_leg: Leg) -> Iterator[Shells]:
    made = Shells(fast_leg)
    yield made
    made.kill()


def wait_ended(pids: list[int], *, timeout_s: float) -> None:
    wait_until(lambda: not any(map(is_running, pids)), timeout_s=timeout_s, what=f"{pids} have ended")


def test_what_a_handler_started_has_ended_before_its_next_attempt_begins(shells: Shells) -> None:
    with shells.leg.fleet(processes=1, threads=1, app=APP):
        limited = shells.start("limit", handler="limited")
        settled(shells.leg, limited, timeout_s=40)
        crashed = shells.start("crash")
        settled(shells.leg, crashed, timeout_s=40)
        cancelled = shells.start("cancel")
        shells.leg.app.cancel(cancelled, kill=True)
        assert settled(shells.leg, cancelled, timeout_s=40).state is State.CANCELLED
        wait_ended(shells.pids("cancel"), timeout_s=30)

    # behind a process that died by itself, what has left its group has no parent any more, and is not found
    assert shells.said() == {"limit": "ended,ended", "crash": "ended,runs"}


def test_what_a_handler_started_ends_at_the_end_of_the_grace(shells: Shells) -> None:
    with shells.leg.fleet(processes=1, threads=1, app=APP) as fleet:
        shells.start("grace")
        fleet.terminate()
        assert fleet.wait(40) == 1

        wait_ended(shells.pids("grace"), timeout_s=30)


def test_a_consumer_whose_supervisors_group_is_killed_ends_within_its_grace_with_all_that_it_started(
    shells: Shells,
) -> None:
    with shells.leg.fleet(processes=1, threads=1, app=APP) as fleet:
        shells.start("alone")
        [child] = fleet.children()
        os.killpg(fleet.process.pid, signal.SIGKILL)
        fleet.process.wait(10)

        grace_s = shells.leg.app.settings.times.grace_s
        wait_ended([child.pid, shells.pids("alone")[0]], timeout_s=grace_s + 30)
