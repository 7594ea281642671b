"""Expiry: what nobody started in its time is never started, and is cancelled as expired, once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.given import HOUR_S, Clock, at_once, new
from tests.contract.ledger.steps import Steps
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Failed, Snoozed, State


class ExpiryContract(Steps):
    @pytest.mark.parametrize("facts", [{}, {"key": "k"}, {"delay_s": 50.0}])
    @pytest.mark.parametrize("count", [1, 3])
    def test_it_counts_from_the_enqueue_by_the_clock_of_the_ledger(
        self, ledger: Ledger, facts: dict[str, Any], count: int
    ) -> None:
        ids = self.record(ledger, 1 if "key" in facts else count, expires_s=100.0, **facts)
        [other] = self.record(ledger)

        for task_id in ids:
            task = self.task(ledger, task_id)
            assert task.expires_at is not None
            assert abs(task.expires_at - task.created_at - timedelta(seconds=100.0)) < timedelta(seconds=0.01)
        assert self.task(ledger, other).expires_at is None

    def test_tasks_of_one_call_may_differ(self, ledger: Ledger) -> None:
        tasks = [*new(expires_s=100.0), *new(), *new(expires_s=200.0)]

        ids = [one.id for one in ledger.tasks.record(tasks)]

        found = [self.task(ledger, one) for one in ids]
        spans = [one.expires_at and round((one.expires_at - one.created_at).total_seconds()) for one in found]
        assert spans == [100, None, 200]

    def test_it_is_claimed_until_then_and_never_after(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        in_time, too_late = self.record(ledger, 2, expires_s=100.0)
        clock.forward(99.0)
        assert [claim.task_id for claim in ledger.claims.claim([in_time], by=worker.id)] == [in_time]
        clock.forward(2.0)

        assert ledger.claims.claim([too_late], by=worker.id) == []
        assert ledger.claims.look([too_late])[too_late].is_expired
        assert not ledger.questions.has_due(["default"])
        assert self.state(ledger, in_time) is State.RUNNING, "what has started runs on"
        assert ledger.upkeep.expire(limit=10) == 1
        assert self.state(ledger, in_time) is State.RUNNING

    def test_it_is_cancelled_as_expired_and_frees_its_key(self, ledger: Ledger, clock: Clock) -> None:
        [ready] = self.record(ledger, key="k", expires_s=100.0)
        [waiting] = self.record(ledger, delay_s=50.0, expires_s=100.0)
        [later] = self.record(ledger, expires_s=HOUR_S)
        [never] = self.record(ledger)
        early = ledger.upkeep.expire(limit=10)
        clock.forward(101.0)
        dry = ledger.upkeep.expire(limit=10, dry_run=True)
        done = [ledger.upkeep.expire(limit=1), ledger.upkeep.expire(limit=1), ledger.upkeep.expire(limit=1)]

        assert (early, dry, done) == (0, 2, [1, 1, 0])
        for task_id in (ready, waiting):
            task = self.task(ledger, task_id)
            assert (task.state, task.reason, task.attempt) == (State.CANCELLED, "expired", 0)
            assert task.settled_at is not None
            assert [(one.kind, one.detail) for one in ledger.questions.history(task_id)] == [
                ("cancelled", {"reason": "expired"})
            ]
        assert {self.state(ledger, later), self.state(ledger, never)} == {State.READY}
        assert self.record(ledger, key="k") != [ready]

    @pytest.mark.parametrize("outcome", [Failed(50.0, "boom"), Snoozed(50.0)])
    def test_a_retry_after_its_time_is_not_started_either(
        self, ledger: Ledger, worker: Incarnation, clock: Clock, outcome: Failed | Snoozed
    ) -> None:
        claim = self.run_one(ledger, worker, expires_s=40.0)
        self.settle(ledger, claim, outcome)
        clock.forward(60.0)

        assert ledger.claims.claim([claim.task_id], by=worker.id) == []
        assert ledger.upkeep.expire(limit=10) == 1
        assert (self.task(ledger, claim.task_id).reason, self.task(ledger, claim.task_id).attempt) == ("expired", 1)

    def test_what_succeeds_after_its_time_has_succeeded(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(ledger, worker, expires_s=40.0)
        clock.forward(60.0)

        assert self.settle(ledger, claim, Done()).state is State.SUCCEEDED
        assert ledger.upkeep.expire(limit=10) == 0

    def test_no_hint_is_sent_for_it(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger, expires_s=40.0)
        [other] = self.record(ledger)
        clock.forward(60.0)

        found = ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=HOUR_S)

        assert [one.task_id for one in found] == [other]

    def test_ten_sweeps_at_once_cancel_each_once(self, ledger: Ledger, clock: Clock) -> None:
        ids = self.record(ledger, 50, expires_s=10.0)
        clock.forward(11.0)

        assert sum(at_once(10, lambda _: ledger.upkeep.expire(limit=100))) == 50
        assert Counter(kind for one in ids for kind in self.kinds(ledger, one)) == {"cancelled": 50}

    def test_whoever_revives_it_wants_it_without_an_end(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        [task_id] = self.record(ledger, expires_s=10.0)
        clock.forward(11.0)
        ledger.upkeep.expire(limit=9)

        ledger.decisions.revive(task_id, who="ada", why="it matters after all")

        assert self.task(ledger, task_id).expires_at is None
        assert len(ledger.claims.claim([task_id], by=worker.id)) == 1

    def test_a_plan_cancels_what_still_stands_and_has_expired(
        self, ledger: Ledger, database: Database, worker: Incarnation, clock: Clock
    ) -> None:
        expired, claimed, moved, early = self.record(ledger, 4, expires_s=10.0)
        [later] = self.record(ledger, expires_s=HOUR_S)
        ids = [expired, claimed, moved, early, later]
        fences = list(ledger.plans.fences(ids).values())
        ledger.claims.claim([claimed], by=worker.id)
        ledger.decisions.reschedule(moved, delay_s=5.0, who="ada", why="?")
        clock.forward(11.0)
        assert set(ledger.plans.expirable(limit=9)) == {expired, moved, early}

        applied = ledger.plans.expire_planned(fences, by=self.BY)
        again = ledger.plans.expire_planned(fences, by=self.BY)

        assert sorted(applied.changed) == sorted([expired, early])
        assert dict(applied.refused) == {
            claimed: "it was ready and is running now",
            moved: "it was ready and is waiting now",
            later: "it has not expired",
        }
        assert (again.changed, len(again.refused)) == ((), 5)
        assert (self.task(ledger, expired).reason, self.noted(ledger, expired)) == ("expired", 1)
        assert self.row(database, later).state == State.READY
