"""A process dies exactly at each named point of the protocol, once. Whatever it left half-done, the others finish.

Each point has a row: who dies there, how that is arranged, and what it may cost. Only one process dies: the first one
that reaches the point (`WORKQ_FAILPOINT_ONCE`); the file that it creates proves that the point was reached.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import psutil
import pytest

from tests.contract.given import chunks
from tests.system import workshop
from tests.system.conftest import OpenLeg
from tests.system.fleet import REPOSITORY, Fleet, wait_until
from tests.system.legs import Leg
from tests.system.test_lost_hints import sent_again
from tests.system.witness import make_book, read_book
from tests.unit.test_fallback_polling import OF_POLLING
from tests.zygote import FORKED_WITH, ran, zygote
from workq import State
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JOB_ENDED, JobState
from workq.limits.ledger.limits import Limits
from workq.schedules.ledger import Schedules
from workq.schedules.tick import tick
from workq.values.failpoints import POINTS
from workq.values.incarnation import Incarnation
from workq.values.task import HandedBack, Settlement

TASKS = 12
THREADS = 2

Act = Literal[
    "producer",
    "notes",
    "fails",
    "sweep",
    "ticks",
    "line",
    "in_order",
    "limited",
    "one_by_one",
    "parked",
    "reap",
    "reap_the_done",
    "child_dies",
    "delayed",
    "lost",
    "forgotten",
    "transfers",
    "moved",
    "mixed",
]


@dataclass(frozen=True)
class Row:
    """What happens at one point. `crashes`: how many attempts its death may be charged to, and so start again."""

    act: Act
    crashes: int = 0
    nth: int = 1
    legs: tuple[str, ...] = ("sqlite", "servers")


BY_OTHERS: tuple[Act, ...] = (
    "transfers",
    "sweep",
    "ticks",
    "line",
    "parked",
    "reap",
    "reap_the_done",
    "child_dies",
    "delayed",
    "lost",
    "moved",
)
"""Whoever repairs does the same on both legs, and so does a handler's transaction: it is the ledger's alone. A worker
does not: on SQLite hint and claim are one transaction."""

RAN = THREADS
"""What ran in a process that died. What had ended there and was not settled is settled in its place."""

ROWS = {
    "record.after_commit": Row("producer"),
    "relay.before_publish": Row("fails", crashes=TASKS),
    "relay.before_mark": Row("fails", crashes=TASKS),
    # the first pass of a process: nothing runs there yet, and nothing may be charged
    "worker.before_hold": Row("notes", legs=("servers",)),
    "worker.before_ack": Row("notes", legs=("servers",)),
    "worker.before_claim": Row("notes"),
    # whose turn it was is a row without a hint: the sweep relays it
    "worker.before_takeover": Row("one_by_one", crashes=RAN, nth=2, legs=("servers",)),
    # where all is one database, the hint leaves with the claim, or neither does
    "worker.before_commit": Row("notes", legs=("sqlite",)),
    # the supervisor's evidence says what had started: only that is charged, and runs again
    "worker.before_run": Row("notes", crashes=RAN, nth=3),
    "worker.after_run": Row("notes", crashes=RAN, nth=3),
    "settle.before_write": Row("notes", crashes=RAN, nth=2),
    "settle.before_release": Row("notes", crashes=RAN, nth=2),
    "settle.before_retry_hint": Row("fails", crashes=TASKS, nth=2),
    "settle.before_advance": Row("in_order", crashes=RAN, nth=2),
    "settle.before_admit": Row("limited", crashes=RAN, nth=2),
    "transaction.before_settle": Row("transfers", crashes=RAN, nth=3),
    "transaction.before_commit": Row("transfers", crashes=RAN, nth=3),
    # here its task has succeeded: whoever died is buried, and nothing runs again
    "transaction.after_commit": Row("transfers", crashes=RAN, nth=3),
    "beat.before_write": Row("notes", crashes=RAN),
    # what its worker does not have, whoever buries it returns, or a sweep sends its hint
    "beat.before_return": Row("forgotten", legs=("servers",)),
    "beat.before_hints": Row("forgotten", legs=("servers",)),
    # whoever sweeps dies; where it was the supervisor, its children drain and another fleet goes on
    "sweep.before_tick": Row("ticks"),
    "sweep.after_tick": Row("ticks"),
    "sweep.before_advance": Row("line"),
    "sweep.before_admit": Row("parked"),
    "sweep.before_relay": Row("sweep"),
    "sweep.before_promote": Row("delayed"),
    "sweep.before_settle": Row("reap_the_done", crashes=RAN),
    "sweep.before_reap": Row("reap", crashes=RAN),
    "sweep.before_unhint": Row("reap", crashes=RAN),
    "sweep.before_forget": Row("reap", crashes=RAN),
    "sweep.before_hints": Row("reap", crashes=RAN),
    "supervisor.before_reap": Row("child_dies", crashes=RAN),
    # all hints are lost, and whoever proves or repairs that dies
    "sweep.before_marker": Row("lost"),
    "worker.before_return": Row("lost"),
    "sweep.before_repair": Row("lost"),
    # of one call some hints have become rows, and the others are not published
    "later.before_publish": Row("mixed", legs=("servers",)),
    # a supervisor dies while it moves delayed hints from the ledger to RabbitMQ
    "move.before_publish": Row("moved", legs=("servers",)),
    "move.before_delete": Row("moved", legs=("servers",)),
    "move.after_delete": Row("moved", legs=("servers",)),
}


OF_JOBS = frozenset({"split.before_record", "split.after_record", "sweep.before_tend"})
"""A page of a job's source is read, and is recorded with the cursor behind it; what others have settled is counted."""


