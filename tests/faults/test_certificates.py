"""Each death leaves a certificate that is right, and says what it does not know; and only the guilty are charged.

Times are a tenth of the default ones. The kill for want of memory is a real one, by the kernel, in a control group with
a limit, where this machine lets us make one; elsewhere that test is skipped, and tests/unit/test_oom.py, which reads
the counters from files, is all there is.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.system.conftest import OpenLeg
from tests.system.fleet import Fleet, wait_until
from tests.system.legs import Leg
from workq import State
from workq.lab import standstill
from workq.supervisor.oom import MemoryGroup
from workq.values.certificate import Certificate, ProofOfEnd, Ran
from workq.values.task import Event, Task

pytestmark = pytest.mark.one_leg

MIB = 1 << 20


def found(leg: Leg, task_id: str) -> Task:
    task = leg.app.get(task_id)
    assert task is not None
    return task


def deaths(leg: Leg, task_id: str) -> list[Event]:
    """What history says about the ends of its workers."""
    return [event for event in leg.app.stores.ledger.questions.history(task_id) if event.kind == "reaped"]


def certificate(leg: Leg, event: Event) -> Certificate:
    """The certificate of the incarnation that a task lost."""
    assert event.worker is not None
    [row] = leg.app.stores.ledger.questions.workers(live_only=False, prefix=event.worker)
    assert row.certificate is not None
    return row.certificate


def ran(of: Certificate, task_id: str) -> Ran:
    [claim] = [one for one in of.claims if one.task_id == task_id]
    return claim


def wait_running(leg: Leg, count: int) -> None:
    wait_until(lambda: sum(leg.starts().values()) >= count, timeout_s=30, what=f"{count} tasks run")


def wait_children(fleet: Fleet, count: int) -> list[psutil.Process]:
    wait_until(lambda: len(fleet.children()) == count, timeout_s=20, what=f"{count} consumer processes")
    return fleet.children()


def check_alone(leg: Leg, task_id: str) -> None:
    """Whenever it ran after its first attempt, nothing else ran in its process: nothing began before, or after."""
    lines = leg.testimony()
    for at, line in enumerate(lines):
        if line.task_id == task_id and line.attempt > 1 and line.what == "start":
            begun = [one for one in lines[:at] if one.pid == line.pid and one.what == "start"]
            over = {(one.task_id, one.attempt) for one in lines[:at] if one.pid == line.pid and one.what == "end"}
            assert [one for one in begun if (one.task_id, one.attempt) not in over] == []
            mine = [one for one in lines[at + 1 :] if one.pid == line.pid]
            assert not mine or mine[0].what == "end", f"{mine[0]} began beside the suspect {line}"


# F15, F16, F19: it dies.


@pytest.mark.parametrize(
    ("how", "cause", "status", "name"),
    [
        ("segfault", "killed by SIGSEGV: a fault in native code, in the thread that ran {id}", None, "SIGSEGV"),
        ("kill", "killed by SIGKILL", None, "SIGKILL"),
        ("_exit", "exit status 0 without taking leave: something in it ended the process (os._exit)", 0, None),
    ],
    ids=["segfault", "kill", "exit"],
)
def test_a_poison_task_is_found_in_one_more_run_and_takes_nobody_along(
    how: str, cause: str, status: int | None, name: str | None, fast_leg: Leg
) -> None:
    """F15, F16, F19. It kills its process among three neighbours that run for long; nobody knows yet who it was."""
    leg = fast_leg
    with leg.fleet(processes=1, threads=4):
        neighbours = [leg["long_once"].enqueue(number).id for number in range(3)]
        wait_running(leg, 3)
        poison = leg["misbehave"].enqueue(how)
        leg.wait_settled(timeout_s=60)
        after = leg["note"].enqueue(9)
        leg.wait_settled(timeout_s=20)

    assert found(leg, after.id).state is State.SUCCEEDED
    task = found(leg, poison.id)
    assert (task.state, task.reason, task.crashes, task.failures) == (State.DEAD, "worker_lost", 2, 0)
    assert leg.starts()[poison.id] == 3, "once in company, and as often alone as its budget says"
    for neighbour in neighbours:
        assert (found(leg, neighbour).state, found(leg, neighbour).crashes) == (State.SUCCEEDED, 0)
        assert leg.starts()[neighbour] == 2
        check_alone(leg, neighbour)
    check_alone(leg, poison.id)

    first, second, third = deaths(leg, poison.id)
    assert [event.detail["charged"] for event in (first, second, third)] == ["suspicion", "crash", "crash"]
    for event in (first, second, third):
        of = certificate(leg, event)
        assert of.kind is ProofOfEnd.KILLED
        assert of.cause == event.detail["cause"]
        assert cause.format(id=poison.id) in of.cause
        assert (of.exit_status, of.signal) == (status, name)
        assert f"process {of.pid}: " in of.cause
        assert ran(of, poison.id).name == "witness.misbehave"
        assert ran(of, poison.id).started
        # the last look may have met a process that had just begun; the peak is of its whole life
        assert of.peak_bytes is not None
        assert of.peak_bytes > 10 * MIB
        assert of.memory_bytes is None or of.memory_bytes > MIB
    company = certificate(leg, first)
    charged = {one.task_id: one.charged for one in company.claims if one.started}
    assert charged == dict.fromkeys((*neighbours, poison.id), "suspicion")
    assert all(0.0 <= (one.ran_s or 0.0) < 60.0 for one in company.claims if one.started)
    if how == "segfault":
        assert company.unknown == ()
        assert "in misbehave" in (ran(company, poison.id).stack or "")
        assert "in misbehave" in first.detail["stack"]
        assert all(ran(company, one).stack is None for one in neighbours)
    else:
        assert "which of the attempts that had started it was" in company.unknown
    assert "which of the attempts that had started it was" not in certificate(leg, second).unknown


def test_a_process_that_is_killed_from_outside_says_so(fast_leg: Leg) -> None:
    leg = fast_leg
    with leg.fleet(processes=1, threads=1) as fleet:
        task = leg["note"].enqueue(1, 2.0)
        wait_running(leg, 1)
        assert fleet.kill_one() is not None
        leg.wait_settled(timeout_s=30)

    [event] = deaths(leg, task.id)
    of = certificate(leg, event)
    assert (of.kind, of.signal, of.exit_status) == (ProofOfEnd.KILLED, "SIGKILL", None)
    assert of.oom is not None
    if of.oom.group_kills is not None:
        assert of.oom.group_kills == 0
        assert "killed by SIGKILL from outside" in of.cause
        assert "who sent it" in of.unknown
    assert event.detail["charged"] == "crash"
    assert of.beat_age_s is not None


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """The folder of a new control group below our own that may use 400 MiB; what runs in it is ended with the test."""
    own = MemoryGroup.of_this_process()
    if own is None:
        pytest.skip("no memory control group can be read here")
    folder = own.limit.parent / f"workq-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (folder / own.limit.name).write_text(str(400 * MIB))
            (folder / own.kills[0].name).read_text()
        except OSError as error:
            pytest.skip(f"no limit can be set in a control group of ours: {error}")
        yield folder
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), timeout_s=20, what="the group is empty")
        folder.rmdir()


@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
def test_one_task_that_eats_all_memory_among_500_is_dead_and_harms_nobody(
    leg_name: str, open_leg: OpenLeg, memory_group: Path
) -> None:
    """F15, by the kernel's own hand: its process is killed for want of memory."""
    leg = open_leg(leg_name, divide=10.0)
    into_group = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(memory_group / "cgroup.procs"))
    leg["note"].enqueue_many({"number": number, "seconds": 0.05} for number in range(250))
    poison = leg["eat"].enqueue(2_000)
    leg["note"].enqueue_many({"number": number, "seconds": 0.05} for number in range(250, 499))
    with leg.fleet(processes=2, threads=4, prefix=into_group):
        leg.wait_settled(timeout_s=90)

    assert leg.states()[State.SUCCEEDED] == 499
    task = found(leg, poison.id)
    assert (task.state, task.reason, task.crashes, task.failures) == (State.DEAD, "worker_lost", 2, 0)
    assert "out of memory" in (task.error or "")
    others = [one for one in leg.app.stores.ledger.questions.tasks(limit=600) if one.id != poison.id]
    assert [one.id for one in others if one.crashes or one.failures] == []
    assert leg.starts()[poison.id] == leg.charges(poison.id).total() <= 3
    again = {one: count - 1 for one, count in leg.starts().items() if count > 1 and one != poison.id}
    ran_in: Counter[str] = Counter()
    for task_id, count in again.items():  # the kernel may kill both processes, before the memory of the first is free
        lost = [event for event in deaths(leg, task_id) if ran(certificate(leg, event), task_id).started]
        assert count <= len(lost), "each start but the first follows the death of a process in which it had started"
        assert all("killed by the kernel: out of memory" in certificate(leg, event).cause for event in lost)
        ran_in.update(event.worker or "" for event in lost)
    assert all(count <= 4 for count in ran_in.values()), f"no process has lost more than its threads ran: {ran_in}"
    check_alone(leg, poison.id)
    for event in deaths(leg, poison.id):
        of = certificate(leg, event)
        assert (of.kind, of.signal) == (ProofOfEnd.KILLED, "SIGKILL")
        assert "killed by the kernel: out of memory" in of.cause
        assert "of at most 400 MiB" in of.cause
        assert of.oom is not None
        assert of.oom.group_kills is not None
        assert of.oom.group_kills >= 1
        assert of.oom.limit_bytes == 400 * MIB
        assert event.detail["oom"]["group_kills"] == of.oom.group_kills
        assert of.memory_bytes is not None
        assert of.peak_bytes is not None
        assert 200 * MIB < of.peak_bytes <= 400 * MIB
        assert ran(of, poison.id).started
    cause = deaths(leg, poison.id)[-1].detail["cause"]
    print(f"{leg_name}: {len(again)} neighbours of {len(ran_in)} processes ran again; {cause}")


