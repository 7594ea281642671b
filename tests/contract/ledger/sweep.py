"""Sweep: what is due becomes ready, what is old is removed, and a dry run tells the same."""

from __future__ import annotations

from typing import Any

from tests.contract.given import HOUR_S, OUTCOMES, Clock, at_once, incarnation
from tests.contract.ledger.steps import Steps
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Done, State


class SweepContract(Steps):
    def test_waiting_tasks_become_ready_when_their_time_has_come(self, ledger: Ledger, clock: Clock) -> None:
        soon = [self.record(ledger, delay_s=100.0, queue=queue)[0] for queue in ("a", "b", "c")]
        [later] = self.record(ledger, delay_s=HOUR_S, queue="b")
        early = ledger.upkeep.promote(limit=10)
        clock.forward(101.0)
        dry = ledger.upkeep.promote(limit=10, dry_run=True)
        counts = [ledger.upkeep.promote(limit=2), ledger.upkeep.promote(limit=2), ledger.upkeep.promote(limit=2)]

        assert early == 0
        assert dry == 3
        assert counts == [2, 1, 0]
        assert [self.state(ledger, task_id) for task_id in soon] == [State.READY] * 3
        assert self.state(ledger, later) is State.WAITING

    def test_ten_promotions_at_once_count_each_task_once(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger, 50, delay_s=10.0)
        clock.forward(11.0)

        assert sum(at_once(10, lambda _: ledger.upkeep.promote(limit=100))) == 50

    def test_a_waiting_task_that_is_due_can_be_claimed_before_it_is_promoted(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        [task_id] = self.record(ledger, delay_s=10.0)
        clock.forward(11.0)

        assert len(ledger.claims.claim([task_id], by=worker.id)) == 1
        assert ledger.upkeep.promote(limit=10) == 0

    def test_settled_tasks_are_removed_after_their_retention_each_class_by_its_own(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(4)]
        for claim, outcome in zip(claims, ["done", "cancelled", "dead", "failed"], strict=True):
            self.settle(ledger, claim, OUTCOMES[outcome])
        done, cancelled, dead, retry = (claim.task_id for claim in claims)
        young = ledger.upkeep.prune(limit=10, retention_s=100.0, dead_retention_s=200.0)
        clock.forward(101.0)
        first = ledger.upkeep.prune(limit=10, retention_s=100.0, dead_retention_s=200.0)
        left = {task.id for task in ledger.questions.tasks()}
        clock.forward(100.0)
        second = ledger.upkeep.prune(limit=10, retention_s=100.0, dead_retention_s=200.0)

        assert (young.tasks, first.tasks, second.tasks) == (0, 2, 1)
        assert left == {dead, retry}
        assert [ledger.questions.get(task_id) for task_id in (done, cancelled, dead)] == [None] * 3
        assert self.state(ledger, retry) is State.WAITING

    def test_pruning_is_bounded_and_takes_the_oldest(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(5)]
        for claim in claims:
            self.settle(ledger, claim, Done())
            clock.forward(1.0)
        counts = [ledger.upkeep.prune(limit=2, retention_s=0.0, dead_retention_s=0.0).tasks]
        left = {task.id for task in ledger.questions.tasks()}
        counts += [ledger.upkeep.prune(limit=2, retention_s=0.0, dead_retention_s=0.0).tasks for _ in range(3)]

        assert counts == [2, 2, 1, 0]
        assert left == {claim.task_id for claim in claims[2:]}

    def test_old_events_and_ended_workers_are_removed_and_live_workers_never(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        gone = incarnation()
        ledger.workers.join(gone, queues=[], threads=1)
        ledger.workers.leave(gone.id)
        for _ in range(3):
            ledger.history.note("manual", detail={})
        clock.forward(400 * 86400.0)
        dry = ledger.upkeep.prune(limit=2, retention_s=0.0, dead_retention_s=0.0, dry_run=True)
        first = ledger.upkeep.prune(limit=2, retention_s=0.0, dead_retention_s=0.0)
        second = ledger.upkeep.prune(limit=2, retention_s=0.0, dead_retention_s=0.0)

        assert dry == first
        assert (first.events, first.workers) == (2, 1)
        assert (second.events, second.workers) == (1, 0)
        assert [row.id for row in ledger.questions.workers(live_only=False)] == [worker.id]

    def test_dry_runs_count_the_same_and_change_nothing(
        self, ledger: Ledger, database: Database, worker: Incarnation, clock: Clock
    ) -> None:
        self.record(ledger, 3)
        self.record(ledger, 2, delay_s=50.0)
        for outcome in OUTCOMES.values():
            self.settle(ledger, self.run_one(ledger, worker), outcome)
        gone = incarnation()
        ledger.workers.join(gone, queues=[], threads=1)
        ledger.claims.claim(self.suspects(ledger, crashes_max=1) + self.record(ledger, 2), by=gone.id)
        ledger.workers.leave(gone.id)
        clock.forward(100.0)
        before = self.everything(database)

        def steps(*, dry_run: bool) -> list[Any]:
            return [
                ledger.hints.take_unpublished(limit=50, grace_s=0.0, horizon_s=60.0, dry_run=dry_run),
                ledger.upkeep.promote(limit=50, dry_run=dry_run),
                ledger.upkeep.prune(limit=50, retention_s=50.0, dead_retention_s=50.0, dry_run=dry_run),
                ledger.workers.orphans(limit=50, dry_run=dry_run),
            ]

        dry = steps(dry_run=True)
        unchanged = self.everything(database) == before
        real = steps(dry_run=False)

        assert unchanged
        assert dry == [self.unreserved(real[0]), *real[1:3], self.unreserved(real[3])]
        assert [len(real[0]), real[1], real[2].tasks, len(real[3])] == [9, 5, 3, 2]

    def test_a_sweep_is_noted_once_in_a_while(self, ledger: Ledger, clock: Clock) -> None:
        assert ledger.questions.swept_for_s() is None
        at_once(8, lambda _: ledger.upkeep.swept(every_s=5.0))
        clock.forward(3.0)
        ledger.upkeep.swept(every_s=5.0)
        early = ledger.questions.swept_for_s()
        clock.forward(3.0)
        ledger.upkeep.swept(every_s=5.0)
        late = ledger.questions.swept_for_s()

        assert early is not None
        assert late is not None
        assert early >= 3.0
        assert late < early
