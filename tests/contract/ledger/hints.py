"""Hints: which tasks need one, who sends it, and that it was sent."""

from __future__ import annotations

from collections import Counter

from tests.contract.given import HOUR_S, LONG_S, Clock, at_once
from tests.contract.ledger.steps import Steps
from workq.ledger import Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Done, HandedBack


class HintsContract(Steps):
    def test_a_recorded_task_needs_a_hint_until_it_is_marked(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, queue="q")
        found = ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0, dry_run=True)
        assert ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0, but=["q"]) == []
        ledger.hints.mark_published(found)

        assert found == [Unpublished(task_id, "q", 0, 0.0)]
        assert ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0) == []

    def test_marking_nothing_does_nothing(self, ledger: Ledger) -> None:
        ledger.hints.mark_published([])

    def test_a_mark_of_an_older_attempt_changes_nothing(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker)
        self.settle(ledger, claim, HandedBack())

        ledger.hints.mark_published([Unpublished(claim.task_id, claim.queue, 0, 0.0)])
        needed = ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0, dry_run=True)
        ledger.hints.mark_published(needed)

        assert [one.attempt for one in needed] == [1]
        assert ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0) == []

    def test_a_mark_of_a_task_that_runs_or_is_settled_changes_nothing(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        running, done = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        before = self.everything(database)

        ledger.hints.mark_published([Unpublished(claim.task_id, claim.queue, 1, 0.0) for claim in (running, done)])

        assert self.everything(database) == before

    def test_nothing_is_taken_before_the_grace_is_over(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger)
        young = ledger.hints.take_unpublished(limit=10, grace_s=20.0, horizon_s=0.0)
        clock.forward(21.0)

        assert young == []
        assert len(ledger.hints.take_unpublished(limit=10, grace_s=20.0, horizon_s=0.0)) == 1

    def test_only_what_is_due_within_the_horizon_is_taken_with_its_delay(self, ledger: Ledger) -> None:
        ready, soon, _ = (self.record(ledger, delay_s=delay_s)[0] for delay_s in (0.0, 200.0, HOUR_S))

        taken = ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=400.0)

        assert [one.task_id for one in taken] == [ready, soon]
        assert taken[0].delay_s == 0.0
        assert 200.0 - LONG_S < taken[1].delay_s <= 200.0

    def test_what_is_taken_is_bounded_and_the_oldest_comes_first(self, ledger: Ledger, clock: Clock) -> None:
        ids = []
        for _ in range(5):
            ids += self.record(ledger)
            clock.forward(1.0)

        first = ledger.hints.take_unpublished(limit=3, grace_s=0.0, horizon_s=0.0)
        second = ledger.hints.take_unpublished(limit=3, grace_s=0.0, horizon_s=0.0)

        assert [one.task_id for one in first] == ids[:3]
        assert [one.task_id for one in second] == ids[3:]

    def test_a_reservation_ends_by_itself(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger)
        first = ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
        again = ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
        clock.forward(60.0)

        assert (len(first), len(again)) == (1, 0)
        assert ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0) == first

    def test_ten_sweeps_at_once_publish_each_row_once(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 100)

        def relay(_: int) -> list[str]:
            taken: list[str] = []
            for _ in range(4):
                taken += [one.task_id for one in ledger.hints.take_unpublished(limit=7, grace_s=-1.0, horizon_s=0.0)]
            return taken

        taken = [task_id for batch in at_once(10, relay) for task_id in batch]
        taken += [one.task_id for one in ledger.hints.take_unpublished(limit=100, grace_s=-1.0, horizon_s=0.0)]

        assert Counter(taken) == Counter(ids)

    def test_a_hint_that_died_with_its_holder_is_needed_again(self, ledger: Ledger, clock: Clock) -> None:
        ready, waiting = self.record(ledger)[0], self.record(ledger, delay_s=100.0)[0]
        ledger.hints.mark_published([Unpublished(task_id, "default", 0, 0.0) for task_id in (ready, waiting)])

        answered = {one.task_id: one for one in ledger.hints.unhint([ready, waiting])}
        reserved = ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=400.0)
        clock.forward(60.0)
        later = ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=400.0)

        assert answered[ready] == Unpublished(ready, "default", 0, 0.0)
        assert 100.0 - LONG_S < answered[waiting].delay_s <= 100.0
        assert reserved == []
        assert {one.task_id for one in later} == {ready, waiting}

    def test_what_runs_or_is_settled_or_unknown_gets_no_new_hint(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        running, done = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        before = self.everything(database)

        assert ledger.hints.unhint([running.task_id, done.task_id, codec.new_task_id(), "no id"]) == []
        assert ledger.hints.unhint([]) == []
        assert self.everything(database) == before