# F17, F18: it hangs.


@pytest.mark.parametrize("name", ["hard", "hard_gil"], ids=["sleeping", "holding_the_interpreter"])
def test_a_hung_task_leaves_the_stack_of_its_thread(name: str, fast_leg: Leg) -> None:
    """F17, F18: even while the handler holds the interpreter lock, so that no Python code can run in its process."""
    leg = fast_leg
    with leg.fleet(processes=1, threads=2):
        neighbour = leg["long_once"].enqueue(1).id
        wait_running(leg, 1)
        for _ in range(5):  # a machine under load may need longer for its answer than a supervisor waits
            hung = leg[name].enqueue()
            wait_until(lambda: deaths(leg, hung.id) != [], timeout_s=40, what="it is killed")  # noqa: B023
            if "stack" in deaths(leg, hung.id)[0].detail:
                break
        leg.wait_settled(timeout_s=40)

    task = found(leg, hung.id)
    assert (task.state, task.failures, task.crashes) == (State.DEAD, 1, 0)
    assert (found(leg, neighbour).crashes, found(leg, neighbour).failures) == (0, 0)
    [event] = deaths(leg, hung.id)
    of = certificate(leg, event)
    assert (of.kind, of.signal, of.stack_note, of.oom) == (ProofOfEnd.HARD_LIMIT, "SIGKILL", None, None)
    assert f"killed by its supervisor: task {hung.id} (attempt 1) exceeded its hard limit" in of.cause
    assert event.detail["charged"] == "failure"
    stack = ran(of, hung.id).stack
    assert stack == event.detail["stack"]
    assert stack is not None
    assert "witness.py" in stack.splitlines()[0]
    assert f"in {name}" in stack.splitlines()[0]
    beside = ran(of, neighbour)
    assert (beside.started, beside.charged, beside.stack) == (True, "nothing", None)


