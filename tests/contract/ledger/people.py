"""People: what they cancel, reschedule, revive and note."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from sqlalchemy import select

from tests.contract.given import HOUR_S, LONG_S, OUTCOMES, Clock, at_once, new
from tests.contract.ledger.steps import Steps
from workq.errors import NotFound, Refused
from workq.ledger import CancelAnswer, Evidence, Settled, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.hint_rows import insert_hints
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.certificate import ProofOfEnd
from workq.values.hint import HintRow
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Done, Failed, State


def body(*task_ids: str) -> str:
    """Of a hint of these."""
    return codec.encode_hint(codec.Envelope("mail", task_ids)).decode()


class PeopleContract(Steps):
    @pytest.mark.parametrize("delay_s", [0.0, HOUR_S])
    def test_what_does_not_run_is_cancelled_at_once(self, ledger: Ledger, delay_s: float) -> None:
        [task_id] = self.record(ledger, delay_s=delay_s)

        answer = ledger.decisions.cancel(task_id, who="ada", why="not needed")

        assert answer is CancelAnswer.CANCELLED
        task = self.task(ledger, task_id)
        assert (task.state, task.reason) == (State.CANCELLED, "not needed")
        assert task.settled_at is not None
        assert [(event.kind, event.detail) for event in ledger.questions.history(task_id)] == [
            ("cancelled", {"reason": "not needed", "who": "ada"})
        ]

    def test_cancelling_is_asked_of_what_runs(self, ledger: Ledger, claimed: Claim) -> None:
        first = ledger.decisions.cancel(claimed.task_id, who="ada", why="not needed")
        second = ledger.decisions.cancel(claimed.task_id, who="ada", why="again")

        assert (first, second) == (CancelAnswer.REQUESTED, CancelAnswer.REQUESTED)
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.is_cancel_requested) == (State.RUNNING, True)
        assert self.kinds(ledger, claimed.task_id) == ["cancelled"]

    def test_a_running_attempt_is_condemned_until_its_worker_has_ended(
        self, ledger: Ledger, worker: Incarnation, claimed: Claim
    ) -> None:
        other = self.run_one(ledger, worker)
        ledger.decisions.cancel(claimed.task_id, who="ada", why="asked first")

        answers = [ledger.decisions.cancel(claimed.task_id, who="ada", why="by force", kills=True) for _ in range(2)]
        condemned = (
            ledger.decisions.kills([worker.id, "another"]),
            ledger.decisions.kills(["another"]),
            ledger.decisions.kills([]),
        )
        ledger.workers.reap(
            worker.id, Evidence("by force", failed={claimed.task_id: ("by force", 0.0)}, kind=ProofOfEnd.CANCEL)
        )

        assert answers == [CancelAnswer.REQUESTED] * 2
        assert condemned == ({claimed.task_id: 1}, {}, {})
        assert [event.detail.get("kill") for event in ledger.questions.history(claimed.task_id)][:2] == [None, True]
        assert self.state(ledger, claimed.task_id) is State.CANCELLED
        assert self.state(ledger, other.task_id) is State.READY
        assert self.charges(ledger, other.task_id) == ["nothing"]
        assert ledger.decisions.kills([worker.id]) == {}

    @pytest.mark.parametrize("end", ["left", "settled", "never ran"])
    def test_nobody_is_condemned_who_does_not_run(
        self, ledger: Ledger, worker: Incarnation, claimed: Claim, end: str
    ) -> None:
        task_id = claimed.task_id
        if end == "never ran":
            [task_id] = self.record(ledger)
        if end == "settled":
            self.settle(ledger, claimed, Done())
        ledger.decisions.cancel(task_id, who="ada", why="?", kills=True)
        if end == "left":
            ledger.workers.leave(worker.id)

        assert ledger.decisions.kills([worker.id]) == {}

    def test_cancelling_again_or_too_late_changes_nothing(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        [cancelled] = self.record(ledger)
        ledger.decisions.cancel(cancelled, who="ada", why="not needed")
        done, dead = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        self.settle(ledger, dead, OUTCOMES["dead"])
        before = self.everything(database)

        answers = [
            ledger.decisions.cancel(task_id, who="ada", why="?") for task_id in (cancelled, done.task_id, dead.task_id)
        ]

        assert answers == [CancelAnswer.ALREADY_CANCELLED, CancelAnswer.ALREADY_FINISHED, CancelAnswer.ALREADY_FINISHED]
        assert self.everything(database) == before

    @pytest.mark.parametrize("task_id", ["01a1fc62-6900-73bb-8aa5-d6cb9f630536", "no id", "", "'; drop table task"])
    def test_a_task_that_is_not_there_is_neither_cancelled_nor_revived(self, ledger: Ledger, task_id: str) -> None:
        with pytest.raises(NotFound):
            ledger.decisions.cancel(task_id, who="ada", why="?")
        with pytest.raises(NotFound):
            ledger.decisions.revive(task_id, who="ada", why="?")
        assert ledger.questions.get(task_id) is None
        assert ledger.questions.history(task_id) == []

    @pytest.mark.parametrize("outcome", ["failed", "snoozed", "dead", "handed_back"])
    def test_after_a_cancel_request_a_failure_ends_as_cancelled(
        self, ledger: Ledger, claimed: Claim, outcome: str
    ) -> None:
        ledger.decisions.cancel(claimed.task_id, who="ada", why="not needed")

        settled = self.settle(ledger, claimed, OUTCOMES[outcome])

        assert settled == Settled(claimed.task_id, State.CANCELLED)
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.reason) == (State.CANCELLED, "not needed")
        assert task.settled_at is not None
        assert self.settle(ledger, claimed, OUTCOMES[outcome]) == settled

    def test_after_a_cancel_request_a_success_stays_a_success(self, ledger: Ledger, claimed: Claim) -> None:
        ledger.decisions.cancel(claimed.task_id, who="ada", why="not needed")

        assert self.settle(ledger, claimed, Done("1")).state is State.SUCCEEDED
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.reason) == (State.SUCCEEDED, None)

    def test_after_a_cancel_request_a_reaping_ends_as_cancelled(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation
    ) -> None:
        ledger.decisions.cancel(claimed.task_id, who="ada", why="not needed")

        reaped = ledger.workers.reap(worker.id, Evidence("SIGKILL"))

        assert reaped is not None
        assert (reaped.returned, reaped.dead, reaped.hints) == (0, 0, ())
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.reason) == (State.CANCELLED, "not needed")

    def test_a_cancel_that_was_answered_is_never_started_afterwards(self, ledger: Ledger, worker: Incarnation) -> None:
        for _ in range(10):
            [task_id] = self.record(ledger)

            def act(number: int, task_id: str = task_id) -> Any:
                return (
                    ledger.claims.claim([task_id], by=worker.id)
                    if number
                    else ledger.decisions.cancel(task_id, who="ada", why="?")
                )

            answer, claims = at_once(2, act)

            assert (answer is CancelAnswer.CANCELLED) == (claims == [])
            assert answer in (CancelAnswer.CANCELLED, CancelAnswer.REQUESTED)

    @pytest.mark.parametrize("end", ["dead", "cancelled"])
    def test_a_revived_task_is_ready_with_fresh_budgets(self, ledger: Ledger, worker: Incarnation, end: str) -> None:
        claim = self.run_one(ledger, worker, key="k")
        self.settle(ledger, claim, Failed(0.0, "boom"))
        [claim] = ledger.claims.claim([claim.task_id], by=worker.id)
        ledger.decisions.cancel(claim.task_id, who="ada", why="?")
        self.settle(ledger, claim, OUTCOMES[end])

        hint = ledger.decisions.revive(claim.task_id, who="ada", why="fixed")

        assert self.unreserved([hint]) == [Unpublished(claim.task_id, "default", 2, 0.0)]
        task = self.task(ledger, claim.task_id)
        assert (task.state, task.attempt, task.failures, task.crashes) == (State.READY, 2, 0, 0)
        assert (task.settled_at, task.reason, task.is_cancel_requested) == (None, None, False)
        assert ledger.questions.history(claim.task_id)[-1].kind == "revived"
        assert ledger.questions.history(claim.task_id)[-1].detail == {"who": "ada", "why": "fixed"}
        assert not ledger.tasks.record(new(key="k"))[0].created
        assert ledger.claims.claim([claim.task_id], by=worker.id)[0].attempt == 3

    def test_a_task_is_not_revived_while_its_key_is_held_by_another(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, key="k")
        ledger.decisions.cancel(task_id, who="ada", why="?")
        self.record(ledger, key="k")

        with pytest.raises(Refused, match="key"):
            ledger.decisions.revive(task_id, who="ada", why="?")
        assert self.state(ledger, task_id) is State.CANCELLED
        assert self.kinds(ledger, task_id) == ["cancelled"]

    def test_only_dead_and_cancelled_tasks_are_revived(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        done, running = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        ids = [done.task_id, running.task_id, self.record(ledger)[0], self.record(ledger, delay_s=HOUR_S)[0]]
        before = self.everything(database)

        for task_id in ids:
            with pytest.raises(Refused):
                ledger.decisions.revive(task_id, who="ada", why="?")
        assert self.everything(database) == before

    @pytest.mark.parametrize("before_s", [0.0, HOUR_S])
    @pytest.mark.parametrize("after_s", [0.0, 60.0])
    def test_what_does_not_run_is_rescheduled_and_needs_a_hint(
        self, ledger: Ledger, worker: Incarnation, clock: Clock, before_s: float, after_s: float
    ) -> None:
        [task_id] = self.record(ledger, delay_s=before_s)
        ledger.hints.mark_published([Unpublished(task_id, "default", 0, before_s)])
        clock.forward(10.0)

        hint = ledger.decisions.reschedule(task_id, delay_s=after_s, who="ada", why="a person asked")

        assert self.unreserved([hint]) == [Unpublished(task_id, "default", 0, after_s)]
        task = self.task(ledger, task_id)
        assert task.state is (State.WAITING if after_s else State.READY)
        assert after_s - LONG_S < (task.due_at - ledger.questions.clock()).total_seconds() <= after_s
        assert ledger.plans.fences([task_id])[task_id].published_at is None
        assert [(one.kind, one.detail) for one in ledger.questions.history(task_id)] == [
            ("rescheduled", {"who": "ada", "why": "a person asked", "delay_s": after_s})
        ]
        clock.forward(30.0)
        assert (ledger.claims.claim([task_id], by=worker.id) == []) is (after_s > 0.0), (
            "a hint of before is worth nothing"
        )
        clock.forward(31.0)
        assert ledger.claims.claim([task_id], by=worker.id) or not after_s

    @pytest.mark.parametrize("decide", ["cancel", "cancel_all", "reschedule"])
    def test_the_hint_that_would_come_at_the_time_of_before_goes_with_the_decision(
        self, ledger: Ledger, database: Database, decide: str
    ) -> None:
        """As a row it would stay until then, a year perhaps; but those of others stay, and what several share."""
        given = new(4, queue="mail", delay_s=HOUR_S)
        one, *others = (task.id for task in given)
        ledger.tasks.record(given, hints=lambda tasks: [HintRow("mail", body(each.id), 1, HOUR_S) for each in tasks])
        hint = database.tables.hint
        page = body(others[0], one)
        database.run(lambda tx: insert_hints(tx, database, [HintRow("mail", page, 2, HOUR_S)]))

        match decide:
            case "cancel":
                ledger.decisions.cancel(one, who="ada", why="not needed")
            case "cancel_all":
                ledger.bulk.cancel_all([one], states=[State.WAITING], who="ada", why="not needed")
            case _:
                ledger.decisions.reschedule(one, delay_s=2 * HOUR_S, who="ada", why="later")

        left = database.ask(lambda tx: set(tx.execute(select(hint.c.body)).scalars()))
        assert left == {page, *map(body, others)}

    def test_a_retry_that_waits_is_rescheduled_too(self, ledger: Ledger, claimed: Claim, worker: Incarnation) -> None:
        self.settle(ledger, claimed, Failed(HOUR_S, "boom"))

        ledger.decisions.reschedule(claimed.task_id, delay_s=0.0, who="ada", why="mended")

        [again] = ledger.claims.claim([claimed.task_id], by=worker.id)
        assert (again.attempt, again.failures) == (2, 1)

    def test_what_runs_or_is_settled_or_is_unknown_is_not_rescheduled(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        running, done = self.run_one(ledger, worker), self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        before = self.everything(database)

        for task_id in (running.task_id, done.task_id):
            with pytest.raises(Refused, match="only ready and waiting tasks"):
                ledger.decisions.reschedule(task_id, delay_s=1.0, who="ada", why="?")
        for unknown in ("01a1fc62-6900-73bb-8aa5-d6cb9f630536", "no id"):
            with pytest.raises(NotFound):
                ledger.decisions.reschedule(unknown, delay_s=1.0, who="ada", why="?")
        assert self.everything(database) == before

    def test_beyond_its_expiry_a_task_is_not_rescheduled(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, expires_s=100.0)

        with pytest.raises(Refused, match="expires before"):
            ledger.decisions.reschedule(task_id, delay_s=200.0, who="ada", why="?")
        assert ledger.decisions.reschedule(task_id, delay_s=50.0, who="ada", why="?").delay_s == 50.0

    @pytest.mark.parametrize("decision", ["cancel", "reschedule"])
    def test_raced_against_a_claim_exactly_one_of_both_happens(
        self, ledger: Ledger, worker: Incarnation, decision: str
    ) -> None:
        for _ in range(30):
            [task_id] = self.record(ledger)

            def act(number: int, task_id: str = task_id) -> Any:
                if number:
                    return bool(ledger.claims.claim([task_id], by=worker.id))
                if decision == "cancel":
                    return ledger.decisions.cancel(task_id, who="ada", why="?") is CancelAnswer.CANCELLED
                try:
                    return ledger.decisions.reschedule(task_id, delay_s=HOUR_S, who="ada", why="?").delay_s == HOUR_S
                except Refused:
                    return False

            decided, claimed = at_once(2, act)

            assert decided is not claimed
            led_to = {"cancel": State.CANCELLED, "reschedule": State.WAITING}[decision]
            assert self.state(ledger, task_id) is (State.RUNNING if claimed else led_to)

    def test_a_note_is_kept_with_its_task(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger)
        ledger.history.note("manual", detail={"by": "anna"}, task_id=task_id, worker="w")
        ledger.history.note("manual", detail={"by": "nobody"})

        [event] = ledger.questions.history(task_id)
        assert (event.kind, event.task_id, event.worker, event.detail) == ("manual", task_id, "w", {"by": "anna"})
        assert event.at.tzinfo is UTC
