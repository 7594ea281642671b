"""Questions: tasks, histories, counts and the clock, as people and programs read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.given import HOUR_S, LONG_S, Clock
from tests.contract.ledger.steps import Steps
from workq.errors import ConfigError
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Done, Failed, State


class QuestionsContract(Steps):
    def test_tasks_are_listed_from_the_newest_a_page_at_a_time(self, ledger: Ledger) -> None:
        ids = [self.record(ledger)[0] for _ in range(7)]

        pages: list[list[str]] = []
        after = None
        while page := [task.id for task in ledger.questions.tasks(limit=3, after=after)]:
            pages.append(page)
            after = page[-1]

        newest_first = sorted(ids, reverse=True)
        assert pages == [newest_first[:3], newest_first[3:6], newest_first[6:]]

    def test_a_page_after_what_is_no_task_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(ConfigError, match="after"):
            ledger.questions.tasks(after="' OR 1=1")

    def test_tasks_are_filtered_by_state_queue_and_name(self, ledger: Ledger, worker: Incarnation) -> None:
        self.run_one(ledger, worker, queue="a", name="x")
        [wanted] = self.record(ledger, queue="a", name="x")
        self.record(ledger, queue="b", name="x")
        self.record(ledger, queue="a", name="y")

        assert [task.id for task in ledger.questions.tasks(state=State.READY, queue="a", name="x")] == [wanted]
        assert len(ledger.questions.tasks(queue="a")) == 3
        assert ledger.questions.tasks(queue="%") == ledger.questions.tasks(name="' OR ''='") == []

    def test_history_is_told_from_the_oldest(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker)
        self.settle(ledger, claim, Failed(0.0, "first"))
        [claim] = ledger.claims.claim([claim.task_id], by=worker.id)
        self.settle(ledger, claim, Dead("enough", "second"))
        ledger.decisions.revive(claim.task_id, who="ada", why="?")

        events = ledger.questions.history(claim.task_id)
        assert [(event.kind, event.attempt) for event in events] == [("failed", 1), ("failed", 2), ("revived", None)]
        assert events == sorted(events, key=lambda event: event.at)

    def test_counts_tell_how_many_are_where(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        empty = ledger.questions.counts()
        self.record(ledger, 3, queue="a")
        clock.forward(100.0)
        self.record(ledger, 2, queue="a", delay_s=HOUR_S)
        self.record(ledger, queue="b", delay_s=10.0)
        self.run_one(ledger, worker, queue="b")
        self.settle(ledger, self.run_one(ledger, worker, queue="c"), Done())
        clock.forward(20.0)

        counts = ledger.questions.counts()

        assert empty.queues == {}
        assert empty.oldest_ready_s is None
        assert set(empty.states) == set(State)
        a, b = counts.queues["a"], counts.queues["b"]
        assert (a.ready, a.waiting, a.running) == (3, 2, 0)
        assert (b.ready, b.waiting, b.running) == (1, 0, 1)  # due, though not promoted yet: it could run now
        assert "c" not in counts.queues
        assert counts.states[State.SUCCEEDED] == 1
        for state, sums in ((State.READY, 4), (State.WAITING, 2), (State.RUNNING, 1)):
            assert counts.states[state] == sum(getattr(one, state.value) for one in counts.queues.values()) == sums
        assert counts.oldest_ready_s is not None
        assert 120.0 <= counts.oldest_ready_s < 120.0 + LONG_S
        assert counts.workers == 1

    def test_what_is_ready_in_a_paused_queue_has_an_age_of_its_own(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger, queue="paused")
        clock.forward(100.0)
        self.record(ledger, 2, queue="busy")
        self.record(ledger, queue="also")
        ledger.pauses.pause("paused", who="ann", why="it moves")
        ledger.pauses.pause("also", who="ann", why="for a moment", for_s=50.0)
        ledger.pauses.pause("empty", who="ann", why="nothing is there")
        clock.forward(20.0)

        counts = ledger.questions.counts()
        clock.forward(40.0)
        later = ledger.questions.counts()

        assert counts.oldest_ready_s is not None
        assert 20.0 <= counts.oldest_ready_s < 20.0 + LONG_S
        assert set(counts.oldest_paused_s) == {"paused", "also"}
        assert 120.0 <= counts.oldest_paused_s["paused"] < 120.0 + LONG_S
        assert set(later.oldest_paused_s) == {"paused"}
        ledger.pauses.pause("busy", who="ann", why="all of it")
        ledger.pauses.pause("also", who="ann", why="all of it")
        assert ledger.questions.counts().oldest_ready_s is None

    def test_what_is_due_is_known_by_its_queue(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        self.record(ledger, queue="later", delay_s=100.0)
        self.run_one(ledger, worker, queue="running")
        before = [ledger.questions.has_due(queues) for queues in (["later"], ["running"], ["none"], [])]
        clock.forward(101.0)

        assert before == [False] * 4
        assert ledger.questions.has_due(["none", "later"])
        assert not ledger.questions.has_due(["running", "none"])

    def test_the_clock_is_the_databases_in_utc(self, ledger: Ledger, clock: Clock) -> None:
        now = ledger.questions.clock()
        clock.forward(HOUR_S)

        assert now.tzinfo is UTC
        assert abs(now - datetime.now(UTC)) < timedelta(seconds=LONG_S)
        assert timedelta(seconds=HOUR_S) <= ledger.questions.clock() - now < timedelta(seconds=HOUR_S + LONG_S)
