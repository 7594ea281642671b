"""Worker processes that are killed, stopped, hung, interrupted or abandoned. Times are a tenth of the default ones.

The rows are those of the table of faults. In all of them nothing is lost, each task is settled once by its newest
attempt, and only what had started is charged.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from tests.system.fleet import ROOM_S, Fleet, wait_until
from tests.system.legs import Leg
from workq import State
from workq.lab import standstill
from workq.values.task import Task

pytestmark = pytest.mark.one_leg


def found(leg: Leg, task_id: str) -> Task:
    task = leg.app.get(task_id)
    assert task is not None
    return task


def wait_running(leg: Leg, count: int) -> None:
    """Handlers have really started, and are not over."""
    wait_until(
        lambda: sum(leg.starts().values()) >= count and leg.states()[State.RUNNING] >= count,
        timeout_s=30,
        what=f"{count} tasks run",
    )


def wait_children(fleet: Fleet, count: int) -> list[psutil.Process]:
    wait_until(lambda: len(fleet.children()) == count, timeout_s=20, what=f"{count} consumer processes")
    return fleet.children()


def wait_draining(fleet: Fleet) -> None:
    """The first signal has been understood: a second one before would be the same one."""
    wait_until(lambda: "supervisor.draining" in fleet.text(), timeout_s=10, what="it drains")


def kinds(leg: Leg, task_id: str) -> list[str]:
    return [event.kind for event in leg.app.stores.ledger.questions.history(task_id)]


def check_settled_once(leg: Leg, ids: Iterable[str]) -> None:
    """All succeeded, no attempt ran twice, nobody came late, and every other start was charged."""
    starts = [(line.task_id, line.attempt) for line in leg.testimony() if line.what == "start"]
    assert len(set(starts)) == len(starts), "an attempt ran twice"
    for task_id in ids:
        task = found(leg, task_id)
        assert task.state is State.SUCCEEDED
        assert sum(one == task_id for one, _ in starts) <= 1 + leg.charges(task_id).total()
        assert "late_result" not in kinds(leg, task_id)


def notes(leg: Leg, count: int, seconds: float) -> list[str]:
    leg["note"].enqueue_many({"number": number, "seconds": seconds} for number in range(count))
    return [task.id for task in leg.app.stores.ledger.questions.tasks(name="witness.note", limit=count)]


def test_consumers_killed_at_random_lose_nothing(fast_leg: Leg) -> None:
    """F5."""
    ids = notes(fast_leg, 120, 0.03)
    with fast_leg.fleet(processes=2, threads=2) as fleet:
        for turn in range(3):
            wait_until(lambda goal=turn * 25 + 10: len(fast_leg.starts()) > goal, timeout_s=40, what="progress")  # type: ignore[misc]  # a lambda's default has no type
            fleet.kill_one(turn)
        fast_leg.wait_settled(timeout_s=60)
    check_settled_once(fast_leg, ids)


def test_a_consumer_stopped_for_less_than_its_lease_is_not_noticed(fast_leg: Leg) -> None:
    """F9."""
    ids = notes(fast_leg, 6, 1.5)
    with fast_leg.fleet(processes=1, threads=2) as fleet:
        wait_running(fast_leg, 2)
        (child,) = wait_children(fleet, 1)
        standstill.stop(child)
        leases = fast_leg.app.stores.inflight.leases
        wait_until(lambda: all(lease.left_s < 2.0 for lease in leases().values()), timeout_s=10, what="the lease runs")
        child.resume()
        fast_leg.wait_settled(timeout_s=30)
        assert [one.pid for one in fleet.children()] == [child.pid]
    check_settled_once(fast_leg, ids)
    assert all(found(fast_leg, task_id).crashes == 0 for task_id in ids)


def test_a_consumer_stopped_for_longer_than_its_lease_comes_back_as_a_zombie_that_is_refused(fast_leg: Leg) -> None:
    """F10. Its supervisor is stopped, too: another one's sweep must see it."""
    task = fast_leg["note"].enqueue(1, 2.0)
    with fast_leg.fleet(processes=1, threads=1) as stopped:
        wait_running(fast_leg, 1)
        (zombie,) = wait_children(stopped, 1)
        supervisor = psutil.Process(stopped.process.pid)
        standstill.stop(supervisor)
        standstill.stop(zombie)
        with fast_leg.fleet(processes=1, threads=1) as other:
            fast_leg.wait_settled(timeout_s=40)
            winner = found(fast_leg, task.id)
            assert (winner.state, winner.attempt, winner.crashes) == (State.SUCCEEDED, 2, 0)
            assert fast_leg.charges(task.id) == {"presence": 1}
            zombie.resume()
            supervisor.resume()
            wait_until(lambda: "late_result" in kinds(fast_leg, task.id), timeout_s=30, what="the zombie settles late")
            wait_until(lambda: "exit status 75" in stopped.text(), timeout_s=30, what="the zombie leaves with 75")
            after = found(fast_leg, task.id)
            assert (after.state, after.attempt, after.worker) == (State.SUCCEEDED, 2, winner.worker)
            good = fast_leg["note"].enqueue(2)
            fast_leg.wait_settled(timeout_s=30)
            assert found(fast_leg, good.id).state is State.SUCCEEDED
            assert other.process.poll() is None
    late = [event for event in fast_leg.app.stores.ledger.questions.history(task.id) if event.kind == "late_result"]
    assert [event.attempt for event in late] == [1]


