"""Plan and apply: a repair that a person has read is made only where nothing has moved since."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import delete

from tests.contract.given import HOUR_S, Clock, at_once
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence, Prunes, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Dead, Done, HandedBack, State


class PlanContract(Steps):
    def test_a_fence_tells_where_a_task_stands_and_its_seal_is_not_the_token(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claim = self.run_one(ledger, worker)
        [waiting] = self.record(ledger, delay_s=HOUR_S)
        unknown = codec.new_task_id()

        fences = ledger.plans.fences([claim.task_id, waiting, unknown, "no id"])

        assert set(fences) == {claim.task_id, waiting}
        fence = fences[claim.task_id]
        assert (fence.state, fence.attempt, fence.worker) == (State.RUNNING, 1, worker.id)
        assert fence.seal is not None
        assert claim.token not in fence.seal
        assert fence.seal not in claim.token
        assert (fences[waiting].state, fences[waiting].seal) == (State.WAITING, None)
        assert ledger.plans.fences([claim.task_id]) == {claim.task_id: fence}, "asked again it is the same"

    def test_a_planned_relay_takes_what_stands_where_it_stood_and_refuses_the_rest_with_the_reason(
        self, ledger: Ledger, worker: Incarnation, database: Database
    ) -> None:
        ids = self.record(ledger, 6)
        fences = [ledger.plans.fences(ids)[one] for one in ids]
        sent = Unpublished(ids[1], "default", 0, 0.0)
        ledger.hints.mark_published([sent])
        ledger.claims.claim([ids[2]], by=worker.id)
        [claim] = ledger.claims.claim([ids[3]], by=worker.id)
        self.settle(ledger, claim, HandedBack())
        ledger.decisions.cancel(ids[4], who="ada", why="no need")
        with database.engine.begin() as tx:
            tx.execute(delete(database.tables.task).where(database.tables.task.c.id == ids[5]))

        applied = ledger.plans.relay_planned(fences, by=self.BY)

        assert applied.changed == (ids[0],)
        assert self.unreserved(applied.hints) == [Unpublished(ids[0], "default", 0, 0.0)]
        assert dict(applied.refused) == {
            ids[1]: "its hint was sent meanwhile",
            ids[2]: "it was ready and is running now",
            ids[3]: "it was at attempt 0 and is at 1 now",
            ids[4]: "it was ready and is cancelled now",
            ids[5]: "it is not in the ledger any more",
        }
        assert [self.noted(ledger, one) for one in ids] == [1, 0, 0, 0, 0, 0]

    def test_a_planned_relay_of_what_was_published_unpublishes_it(self, ledger: Ledger, clock: Clock) -> None:
        [task_id] = self.record(ledger)
        ledger.hints.mark_published([Unpublished(task_id, "default", 0, 0.0)])
        clock.forward(60.0)

        applied = ledger.plans.relay_planned(list(ledger.plans.fences([task_id]).values()), by=self.BY)

        assert applied.changed == (task_id,)
        assert ledger.plans.fences([task_id])[task_id].published_at is None
        assert ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=HOUR_S) == [], "it is reserved"
        clock.forward(60.0)
        assert [one.task_id for one in ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=HOUR_S)] == [
            task_id
        ]

    def test_what_a_relay_has_in_hand_is_not_relayed_by_a_plan(self, ledger: Ledger, clock: Clock) -> None:
        ids = self.record(ledger, 2)
        clock.forward(60.0)
        fences = list(ledger.plans.fences(ids).values())
        assert len(ledger.hints.take_unpublished(limit=1, grace_s=0.0, horizon_s=HOUR_S)) == 1

        applied = ledger.plans.relay_planned(fences, by=self.BY)

        assert len(applied.changed) == 1
        assert list(applied.refused.values()) == ["somebody is sending its hint just now"]

    def test_ten_applications_at_once_change_each_row_once(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        relayed = self.record(ledger, 40)
        waiting = self.record(ledger, 40, delay_s=5.0)
        running = self.record(ledger, 40)
        assert len(ledger.claims.claim(running, by=worker.id)) == 40
        ledger.workers.leave(worker.id)
        clock.forward(60.0)
        fences = ledger.plans.fences([*relayed, *waiting, *running])

        def one(_: int) -> list[str]:
            relay = ledger.plans.relay_planned([fences[each] for each in relayed], by=self.BY)
            promote = ledger.plans.promote_planned([fences[each] for each in waiting], by=self.BY)
            back = ledger.plans.return_planned([fences[each] for each in running], by=self.BY)
            for applied, all_of_them in ((relay, relayed), (promote, waiting), (back, running)):
                assert sorted([*applied.changed, *applied.refused]) == sorted(all_of_them)
            assert {one.task_id for one in back.hints} == set(back.changed)
            return [*relay.changed, *promote.changed, *back.changed]

        changed = Counter(each for of_one in at_once(10, one) for each in of_one)

        assert changed == Counter([*relayed, *waiting, *running])
        assert {self.noted(ledger, each) for each in changed} == {1}
        assert {self.state(ledger, each) for each in changed} == {State.READY}

    def test_a_planned_promotion_is_only_of_what_still_waits_and_is_due(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        due, promoted, claimed, early = self.record(ledger, 4, delay_s=5.0)
        [later] = self.record(ledger, delay_s=HOUR_S)
        fences = list(ledger.plans.fences([due, promoted, claimed, early, later]).values())
        clock.forward(10.0)
        ledger.plans.promote_planned([one for one in fences if one.task_id == promoted], by=self.BY)
        ledger.claims.claim([claimed], by=worker.id)
        ledger.hints.mark_published([Unpublished(early, "default", 0, 0.0)])

        applied = ledger.plans.promote_planned(fences, by=self.BY)

        assert sorted(applied.changed) == sorted([due, early]), "a hint that was sent meanwhile is no reason"
        assert dict(applied.refused) == {
            promoted: "it was waiting and is ready now",
            claimed: "it was waiting and is running now",
            later: "it is not due yet",
        }

    def test_a_planned_return_is_only_of_the_same_claim_under_a_worker_that_is_not_live(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        left, again, alive = (self.run_one(ledger, worker) for _ in range(3))
        [mine] = self.claim_elsewhere(ledger, self.record(ledger))
        ids = [left.task_id, again.task_id, alive.task_id, mine.task_id]
        fences = list(ledger.plans.fences(ids).values())
        assert set(ledger.plans.return_planned(fences, by=self.BY).refused.values()) == {
            f"its worker {fence.worker} is live" for fence in fences
        }
        self.settle(ledger, again, HandedBack())
        self.claim_elsewhere(ledger, [again.task_id])
        self.settle(ledger, alive, Done())
        ledger.workers.leave(worker.id)
        assert [one.fence.task_id for one in ledger.plans.orphaned(limit=9)] == [left.task_id]

        applied = ledger.plans.return_planned(fences, by=self.BY)

        assert applied.changed == (left.task_id,)
        assert [one.task_id for one in applied.hints] == [left.task_id]
        assert dict(applied.refused) == {
            again.task_id: "it was at attempt 1 and is at 2 now",
            alive.task_id: "it was running and is succeeded now",
            mine.task_id: next(f"its worker {one.worker} is live" for one in fences if one.task_id == mine.task_id),
        }
        assert self.settle(ledger, left, Done()).state is None, "the old claim has ended"

    def suspected(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        clock.forward(100.0)
        assert ledger.workers.suspect([worker.id], beat_s=4.0, lease_s=30.0) == []
        clock.forward(10.0)
        assert ledger.workers.suspect([worker.id], beat_s=4.0, lease_s=30.0) == [worker.id]

    def test_a_planned_reaping_does_what_was_foreseen(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(2)]
        ledger.decisions.cancel(claims[0].task_id, who="ada", why="asked")
        self.suspected(ledger, worker, clock)

        foreseen = ledger.plans.foresee(worker.id, Evidence("silence"))
        assert foreseen is not None
        reaped = ledger.workers.reap(
            worker.id, Evidence("silence"), suspected_for_s=4.0, lease_s=30.0, planned=foreseen, by=self.BY
        )

        assert reaped is not None
        assert {one.fence.task_id: one.becomes for one in foreseen.claims} == {
            claim.task_id: self.state(ledger, claim.task_id) for claim in claims
        }
        assert {one.fence.task_id: [one.charged] for one in foreseen.claims} == {
            claim.task_id: self.charges(ledger, claim.task_id) for claim in claims
        }
        assert [self.noted(ledger, claim.task_id) for claim in claims] == [1, 1]
        assert ledger.plans.foresee(worker.id, Evidence("silence")) is None

    @pytest.mark.parametrize("since", ["a beat", "a settlement", "another claim", "a lease"])
    def test_a_worker_that_has_moved_since_the_plan_is_not_reaped(
        self, ledger: Ledger, worker: Incarnation, clock: Clock, database: Database, since: str
    ) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(2)]
        self.suspected(ledger, worker, clock)
        foreseen = ledger.plans.foresee(worker.id, Evidence("silence"))
        match since:
            case "a beat":
                ledger.workers.beat(worker.id)
            case "a settlement":
                self.settle(ledger, claims[0], HandedBack())
            case "another claim":
                self.run_one(ledger, worker)
            case "a lease":
                ledger.workers.suspect([], beat_s=4.0, lease_s=30.0)
        if since in ("a beat", "a lease"):
            self.suspected(ledger, worker, clock)  # and it has been silent again for as long as a sweep asks for

        reaped = ledger.workers.reap(
            worker.id, Evidence("silence"), suspected_for_s=4.0, lease_s=30.0, planned=foreseen, by=self.BY
        )

        assert reaped is None
        assert self.state(ledger, claims[1].task_id) is State.RUNNING
        assert [row.id for row in ledger.questions.workers()] == [worker.id], "nothing of it stood"
        assert self.noted(ledger, claims[1].task_id) == 0
        assert ledger.workers.reap(worker.id, Evidence("silence"), suspected_for_s=4.0, lease_s=30.0) is not None

    def test_a_worker_that_nobody_suspected_and_that_has_beaten_since_the_plan_is_not_reaped(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation, clock: Clock
    ) -> None:
        foreseen = ledger.plans.foresee(worker.id, Evidence("its process is gone"))
        clock.forward(5.0)
        assert ledger.workers.beat(worker.id)

        reaped = ledger.workers.reap(worker.id, Evidence("its process is gone"), planned=foreseen, by=self.BY)

        assert reaped is None
        assert self.state(ledger, claimed.task_id) is State.RUNNING

    def test_a_planned_removal_spares_what_was_revived_and_settled_again(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(3)]
        for claim in claims:
            self.settle(ledger, claim, Dead("no", "no"))
        kept = {"retention_s": HOUR_S, "dead_retention_s": HOUR_S}
        assert ledger.plans.prunable(limit=9, **kept) == []
        clock.forward(2 * HOUR_S)
        [dead] = ledger.plans.prunable(limit=9, **kept)
        ledger.decisions.revive(claims[0].task_id, who="ada", why="a person asked")
        ledger.decisions.revive(claims[1].task_id, who="ada", why="a person asked")
        [again] = ledger.claims.claim([claims[1].task_id], by=worker.id)
        self.settle(ledger, again, Dead("no", "no"))
        clock.forward(2 * HOUR_S)  # and it is beyond its retention again

        first = ledger.plans.prune_planned(dead, by=self.BY, **kept)
        second = ledger.plans.prune_planned(dead, by=self.BY, **kept)

        assert (dead.what, sorted(dead.ids)) == (Prunes.DEAD, sorted(claim.task_id for claim in claims))
        assert first.changed == (claims[2].task_id,)
        assert sorted(first.refused) == sorted(claim.task_id for claim in claims[:2])
        assert (second.changed, len(second.refused)) == ((), 3)
        assert [ledger.questions.get(claim.task_id) is None for claim in claims] == [False, False, True]

    def test_a_removal_keeps_to_the_retention_of_today_whatever_the_plan_says(
        self, ledger: Ledger, claimed: Claim, clock: Clock
    ) -> None:
        self.settle(ledger, claimed, Done())
        clock.forward(2 * HOUR_S)
        [old] = ledger.plans.prunable(limit=9, retention_s=HOUR_S, dead_retention_s=HOUR_S)

        applied = ledger.plans.prune_planned(old, retention_s=9 * HOUR_S, dead_retention_s=HOUR_S, by=self.BY)

        assert (applied.changed, list(applied.refused)) == ((), [claimed.task_id])

    def test_what_is_foreseen_is_what_the_sweep_would_do(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        waiting = self.record(ledger, 3, delay_s=5.0)
        self.record(ledger, 2, delay_s=HOUR_S)
        orphan = self.run_one(ledger, worker)
        settled = self.run_one(ledger, worker)
        self.settle(ledger, settled, Done())
        ledger.workers.leave(worker.id)
        clock.forward(60.0)

        assert sorted(ledger.plans.promotable(limit=9)) == sorted(waiting)
        assert len(ledger.plans.promotable(limit=2)) == 2
        assert ledger.upkeep.promote(limit=9, dry_run=True) == 3
        assert [one.task_id for one in ledger.workers.orphans(limit=9, dry_run=True)] == [orphan.task_id]
        assert [one.fence.task_id for one in ledger.plans.orphaned(limit=9)] == [orphan.task_id]
        [old] = ledger.plans.prunable(limit=9, retention_s=30.0, dead_retention_s=30.0)
        assert (old.what, old.ids) == (Prunes.SUCCEEDED, (settled.task_id,))
        assert ledger.upkeep.prune(limit=9, retention_s=30.0, dead_retention_s=30.0, dry_run=True).tasks == 1