def test_a_stopped_process_gives_no_stack_and_its_certificate_says_so(fast_leg: Leg) -> None:
    leg = fast_leg
    with leg.fleet(processes=1, threads=1) as fleet:
        hung = leg["hard"].enqueue()
        wait_running(leg, 1)
        (child,) = wait_children(fleet, 1)
        standstill.stop(child)
        leg.wait_settled(timeout_s=40)

    [event] = deaths(leg, hung.id)
    of = certificate(leg, event)
    assert of.kind is ProofOfEnd.HARD_LIMIT
    assert of.stack_note == "it was stopped, and a stopped process gives no stacks"
    assert event.detail["stack_note"] == of.stack_note
    assert ran(of, hung.id).stack is None


@pytest.mark.parametrize("name", ["note", "hold_gil"], ids=["sleeping", "holding_the_interpreter"])
def test_what_does_not_end_within_the_grace_leaves_its_stack_and_costs_nothing(name: str, fast_leg: Leg) -> None:
    leg = fast_leg
    with leg.fleet(processes=1, threads=1) as fleet:
        task = leg[name].enqueue(*((1, 60.0) if name == "note" else (60.0,)))
        wait_running(leg, 1)
        fleet.terminate()
        assert fleet.wait(30) == 1

    [event] = deaths(leg, task.id)
    of = certificate(leg, event)
    assert of.kind is ProofOfEnd.SHUTDOWN
    assert "within the grace at shutdown" in of.cause
    assert (event.detail["charged"], found(leg, task.id).crashes) == ("nothing", 0)
    assert f"in {name}" in event.detail["stack"].splitlines()[0]