@pytest.mark.parametrize("wakes_first", ["supervisor", "consumers"])
def test_a_machine_that_was_stopped_and_wakes_repeats_no_more_than_its_threads_were_running(
    fast_leg: Leg, wakes_first: str
) -> None:
    """What had ended there stands on the board of its process, and is settled by whoever ends it."""
    ids = notes(fast_leg, 120, 0.05)
    with fast_leg.fleet(processes=2, threads=2) as stopped:
        wait_until(lambda: len(fast_leg.starts()) > 20, timeout_s=40, what="progress")
        machine = [psutil.Process(stopped.process.pid), *stopped.children()]
        for one in machine:
            standstill.stop(one)
        leases = fast_leg.app.stores.inflight.leases
        wait_until(lambda: all(lease.left_s < 0.0 for lease in leases().values()), timeout_s=60, what="all leases end")
        for one in machine if wakes_first == "supervisor" else machine[::-1]:
            with contextlib.suppress(psutil.NoSuchProcess):  # its supervisor, awake, has ended it
                one.resume()
        fast_leg.wait_settled(timeout_s=60)

    assert all(found(fast_leg, task_id).state is State.SUCCEEDED for task_id in ids)
    assert sum(count - 1 for count in fast_leg.starts().values()) <= 4


def test_a_drain_finishes_what_runs_and_hands_the_rest_back_at_no_cost(fast_leg: Leg) -> None:
    """F12."""
    ids = notes(fast_leg, 30, 1.0)
    with fast_leg.fleet(processes=1, threads=2) as fleet:
        wait_running(fast_leg, 2)
        fleet.terminate()
        assert fleet.wait(20) == 0
    tasks = [found(fast_leg, task_id) for task_id in ids]
    started = fast_leg.starts()
    assert all(task.state is State.SUCCEEDED for task in tasks if task.id in started)
    rest = [task for task in tasks if task.id not in started]
    assert len(rest) >= 20
    assert all((task.state, task.failures, task.crashes) == (State.READY, 0, 0) for task in rest)
    assert fast_leg.app.stores.inflight.holds("witness") == []
    assert fast_leg.app.stores.inflight.leases() == {}
    assert fast_leg.app.stores.ledger.questions.workers() == []
    assert "Traceback" not in fleet.text()


def test_a_drained_queue_ends_a_worker_that_was_asked_to_drain_it(fast_leg: Leg) -> None:
    ids = notes(fast_leg, 20, 0.01)
    with fast_leg.fleet(processes=2, threads=2, drain=True) as fleet:
        assert fleet.wait(40) == 0
    check_settled_once(fast_leg, ids)


@pytest.mark.parametrize("how", [["close_stdout", "close_stderr"], ["replace_streams"]], ids="-".join)
def test_a_handler_that_takes_away_the_streams_of_its_process_costs_the_drain_nothing(
    how: list[str], fast_leg: Leg
) -> None:
    ids = [fast_leg["misbehave"].enqueue(one).id for one in [*how, "memory"]] + [fast_leg["note"].enqueue(1).id]
    with fast_leg.fleet(processes=1, threads=1, drain=True) as fleet:
        assert fleet.wait(60) == 0

    states = [found(fast_leg, task_id).state for task_id in ids]
    assert states == [*[State.SUCCEEDED] * len(how), State.DEAD, State.SUCCEEDED]
    assert "child_died" not in fleet.text()
    assert "Fatal Python error" not in fleet.text()


