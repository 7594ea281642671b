"""Settle: the outcome of an attempt is written once, and only by its newest claim."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from tests.contract.given import LONG_S, OUTCOMES, Clock, at_once, incarnation
from tests.contract.ledger.steps import Steps
from workq.errors import LedgerUnavailable
from workq.ledger import Evidence, Settled
from workq.ledger.after_settle import AfterSettle, SettleCounter
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Cancelled, Claim, Dead, Done, Failed, HandedBack, Outcome, Settlement, Snoozed, State


class SettleContract(Steps):
    def test_a_success_keeps_the_result_and_ends_the_task(self, ledger: Ledger, claimed: Claim) -> None:
        settled = self.settle(ledger, claimed, Done('{"rows":7}', note="cut"))

        assert settled == Settled(claimed.task_id, State.SUCCEEDED)
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.result, task.reason, task.error) == (State.SUCCEEDED, {"rows": 7}, "cut", None)
        assert (task.attempt, task.failures, task.crashes) == (1, 0, 0)
        assert task.settled_at is not None
        assert self.kinds(ledger, claimed.task_id) == []

    def test_a_failure_waits_for_its_next_attempt_and_needs_a_hint(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation, clock: Clock
    ) -> None:
        settled = self.settle(ledger, claimed, Failed(300.0, "boom"))

        assert settled == Settled(claimed.task_id, State.WAITING, 300.0)
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.failures, task.crashes, task.error) == (State.WAITING, 1, 0, "boom")
        assert (task.settled_at, task.reason) == (None, None)
        assert 300.0 - LONG_S < (task.due_at - ledger.questions.clock()).total_seconds() <= 300.0
        [event] = ledger.questions.history(claimed.task_id)
        assert (event.kind, event.attempt, event.detail) == ("failed", 1, {"error": "boom", "retry_in_s": 300.0})
        [needed] = ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=400.0)
        assert (needed.task_id, needed.attempt) == (claimed.task_id, 1)
        assert ledger.claims.claim([claimed.task_id], by=worker.id) == []
        clock.forward(301.0)
        assert ledger.claims.claim([claimed.task_id], by=worker.id)[0].failures == 1

    def test_a_snoozed_task_waits_and_has_not_failed(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation, clock: Clock
    ) -> None:
        settled = self.settle(ledger, claimed, Snoozed(300.0, "too early"))

        assert settled == Settled(claimed.task_id, State.WAITING, 300.0)
        assert self.settle(ledger, claimed, Snoozed(300.0, "too early")) == settled, "repeatable"
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.failures, task.crashes, task.error) == (State.WAITING, 0, 0, None)
        assert 300.0 - LONG_S < (task.due_at - ledger.questions.clock()).total_seconds() <= 300.0
        [event] = ledger.questions.history(claimed.task_id)
        assert (event.kind, event.attempt) == ("snoozed", 1)
        assert event.detail == {"reason": "too early", "again_in_s": 300.0}
        [needed] = ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=400.0)
        assert (needed.task_id, needed.attempt) == (claimed.task_id, 1)
        assert ledger.claims.claim([claimed.task_id], by=worker.id) == []
        clock.forward(301.0)
        [again] = ledger.claims.claim([claimed.task_id], by=worker.id)
        assert (again.attempt, again.failures) == (2, 0)
        assert self.settle(ledger, claimed, Snoozed(1.0)).state is None, "the attempt before is over"

    def test_a_failure_can_be_tried_again_at_once(self, ledger: Ledger, claimed: Claim, worker: Incarnation) -> None:
        self.settle(ledger, claimed, Failed(0.0, "boom"))

        assert [claim.attempt for claim in ledger.claims.claim([claimed.task_id], by=worker.id)] == [2]

    @pytest.mark.parametrize("failed", [True, False])
    def test_a_dead_task_keeps_its_reason(self, ledger: Ledger, claimed: Claim, *, failed: bool) -> None:
        settled = self.settle(ledger, claimed, Dead("failures_max reached", "boom", failed=failed))

        assert settled == Settled(claimed.task_id, State.DEAD)
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.reason, task.error) == (State.DEAD, "failures_max reached", "boom")
        assert task.failures == int(failed)
        assert task.settled_at is not None
        [event] = ledger.questions.history(claimed.task_id)
        assert (event.kind, event.detail) == ("failed", {"error": "boom", "dead": "failures_max reached"})

    def test_a_handler_can_cancel_its_own_task(self, ledger: Ledger, claimed: Claim) -> None:
        settled = self.settle(ledger, claimed, Cancelled("not needed"))

        assert settled == Settled(claimed.task_id, State.CANCELLED)
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.reason, task.failures) == (State.CANCELLED, "not needed", 0)
        [event] = ledger.questions.history(claimed.task_id)
        assert (event.kind, event.detail) == ("cancelled", {"reason": "not needed", "by": "handler"})

    def test_what_is_handed_back_costs_nothing_and_needs_a_hint(self, ledger: Ledger, claimed: Claim) -> None:
        settled = self.settle(ledger, claimed, HandedBack())

        assert settled == Settled(claimed.task_id, State.READY)
        task = self.task(ledger, claimed.task_id)
        assert (task.state, task.attempt, task.failures, task.crashes) == (State.READY, 1, 0, 0)
        assert len(ledger.hints.take_unpublished(limit=10, grace_s=-1.0, horizon_s=0.0)) == 1

    @pytest.mark.parametrize("name", [name for name in OUTCOMES if name != "done"])
    def test_the_history_tells_how_each_attempt_ended_that_did_not_succeed(
        self, ledger: Ledger, claimed: Claim, name: str
    ) -> None:
        self.settle(ledger, claimed, OUTCOMES[name])

        assert [one.attempt for one in ledger.questions.history(claimed.task_id)] == [1]

    def test_the_history_tells_who_handed_an_attempt_back_once_however_often_it_is_settled(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation
    ) -> None:
        for _ in range(2):
            assert self.settle(ledger, claimed, HandedBack()).state is State.READY
        [again] = ledger.claims.claim([claimed.task_id], by=worker.id)
        assert self.settle(ledger, claimed, HandedBack()).state is None
        self.settle(ledger, again, HandedBack())

        history = ledger.questions.history(claimed.task_id)
        assert [(one.kind, one.attempt, one.worker) for one in history] == [
            ("handed_back", 1, worker.id),
            ("handed_back", 2, worker.id),
        ]

    def test_a_batch_answers_in_its_order_each_with_its_own_outcome(self, ledger: Ledger, worker: Incarnation) -> None:
        claims = ledger.claims.claim(self.record(ledger, 2 * len(OUTCOMES)), by=worker.id)
        Random(3).shuffle(claims)
        outcomes = [*OUTCOMES.values()] * 2

        settled = ledger.outcomes.settle([Settlement(*pair) for pair in zip(claims, outcomes, strict=True)])

        assert [one.task_id for one in settled] == [claim.task_id for claim in claims]
        states = [
            State.SUCCEEDED,
            State.WAITING,
            State.WAITING,
            State.WAITING,
            State.DEAD,
            State.CANCELLED,
            State.READY,
        ]
        assert [one.state for one in settled] == states * 2
        assert [self.state(ledger, claim.task_id) for claim in claims] == states * 2

    def test_settling_nothing_answers_nothing(self, ledger: Ledger) -> None:
        assert ledger.outcomes.settle([]) == []

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_settling_again_answers_the_same_and_writes_nothing(
        self, ledger: Ledger, database: Database, claimed: Claim, outcome: str
    ) -> None:
        first = self.settle(ledger, claimed, OUTCOMES[outcome])
        before = self.everything(database)

        second = self.settle(ledger, claimed, OUTCOMES[outcome])

        assert second == first
        assert self.everything(database) == before

    def test_settling_a_batch_again_together_with_new_ones_writes_only_the_new(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claims = ledger.claims.claim(self.record(ledger, 2 * len(OUTCOMES)), by=worker.id)
        batch = [Settlement(*pair) for pair in zip(claims, [*OUTCOMES.values()] * 2, strict=True)]
        first = ledger.outcomes.settle(batch[: len(OUTCOMES)])

        second = ledger.outcomes.settle(batch)

        assert second[: len(OUTCOMES)] == first
        assert [one.state for one in second[len(OUTCOMES) :]] == [one.state for one in first]
        assert all(len(ledger.questions.history(claim.task_id)) <= 1 for claim in claims)

    @pytest.mark.parametrize("outcome", ["done", "failed", "snoozed", "dead", "cancelled"])
    def test_a_late_worker_cannot_settle_a_task_claimed_again(
        self, ledger: Ledger, claimed: Claim, outcome: str
    ) -> None:
        ledger.workers.reap(claimed_by(ledger, claimed), Evidence("SIGKILL"))
        other = incarnation("other")
        ledger.workers.join(other, queues=["default"], threads=1)
        [second] = ledger.claims.claim([claimed.task_id], by=other.id)

        late = self.settle(ledger, claimed, OUTCOMES[outcome])

        assert late == Settled(claimed.task_id, None)
        assert self.state(ledger, claimed.task_id) is State.RUNNING
        assert self.kinds(ledger, claimed.task_id) == ["reaped", "late_result"]
        event = ledger.questions.history(claimed.task_id)[-1]
        assert (event.attempt, event.detail) == (1, {"outcome": outcome})
        assert self.settle(ledger, second, Done("2")).state is State.SUCCEEDED

    @pytest.mark.parametrize("outcome", ["done", "failed", "snoozed", "dead", "cancelled"])
    def test_a_late_worker_cannot_settle_a_task_that_was_reaped(
        self, ledger: Ledger, database: Database, claimed: Claim, outcome: str
    ) -> None:
        ledger.workers.reap(claimed_by(ledger, claimed), Evidence("SIGKILL"))
        before = self.row(database, claimed.task_id)

        late = self.settle(ledger, claimed, OUTCOMES[outcome])

        assert late.state is None
        assert self.row(database, claimed.task_id) == before

    def test_a_late_result_is_recorded_once(self, ledger: Ledger, claimed: Claim) -> None:
        ledger.workers.reap(claimed_by(ledger, claimed), Evidence("SIGKILL"))

        answers = [self.settle(ledger, claimed, Done("1")) for _ in range(3)]

        assert {one.state for one in answers} == {None}
        assert self.kinds(ledger, claimed.task_id).count("late_result") == 1

    def test_the_right_attempt_with_a_wrong_token_settles_nothing(self, ledger: Ledger, claimed: Claim) -> None:
        forged = replace(claimed, token="0" * 32)

        assert self.settle(ledger, forged, Done("1")).state is None
        assert self.state(ledger, claimed.task_id) is State.RUNNING

    def test_the_right_token_with_a_wrong_attempt_settles_nothing(self, ledger: Ledger, claimed: Claim) -> None:
        forged = replace(claimed, attempt=7)

        assert self.settle(ledger, forged, Done("1")).state is None
        assert self.state(ledger, claimed.task_id) is State.RUNNING

    def test_a_handler_that_ran_after_its_task_was_handed_back_is_late(self, ledger: Ledger, claimed: Claim) -> None:
        self.settle(ledger, claimed, HandedBack())

        for outcome in ("done", "failed", "snoozed", "dead", "cancelled"):
            assert self.settle(ledger, claimed, OUTCOMES[outcome]).state is None
        assert self.state(ledger, claimed.task_id) is State.READY

    def test_an_old_and_the_new_attempt_of_a_task_in_one_batch_are_told_apart(
        self, ledger: Ledger, claimed: Claim, worker: Incarnation
    ) -> None:
        self.settle(ledger, claimed, HandedBack())
        [newer] = ledger.claims.claim([claimed.task_id], by=worker.id)

        settled = ledger.outcomes.settle([Settlement(claimed, Failed(5.0, "old")), Settlement(newer, Done("1"))])

        assert [one.state for one in settled] == [None, State.SUCCEEDED]
        assert [(one.kind, one.attempt) for one in ledger.questions.history(claimed.task_id)] == [
            ("handed_back", 1),
            ("late_result", 1),
        ]

    def test_one_of_two_different_outcomes_of_one_attempt_wins(self, ledger: Ledger, claimed: Claim) -> None:
        first = self.settle(ledger, claimed, Done("1"))
        second = self.settle(ledger, claimed, Failed(1.0, "boom"))

        assert (first.state, second.state) == (State.SUCCEEDED, None)
        assert self.state(ledger, claimed.task_id) is State.SUCCEEDED

    def test_an_outcome_is_kept_while_what_counts_it_cannot_be_loaded(
        self, ledger: Ledger, claimed: Claim, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing() -> SettleCounter:
            raise ModuleNotFoundError("No module named 'workq.jobs.ledger.sql'")

        with monkeypatch.context() as changed:
            changed.setattr(
                ledger.outcomes, "_counters", (AfterSettle(lambda given: list(range(len(given))), missing),)
            )
            with pytest.raises(LedgerUnavailable, match="installed anew under this process"):
                ledger.outcomes.settle([Settlement(claimed, Done("1"))])
            with (
                pytest.raises(LedgerUnavailable, match="installed anew under this process"),
                ledger.transactions.transaction(claimed),
            ):
                raise AssertionError("its block is not entered")
        assert self.state(ledger, claimed.task_id) is State.RUNNING
        [settled] = ledger.outcomes.settle([Settlement(claimed, Done("1"))])

        assert settled.state is State.SUCCEEDED

    def test_a_task_that_is_not_in_the_ledger_any_more_is_settled_late(self, ledger: Ledger, claimed: Claim) -> None:
        self.settle(ledger, claimed, Done())
        ledger.upkeep.prune(limit=10, retention_s=-1.0, dead_retention_s=-1.0)

        assert ledger.questions.get(claimed.task_id) is None
        assert self.settle(ledger, claimed, Done()).state is None

    def test_eight_threads_that_settle_the_same_attempts_write_each_once(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claims = ledger.claims.claim(self.record(ledger, 30), by=worker.id)
        batch = [Settlement(claim, Failed(60.0, "boom")) for claim in claims]

        answers = at_once(8, lambda number: ledger.outcomes.settle(Random(number).sample(batch, len(batch))))

        assert {one.state for answer in answers for one in answer} == {State.WAITING}
        assert {self.task(ledger, claim.task_id).failures for claim in claims} == {1}
        assert all(self.kinds(ledger, claim.task_id) == ["failed"] for claim in claims)

    def test_claims_and_settlements_at_the_same_time_lose_nothing(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 80)

        def work(number: int) -> list[tuple[str, int]]:
            me, rng, done = incarnation(), Random(number), []
            ledger.workers.join(me, queues=["default"], threads=1)
            for _ in range(12):
                claims = ledger.claims.claim(rng.sample(ids, 20), by=me.id)
                rng.shuffle(claims)
                choices: list[Outcome] = [Done(), Failed(0.0, "boom"), HandedBack()]
                outcomes = [rng.choice(choices) for _ in claims]
                settled = ledger.outcomes.settle([Settlement(*pair) for pair in zip(claims, outcomes, strict=True)])
                done += [(one.task_id, claim.attempt) for one, claim in zip(settled, claims, strict=True)]
                assert all(one.state is not None for one in settled)
            return done

        settled = [one for answer in at_once(8, work) for one in answer]

        assert len(set(settled)) == len(settled)
        assert Counter(task_id for task_id, _ in settled) == Counter(
            {task.id: task.attempt for task in ledger.questions.tasks() if task.attempt}
        )
        assert ledger.questions.counts().states[State.RUNNING] == 0


def claimed_by(ledger: Ledger, claim: Claim) -> str:
    task = Steps.task(ledger, claim.task_id)
    assert task.worker is not None
    return task.worker
