"""The supervisor's one look at one of its processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workq import LedgerUnavailable, Times, WorkQueue
from workq.supervisor.child import Child, CutoffWatch
from workq.supervisor.supervisor import Supervisor
from workq.worker import readiness
from workq.worker.crash_board import CrashBoard
from workq.worker.stacks import Stacks

TASK = "01890000-0000-7000-8000-000000000001"


@pytest.fixture
def dying() -> Iterator[Child]:
    """A process that was killed, and that nobody has waited for yet."""
    board = CrashBoard.create(lines=1)
    board.introduce("host.1.2.3")
    board.start(0, TASK, 1, started_at=time.monotonic() - 2.0, hard_at=time.monotonic() - 1.0)
    stacks = Stacks.create()
    with subprocess.Popen(["sleep", "60"]) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield Child(process, board, stacks, started_at=0.0, extended_at=time.monotonic(), watch=CutoffWatch(Times()))
    board.remove()
    stacks.remove()


@pytest.mark.parametrize("why", ["overdue", "condemned"])
def test_who_was_killed_is_not_asked_again_for_its_stacks_while_it_dies(dying: Child, tmp_path: Path, why: str) -> None:
    """It dies of what was seen then; what comes later would say that it was stopped, and gave none."""
    setattr(dying, why, dying.board.started())
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/ledger.db") as app:
        watching = Supervisor(app, app_path="shop:wq", queues=["default"], processes=1, threads=1)

        watching._watch(dying, time.monotonic())

    assert dying.stack_note is None
    assert (dying.overdue or dying.condemned)[0].task_id == TASK


def test_a_child_is_offered_to_the_kernel_before_its_supervisor_from_its_begin_on(tmp_path: Path) -> None:
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/ledger.db") as app:
        child = Supervisor(app, app_path="shop:wq", queues=["default"], processes=1, threads=1)._spawn()
        with child.process as process:
            its = int(Path(f"/proc/{process.pid}/oom_score_adj").read_text())
            process.kill()
        child.board.remove()
        child.stacks.remove()

    assert its == min(1000, int(Path("/proc/self/oom_score_adj").read_text()) + 200)


def test_one_that_only_drains_waits_for_its_servers_no_longer_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "DRAIN_WAIT_S", 0.5)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        app = WorkQueue(ledger=f"postgresql://ann@127.0.0.1:{taken.getsockname()[1]}/shop")
        draining = Supervisor(app, app_path="shop:wq", queues=["default"], processes=1, threads=1, is_drain=True)
        began = time.monotonic()
        try:
            with pytest.raises(LedgerUnavailable, match="refused"):
                draining.run()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    assert time.monotonic() - began >= 0.5