def test_a_fleet_killed_in_the_middle_of_its_drain_loses_nothing(fast_leg: Leg) -> None:
    """F13."""
    ids = notes(fast_leg, 4, 2.0)
    with fast_leg.fleet(processes=1, threads=2) as fleet:
        wait_running(fast_leg, 2)
        fleet.terminate()
        wait_draining(fleet)
        fleet.kill()
    with fast_leg.fleet(processes=2, threads=2):
        fast_leg.wait_settled(timeout_s=60)
    check_settled_once(fast_leg, ids)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_a_second_signal_ends_at_once_and_hands_back_at_no_cost(
    number: signal.Signals, status: int, fast_leg: Leg
) -> None:
    """F14. A terminal's Ctrl-C reaches the whole group, again and again."""
    task = fast_leg["note"].enqueue(1, 60.0)
    with fast_leg.fleet(processes=2, threads=1) as fleet:
        wait_running(fast_leg, 1)
        os.killpg(fleet.process.pid, number)
        wait_draining(fleet)
        for _ in range(4):
            os.killpg(fleet.process.pid, number)
        assert fleet.wait(10) == status
        assert "Traceback" not in fleet.text()
    back = found(fast_leg, task.id)
    assert (back.state, back.failures, back.crashes) == (State.READY, 0, 0)


def test_an_interrupt_while_processes_are_starting_shows_no_traceback(fast_leg: Leg) -> None:
    with fast_leg.fleet(processes=2, threads=1) as fleet:
        wait_children(fleet, 2)
        os.killpg(fleet.process.pid, signal.SIGINT)
        assert fleet.wait(20) == 0
        assert "Traceback" not in fleet.text()


@pytest.mark.parametrize(
    ("how", "evidence"), [("kill", "killed by SIGKILL"), ("segfault", "killed by SIGSEGV"), ("_exit", "exit status 0")]
)
def test_a_task_that_kills_its_process_is_dead_in_the_end_and_harms_nobody_who_had_not_started(
    how: str, evidence: str, fast_leg: Leg
) -> None:
    """F15, F16, F19."""
    poison = fast_leg["misbehave"].enqueue(how)
    with fast_leg.fleet(processes=1, threads=1) as fleet:
        wait_until(lambda: fast_leg.starts()[poison.id] >= 1, timeout_s=30, what="the poison starts")
        ids = notes(fast_leg, 10, 0.0)
        fast_leg.wait_settled(timeout_s=60)
        assert evidence in fleet.text()
    task = found(fast_leg, poison.id)
    assert (task.state, task.reason, task.crashes, task.failures) == (State.DEAD, "worker_lost", 2, 0)
    assert fast_leg.starts()[poison.id] == 2
    assert task.error is not None
    assert evidence in task.error
    check_settled_once(fast_leg, ids)


def test_a_hung_task_is_a_failure_and_its_neighbours_are_not_charged(fast_leg: Leg) -> None:
    """F17."""
    with fast_leg.fleet(processes=1, threads=2) as fleet:
        neighbour = fast_leg["note"].enqueue(1, 2.5)
        wait_running(fast_leg, 1)
        hung = fast_leg["hard"].enqueue()
        wait_until(lambda: "task.hard_limit" in fleet.text(), timeout_s=30, what="it is killed at its hard limit")
        fast_leg.wait_settled(timeout_s=40)
        after = fast_leg["note"].enqueue(2)
        fast_leg.wait_settled(timeout_s=20)
    task = found(fast_leg, hung.id)
    assert (task.state, task.failures, task.crashes) == (State.DEAD, 1, 0)
    assert task.reason == "failures_max reached: time_limit"
    assert task.error is not None
    assert task.error.startswith("TimeLimit: ")
    beside = found(fast_leg, neighbour.id)
    assert (beside.state, beside.failures, beside.crashes) == (State.SUCCEEDED, 0, 0)
    assert found(fast_leg, after.id).state is State.SUCCEEDED