OF_STEPS = frozenset({"step.before_commit", "step.after_commit"})
"""A step of a partition: its writes, its cursor and its items are about to stand; they stand, and nobody knows it."""


OF_ABSENCE = frozenset({"watch.before_reap"})
"""A worker that is gone from every store is about to be ended early: tests/faults/test_absence.py."""


OF_INTAKES = frozenset({"intake.before_quarantine", "intake.before_record", "intake.after_record"})
"""Records of a broker are about to be set aside, recorded, let go: tests/contract/ways_in/suite.py."""


def test_every_point_has_its_row() -> None:
    assert set(ROWS) | OF_JOBS | OF_STEPS | OF_POLLING | OF_ABSENCE | OF_INTAKES == POINTS


@pytest.mark.one_leg
@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
@pytest.mark.parametrize("point", sorted(OF_STEPS))
def test_a_death_at_this_point_of_a_step_leaves_none_out_and_makes_none_twice(
    point: str, leg_name: str, open_leg: OpenLeg, tmp_path: Path
) -> None:
    leg = open_leg(leg_name, divide=10.0)
    once = tmp_path / "once"
    armed = {"WORKQ_FAILPOINT": f"{point}:exit137@4", "WORKQ_FAILPOINT_ONCE": str(once)}
    job = workshop.shelves_on(leg).run(shelves="abc", to=60, page=10, seconds=0.01, raises="")
    with leg.fleet(processes=2, threads=THREADS, environ=armed, app=workshop.APP):
        wait_until(once.exists, timeout_s=30, what=f"{point} was reached")
        wait_until(lambda: ends(leg, job.id), timeout_s=60, what="the job ends")
        leg.wait_settled(timeout_s=60)

    row = leg.app.stores.ledger.part(JobLedger).questions.job(job.id)
    assert row is not None
    assert (row.state, row.succeeded, row.split) == (JobState.SUCCEEDED, 180, 180)
    assert workshop.read_shelves(leg.app) == {(letter, number): 1 for letter in "abc" for number in range(60)}
    assert leg.app.stores.ledger.part(JobLedger).care.miscounts(job.id) == {}


@pytest.mark.one_leg
@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
@pytest.mark.parametrize("point", sorted(OF_JOBS))
def test_a_death_at_this_point_of_a_job_loses_nothing(
    point: str, leg_name: str, open_leg: OpenLeg, tmp_path: Path
) -> None:
    leg = open_leg(leg_name, divide=10.0)
    once = tmp_path / "once"
    armed = {"WORKQ_FAILPOINT": f"{point}:exit137@2", "WORKQ_FAILPOINT_ONCE": str(once)}
    ledger, stamp = leg.app.stores.ledger, workshop.on(leg, workshop.as_job)
    job = stamp.run(to=6_000)
    if point == "sweep.before_tend":
        page = chunks(TASKS, 1)
        assert ledger.part(JobLedger).jobs.split_job(job.id, page, after=0, cursor=TASKS, is_last=True).room is not None
        for one in page:
            ledger.decisions.cancel(one.task_id, who="ada", why="?")
        sweep_elsewhere(leg, armed | {"WORKQ_FAILPOINT": f"{point}:exit137"}, once)
    with leg.fleet(processes=2, threads=THREADS, environ=armed, app=workshop.APP):
        wait_until(once.exists, timeout_s=30, what=f"{point} was reached")
        wait_until(lambda: ends(leg, job.id), timeout_s=60, what="the job ends")
        leg.wait_settled(timeout_s=60)

    row = ledger.part(JobLedger).questions.job(job.id)
    assert row is not None
    if point == "sweep.before_tend":
        assert (row.state, row.cancelled, row.total) == (JobState.COMPLETED_WITH_FAILURES, TASKS, TASKS)
    else:
        assert (row.state, row.succeeded, row.subtasks) == (JobState.SUCCEEDED, 6_000, 60)
        assert sum(leg.states().values()) == 60 + 1 + 2, "its subtasks, its splitter, and what follows its end"
    assert ledger.part(JobLedger).care.miscounts(job.id) == {}


