"""Claim: one worker gets one attempt under a fresh token; and a look at what was not granted."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random

import pytest

from tests.contract.given import ARGUMENTS, LONG_S, OUTCOMES, at_once, incarnation
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import HandedBack, State


class ClaimContract(Steps):
    def test_a_claim_grants_the_first_attempt_under_a_fresh_token(self, ledger: Ledger, worker: Incarnation) -> None:
        [task_id] = self.record(ledger, name="mail", queue="q", failures_max=4, crashes_max=6)

        [claim] = ledger.claims.claim([task_id], by=worker.id)

        assert (claim.task_id, claim.name, claim.queue, claim.payload) == (task_id, "mail", "q", ARGUMENTS)
        assert (claim.attempt, claim.failures, claim.crashes) == (1, 0, 0)
        assert (claim.failures_max, claim.crashes_max, claim.job_id) == (4, 6, None)
        assert len(claim.token) == 32
        task = self.task(ledger, task_id)
        assert (task.state, task.attempt, task.worker) == (State.RUNNING, 1, worker.id)
        assert task.started_at is not None
        assert abs(task.started_at - ledger.questions.clock()) < timedelta(seconds=LONG_S)

    def test_each_claim_counts_the_attempt_and_changes_the_token(self, ledger: Ledger, worker: Incarnation) -> None:
        first = self.run_one(ledger, worker)
        self.settle(ledger, first, HandedBack())
        [second] = ledger.claims.claim([first.task_id], by=worker.id)

        assert (first.attempt, second.attempt) == (1, 2)
        assert first.token != second.token

    def test_the_answer_has_the_order_of_the_question_without_repetitions(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 20)
        asked = Random(1).sample(ids, 20)

        claims = ledger.claims.claim([*asked, *asked[:5], codec.new_task_id(), "no id"], by=worker.id)

        assert [claim.task_id for claim in claims] == asked

    def test_claiming_nothing_grants_nothing(self, ledger: Ledger, worker: Incarnation) -> None:
        assert ledger.claims.claim([], by=worker.id) == []

    def test_what_runs_or_is_settled_or_unknown_is_not_granted(self, ledger: Ledger, worker: Incarnation) -> None:
        claims = [self.run_one(ledger, worker) for _ in range(5)]
        for claim, name in zip(claims[1:], ["done", "dead", "cancelled"], strict=False):
            self.settle(ledger, claim, OUTCOMES[name])
        [cancelled] = self.record(ledger)
        ledger.decisions.cancel(cancelled, who="ada", why="why")

        ids = [*(claim.task_id for claim in claims), cancelled, codec.new_task_id()]

        assert ledger.claims.claim(ids, by=worker.id) == []

    def test_each_task_is_granted_to_one_of_eight_workers(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 60)
        workers = [incarnation() for _ in range(8)]
        for worker in workers:
            ledger.workers.join(worker, queues=["default"], threads=4)

        def claim(number: int) -> list[str]:
            mine = Random(number).sample(ids, len(ids))
            batches = [mine[start : start + 20] for start in range(0, 60, 20)]
            return [one.task_id for batch in batches for one in ledger.claims.claim(batch, by=workers[number].id)]

        granted = [task_id for answer in at_once(8, claim) for task_id in answer]

        assert Counter(granted) == Counter(ids)
        assert {self.task(ledger, task_id).attempt for task_id in ids} == {1}

    @pytest.mark.parametrize("end", ["unknown", "left", "reaped"])
    def test_an_incarnation_that_is_not_live_gets_nothing(self, ledger: Ledger, end: str) -> None:
        worker = incarnation()
        if end != "unknown":
            ledger.workers.join(worker, queues=["default"], threads=1)
        if end == "left":
            ledger.workers.leave(worker.id)
        if end == "reaped":
            ledger.workers.reap(worker.id, Evidence("SIGKILL"))
        [task_id] = self.record(ledger)

        assert ledger.claims.claim([task_id], by=worker.id) == []
        assert self.state(ledger, task_id) is State.READY

    # -- look

    def test_a_look_tells_why_a_hint_could_not_be_claimed(self, ledger: Ledger, worker: Incarnation) -> None:
        running = self.run_one(ledger, worker, queue="q")
        [waiting] = self.record(ledger, delay_s=100.0)

        looks = ledger.claims.look([running.task_id, waiting, codec.new_task_id(), "no id"])

        assert set(looks) == {running.task_id, waiting}
        assert (looks[running.task_id].state, looks[running.task_id].queue) == (State.RUNNING, "q")
        assert looks[running.task_id].due_in_s <= 0.0
        assert 100.0 - LONG_S < looks[waiting].due_in_s <= 100.0
        assert ledger.claims.look([]) == {}
