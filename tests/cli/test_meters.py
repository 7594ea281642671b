"""workq meters: each cause of a second start is counted as itself, and nothing else is counted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from operator import methodcaller
from typing import Any

import pytest
from sqlalchemy import insert, update

from tests.cli.conftest import Cli
from tests.stores import database_of
from workq.app import WorkQueue
from workq.cli.meters import document
from workq.diagnose.doctor import work
from workq.diagnose.meters import _SEEN, Meters, RestartCause, Spread, measure
from workq.ledger import Evidence
from workq.values import codec
from workq.values.certificate import DeathFacts, ProofOfEnd
from workq.values.codec import new_task_id
from workq.values.incarnation import Incarnation
from workq.values.task import Cancelled, Claim, Dead, Done, Failed, NewTask, Outcome, Settlement

DAY_S = 86400.0


class Scene:
    """An embedded ledger whose clock the test moves."""

    def __init__(self, wq: WorkQueue) -> None:
        self.wq = wq
        self.ledger = wq.stores.ledger
        self.database = database_of(wq)
        self.count = 0

    def join(self) -> str:
        self.count += 1
        worker = Incarnation(f"host.{self.count}", "host", self.count)
        self.ledger.workers.join(worker, queues=["sums"], threads=4)
        return worker.id

    def record(self) -> str:
        task = NewTask(new_task_id(), "shop.add", "sums", '{"a":[1],"k":{}}')
        self.ledger.tasks.record([task])
        return task.id

    def claim(self, task_id: str, by: str | None = None) -> Claim:
        (claim,) = self.ledger.claims.claim([task_id], by=by or self.join())
        return claim

    def settle(self, claim: Claim, outcome: Outcome | None = None) -> None:
        self.ledger.outcomes.settle([Settlement(claim, outcome or Done("1"))])

    def die(self, kind: ProofOfEnd, *, started: bool = True, again: bool = True, **facts: Any) -> Claim:
        """A worker dies with one claim; then the task runs again, to its end."""
        worker = self.join()
        claim = self.claim(self.record(), by=worker)
        evidence = Evidence(
            "it died", {claim.task_id: 1} if started else {}, None, kind, DeathFacts(**facts) if facts else DeathFacts()
        )
        assert self.ledger.workers.reap(worker, evidence) is not None
        if again:
            self.settle(self.claim(claim.task_id))
        return claim

    def measure(self, within_s: float = DAY_S) -> Meters:
        return measure(self.ledger, self.wq.settings.times, within_s=within_s)

    def forward(self, seconds: float) -> None:
        self.database.clock_offset_s += seconds


@pytest.fixture
def scene(cli: Cli) -> Iterator[Scene]:
    with cli.queue() as wq:
        yield Scene(wq)


@pytest.mark.parametrize(
    "kind",
    [
        ProofOfEnd.KILLED,
        ProofOfEnd.HARD_LIMIT,
        ProofOfEnd.CANCEL,
        ProofOfEnd.SHUTDOWN,
        ProofOfEnd.GONE,
        ProofOfEnd.LEASE,
        ProofOfEnd.REDIS_LOSS,
        ProofOfEnd.ORPHAN,
    ],
)
def test_an_attempt_that_had_started_and_died_is_counted_once_under_its_cause(scene: Scene, kind: ProofOfEnd) -> None:
    scene.die(kind)

    found = scene.measure()

    assert found.duplicates == {RestartCause(kind.value): 1}
    assert found.starts == 2
    assert found.duplicates_per_million == 500_000.0


def test_every_way_to_die_that_is_recorded_is_a_cause() -> None:
    assert {kind.value for kind in ProofOfEnd} <= {cause.value for cause in RestartCause}


def test_what_had_not_started_or_did_not_start_again_is_no_duplicate(scene: Scene) -> None:
    scene.die(ProofOfEnd.KILLED, started=False)
    scene.die(ProofOfEnd.KILLED, again=False)
    claim = scene.die(ProofOfEnd.KILLED, again=False)
    scene.ledger.decisions.cancel(claim.task_id, who="ada", why="enough")

    found = scene.measure()

    assert found.duplicates == {}
    assert found.starts == 3, "one success, and two that were killed"


def test_what_ran_at_a_shutdown_counts_though_nobody_is_charged(scene: Scene) -> None:
    scene.die(ProofOfEnd.SHUTDOWN, started=False)
    worker = scene.join()
    claim = scene.claim(scene.record(), by=worker)
    evidence = Evidence("the end", {}, None, ProofOfEnd.SHUTDOWN, DeathFacts(ran_s={claim.task_id: 1.0}))
    scene.ledger.workers.reap(worker, evidence)
    scene.settle(scene.claim(claim.task_id))

    assert scene.measure().duplicates == {RestartCause.SHUTDOWN: 1}


def test_a_retry_after_a_failure_is_no_duplicate(scene: Scene) -> None:
    task_id = scene.record()
    scene.settle(scene.claim(task_id), Failed(0.0, "once"))
    scene.settle(scene.claim(task_id))
    scene.settle(scene.claim(scene.record()), Cancelled("by itself"))
    scene.claim(scene.record())

    found = scene.measure()

    assert found.duplicates == {}
    assert found.starts == 4, "two, one that cancelled itself, and one that runs"


def test_a_task_that_dies_twice_counts_twice_and_one_that_runs_again_counts(scene: Scene) -> None:
    claim = scene.die(ProofOfEnd.KILLED, again=False)
    worker = scene.join()
    scene.claim(claim.task_id, by=worker)
    scene.ledger.workers.reap(worker, Evidence("again", None, None, ProofOfEnd.LEASE))
    assert scene.measure().duplicates == {RestartCause.KILLED: 1}, "the second was not started again yet"

    scene.claim(claim.task_id)

    assert scene.measure().duplicates == {RestartCause.KILLED: 1, RestartCause.LEASE: 1}


def test_a_revived_task_that_had_run_before_is_a_replay_and_one_that_had_not_is_none(scene: Scene) -> None:
    ran, never, waits = scene.record(), scene.record(), scene.record()
    for task_id in (ran, waits):
        scene.settle(scene.claim(task_id), Dead("failures_max reached", "no"))
    scene.ledger.decisions.cancel(never, who="ada", why="not yet")
    scene.forward(1.0)
    for task_id in (ran, never, waits):
        scene.ledger.decisions.revive(task_id, who="ada", why="try it")
    scene.forward(1.0)
    scene.settle(scene.claim(ran))
    scene.settle(scene.claim(never))

    assert scene.measure().duplicates == {RestartCause.REPLAY: 1}


def test_an_event_of_an_earlier_version_counts_as_started_for_an_unknown_cause(scene: Scene) -> None:
    event, task_id = scene.database.tables.event, scene.record()
    old = codec.encode({"cause": "its process died", "state": "ready", "charged": "crash"}, path="event")
    neighbour = codec.encode({"cause": "its process died", "state": "ready", "charged": "nothing"}, path="event")
    for attempt, detail in ((1, old), (2, neighbour)):
        row = {"kind": "reaped", "task_id": task_id, "attempt": attempt, "worker": "w", "detail": detail}
        scene.database.run(methodcaller("execute", insert(event).values(at=scene.database.now(), **row)))
    t = scene.database.tables.task
    scene.database.run(lambda tx: tx.execute(update(t).where(t.c.id == task_id).values(attempt=2)))
    scene.settle(scene.claim(task_id))

    assert scene.measure().duplicates == {RestartCause.UNKNOWN: 1}


def test_a_late_result_is_counted_and_the_window_ends(scene: Scene) -> None:
    worker = scene.join()
    zombie = scene.claim(scene.record(), by=worker)
    scene.ledger.workers.reap(worker, Evidence("paused", None, None, ProofOfEnd.LEASE))
    scene.settle(scene.claim(zombie.task_id))
    scene.settle(zombie)

    found = scene.measure()
    scene.forward(2 * DAY_S)
    later = scene.measure()

    assert found.late_results == 1
    assert found.duplicates == {RestartCause.LEASE: 1}
    assert (later.late_results, later.duplicates, later.starts, later.recoveries) == (0, {}, 0, [])


def test_hints_that_a_marker_proved_lost_are_counted_and_how_soon_their_tasks_started(scene: Scene) -> None:
    ids = [scene.record() for _ in range(3)]
    hints = scene.ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
    scene.ledger.hints.mark_published(hints)
    scene.forward(5.0)
    marker_id = new_task_id()
    scene.ledger.markers.sent("sums", 0, marker_id, spacing_s=0.0, depth=0)
    scene.ledger.markers.returned([marker_id])
    (marker,) = scene.ledger.markers.all()
    assert len(scene.ledger.markers.lost(marker, held=(), slack_s=2.0, limit=10)) == 3
    scene.forward(30.0)
    scene.claim(ids[0])

    found = scene.measure()

    assert (found.hints_lost, found.losses) == (3, 1)
    assert found.hints_lost_started.count == 1
    assert found.hints_lost_started.max_s is not None
    assert 30.0 <= found.hints_lost_started.max_s < 60.0


def test_tasks_that_were_found_without_the_broker_are_counted_apart(scene: Scene) -> None:
    for tasks in (3, 4):
        scene.ledger.history.note("polled", detail={"tasks": tasks, "reason": "away"}, worker="w")
    scene.ledger.history.note("polled", detail={"tasks": 2}, worker="w")  # it was idle, and the broker was there

    found = scene.measure()

    assert (found.polled, document(found)["polled"], found.hints_lost) == (7, 7, 0)
    assert (found.polled_idle, document(found)["polled_idle"]) == (2, 2)


def test_a_recovery_that_took_longer_than_promised_is_a_finding_and_one_within_a_beat_is_none(scene: Scene) -> None:
    within, beyond = scene.join(), scene.join()
    scene.forward(50.0)
    scene.ledger.workers.reap(within, Evidence("silent", None, None, ProofOfEnd.LEASE))
    well = scene.measure()
    scene.forward(150.0)
    scene.ledger.workers.reap(beyond, Evidence("silent", None, None, ProofOfEnd.LEASE))
    ill = scene.measure()

    assert well.findings == [], "45 s are promised, and it may have died a beat of 10 s after its last one"
    assert [(one.cause, one.promised_s, one.exceeded) for one in ill.recoveries] == [(RestartCause.LEASE, 45.0, 1)]
    (finding,) = ill.findings
    assert "1 of 2 recoveries (lease) took longer than the promised 45 s" in finding
    assert [check.message for check in work.examine(scene.ledger, scene.wq.settings)] == [finding]


def test_a_fleet_that_dies_together_has_the_time_of_the_brake(scene: Scene) -> None:
    fleet = [scene.join() for _ in range(3)]
    scene.forward(56.0)
    for number, worker in enumerate(fleet):
        scene.ledger.workers.reap(worker, Evidence("silent", None, None, ProofOfEnd.LEASE))
        scene.forward(0.1 + 0.1 * number)

    assert scene.measure().findings == [], "50 s are promised to a fleet, and a beat before"


def test_a_death_that_a_supervisor_saw_is_shown_and_not_judged(scene: Scene) -> None:
    worker = scene.join()
    scene.forward(600.0)  # a handler held the interpreter lock
    scene.ledger.workers.reap(worker, Evidence("killed", {}, None, ProofOfEnd.KILLED))

    found = scene.measure()

    assert found.findings == []
    assert [(one.cause, one.measured.count, one.promised_s) for one in found.recoveries] == [
        (RestartCause.KILLED, 1, 2.0)
    ]


def test_the_help_says_from_when_a_recovery_is_shown_and_which_are_not_compared(cli: Cli) -> None:
    said = " ".join(cli("meters", "--help").out.split())

    assert "from the last beat of its worker on" in said
    assert f"({', '.join(_SEEN)}) are shown and not compared" in said


def test_percentiles_are_measured_values() -> None:
    assert Spread.of([]) == Spread(0, None, None, None)
    assert Spread.of([5.0]) == Spread(1, 5.0, 5.0, 5.0)
    assert Spread.of([float(number) for number in range(1, 101)]) == Spread(100, 50.0, 95.0, 100.0)


def test_the_command_prints_the_causes_and_exits_3_with_a_finding(cli: Cli) -> None:
    with cli.queue() as wq:
        scene = Scene(wq)
        scene.die(ProofOfEnd.KILLED)
    ran, document = cli("meters"), cli.look("meters", "--since", "2h")
    with cli.queue() as wq:
        worker = Incarnation("host.late", "host", 1)
        wq.stores.ledger.workers.join(worker, queues=["sums"], threads=1)
        w = database_of(wq).tables.worker
        past = wq.stores.ledger.questions.clock() - timedelta(seconds=300)
        database_of(wq).run(lambda tx: tx.execute(update(w).where(w.c.id == worker.id).values(beat_at=past)))
        wq.stores.ledger.workers.reap(worker.id, Evidence("silent", None, None, ProofOfEnd.LEASE))
    late = cli("meters", "-o", "json")

    assert ran.status == 0
    assert "1 (1 killed): 500,000 of a million starts" in ran.out
    assert document["since_s"] == 7200.0
    assert document["duplicates"] == {"total": 1, "per_million": 500000.0, "causes": {"killed": 1}, "assumed": 0}
    assert late.status == 3
    assert late.json()["ok"] is False
    assert [one["exceeded"] for one in late.json()["recoveries"] if one["cause"] == "lease"] == [1]