def ends(leg: Leg, job_id: str) -> bool:
    row = leg.app.stores.ledger.part(JobLedger).questions.job(job_id)
    return row is not None and row.state in JOB_ENDED


@pytest.mark.parametrize(
    ("point", "leg_name"),
    [
        pytest.param(point, leg, id=f"{point}-{leg}", marks=[pytest.mark.one_leg] if row.act in BY_OTHERS else [])
        for point, row in sorted(ROWS.items())
        for leg in row.legs
    ],
)
def test_a_death_at_this_point_loses_nothing(point: str, leg_name: str, open_leg: OpenLeg, tmp_path: Path) -> None:
    row = ROWS[point]
    leg = open_leg(leg_name, divide=10.0)
    once = tmp_path / "once"
    armed = {"WORKQ_FAILPOINT": f"{point}:exit137@{row.nth}", "WORKQ_FAILPOINT_ONCE": str(once)}

    count = play(row.act, leg, armed, once)

    assert once.exists(), f"{point} was never reached"
    check(leg, row, count)


def play(act: Act, leg: Leg, armed: dict[str, str], once: Path) -> int:
    """Let somebody die, then wait until every task is settled. Answers how many tasks there are."""
    match act:
        case "producer":
            assert enqueue_elsewhere(leg, armed) == 137
            wait_until(once.exists, timeout_s=10, what="the producer died")
            finish(leg)
            return TASKS
        case "notes":
            leg["note"].enqueue_many({"number": number, "seconds": 0.05} for number in range(TASKS))
            finish(leg, armed)
            return TASKS
        case "fails":
            leg["fail_until"].enqueue_many({"number": number, "attempts": 2} for number in range(TASKS))
            finish(leg, armed)
            return TASKS
        case "transfers":
            make_book(leg.app)
            leg["transfer"].enqueue_many({"number": number} for number in range(TASKS))
            finish(leg, armed)
            book = read_book(leg.app)
            assert (len(book), book.total()) == (2 * TASKS, 2 * TASKS), "each transfer happened once"
            return TASKS
        case "sweep" | "delayed":
            unhinted(leg, delay_s=2.0 if act == "delayed" else 0.0)
            with leg.fleet(processes=1, threads=THREADS, environ=armed) as fleet:
                wait_until(once.exists, timeout_s=30, what="the sweeping supervisor died")
                fleet.wait(10)
                finish(leg)
            return TASKS
        case "mixed":
            assert enqueue_elsewhere(leg, armed, MIXED) == 137
            finish(leg)
            return TASKS
        case "moved":
            for number in range(TASKS):
                leg["note"].options(delay_s=1.0 + 0.05 * number).enqueue(number=number)
            with leg.fleet(processes=1, threads=THREADS, environ=armed) as fleet:
                wait_until(once.exists, timeout_s=60, what="the supervisor that moves them died")
                fleet.wait(10)
            finish(leg)
            assert sent_again(leg) == 0, "nothing that was still a row was taken for lost"
            return TASKS
        case "ticks":
            for number in range(TASKS):
                leg.app.schedule(f"launch-{number}", leg["note"], kwargs={"number": number}, at=datetime.now(UTC))
            for given in leg.app.registry.schedules():
                leg.app.stores.ledger.part(Schedules).schedule(given)
            with leg.fleet(processes=1, threads=THREADS, environ=armed) as fleet:
                wait_until(once.exists, timeout_s=30, what="the sweeping supervisor died")
                fleet.wait(10)
            assert tick(leg.app.stores, leg.app.settings, limit=TASKS) >= TASKS - 1
            finish(leg)
            return TASKS
        case "in_order":
            for number in range(TASKS):
                leg["note"].options(order_key=f"k{number % 2}").enqueue(number=number, seconds=0.05)
            finish(leg, armed)
            return TASKS
        case "line":  # the first of a line is cancelled: only a sweep lets the next one go on
            ids = [leg["note"].options(order_key="k").enqueue(number=number).id for number in range(TASKS + 1)]
            leg.app.cancel(ids[0])
            with leg.fleet(processes=1, threads=THREADS, environ=armed) as fleet:
                wait_until(once.exists, timeout_s=30, what="the sweeping supervisor died")
                fleet.wait(10)
            finish(leg)
            assert (first := leg.app.get(ids[0])) is not None
            assert first.state is State.CANCELLED
            return TASKS
        case "limited" | "one_by_one":
            some = leg["note"].options(limit="some", concurrency=2 if act == "limited" else 1)
            some.enqueue_many({"number": number, "seconds": 0.05} for number in range(TASKS))
            finish(leg, armed)
            assert [row.parked for row in leg.app.stores.ledger.part(Limits).all()] == [0]
            return TASKS
        case "parked":  # who ran has ended, and nobody has told those who wait: only a sweep does
            park(leg)
            with leg.fleet(processes=1, threads=THREADS, environ=armed) as fleet:
                wait_until(once.exists, timeout_s=30, what="the sweeping supervisor died")
                fleet.wait(10)
            finish(leg)
            return TASKS
        case "lost":
            leg["note"].enqueue_many({"number": number, "seconds": 0.05} for number in range(TASKS))
            assert leg.app.producer.relay.flush(timeout_s=30)
            assert leg.lose_hints() == 1
            finish(leg, armed)
            return TASKS
        case "forgotten":  # as in a ledger that was restored: by its rows, a worker runs what it does not have
            ledger = leg.app.stores.ledger
            with leg.fleet(processes=1, threads=THREADS, environ=armed) as fleet:
                wait_until(lambda: bool(ledger.questions.workers()), timeout_s=30, what="a worker has joined")
                [worker] = ledger.questions.workers()
                assert len(ledger.claims.claim(unhinted(leg, delay_s=0.0), by=worker.id)) == TASKS
                leg_wait(leg, fleet, armed)
            return TASKS
        case "reap":
            leg["long_once"].enqueue_many({"number": number} for number in range(THREADS))
            leg["note"].enqueue_many({"number": number, "seconds": 0.05} for number in range(THREADS, TASKS))
            with leg.fleet(processes=1, threads=THREADS) as victim:
                wait_until(lambda: leg.states()[State.RUNNING] >= THREADS, timeout_s=30, what="tasks run")
                victim.kill()
            sweep_elsewhere(leg, armed, once)
            finish(leg)
            return TASKS
        case "reap_the_done":
            # so long that no third one is claimed ahead: presence is noted of all that was claimed
            leg["note"].enqueue_many({"number": number, "seconds": 0.5} for number in range(TASKS))
            with leg.fleet(
                processes=1, threads=THREADS, environ={"WORKQ_FAILPOINT": "settle.before_write:pause"}
            ) as victim:
                wait_until(
                    lambda: any(child.status() == psutil.STATUS_STOPPED for child in victim.children()),
                    timeout_s=30,
                    what="a task is done, and its process stops before it is settled",
                )
                victim.kill()
            sweep_elsewhere(leg, armed, once)
            finish(leg)
            return TASKS
        case "child_dies":
            leg["note"].enqueue_many({"number": number, "seconds": 0.5} for number in range(TASKS))
            with leg.fleet(processes=2, threads=THREADS, environ=armed) as fleet:
                wait_until(lambda: bool(leg.testimony()), timeout_s=30, what="tasks run")
                os.kill(leg.testimony()[0].pid, signal.SIGKILL)  # one that surely works, not one that still starts
                wait_until(once.exists, timeout_s=30, what="the supervisor died")
                fleet.wait(10)
                finish(leg)
            return TASKS


