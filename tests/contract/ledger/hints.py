"""Hints: which tasks need one, who sends it, and that it was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

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

    def test_a_mark_of_a_task_that_another_has_reserved_since_changes_nothing(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        """It was moved, so that this hint may come too late: whoever moved it sends another, or a sweep does."""
        [task_id] = self.record(ledger, delay_s=HOUR_S)
        first = Unpublished(task_id, "default", 0, HOUR_S)
        of_a_sweep = ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=2 * HOUR_S)
        clock.forward(1.0)

        early = self.marked(ledger, [first])
        moved = ledger.decisions.reschedule(task_id, delay_s=0.0, who="ada", why="soon")
        late = self.marked(ledger, [first]) + self.marked(ledger, of_a_sweep)
        clock.forward(60.0)
        much_later = self.marked(ledger, [first]) + self.marked(ledger, of_a_sweep)

        assert (early, late, much_later) == ([], [], [])
        assert self.marked(ledger, [moved]) == [task_id]
        assert ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0) == []

    @pytest.mark.parametrize("way", ["take_unpublished", "unhint", "renew", "relay_planned", "reschedule", "revive"])
    def test_whoever_reserves_a_task_may_mark_it_and_what_was_recorded_before_may_not(
        self, ledger: Ledger, way: str
    ) -> None:
        [task_id] = self.record(ledger)
        if way == "revive":
            ledger.decisions.cancel(task_id, who="ada", why="?")
        reserve: dict[str, Callable[[], Iterable[Unpublished]]] = {
            "take_unpublished": lambda: ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0),
            "unhint": lambda: ledger.hints.unhint([task_id]),
            "renew": lambda: ledger.hints.renew([task_id], before=ledger.questions.clock()),
            "relay_planned": lambda: (
                ledger.plans.relay_planned([*ledger.plans.fences([task_id]).values()], by=self.BY).hints
            ),
            "reschedule": lambda: [ledger.decisions.reschedule(task_id, delay_s=0.0, who="ada", why="?")],
            "revive": lambda: [ledger.decisions.revive(task_id, who="ada", why="?")],
        }

        hints = list(reserve[way]())

        assert self.marked(ledger, [Unpublished(task_id, "default", 0, 0.0)]) == []
        assert self.marked(ledger, hints) == [task_id]

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
        [later] = ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
        assert later.task_id == first[0].task_id

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

        assert self.unreserved([answered[ready]]) == [Unpublished(ready, "default", 0, 0.0)]
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