def test_a_task_that_holds_the_interpreter_for_longer_than_a_lease_keeps_it_and_runs_once(fast_leg: Leg) -> None:
    """F18: the supervisor, which runs no user code, keeps the lease."""
    task = fast_leg["hold_gil"].enqueue(4.0)
    with fast_leg.fleet(processes=1, threads=1), fast_leg.fleet(processes=1, threads=1):
        fast_leg.wait_settled(timeout_s=40)
    done = found(fast_leg, task.id)
    assert (done.state, done.attempt, done.crashes) == (State.SUCCEEDED, 1, 0)
    assert fast_leg.starts()[task.id] == 1
    assert kinds(fast_leg, task.id) == []


def test_a_process_whose_beat_thread_dies_leaves_and_is_replaced(fast_leg: Leg, tmp_path: Path) -> None:
    """F21."""
    ids = notes(fast_leg, 12, 0.3)
    once = tmp_path / "once"
    armed = {"WORKQ_FAILPOINT": "beat.before_write:raise@2", "WORKQ_FAILPOINT_ONCE": str(once)}
    with fast_leg.fleet(processes=1, threads=2, environ=armed) as fleet:
        wait_until(lambda: "exit status 70" in fleet.text(), timeout_s=30, what="it leaves with 70")
        fast_leg.wait_settled(timeout_s=40)
        assert [one.pid for one in fleet.children()] != [int(once.read_text())]
    check_settled_once(fast_leg, ids)


@pytest.mark.parametrize("place", ["worker.before_run", "worker.after_run"])
def test_a_thread_that_dies_gives_its_task_back_as_a_dead_process_does(
    fast_leg: Leg, tmp_path: Path, place: str
) -> None:
    """No handler can raise there; should something all the same, the process ends and is replaced."""
    ids = notes(fast_leg, 12, 0.1)
    once = tmp_path / "once"
    armed = {"WORKQ_FAILPOINT": f"{place}:raise@2", "WORKQ_FAILPOINT_ONCE": str(once)}
    with fast_leg.fleet(processes=1, threads=2, environ=armed) as fleet:
        wait_until(lambda: "supervisor.child_died" in fleet.text(), timeout_s=30, what="the process ends")
        fast_leg.wait_settled(timeout_s=40)
        assert [one.pid for one in fleet.children()] != [int(once.read_text())]
    assert fast_leg.states()[State.SUCCEEDED] == len(ids)
    assert max(fast_leg.starts().values()) <= 2


def test_everything_killed_and_started_again_goes_on(fast_leg: Leg) -> None:
    """F22. Nobody is left to reap at once: within a lease, two sweeps and two beats another fleet has it."""
    ids = notes(fast_leg, 24, 1.0)
    with fast_leg.fleet(processes=2, threads=2) as first:
        wait_running(fast_leg, 4)
        first.kill()
    with fast_leg.fleet(processes=2, threads=4):
        fast_leg.wait_settled(timeout_s=60)
    check_settled_once(fast_leg, ids)
    times = fast_leg.app.settings.times
    bound_s = times.lease_s + 2 * times.sweep_s + 2 * times.beat_s
    reaped = [row for row in fast_leg.app.stores.ledger.questions.workers(live_only=False) if row.state == "reaped"]
    assert len(reaped) == 2
    for row in reaped:
        assert row.ended_at is not None
        took_s = (row.ended_at - row.beat_at).total_seconds()
        assert took_s < bound_s + ROOM_S


def test_children_whose_supervisor_is_killed_drain_by_themselves(fast_leg: Leg) -> None:
    ids = notes(fast_leg, 16, 1.0)
    with fast_leg.fleet(processes=2, threads=2) as fleet:
        wait_running(fast_leg, 4)
        children = wait_children(fleet, 2)
        fleet.process.kill()
        _, alive = psutil.wait_procs(children, timeout=20)
        assert alive == []
    assert fast_leg.app.stores.ledger.questions.workers() == []
    assert fast_leg.app.stores.inflight.holds("witness") == []
    assert fast_leg.states()[State.RUNNING] == 0
    with fast_leg.fleet(processes=2, threads=4):
        fast_leg.wait_settled(timeout_s=60)
    check_settled_once(fast_leg, ids)
    assert set(fast_leg.starts().values()) == {1}
