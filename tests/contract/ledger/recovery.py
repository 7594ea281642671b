"""Recovery: what becomes of a task that had started when its worker died, as the task itself wants it."""

from __future__ import annotations

import pytest

from tests.contract.given import Clock, new
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence
from workq.ledger.sql import Ledger
from workq.values.certificate import DeathFacts, ProofOfEnd
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, OnCrash, State

ASK, FAIL = OnCrash.ASK, OnCrash.FAIL


class RecoveryContract(Steps):
    @staticmethod
    def deaths(claim: Claim) -> dict[str, Evidence]:
        """By name: how its worker may end, so that nobody knows what the attempt has done."""
        started, neighbour = {claim.task_id: claim.attempt}, {"somebody else": ("it took too long", 1.0)}
        return {
            "seen": Evidence("SIGSEGV", started=started),
            "ended and not settled": Evidence("SIGKILL", started=started, ended=frozenset({claim.task_id})),
            "unseen": Evidence("its lease ended"),
            "of another's limit": Evidence("hard limit", started=started, failed=neighbour),
            "of another's memory": Evidence("out of memory", started=started, is_bystander=True),
            "at shutdown": Evidence(
                "the grace was over", started={}, kind=ProofOfEnd.SHUTDOWN, facts=DeathFacts(ran_s={claim.task_id: 0.5})
            ),
        }

    @pytest.mark.parametrize(
        "how",
        ["seen", "ended and not settled", "unseen", "of another's limit", "of another's memory", "at shutdown"],
    )
    def test_what_asks_is_dead_however_its_worker_died_and_runs_again_when_a_person_says_so(
        self, ledger: Ledger, worker: Incarnation, how: str
    ) -> None:
        claim = self.run_one(ledger, worker, on_crash=ASK)

        reaped = ledger.workers.reap(worker.id, self.deaths(claim)[how])
        task = self.task(ledger, claim.task_id)
        ledger.decisions.revive(claim.task_id, who="ada", why="I looked: it had done nothing")
        [again] = self.claim_elsewhere(ledger, [claim.task_id])

        assert reaped is not None
        assert (reaped.returned, reaped.dead, reaped.hints) == (0, 1, ())
        assert (task.state, task.reason, task.crashes) == (State.DEAD, "worker_lost: a person decides", 1)
        assert task.error is not None
        assert task.error.startswith("its worker process died while it ran, and on_crash is 'ask'")
        assert self.charges(ledger, claim.task_id) == ["crash"]
        assert (again.attempt, again.crashes) == (2, 0)
        assert self.task(ledger, claim.task_id).on_crash is ASK

    def test_what_fails_waits_as_after_an_error_and_is_dead_when_its_failures_are_used_up(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        first = self.run_one(ledger, worker, on_crash=FAIL, failures_max=2)

        reaped = ledger.workers.reap(worker.id, self.deaths(first)["unseen"])
        waits = self.task(ledger, first.task_id)
        early = self.claim_elsewhere(ledger, [first.task_id])
        clock.forward(2.1)
        [second] = self.claim_elsewhere(ledger, [first.task_id])
        by = self.task(ledger, first.task_id).worker
        assert by is not None
        ledger.workers.reap(by, self.deaths(second)["seen"])
        dead = self.task(ledger, first.task_id)

        assert reaped is not None
        assert [(hint.task_id, hint.delay_s) for hint in reaped.hints] == [(first.task_id, 2.0)]
        assert (waits.state, waits.failures, waits.crashes) == (State.WAITING, 1, 0)
        assert early == []
        assert (dead.state, dead.reason) == (State.DEAD, "failures_max reached: worker_lost")
        assert self.charges(ledger, first.task_id) == ["failure", "failure"]

    @pytest.mark.parametrize("how", ["of another's limit", "of another's memory"])
    def test_what_fails_pays_nothing_for_its_neighbour(self, ledger: Ledger, worker: Incarnation, how: str) -> None:
        claim = self.run_one(ledger, worker, on_crash=FAIL)

        ledger.workers.reap(worker.id, self.deaths(claim)[how])

        assert self.state(ledger, claim.task_id) is State.READY
        assert self.charges(ledger, claim.task_id) == ["nothing"]

    @pytest.mark.parametrize("policy", [ASK, FAIL])
    def test_what_had_not_started_runs_again_at_no_cost(
        self, ledger: Ledger, worker: Incarnation, policy: OnCrash
    ) -> None:
        claim = self.run_one(ledger, worker, on_crash=policy)

        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={}))

        assert self.state(ledger, claim.task_id) is State.READY
        assert self.charges(ledger, claim.task_id) == ["nothing"]

    def test_what_asks_and_was_asked_to_stop_is_cancelled(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker, on_crash=ASK)
        ledger.decisions.cancel(claim.task_id, who="ada", why="not needed")

        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={claim.task_id: 1}))

        assert self.state(ledger, claim.task_id) is State.CANCELLED

    def test_each_of_one_batch_keeps_its_own_policy(self, ledger: Ledger) -> None:
        alike = ledger.tasks.record(new(3, on_crash=ASK))
        mixed = ledger.tasks.record([*new(on_crash=FAIL), *new(), *new(on_crash=ASK, key="k"), *new(expires_s=60.0)])

        policies = [self.task(ledger, one.id).on_crash for one in [*alike, *mixed]]

        assert policies == [ASK] * 3 + [FAIL, OnCrash.AGAIN, ASK, OnCrash.AGAIN]
