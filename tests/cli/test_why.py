"""workq why: each reason of the closed list is forced once on the embedded queue; what differs is in tests/system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from tests.cli.conftest import Cli
from tests.contract.given import chunks, new_job
from tests.stores import database_of
from workq.app import WorkQueue
from workq.broker.embedded import EmbeddedBroker
from workq.broker.later import LedgerDelays
from workq.config import Settings
from workq.diagnose.doctor.check import Level
from workq.diagnose.doctor.work import examine as doctor_of_work
from workq.diagnose.why import why
from workq.diagnose.why.look import Code, Why
from workq.enqueue.producer import hints_beside
from workq.inflight import Entry
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.ledger.tables import job_tables
from workq.jobs.values import IfRunning, JobOptions
from workq.ledger.engine.states import SUSPECT
from workq.messages.ledger.sql import MessageLedger
from workq.messages.sender import MessageSender
from workq.messages.values import DestinationPolicy, NewDestination
from workq.values.codec import new_task_id
from workq.values.incarnation import Incarnation, this_machine
from workq.values.task import Cancelled, Claim, Dead, Done, Failed, NewTask, Outcome, Settlement
from workq.worker.attempt import prepare

UNKNOWN = "01932c07-a0b1-7c3d-8e4f-5a6b7c8d9e0f"


class Scene:
    """An embedded queue whose clock the test moves, with one worker of the queue `sums`."""

    def __init__(self, wq: WorkQueue) -> None:
        self.wq = wq
        self.stores = wq.stores
        self.ledger = wq.stores.ledger
        self.inflight = wq.stores.inflight
        self.database = database_of(wq)
        self.me = self.join("me")

    def join(self, name: str, queue: str = "sums", **facts: Any) -> Incarnation:
        one = Incarnation(f"host.{name}", "host", 4711, **facts)
        self.inflight.join(one.id, lease_s=30.0)
        self.ledger.workers.join(one, queues=[queue], threads=4)
        return one

    def forward(self, seconds: float) -> None:
        self.database.clock_offset_s += seconds

    def record(self, **options: Any) -> str:
        return str(self.wq.handler("shop.add").options(**options).enqueue(1).id)

    def record_unpublished(self) -> str:
        """By a producer that died between its commit and its hint."""
        task = NewTask(new_task_id(), "shop.add", "sums", '{"a":[1],"k":{}}')
        self.ledger.tasks.record([task])
        return task.id

    def suspect(self, *task_ids: str) -> None:
        """They were running when a process died."""
        t = self.database.tables.task
        change = update(t).where(t.c.id.in_(task_ids)).values(is_suspect=SUSPECT)
        self.database.run(lambda tx: tx.execute(change))

    def claim(self, task_id: str) -> Claim:
        (claim,) = self.ledger.claims.claim([task_id], by=self.me.id)
        return claim

    def settle(self, task_id: str, outcome: Outcome) -> None:
        self.ledger.outcomes.settle([Settlement(self.claim(task_id), outcome)])

    def hold(self, task_id: str, by: Incarnation) -> None:
        assert self.inflight.hold([Entry(task_id, "sums")], by=by.id) == {task_id}

    def drop_hints(self) -> None:
        """The broker is purged."""
        self.database.run(lambda tx: tx.execute(delete(self.database.tables.hint)))

    def why(self, task_id: str) -> Why:
        found = why(self.stores, self.wq.settings, task_id)
        assert found is not None
        assert found.task_id == task_id
        assert found.reason
        assert found.do
        return found

    def now(self) -> datetime:
        return self.ledger.questions.clock()


@pytest.fixture
def scene(cli: Cli) -> Iterator[Scene]:
    with cli.queue() as wq:
        yield Scene(wq)


def near(at: datetime | None, expected: datetime) -> bool:
    """The same instant, but for the time that a busy machine takes for a test."""
    return at is not None and abs((at - expected).total_seconds()) < 15.0


# -- it has ended


def test_a_settled_task_says_how_and_when(scene: Scene) -> None:
    done, dead = scene.record(), scene.record()
    scene.settle(done, Done("1"))
    scene.settle(dead, Dead("failures_max reached: ValueError", "no"))

    well, ill = scene.why(done), scene.why(dead)

    assert (well.code, ill.code) == (Code.SETTLED, Code.SETTLED)
    assert "it succeeded at" in well.reason
    assert "failures_max reached: ValueError" in ill.reason
    assert f"workq task retry {dead}" in ill.do
    assert near(well.since, scene.now())


def test_a_cancelled_task_says_why(scene: Scene) -> None:
    by_person, by_handler = scene.record(), scene.record()
    scene.ledger.decisions.cancel(by_person, who="ada", why="not needed")
    scene.settle(by_handler, Cancelled("withdrawn"))

    assert scene.why(by_person).code is scene.why(by_handler).code is Code.CANCELLED
    assert "not needed" in scene.why(by_person).reason
    assert "withdrawn" in scene.why(by_handler).reason


# -- it runs, or seems to


def test_a_running_task_names_its_worker_its_attempt_and_when_it_started(scene: Scene) -> None:
    task_id = scene.record()
    scene.settle(task_id, Failed(0.0, "once"))
    scene.claim(task_id)

    found = scene.why(task_id)

    assert found.code is Code.RUNNING
    assert scene.me.id in found.reason
    assert "attempt 2" in found.reason
    assert near(found.since, scene.now())


def test_a_running_task_that_was_asked_to_stop_says_so(scene: Scene) -> None:
    task_id = scene.record()
    scene.claim(task_id)
    scene.ledger.decisions.cancel(task_id, who="ada", why="enough")

    assert scene.why(task_id).code is Code.CANCEL_REQUESTED


def test_a_task_that_runs_under_a_worker_that_has_ended_says_that_the_sweep_returns_it(scene: Scene) -> None:
    task_id = scene.record()
    scene.claim(task_id)
    scene.ledger.workers.leave(scene.me.id)

    found = scene.why(task_id)

    assert found.code is Code.WORKER_GONE
    assert "has ended" in found.reason
    assert "workq sweep" in found.do


def test_a_worker_whose_process_is_gone_from_this_machine_is_gone_before_its_lease_ends(scene: Scene) -> None:
    task_id = scene.record()
    scene.me = scene.join("killed", machine=this_machine(), parent=1)
    scene.me = replace(scene.me, pid=2**22 + 1)  # above pid_max: nobody has it
    w = scene.database.tables.worker
    scene.database.run(lambda tx: tx.execute(update(w).where(w.c.id == scene.me.id).values(pid=scene.me.pid)))
    scene.claim(task_id)

    found = scene.why(task_id)

    assert found.code is Code.WORKER_GONE
    assert "gone from its host" in found.reason


def test_a_worker_without_lease_and_heartbeat_is_silent_whether_it_runs_or_holds_the_task(scene: Scene) -> None:
    running, held = scene.record(), scene.record()
    scene.claim(running)
    scene.hold(held, scene.me)
    scene.forward(10.0)
    assert (scene.why(running).code, scene.why(held).code) == (Code.RUNNING, Code.HELD), "the lease is not over"

    scene.forward(30.0)

    for task_id in (running, held):
        found = scene.why(task_id)
        assert found.code is Code.WORKER_SILENT
        assert "has not beaten for 4" in found.reason
        assert near(found.until, scene.now() + timedelta(seconds=45.0 - 40.0))


# -- its time has not come


def test_a_task_that_is_not_due_says_until_when(scene: Scene) -> None:
    later, failed = scene.record(delay_s=600.0), scene.record()
    scene.settle(failed, Failed(60.0, "once"))

    first, again = scene.why(later), scene.why(failed)

    assert first.code is again.code is Code.NOT_DUE
    assert "it is not due until" in first.reason
    assert "attempt 1 failed (1 of 5)" in again.reason
    assert near(first.until, scene.now() + timedelta(seconds=600.0))
    assert near(again.until, scene.now() + timedelta(seconds=60.0))


def test_a_task_of_a_paused_queue_says_who_paused_it_and_until_when(scene: Scene) -> None:
    task_id, later = scene.record(), scene.record(delay_s=600.0)
    scene.ledger.pauses.pause("sums", who="eve@host", why="the mail server moves", for_s=60.0)
    first, not_due = scene.why(task_id), scene.why(later)
    scene.ledger.pauses.pause("sums", who="eve@host", why="incident 42")
    then = scene.why(task_id)
    scene.ledger.pauses.resume("sums", who="eve@host", why="?")

    assert first.code is then.code is Code.PAUSED
    assert "eve@host paused queue 'sums' at" in first.reason
    assert first.reason.endswith(": the mail server moves")
    assert near(first.until, scene.now() + timedelta(seconds=60.0))
    assert "until somebody resumes it: incident 42" in then.reason
    assert then.until is None
    assert "workq queue resume sums" in then.do
    assert not_due.code is Code.NOT_DUE
    assert scene.why(task_id).code is not Code.PAUSED


def test_a_task_that_has_expired_says_that_the_sweep_cancels_it(scene: Scene) -> None:
    task_id = scene.record(expires_s=60.0)
    assert scene.why(task_id).code is not Code.EXPIRED
    scene.forward(61.0)

    first = scene.why(task_id)
    assert scene.ledger.upkeep.expire(limit=9) == 1
    then = scene.why(task_id)

    assert first.code is Code.EXPIRED
    assert "was not" in first.reason
    assert then.code is Code.CANCELLED
    assert "expired" in then.reason


def test_a_task_whose_handler_is_unknown_to_its_worker_says_so_and_what_becomes_of_it(scene: Scene) -> None:
    task_id = scene.record(failures_max=1)
    _, outcome = prepare(scene_claim := scene.claim(task_id), None, rng=Random(1), no_handler_wait_s=100.0)
    assert outcome is not None
    scene.ledger.outcomes.settle([Settlement(scene_claim, outcome)])

    waits = scene.why(task_id)
    scene.forward(101.0)
    scene.settle(task_id, outcome)
    dead = scene.why(task_id)

    assert waits.code is Code.NO_HANDLER
    assert "'shop.add'" in waits.reason
    assert scene.me.id in waits.reason
    assert "costs it nothing" in waits.reason
    assert "dead as no_handler" in waits.do
    assert near(waits.since, scene.now() - timedelta(seconds=101.0))
    assert dead.code is Code.SETTLED
    assert "no_handler" in dead.reason


def test_a_name_that_ends_as_another_that_the_worker_knows_says_so(scene: Scene) -> None:
    """A script run by its path, or a function that was moved."""
    task_id = scene.record(failures_max=1)
    claim = scene.claim(task_id)
    alike = ["pkg.shop.add"]
    _, outcome = prepare(claim, None, rng=Random(1), no_handler_wait_s=100.0, alike=alike)
    assert outcome is not None
    scene.ledger.outcomes.settle([Settlement(claim, outcome)])
    waits = scene.why(task_id)
    scene.forward(101.0)
    scene.settle(task_id, outcome)
    task = scene.ledger.questions.get(task_id)

    assert "end alike: pkg.shop.add" in waits.reason
    assert task is not None
    assert "end alike: pkg.shop.add" in str(task.error)


# -- somebody has it in hand


def test_a_task_that_is_held_names_its_holder_and_since_when(scene: Scene) -> None:
    task_id = scene.record()
    scene.hold(task_id, scene.me)

    found = scene.why(task_id)

    assert found.code is Code.HELD
    assert scene.me.id in found.reason
    assert near(found.since, scene.now())


def test_a_suspect_that_is_held_waits_until_its_process_is_idle(scene: Scene) -> None:
    task_id = scene.record()
    scene.suspect(task_id)
    scene.hold(task_id, scene.me)

    found = scene.why(task_id)

    assert found.code is Code.SUSPECT
    assert "runs alone" in found.reason


def test_a_suspect_that_nobody_has_in_hand_names_the_processes_that_it_waits_for(scene: Scene) -> None:
    busy, task_id = scene.record(), scene.record()
    scene.suspect(task_id)
    scene.claim(busy)

    first = scene.why(task_id)
    scene.join("empty")
    second = scene.why(task_id)
    scene.ledger.hints.rehinted([task_id], delay_s=60.0)
    handed_on = scene.why(task_id)

    assert first.code is second.code is handed_on.code is Code.SUSPECT
    assert "is suspected of having killed it" in first.reason
    assert "it waits until one of the 1 process of queue 'sums' is empty, and none is empty now" in first.reason
    assert f"worker {scene.me.id} (process 4711 on host) has 1 unsettled" in first.reason
    assert "1 process is empty" in second.reason
    assert "its hint comes again at" in handed_on.reason
    assert near(handed_on.until, scene.now() + timedelta(seconds=60.0))


def test_a_suspect_behind_others_says_what_it_waits_for_then(scene: Scene) -> None:
    scene.record()
    task_id = scene.record()
    scene.suspect(task_id)

    found = scene.why(task_id)

    assert found.code is Code.BEHIND
    assert "then it waits for a process that runs nothing else" in found.reason
    assert "suspected of having killed it" in found.reason


def test_a_suspect_that_runs_says_that_it_runs_alone(scene: Scene) -> None:
    task_id = scene.record()
    scene.suspect(task_id)
    scene.claim(task_id)

    found = scene.why(task_id)

    assert found.code is Code.RUNNING
    assert "alone there: it was running when a process died and is suspected" in found.reason


def test_a_suspect_that_is_claimed_waits_for_its_turn_and_runs_when_nothing_else_does(scene: Scene) -> None:
    task_id, neighbour, other = scene.record(), scene.record(), scene.record()
    scene.suspect(task_id, other)
    claim, beside = scene.claim(task_id), scene.claim(neighbour)
    in_company = scene.why(task_id)
    scene.ledger.outcomes.settle([Settlement(beside, Done())])
    alone = scene.why(task_id)
    scene.claim(other)
    in_turn = scene.why(task_id)

    assert in_company.code is Code.SUSPECT
    assert "it waits there for 1 other task to settle" in in_company.reason
    assert scene.why(neighbour).code is Code.SETTLED
    assert alone.code is Code.RUNNING
    assert in_turn.code is Code.SUSPECT
    assert "it takes turns there with 1 other suspect, one at a time" in in_turn.reason
    assert claim.is_suspect


def test_a_task_that_a_worker_held_which_has_ended_waits_for_the_sweep(scene: Scene) -> None:
    task_id, other = scene.record(), scene.join("other")
    scene.hold(task_id, other)
    scene.ledger.workers.leave(other.id)

    assert scene.why(task_id).code is Code.WORKER_GONE


# -- nobody has it


def test_a_queue_that_no_live_worker_serves_is_the_reason(scene: Scene) -> None:
    task_id = scene.record(queue="letters")
    found = scene.why(task_id)
    scene.join("postman", "letters")
    served = scene.why(task_id)
    scene.forward(31.0)
    silent = scene.why(task_id)

    assert found.code is Code.NO_WORKER
    assert "'letters'" in found.reason
    assert "--queues letters" in found.do
    assert served.code is not Code.NO_WORKER
    assert silent.code is Code.NO_WORKER
    assert "1 worker of it said nothing for a lease" in silent.reason


def test_a_task_without_a_confirmed_hint_says_since_when_and_who_publishes_it(scene: Scene) -> None:
    task_id = scene.record_unpublished()
    fresh = scene.why(task_id)
    scene.ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
    reserved = scene.why(task_id)
    scene.forward(20.0)
    overdue = scene.why(task_id)
    meta, now = scene.database.tables.meta, scene.database.now
    scene.database.run(lambda tx: tx.execute(insert(meta).values(name="swept", value="{}", at=now(-300.0))))
    unswept = scene.why(task_id)

    assert fresh.code is reserved.code is overdue.code is Code.UNPUBLISHED
    assert near(fresh.until, scene.now() - timedelta(seconds=20.0 - 17.0))
    assert "a relay is publishing it now" in reserved.reason
    assert "no sweep has published it" in overdue.reason
    assert overdue.until is None
    assert re.search(r"the last sweep, 3\d\d s ago, has not published it", unswept.reason)


def test_a_task_whose_hint_has_vanished_seems_lost_and_is_not_proved_to_be(scene: Scene) -> None:
    task_id = scene.record()
    scene.drop_hints()
    assert scene.why(task_id).code is Code.NEXT, "a hint may be on its way to a hold for a moment"

    scene.forward(6.0)
    scene.ledger.workers.beat(scene.me.id)
    found = scene.why(task_id)

    assert found.code is Code.LOST
    assert "not proved yet" in found.reason
    assert near(found.until, scene.now() + timedelta(seconds=70.0))


def test_a_hint_that_is_still_a_row_is_not_lost_and_why_and_doctor_say_where_it_is(scene: Scene) -> None:
    """As with a server and delays in rows: here an embedded broker stands behind the rows."""
    broker = LedgerDelays(EmbeddedBroker(scene.database), scene.database)
    scene.stores = replace(scene.stores, broker=broker, direct=None)
    task = NewTask(new_task_id(), "shop.add", "sums", '{"a":[1],"k":{}}', delay_s=5.0)
    hints = hints_beside(broker, [task.delay_s])
    assert hints is not None
    scene.ledger.tasks.record([task], hints=hints)
    assert scene.why(task.id).code is Code.NOT_DUE

    scene.forward(25.0)
    scene.ledger.workers.beat(scene.me.id)
    found = scene.why(task.id)
    checks = list(doctor_of_work(scene.ledger, Settings(broker="amqp://nowhere.invalid")))

    assert found.code is Code.DELAYED
    assert "is a row of the ledger, due since" in found.reason
    assert near(found.since, scene.now() - timedelta(seconds=20.0))
    told = re.compile(
        r"1 delayed hint should have gone to the broker: sums \(1, the oldest (\d+) s ago\); a worker lives"
    )
    [(level, late)] = [(one.level, answer[1]) for one in checks if (answer := told.search(one.message))]
    assert level is Level.WARNING
    assert int(late) >= 20, "the clock goes on"
    scene.drop_hints()
    assert scene.why(task.id).code is Code.LOST


@pytest.mark.parametrize(
    ("position", "seen"), [(None, "a marker that was sent after it came back at"), ("{}", "the broker was done at")]
)
def test_a_task_that_a_returned_marker_has_overtaken_is_proved_lost_until_its_new_hint_is_sent(
    scene: Scene, position: str | None, seen: str
) -> None:
    task_id, marker_id = scene.record(), new_task_id()
    scene.drop_hints()
    scene.forward(6.0)
    scene.ledger.markers.sent("sums", 0, marker_id, spacing_s=0.0, depth=0)
    if position is not None:
        scene.ledger.markers.placed(marker_id, position)
    out = scene.why(task_id)
    scene.ledger.markers.returned([marker_id])

    proved = scene.why(task_id)
    (marker,) = scene.ledger.markers.all()
    scene.ledger.markers.lost(marker, held=(), slack_s=2.0, limit=10)
    sent_again = scene.why(task_id)

    assert out.code is Code.LOST
    assert "not proved yet" in out.reason
    assert proved.code is Code.LOST
    assert seen in proved.reason
    assert near(proved.until, scene.now() + timedelta(seconds=40.0))
    assert sent_again.code is Code.UNPUBLISHED


def test_a_marker_whose_losses_were_all_sent_again_proves_no_more(scene: Scene) -> None:
    task_id, marker_id = scene.record(), new_task_id()
    scene.drop_hints()
    scene.forward(6.0)
    scene.ledger.markers.sent("sums", 0, marker_id, spacing_s=0.0, depth=0)
    scene.ledger.markers.returned([marker_id])
    (marker,) = scene.ledger.markers.all()
    scene.ledger.markers.closed(marker)  # it was held then, so it was not among them

    found = scene.why(task_id)

    assert found.code is Code.LOST
    assert "not proved yet" in found.reason


def test_a_marker_that_was_sent_before_the_hint_proves_nothing(scene: Scene) -> None:
    marker_id = new_task_id()
    scene.ledger.markers.sent("sums", 0, marker_id, spacing_s=0.0, depth=0)
    scene.ledger.markers.returned([marker_id])
    scene.forward(1.0)
    task_id = scene.record()
    scene.forward(10.0)
    scene.ledger.workers.beat(scene.me.id)

    assert scene.why(task_id).code is Code.NEXT


def test_a_task_whose_hint_was_sent_on_says_when_it_comes_again(scene: Scene) -> None:
    task_id = scene.record()
    scene.drop_hints()
    scene.ledger.hints.rehinted([task_id], delay_s=60.0)

    found = scene.why(task_id)

    assert found.code is Code.DELAYED
    assert near(found.until, scene.now() + timedelta(seconds=60.0))


def test_a_task_behind_others_says_how_many_and_the_first_is_next(scene: Scene) -> None:
    first, second, third = scene.record(), scene.record(), scene.record()
    scene.record(queue="letters")
    scene.record(delay_s=600.0)

    behind = scene.why(third)

    assert scene.why(first).code is Code.NEXT
    assert "1 older task " in scene.why(second).reason
    assert behind.code is Code.BEHIND
    assert "2 older tasks of queue 'sums' (3 hints of 'sums' in the broker), which 1 process with 4 threads" in (
        behind.reason
    )


def test_a_task_in_line_for_its_order_key_names_whose_turn_it_is_and_who_blocks_it(scene: Scene) -> None:
    first, second = scene.record(order_key="customer:7"), scene.record(order_key="customer:7")

    waits = scene.why(second)
    scene.settle(first, Dead("no", "no"))
    blocked = scene.why(second)

    assert scene.why(first).code is Code.SETTLED
    assert waits.code is blocked.code is Code.IN_LINE
    assert f"it is the turn of task {first} (ready)" in waits.reason
    assert f"task {first}, which comes before it in order key 'customer:7', died at" in blocked.reason


def test_a_task_over_its_limit_says_how_many_run_and_wait(scene: Scene) -> None:
    first, second, third = (scene.record(limit="mail", concurrency=1) for _ in range(3))
    scene.claim(first)
    assert scene.ledger.claims.claim([second, third], by=scene.me.id) == []

    found = scene.why(third)

    assert found.code is Code.LIMITED
    assert "limit 'mail' is reached: 1 task of it runs, 0 more are about to start, and 2 wait" in found.reason


def test_a_message_says_that_its_destination_rests_or_is_disabled(scene: Scene) -> None:
    part = scene.ledger.part(MessageLedger)
    part.destinations.add_destination(
        NewDestination("orders", "call", {}, None, DestinationPolicy()), who="eve@here", why="a test"
    )
    sent = MessageSender(scene.wq).send("orders", "hello")

    part.destinations.failed("orders", fault="away", error="no answer")
    rests = scene.why(sent.task_id)
    part.destinations.arrived("orders")
    well = scene.why(sent.task_id)
    part.decisions.disable("orders", who="eve@here", why="a move")
    disabled = scene.why(sent.task_id)

    assert rests.code is disabled.code is Code.DESTINATION
    assert well.code is Code.NO_WORKER
    assert "destination 'orders' rests until" in rests.reason
    assert "(away: no answer)" in rests.reason
    assert "eve@here disabled destination 'orders' at" in disabled.reason
    assert disabled.do.endswith("workq message destination enable orders")


def test_a_message_in_the_line_of_its_destination_says_what_it_waits_for(scene: Scene) -> None:
    part = scene.ledger.part(MessageLedger)
    part.destinations.add_destination(
        NewDestination("orders", "call", {}, None, DestinationPolicy(concurrency=9)), who="eve@here", why="a test"
    )
    first, second = MessageSender(scene.wq).send_many("orders", [{"body": "a"}, {"body": "b"}])
    part.destinations.failed("orders", fault="late", error="no confirm", asked_s=600.0)
    scene.ledger.claims.claim([first.task_id, second.task_id], by=scene.me.id)

    rests = scene.why(second.task_id)
    scene.forward(601.0)
    tried = scene.why(second.task_id)
    part.destinations.arrived("orders")
    comes = scene.why(second.task_id)

    assert rests.code is tried.code is comes.code is Code.DESTINATION
    assert "destination 'orders' rests until" in rests.reason
    assert "(late: no confirm), and is tried by one message at a time" in tried.reason
    assert comes.reason == "its turn in the line of destination 'orders' comes just now"


def test_the_first_of_its_order_key_may_wait_for_its_limit(scene: Scene) -> None:
    first = scene.record(limit="mail", concurrency=1)
    second = scene.record(limit="mail", concurrency=1, order_key="customer:7")
    scene.claim(first)
    assert scene.ledger.claims.claim([second], by=scene.me.id) == []

    assert scene.why(second).code is Code.LIMITED


def test_a_task_of_a_job_says_what_its_job_says(scene: Scene) -> None:
    ledger = scene.ledger
    who: dict[str, Any] = {"who": "eve@here", "why": "a move"}
    jobs = [new_job(JobOptions("sums"), if_running=IfRunning.QUEUE) for _ in range(2)]
    first, second = (job.id for job in jobs)
    for job in jobs:
        ledger.part(JobLedger).jobs.begin_job(job)
    page = chunks(3)
    ledger.part(JobLedger).jobs.split_job(first, page, after=0, cursor=30, is_last=False)
    ids = [one.task_id for one in page]

    queued = scene.why(jobs[1].splitter.id)
    ledger.part(JobLedger).decisions.throttle_job(first, rate_max=0.5, **who)
    assert len(ledger.claims.claim(ids, by=scene.me.id)) == 1
    paced = scene.why(ids[2])
    ledger.part(JobLedger).decisions.throttle_job(first, rate_max=None, **who)
    ledger.part(JobLedger).decisions.pause_job(first, **who)
    assert ledger.claims.claim(ids, by=scene.me.id) == []
    paused = scene.why(ids[2])
    scene.database.run(lambda tx: tx.execute(job_tables(scene.database).job.delete()))
    gone = scene.why(ids[2])

    assert [one.code for one in (queued, paced, paused, gone)] == [Code.JOB] * 4
    assert f"its job {second} begins when the one before it" in queued.reason
    assert f"its job {first} starts 0.5 items a second" in paced.reason
    assert f"eve@here paused its job {first}" in paused.reason
    assert "somebody has removed that job's row" in gone.reason
    assert gone.do.endswith(f"workq job resume {first}")


# -- the command


def test_the_command_prints_one_reason_and_one_document(cli: Cli) -> None:
    (task_id,) = cli.record("shop.add", 1)

    ran, document = cli("why", task_id), cli.look("why", task_id)

    assert ran.status == 0
    assert "code:   no_worker" in ran.out
    assert set(document) == {"task", "code", "reason", "since", "until", "do"}
    assert document["task"] == task_id
    assert document["code"] == "no_worker"
    assert document["until"] is None
    assert document["since"].endswith("Z")


def test_an_unknown_id_is_exit_1_and_no_id_at_all_is_exit_2(cli: Cli) -> None:
    cli.record("shop.add", 1)

    assert cli("why", UNKNOWN).status == 1
    assert "no task" in cli("why", UNKNOWN).err
    assert cli("why", "nonsense").status == 1
    assert cli("why", "two words").status == 2


def test_the_id_of_a_message_stands_for_the_task_that_sends_it(cli: Cli) -> None:
    assert cli.here("message", "destination", "add", "orders", "--kind", "call", "--handler", "shop.add").status == 0
    sent = cli.look("message", "send", "orders", "hello", "--id", "first")

    assert cli.look("why", "first") == cli.look("why", sent["task_id"])


def test_every_code_has_a_test_here_or_on_servers() -> None:
    text = "".join(
        (Path(__file__).parents[1] / place).read_text() for place in ("cli/test_why.py", "system/test_why.py")
    )
    assert [code for code in Code if f"Code.{code.name}" not in text] == []
