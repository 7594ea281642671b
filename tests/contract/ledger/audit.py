"""Audit: every open task is met once, and what a marker proves while the order was disturbed."""

from __future__ import annotations

from collections import Counter

from tests.contract.given import HOUR_S, Clock
from tests.contract.ledger.steps import Steps
from workq.ledger import OpenTask, Unpublished
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Done, HandedBack, State


class AuditContract(Steps):
    def test_open_tasks_come_page_by_page_and_each_once(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        ready, waiting = self.record(ledger, 7), self.record(ledger, 4, delay_s=HOUR_S)
        clock.forward(1.0)
        ready += self.record(ledger, 3)
        running = [claim.task_id for claim in ledger.claims.claim(self.record(ledger, 5), by=worker.id)]
        settled, gone = self.run_one(ledger, worker), self.record(ledger, 1)
        self.settle(ledger, settled, Done(None))
        ledger.decisions.cancel(gone[0], who="ada", why="no need")
        elsewhere = self.record(ledger, 2, queue="other")

        def pages(*, is_running: bool, limit: int) -> list[str]:
            met: list[str] = []
            after: OpenTask | None = None
            while page := ledger.audits.open_tasks("default", is_running=is_running, after=after, limit=limit):
                assert len(page) <= limit
                met += [one.task_id for one in page]
                after = page[-1]
            return met

        for limit in (1, 2, 3, 7, 100):
            assert Counter(pages(is_running=False, limit=limit)) == Counter(ready + waiting), limit
            assert Counter(pages(is_running=True, limit=limit)) == Counter(running), limit
        assert ledger.audits.queues_with_open_tasks() == ["default", "other"]
        assert set(ledger.audits.open_among([*ready, *gone, settled.task_id, elsewhere[0], running[0], "no id"])) == {
            *ready,
            elsewhere[0],
            running[0],
        }

    def test_an_open_task_tells_where_it_stands(self, ledger: Ledger, worker: Incarnation) -> None:
        [task_id] = self.record(ledger)
        [before] = ledger.audits.open_tasks("default", is_running=False)
        ledger.hints.mark_published([Unpublished(task_id, "default", 0, 0.0)])
        hinted = ledger.audits.open_among([task_id])[task_id]
        ledger.claims.claim([task_id], by=worker.id)
        [running] = ledger.audits.open_tasks("default", is_running=True)

        assert (before.state, before.attempt, before.published_at, before.worker) == (State.READY, 0, None, None)
        assert before.due_at <= before.now
        assert hinted.published_at is not None
        assert before.queued_at <= hinted.published_at <= hinted.now
        assert (running.state, running.attempt, running.worker) == (State.RUNNING, 1, worker.id)

    def test_a_marker_that_came_back_speaks_for_those_that_were_sent_before(self, ledger: Ledger, clock: Clock) -> None:
        assert ledger.audits.marker_sent_at("default", 0) is None
        sent_at = []
        markers = [codec.new_task_id() for _ in range(3)]
        for marker in markers:
            clock.forward(1.0)
            assert ledger.markers.sent("default", 0, marker, spacing_s=0.0, depth=1)
            at = ledger.audits.marker_sent_at("default", 0)
            assert at is not None
            sent_at.append(at)
        assert sent_at == sorted(set(sent_at))

        ledger.markers.returned([markers[1]])

        assert [ledger.audits.has_marker_returned("default", 0, since=at) for at in sent_at] == [True, True, False]
        assert not ledger.audits.has_marker_returned("other", 0, since=sent_at[0])
        assert not ledger.audits.has_marker_returned("default", 1, since=sent_at[0])

    def test_markers_that_were_on_their_way_while_the_order_was_disturbed_are_dropped(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        back_before, back_since, out, elsewhere = (codec.new_task_id() for _ in range(4))
        for marker in (back_before, back_since, out, elsewhere):
            queue = "other" if marker == elsewhere else "default"
            assert ledger.markers.sent(queue, 0, marker, spacing_s=0.0, depth=1)
        ledger.markers.returned([back_before])
        clock.forward(1.0)
        since = ledger.questions.clock()
        clock.forward(1.0)
        ledger.markers.returned([back_since])

        dropped = [ledger.audits.markers_voided("default", since=since) for _ in range(2)]

        assert dropped == [2, 0]
        assert {one.id for one in ledger.markers.all()} == {back_before, elsewhere}

    def test_what_nobody_holds_is_returned_at_no_charge_if_it_still_runs_under_the_same_claim(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claims = ledger.claims.claim(self.record(ledger, 3), by=worker.id)
        fences = ledger.plans.fences([claim.task_id for claim in claims])
        first, again, done = claims
        self.settle(ledger, done, Done(None))
        self.settle(ledger, again, HandedBack())
        ledger.claims.claim([again.task_id], by=worker.id)

        applied = ledger.audits.return_unheld(list(fences.values()), by=self.BY)
        second = ledger.audits.return_unheld(list(fences.values()), by=self.BY)

        assert applied.changed == (first.task_id,)
        assert [hint.task_id for hint in applied.hints] == [first.task_id]
        assert set(applied.refused) == {again.task_id, done.task_id}
        assert second.changed == ()
        task = self.task(ledger, first.task_id)
        assert (task.state, task.failures, task.crashes, task.attempt) == (State.READY, 0, 0, 1)
        assert self.settle(ledger, first, Done(None)).state is None
        assert [event.kind for event in ledger.questions.history(first.task_id)] == ["manual", "reaped", "late_result"]
        assert [row.state for row in ledger.questions.workers()] == ["live"]
