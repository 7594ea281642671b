"""Workers die by SIGKILL, again and again: nothing is lost, and only what ran in a killed process starts twice."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from tests.system.conftest import OpenLeg
from tests.system.fleet import ROOM_S, Fleet, wait_until
from tests.system.legs import Leg
from tests.system.witness import tell
from workq import State


def check_nothing_lost(leg: Leg, count: int, killed: set[int]) -> int:
    """Every task succeeded, each settled once; whatever started twice had run in a killed process before."""
    assert leg.states()[State.SUCCEEDED] == count
    starts = [line for line in leg.testimony() if line.what == "start"]
    by_task: dict[str, list[tuple[int, int]]] = {}
    for line in starts:
        by_task.setdefault(line.task_id, []).append((line.attempt, line.pid))
    assert len(by_task) == count
    for task_id, lives in by_task.items():
        lives.sort()
        attempts = [attempt for attempt, _ in lives]
        assert len(set(attempts)) == len(attempts), f"an attempt of {task_id} ran twice: {lives}"
        assert all(pid in killed for _, pid in lives[:-1]), f"{task_id} started again without a killed process: {lives}"
    late = [
        one
        for task_id in by_task
        for one in leg.app.stores.ledger.questions.history(task_id)
        if one.kind == "late_result"
    ]
    assert late == []
    assert leg.untold() == [], "nobody has to guess what became of an attempt"
    return len(starts) - len(by_task)


def kill_every_second(fleet: Fleet, times: int) -> dict[int, datetime]:
    """kill -9 of one consumer process a second; which, and when."""
    killed: dict[int, datetime] = {}
    for turn in range(times):
        time.sleep(1.0)
        at = datetime.now(UTC)
        pid = fleet.kill_one(turn)
        if pid is not None:
            killed[pid] = at
    return killed


def recoveries_s(leg: Leg, killed: dict[int, datetime]) -> list[float]:
    """Seconds from each kill until the claims of that process were ended and its tasks free again."""
    ended = {row.pid: row.ended_at for row in leg.app.stores.ledger.questions.workers(live_only=False)}
    return [(at - killed[pid]).total_seconds() for pid, at in ended.items() if pid in killed and at is not None]


@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
def test_nothing_is_lost_while_a_worker_process_is_killed_every_second(
    leg_name: str, open_leg: OpenLeg, long_run: bool
) -> None:
    count, kills = (10_000, 20) if long_run else (1_500, 3)
    leg = open_leg(leg_name)
    with leg.fleet(processes=2, threads=4) as fleet:
        leg["note"].enqueue_many({"number": number, "seconds": 0.012} for number in range(count))
        wait_until(lambda: len(leg.testimony()) > 10, timeout_s=30, what="the first tasks start")

        killed = kill_every_second(fleet, kills)
        leg.wait_settled(timeout_s=120)
        # A drain in which a process dies has failed: what was killed last is replaced first.
        fleet.wait_whole(2, timeout_s=30)

        fleet.terminate()
        assert fleet.wait(40) == 0
    twice = check_nothing_lost(leg, count, set(killed))
    recovered = recoveries_s(leg, killed)
    print(
        f"{leg_name}: {count} tasks, {len(killed)} kills: 0 lost, {twice} started twice, "
        f"claims of a killed process ended within {max(recovered, default=0.0):.2f} s"
    )
    assert max(recovered, default=0.0) < 2.0


def test_a_whole_killed_fleet_is_recovered_by_another_within_its_bound(leg: Leg) -> None:
    """Nobody is left to reap at once; the kernel says that they are gone, so nobody waits for their leases."""
    with leg.fleet(processes=2, threads=4) as first:
        leg["until_told"].enqueue_many({"number": number} for number in range(8))
        wait_until(lambda: leg.states()[State.RUNNING] == 8, timeout_s=30, what="all run")
        killed = first.kill()
        at = time.monotonic()
        tell(leg.folder / "witness")
        with leg.fleet(processes=1, threads=8) as second:
            leg.wait_settled(timeout_s=60)
            took = time.monotonic() - at
            second.terminate()
            assert second.wait(40) == 0
    check_nothing_lost(leg, 8, set(killed))
    print(f"{leg.name}: a whole killed fleet was recovered in {took:.1f} s")
    assert took < 30.0 + ROOM_S
