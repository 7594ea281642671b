"""Workers: who has joined, beats and leaves, and who has been silent for too long."""

from __future__ import annotations

from sqlalchemy import select

from tests.contract.given import LONG_S, Clock, at_once, incarnation
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.signs import NONE
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Done, State


class WorkersContract(Steps):
    def test_an_incarnation_that_joins_is_live(self, ledger: Ledger) -> None:
        worker = incarnation()
        ledger.workers.join(worker, queues=["a", "b"], threads=3)

        [row] = ledger.questions.workers()

        assert (row.id, row.state, row.host, row.pid) == (worker.id, "live", "host", 4711)
        assert (row.queues, row.threads, row.ended_at, row.evidence) == (("a", "b"), 3, None, None)
        assert 0.0 <= row.beat_age_s < LONG_S
        assert ledger.questions.counts().workers == 1

    def test_joining_again_changes_nothing(self, ledger: Ledger, database: Database) -> None:
        worker = incarnation()
        ledger.workers.join(worker, queues=["a"], threads=3)
        before = self.everything(database)

        at_once(6, lambda _: ledger.workers.join(worker, queues=["a"], threads=3))

        assert self.everything(database) == before

    def test_joining_at_the_same_time_makes_one_incarnation(self, ledger: Ledger) -> None:
        worker = incarnation()

        at_once(6, lambda _: ledger.workers.join(worker, queues=["a"], threads=3))

        assert [row.id for row in ledger.questions.workers()] == [worker.id]

    def test_a_beat_renews_the_heartbeat(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        clock.forward(100.0)
        [before] = ledger.questions.workers()
        is_live = ledger.workers.beat(worker.id)
        [after] = ledger.questions.workers()

        assert is_live
        assert before.beat_age_s >= 100.0
        assert after.beat_age_s < LONG_S

    def test_what_it_says_of_its_signs_of_life_stands_until_it_is_taken_back(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        def told(*args: str) -> object:
            for signs in args or (None,):
                assert ledger.workers.beat(worker.id, signs=signs)
            return database.ask(lambda tx: tx.execute(select(w.c.signs).where(w.c.id == worker.id)).scalar_one())

        w = database.tables.worker
        assert told() is None
        assert told("given") == "given"
        assert told() == "given"
        assert told(NONE) is None

    def test_a_reaped_incarnation_learns_it_from_its_beat_and_stays_reaped(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ledger.workers.reap(worker.id, Evidence("SIGKILL"))

        assert not ledger.workers.beat(worker.id)
        ledger.workers.join(worker, queues=["default"], threads=4)
        assert not ledger.workers.beat(worker.id)
        assert ledger.questions.workers() == []

    def test_an_unknown_incarnation_does_not_live(self, ledger: Ledger) -> None:
        assert not ledger.workers.beat("nobody")

    def test_who_leaves_has_left_and_leaving_again_changes_nothing(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        ledger.workers.leave(worker.id)
        before = self.everything(database)
        ledger.workers.leave(worker.id)
        ledger.workers.leave("nobody")

        [row] = ledger.questions.workers(live_only=False)
        assert row.state == "left"
        assert row.ended_at is not None
        assert ledger.questions.workers() == []
        assert self.everything(database) == before

    def test_the_newest_incarnation_is_listed_first(self, ledger: Ledger, clock: Clock) -> None:
        workers = [incarnation() for _ in range(3)]
        for worker in workers:
            ledger.workers.join(worker, queues=[], threads=1)
            clock.forward(1.0)
        ledger.workers.leave(workers[1].id)

        assert [row.id for row in ledger.questions.workers()] == [workers[2].id, workers[0].id]
        assert [row.id for row in ledger.questions.workers(live_only=False)] == [worker.id for worker in workers[::-1]]

    def test_an_incarnation_is_found_by_the_beginning_of_its_id(self, ledger: Ledger, worker: Incarnation) -> None:
        others = [incarnation(name) for name in ("worker%", "WORKER", "work")]
        for one in others:
            ledger.workers.join(one, queues=[], threads=1)

        assert [row.id for row in ledger.questions.workers(prefix=worker.id[:-4])] == [worker.id]
        assert [row.id for row in ledger.questions.workers(prefix="worker%")] == [others[0].id]
        assert {row.id for row in ledger.questions.workers(prefix="work")} == {worker.id, others[0].id, others[2].id}
        assert ledger.questions.workers(prefix=worker.id + "x") == []

    def test_what_an_incarnation_runs_is_listed(self, ledger: Ledger, worker: Incarnation, claimed: Claim) -> None:
        other = incarnation()
        ledger.workers.join(other, queues=[], threads=1)
        self.run_one(ledger, other)

        self.record(ledger)
        ended = self.run_one(ledger, worker)
        self.settle(ledger, ended, Done())

        assert [task.id for task in ledger.questions.running(worker.id)] == [claimed.task_id]
        assert ledger.questions.running("nobody") == []

    # -- suspicion

    def test_a_missing_lease_is_acted_on_at_the_second_look_a_beat_later(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        clock.forward(31.0)
        first = ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        too_soon = ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        clock.forward(5.0)
        second = ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0)

        assert (first, too_soon, second) == ([], [], [worker.id])

    def test_a_worker_that_beats_is_never_suspected(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        for _ in range(10):
            clock.forward(20.0)
            ledger.workers.beat(worker.id)
            assert ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0) == []

    def test_a_beat_ends_a_suspicion(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        clock.forward(31.0)
        ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        ledger.workers.beat(worker.id)
        clock.forward(31.0)

        assert ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0) == []

    def test_whoever_has_a_lease_again_is_no_longer_suspected(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        clock.forward(31.0)
        ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        ledger.workers.suspect([], beat_s=5.0, lease_s=30.0)
        clock.forward(5.0)

        assert ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0) == []

    def test_only_live_incarnations_are_suspected(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        ledger.workers.leave(worker.id)
        clock.forward(31.0)
        for _ in range(2):
            assert ledger.workers.suspect([worker.id, "nobody"], beat_s=0.0, lease_s=30.0) == []
            clock.forward(10.0)

    def test_a_suspect_that_beat_meanwhile_is_not_reaped(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(ledger, worker)
        clock.forward(31.0)
        ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        clock.forward(5.0)
        suspects = ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        ledger.workers.beat(worker.id)

        answer = ledger.workers.reap(worker.id, Evidence("its lease ended"), suspected_for_s=5.0, lease_s=30.0)

        assert suspects == [worker.id]
        assert answer is None
        assert self.state(ledger, claim.task_id) is State.RUNNING
        assert ledger.workers.beat(worker.id)

    def test_a_suspect_is_reaped_only_after_the_time_asked_for(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        clock.forward(31.0)
        evidence = Evidence("its lease ended")
        unsuspected = ledger.workers.reap(worker.id, evidence, suspected_for_s=0.0, lease_s=30.0)
        ledger.workers.suspect([worker.id], beat_s=5.0, lease_s=30.0)
        too_soon = ledger.workers.reap(worker.id, evidence, suspected_for_s=5.0, lease_s=30.0)
        clock.forward(5.0)

        assert (unsuspected, too_soon) == (None, None)
        assert ledger.workers.reap(worker.id, evidence, suspected_for_s=5.0, lease_s=30.0) is not None