def finish(leg: Leg, armed: dict[str, str] | None = None) -> None:
    """A fleet works until everything is settled, and leaves in order. Where one of it is to die there is another."""
    with leg.fleet(processes=1 if armed is None else 2, threads=THREADS, environ=armed) as fleet:
        leg_wait(leg, fleet, armed)


def leg_wait(leg: Leg, fleet: Fleet, armed: dict[str, str] | None) -> None:
    if armed is not None:
        once = Path(armed["WORKQ_FAILPOINT_ONCE"])
        # whoever dies makes the file first, and then writes into it who it is
        wait_until(
            lambda: bool(once.exists() and once.read_text()),
            timeout_s=30,
            what=f"{armed['WORKQ_FAILPOINT']} was reached",
        )
        if once.read_text() == str(fleet.process.pid):  # it was the supervisor itself: another one goes on
            fleet.wait(10)
            finish(leg)
            return
        # or a death that is met while draining would be the supervisor's failure
        wait_until(lambda: "supervisor.child_died" in fleet.text(), timeout_s=30, what="its supervisor has seen it")
    leg.wait_settled(timeout_s=60)
    fleet.terminate()
    assert fleet.wait(20) == 0


ALIKE = """
from tests.system.witness import note
note.enqueue_many({"number": number} for number in range(TASKS))
"""
MIXED = """
from tests.system.witness import note, wq
options = [note.options(delay_s=number % 2 * 0.5)._options for number in range(TASKS)]
wq.producer.record([note.new_task(one, (number,), {}) for number, one in enumerate(options)])
wq.producer.relay.flush(timeout_s=30.0)
"""
"""Every other task is due at once."""


