"""Rebuild: every task that is unclaimed gets a new hint, page by page, once."""

from __future__ import annotations

from collections import Counter

from tests.contract.given import HOUR_S, Clock, at_once
from tests.contract.ledger.steps import Steps
from workq.ledger import Unpublished
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Done


class RebuildContract(Steps):
    def test_pages_of_unclaimed_tasks_have_each_once_in_the_order_in_which_they_are_due(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        waiting = self.record(ledger, 5, delay_s=HOUR_S)
        ready = self.record(ledger, 8)
        self.record(ledger, 2, queue="other")
        self.run_one(ledger, worker)
        gone = self.run_one(ledger, worker)
        self.settle(ledger, gone, Done())
        clock.forward(60.0)
        before = ledger.questions.clock()
        clock.forward(1.0)
        self.record(ledger, 3)

        found: list[str] = []
        after = None
        while page := ledger.hints.unclaimed_page("default", before=before, after=after, limit=4):
            assert len(page) <= 4
            found += [one.task_id for one in page]
            after = (page[-1].due_at, page[-1].task_id)

        assert found[:8] == sorted(ready, key=lambda one: (ledger.plans.fences([one])[one].due_at, one))
        assert sorted(found[8:]) == sorted(waiting)
        assert ledger.hints.unclaimed("default", before=before) == 13
        assert ledger.hints.open_queues() == ["default", "other"]

    def test_what_is_renewed_needs_a_hint_once_and_what_was_published_since_does_not(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ids = self.record(ledger, 6)
        ledger.hints.mark_published([Unpublished(one, "default", 0, 0.0) for one in ids[:4]])
        clock.forward(60.0)
        before = ledger.questions.clock()
        clock.forward(1.0)
        ledger.hints.mark_published([Unpublished(ids[3], "default", 0, 0.0)])
        ledger.claims.claim([ids[2]], by=worker.id)
        ledger.plans.relay_planned([ledger.plans.fences([ids[5]])[ids[5]]], by=self.BY)  # somebody has it in hand

        first = ledger.hints.renew(ids, before=before)
        second = ledger.hints.renew(ids, before=before)

        assert [one.task_id for one in first] == [ids[0], ids[1], ids[4]]
        assert second == []
        assert ledger.plans.fences([ids[0]])[ids[0]].published_at is None
        ledger.hints.mark_published(first)
        clock.forward(60.0)
        assert [one.task_id for one in ledger.hints.renew(ids, before=before)] == [ids[5]]

    def test_ten_rebuilds_at_once_renew_each_task_once(self, ledger: Ledger, clock: Clock) -> None:
        ids = self.record(ledger, 100)
        ledger.hints.mark_published([Unpublished(one, "default", 0, 0.0) for one in ids])
        clock.forward(60.0)
        before = ledger.questions.clock()

        renewed = at_once(10, lambda _: ledger.hints.renew(ids, before=before))

        assert Counter(one.task_id for of_one in renewed for one in of_one) == Counter(ids)

    def test_only_markers_that_are_out_are_dropped(self, ledger: Ledger) -> None:
        back, out = codec.new_task_id(), codec.new_task_id()
        for marker, queue in ((back, "default"), (out, "default"), (codec.new_task_id(), "other")):
            assert ledger.markers.sent(queue, 0, marker, spacing_s=0.0, depth=1)
        ledger.markers.returned([back])

        dropped = [ledger.markers.dropped("default"), ledger.markers.dropped("default")]

        assert dropped == [1, 0]
        assert [(one.queue, one.id == back) for one in ledger.markers.all()] == [("default", True), ("other", False)]