# Nobody saw it.


def test_what_nobody_saw_is_not_claimed_to_be_known(fast_leg: Leg) -> None:
    """The supervisor dies with its child: whoever sweeps finds out that they are gone, not how."""
    leg = fast_leg
    with leg.fleet(processes=1, threads=2) as first:
        ids = [leg["long_once"].enqueue(number).id for number in range(2)]
        wait_running(leg, 2)
        beats = leg.app.stores.ledger.questions.workers()
        wait_until(
            lambda: all(row.memory_bytes for row in leg.app.stores.ledger.questions.workers()),
            timeout_s=20,
            what="a beat",
        )
        first.kill()
    with leg.fleet(processes=1, threads=2):
        leg.wait_settled(timeout_s=40)

    assert len(beats) == 1
    for task_id in ids:
        [event] = deaths(leg, task_id)
        of = certificate(leg, event)
        assert of.kind in (ProofOfEnd.GONE, ProofOfEnd.LEASE)
        assert (of.signal, of.exit_status, of.oom) == (None, None, None)
        assert of.unknown != ()
        assert of.beat_memory_bytes is not None
        assert of.beat_memory_bytes > 10 * MIB
        assert event.detail["charged"] == "presence"


# Suspects, worker side.


@pytest.mark.parametrize(
    ("first", "name"), [("long_once", "note"), ("along_once", "anote")], ids=["threads", "coroutines"]
)
def test_suspects_run_one_after_the_other_and_alone_and_then_all_goes_on_as_usual(
    first: str, name: str, fast_leg: Leg
) -> None:
    leg = fast_leg
    with leg.fleet(processes=1, threads=4) as fleet:
        suspects = [leg[first].enqueue(number).id for number in range(3)]
        wait_running(leg, 3)
        fleet.kill_one()
        wait_until(lambda: len(deaths(leg, suspects[0])) == 1, timeout_s=20, what="it is reaped")
        others = [leg[name].enqueue(number, 0.2).id for number in range(10, 30)]
        leg.wait_settled(timeout_s=60)

    for task_id in (*suspects, *others):
        assert (found(leg, task_id).state, found(leg, task_id).crashes) == (State.SUCCEEDED, 0)
    for task_id in suspects:
        assert leg.starts()[task_id] == 2
        check_alone(leg, task_id)
    assert all(leg.starts()[task_id] == 1 for task_id in others)
    lines = [line for line in leg.testimony() if line.task_id in others]
    assert any(one.what == two.what == "start" for one, two in itertools.pairwise(lines)), "others in company"


def test_a_suspect_waits_for_what_runs_and_nothing_else_starts_beside_either(fast_leg: Leg) -> None:
    """Two processes, two suspects each: while one waits for a long task, others have what is left."""
    leg = fast_leg
    with leg.fleet(processes=2, threads=2) as fleet:
        suspects = [leg["long_once"].enqueue(number).id for number in range(4)]
        wait_running(leg, 4)
        for child in wait_children(fleet, 2):
            child.kill()
        wait_until(lambda: all(deaths(leg, one) for one in suspects), timeout_s=20, what="all are reaped")
        others = [leg["note"].enqueue(number, 0.3).id for number in range(20)]
        leg.wait_settled(timeout_s=60)

    for task_id in suspects:
        assert (found(leg, task_id).state, leg.starts()[task_id]) == (State.SUCCEEDED, 2)
        check_alone(leg, task_id)
    assert all(leg.starts()[task_id] == 1 for task_id in others)


def test_a_drain_hands_back_the_suspects_that_wait(fast_leg: Leg) -> None:
    leg = fast_leg
    with leg.fleet(processes=1, threads=4) as fleet:
        suspects = [leg["long_once"].enqueue(number).id for number in range(3)]
        wait_running(leg, 3)
        fleet.kill_one()
        wait_until(lambda: sum(leg.starts().values()) > 3, timeout_s=30, what="a suspect runs again")
        fleet.terminate()
        assert fleet.wait(30) == 0

    states = [found(leg, task_id).state for task_id in suspects]
    assert set(states) <= {State.SUCCEEDED, State.READY}
    assert State.READY in states
    assert all(found(leg, task_id).crashes == 0 for task_id in suspects)
    assert leg.app.stores.inflight.holds("witness") == []
    assert leg.app.stores.ledger.questions.workers() == []