def enqueue_elsewhere(leg: Leg, armed: dict[str, str], code: str = ALIKE) -> int:
    """A process that records tasks, and dies between the commit and the hints."""
    environ = {**os.environ, **FORKED_WITH, **leg.environ, **armed}
    command = [sys.executable, "-c", f"TASKS = {TASKS}\n{code}"]
    return ran(command, env=environ, cwd=REPOSITORY, timeout_s=30).returncode


def unhinted(leg: Leg, *, delay_s: float) -> list[str]:
    """Tasks whose hints were never sent: as after a producer that died behind its commit."""
    handler = leg["note"]
    tasks = [handler.new_task(handler.options(delay_s=delay_s)._options, (number,), {}) for number in range(TASKS)]
    return [one.id for one in leg.app.stores.ledger.tasks.record(tasks)]


def park(leg: Leg) -> None:
    """One task was granted and handed back by a worker that is gone; all others wait for its place."""
    ledger, me = leg.app.stores.ledger, Incarnation("host.before", "host", 4711)
    one_at_once = leg["note"].options(limit="one", concurrency=1)
    ids = [one_at_once.enqueue(number=number).id for number in range(TASKS)]
    ledger.workers.join(me, queues=["witness"], threads=1)
    [claim] = ledger.claims.claim(ids, by=me.id)
    ledger.outcomes.settle([Settlement(claim, HandedBack())])
    ledger.workers.leave(me.id)


def sweep_elsewhere(leg: Leg, armed: dict[str, str], once: Path) -> None:
    """Sweeps of other processes, one pass each, until one has died."""

    def dies() -> bool:
        environ = {**os.environ, **FORKED_WITH, **leg.environ, **armed}
        sweep = ["sweep", "--app", "tests.system.witness:wq"]
        status, _, _ = zygote().run(sweep, cwd=REPOSITORY, env=environ, stdin=b"", timeout_s=60)
        assert status in (0, 137)
        return status == 137

    wait_until(dies, timeout_s=40, what="a sweep died")
    assert once.exists()


def check(leg: Leg, row: Row, count: int) -> None:
    """Nothing lost, each settled once, no more starts and charges than the row allows, and nothing is left over."""
    ledger = leg.app.stores.ledger
    tasks = [task for task in ledger.questions.tasks(limit=10 * TASKS) if task.state is not State.CANCELLED]
    assert [task.state for task in tasks] == [State.SUCCEEDED] * count
    lines = [line for line in leg.testimony() if line.what == "start"]
    attempts = [(line.task_id, line.attempt) for line in lines]
    assert len(set(attempts)) == len(attempts), "an attempt ran twice"
    assert {line.task_id for line in lines} == {task.id for task in tasks}
    for task in tasks:
        starts = sum(line.task_id == task.id for line in lines)
        assert starts <= 1 + leg.charges(task.id).total(), f"{task.id} started again, charged to nobody"
    charged = [leg.charges(task.id) for task in tasks]
    assert sum(one.total() - one["failure"] for one in charged) <= row.crashes
    assert [one for task in tasks for one in ledger.questions.history(task.id) if one.kind == "late_result"] == []
    wait_until(lambda: residue(leg) == [], timeout_s=30, what=f"at rest nothing is left: {residue(leg)}")


def residue(leg: Leg) -> list[str]:
    """What is left over at rest: holds, leases of the dead, live workers, hints."""
    stores = leg.app.stores
    left = [f"held: {hold}" for hold in stores.inflight.holds("witness")]
    live = {row.id for row in stores.ledger.questions.workers()}
    left += [f"lease: {worker}" for worker in stores.inflight.leases() if worker not in live]
    depth = stores.broker.depths(["witness"])["witness"]
    if depth.unacked:
        left.append(f"unacked: {depth.unacked}")
    return left
