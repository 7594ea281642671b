"""Charges: which task pays for the death of its worker, and which is suspected and runs alone."""

from __future__ import annotations

from tests.contract.given import LONG_S, incarnation
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence, Reaped
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Done, HandedBack, OnCrash, State


class ChargesContract(Steps):
    def test_what_a_living_worker_does_not_have_is_returned_under_the_fence_of_that_claim_at_no_cost(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """It may say so late: what was settled, or claimed again, meanwhile stays as it is."""
        lost, again, done, cancelled = (self.run_one(ledger, worker) for _ in range(4))
        other = incarnation("elsewhere")
        ledger.workers.join(other, queues=["default"], threads=1)
        theirs = self.run_one(ledger, other)
        word = ledger.workers.claimed_by(worker.id)
        self.settle(ledger, done, Done(None))
        self.settle(ledger, again, HandedBack())
        [second] = ledger.claims.claim([again.task_id], by=worker.id)
        ledger.decisions.cancel(cancelled.task_id, who="ada", why="no need")

        hints = ledger.workers.return_forgotten({**word, theirs.task_id: theirs.token}, by=worker.id)
        repeated = ledger.workers.return_forgotten(word, by=worker.id)

        assert word == {one.task_id: one.token for one in (lost, again, done, cancelled)}
        assert ([hint.task_id for hint in hints], repeated) == ([lost.task_id], [])
        task = self.task(ledger, lost.task_id)
        assert (task.state, task.attempt, task.failures, task.crashes) == (State.READY, 1, 0, 0)
        assert (self.charges(ledger, lost.task_id), task.error) == (["nothing"], None)
        [event] = ledger.questions.history(lost.task_id)
        assert (event.worker, event.detail["kind"], event.detail["started"]) == (worker.id, "forgotten", True)
        assert self.state(ledger, cancelled.task_id) is State.CANCELLED
        assert ledger.workers.claimed_by(worker.id) == {second.task_id: second.token}
        assert ledger.workers.claimed_by(other.id) == {theirs.task_id: theirs.token}
        assert self.settle(ledger, lost, Done(None)).state is None, "it ran all the same: its result is late"

    def test_a_person_is_asked_about_what_a_living_worker_does_not_have_where_a_crash_is_a_persons_question(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        asks = self.run_one(ledger, worker, on_crash=OnCrash.ASK)
        fails = self.run_one(ledger, worker, on_crash=OnCrash.FAIL)

        hints = ledger.workers.return_forgotten(ledger.workers.claimed_by(worker.id), by=worker.id)

        assert [hint.task_id for hint in hints] == [fails.task_id], "no process died: it has not failed"
        task = self.task(ledger, asks.task_id)
        assert (task.state, task.reason) == (State.DEAD, "worker_lost: a person decides")
        assert "its worker lives and does not have it" in (task.error or "")

    def test_reaping_charges_nothing_to_what_had_not_started(self, ledger: Ledger, worker: Incarnation) -> None:
        started, waiting = (self.run_one(ledger, worker, crashes_max=1) for _ in range(2))

        reaped = ledger.workers.reap(worker.id, Evidence("SIGKILL", started={started.task_id: 1}))

        assert reaped is not None
        assert (reaped.returned, reaped.dead) == (1, 1)
        assert [hint.task_id for hint in reaped.hints] == [waiting.task_id]
        neighbour = self.task(ledger, waiting.task_id)
        assert (neighbour.state, neighbour.crashes, neighbour.error) == (State.READY, 0, None)
        assert ledger.questions.history(waiting.task_id)[0].detail["charged"] == "nothing"

    def test_without_evidence_every_claim_counts_as_started(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 3)
        ledger.claims.claim(ids, by=worker.id)

        ledger.workers.reap(worker.id, Evidence("its lease ended"))

        assert [self.charges(ledger, task_id) for task_id in ids] == [["presence"]] * 3
        assert all(ledger.questions.history(task_id)[0].detail["started"] for task_id in ids)

    def test_a_death_that_nobody_saw_is_free_once_and_makes_nobody_a_suspect(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """A pause is no crash; but a task that takes whole hosts along is found out all the same."""
        [task_id] = self.record(ledger, crashes_max=2)
        suspects = []
        for number in range(3):
            elsewhere = incarnation(f"host{number}")
            ledger.workers.join(elsewhere, queues=["default"], threads=1)
            [claim] = ledger.claims.claim([task_id], by=elsewhere.id)
            suspects.append(claim.is_suspect)
            ledger.workers.reap(elsewhere.id, Evidence("its lease ended"))

        assert suspects == [False, False, True]
        assert self.charges(ledger, task_id) == ["presence", "crash", "crash"]
        assert self.state(ledger, task_id) is State.DEAD

    def test_what_had_ended_and_was_not_settled_is_not_to_blame_and_leaves_another_alone(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ended, running = self.record(ledger, 2)
        ledger.claims.claim([ended, running], by=worker.id)

        started = {ended: 1, running: 1}
        ledger.workers.reap(worker.id, Evidence("SIGSEGV", started=started, ended=frozenset({ended})))

        assert self.charges(ledger, ended) == ["presence"]
        assert self.charges(ledger, running) == ["crash"]

    def test_of_several_that_had_started_nobody_is_charged_and_all_are_suspects(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """Nobody knows yet which of them it was."""
        ids = self.record(ledger, 3, crashes_max=1)
        ledger.claims.claim(ids, by=worker.id)

        reaped = ledger.workers.reap(worker.id, Evidence("SIGSEGV", started=dict.fromkeys(ids, 1)))

        assert reaped is not None
        assert (reaped.returned, reaped.dead) == (3, 0)
        assert [self.charges(ledger, task_id) for task_id in ids] == [["suspicion"]] * 3
        assert [self.task(ledger, task_id).crashes for task_id in ids] == [0, 0, 0]
        assert all(claim.is_suspect for claim in self.claim_elsewhere(ledger, ids))

    def test_a_first_claim_is_of_no_suspect(self, ledger: Ledger, claimed: Claim) -> None:
        assert not claimed.is_suspect

    def test_who_had_started_alone_is_charged_with_the_crash_and_runs_alone_again(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claim = self.run_one(ledger, worker)

        ledger.workers.reap(worker.id, Evidence("SIGSEGV", started={claim.task_id: 1}))

        assert self.charges(ledger, claim.task_id) == ["crash"]
        [again] = self.claim_elsewhere(ledger, [claim.task_id])
        assert (again.is_suspect, again.crashes) == (True, 1)

    def test_a_suspect_that_runs_when_its_process_dies_is_charged_and_its_company_is_not(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """Suspects run alone; one that was found in company all the same (an older worker) is charged there too."""
        suspect, neighbour = self.suspects(ledger)[0], self.run_one(ledger, worker).task_id
        ledger.claims.claim([suspect], by=worker.id)

        ledger.workers.reap(worker.id, Evidence("SIGSEGV", started={suspect: 2, neighbour: 1}))

        assert self.charges(ledger, suspect) == ["suspicion", "crash"]
        assert self.charges(ledger, neighbour) == ["suspicion"]

    def test_a_suspect_that_had_not_started_is_charged_with_nothing_and_stays_one(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        suspect, neighbour = self.suspects(ledger)[0], self.run_one(ledger, worker).task_id
        ledger.claims.claim([suspect], by=worker.id)

        ledger.workers.reap(worker.id, Evidence("SIGSEGV", started={neighbour: 1}))

        assert self.charges(ledger, suspect) == ["suspicion", "nothing"]
        assert self.charges(ledger, neighbour) == ["crash"]
        [again] = self.claim_elsewhere(ledger, [suspect])
        assert again.is_suspect

    def test_a_suspect_that_crashes_for_the_last_time_is_dead_as_worker_lost(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        suspect, _ = self.suspects(ledger, crashes_max=1)
        ledger.claims.claim([suspect], by=worker.id)

        ledger.workers.reap(worker.id, Evidence("SIGSEGV", started={suspect: 2}))

        task = self.task(ledger, suspect)
        assert (task.state, task.reason, task.crashes) == (State.DEAD, "worker_lost", 1)

    def test_reviving_clears_the_suspicion(self, ledger: Ledger, worker: Incarnation) -> None:
        suspect, _ = self.suspects(ledger, crashes_max=1)
        ledger.claims.claim([suspect], by=worker.id)
        ledger.workers.reap(worker.id, Evidence("SIGSEGV", started={suspect: 2}))

        ledger.decisions.revive(suspect, who="ada", why="its bug is fixed")

        [again] = self.claim_elsewhere(ledger, [suspect])
        assert (again.is_suspect, again.crashes) == (False, 0)

    def test_who_ran_beside_what_exceeded_its_hard_limit_is_no_suspect(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        slow, neighbour = self.run_one(ledger, worker).task_id, self.run_one(ledger, worker).task_id
        started = {slow: 1, neighbour: 1}

        ledger.workers.reap(worker.id, Evidence("hard limit", started=started, failed={slow: ("too slow", 0.0)}))

        assert [self.charges(ledger, task_id) for task_id in (slow, neighbour)] == [["failure"], ["nothing"]]
        [again] = self.claim_elsewhere(ledger, [neighbour])
        assert not again.is_suspect

    def test_starts_are_bounded_by_the_budgets_and_one_suspicion(self, ledger: Ledger) -> None:
        """It dies with every process, always in company that is not to blame."""
        [task_id] = self.record(ledger, crashes_max=3)
        starts = 0
        while self.state(ledger, task_id) is not State.DEAD:
            other = incarnation()
            ledger.workers.join(other, queues=["default"], threads=2)
            company = self.run_one(ledger, other)
            [claim] = ledger.claims.claim([task_id], by=other.id)
            starts += 1
            ledger.workers.reap(other.id, Evidence("SIGKILL", started={task_id: claim.attempt, company.task_id: 1}))

        assert starts == 1 + 3
        assert self.charges(ledger, task_id) == ["suspicion", "crash", "crash", "crash"]

    def test_nobody_in_a_process_that_was_killed_beside_a_larger_one_is_charged_suspected_or_not(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        first, second = self.run_one(ledger, worker), self.run_one(ledger, worker)
        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={first.task_id: 1, second.task_id: 1}))
        other = incarnation()
        ledger.workers.join(other, queues=["default"], threads=4)
        [again] = ledger.claims.claim([first.task_id], by=other.id)
        assert again.is_suspect

        reaped = ledger.workers.reap(
            other.id, Evidence("out of memory", started={first.task_id: again.attempt}, is_bystander=True)
        )

        assert reaped is not None
        assert [hint.task_id for hint in reaped.hints] == [first.task_id]
        task = self.task(ledger, first.task_id)
        assert (task.state, task.crashes, task.failures) == (State.READY, 0, 0)
        assert self.charges(ledger, first.task_id) == ["suspicion", "nothing"]

    def test_evidence_of_an_older_attempt_charges_nothing(self, ledger: Ledger, worker: Incarnation) -> None:
        first = self.run_one(ledger, worker)
        self.settle(ledger, first, HandedBack())
        ledger.claims.claim([first.task_id], by=worker.id)

        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={first.task_id: 1}))

        assert self.task(ledger, first.task_id).crashes == 0

    def test_a_task_that_kills_its_workers_is_dead_as_worker_lost(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, crashes_max=3)
        reaped: list[Reaped | None] = []
        for _ in range(3):
            worker = incarnation()
            ledger.workers.join(worker, queues=["default"], threads=1)
            ledger.claims.claim([task_id], by=worker.id)
            reaped.append(ledger.workers.reap(worker.id, Evidence("SIGKILL", started={task_id: len(reaped) + 1})))

        assert [(one.returned, one.dead) for one in reaped if one] == [(1, 0), (1, 0), (0, 1)]
        task = self.task(ledger, task_id)
        assert (task.state, task.reason, task.crashes, task.failures) == (State.DEAD, "worker_lost", 3, 0)
        assert task.settled_at is not None

    def test_what_exceeded_its_hard_limit_failed_and_its_neighbours_are_not_charged(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        slow, neighbour = (self.run_one(ledger, worker) for _ in range(2))
        evidence = Evidence(
            "hard limit", started={slow.task_id: 1, neighbour.task_id: 1}, failed={slow.task_id: ("too slow", 200.0)}
        )

        reaped = ledger.workers.reap(worker.id, evidence)

        assert reaped is not None
        assert {hint.task_id: round(hint.delay_s) for hint in reaped.hints} == {slow.task_id: 200, neighbour.task_id: 0}
        failed, other = self.task(ledger, slow.task_id), self.task(ledger, neighbour.task_id)
        assert (failed.state, failed.failures, failed.crashes, failed.error) == (State.WAITING, 1, 0, "too slow")
        assert (failed.due_at - ledger.questions.clock()).total_seconds() > 200.0 - LONG_S
        assert (other.state, other.failures, other.crashes) == (State.READY, 0, 0)

    def test_what_exceeds_its_hard_limit_for_the_last_time_is_dead(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker, failures_max=1)

        reaped = ledger.workers.reap(worker.id, Evidence("hard limit", failed={claim.task_id: ("too slow", 5.0)}))

        assert reaped is not None
        assert (reaped.returned, reaped.dead) == (0, 1)
        task = self.task(ledger, claim.task_id)
        assert (task.state, task.failures, task.reason) == (State.DEAD, 1, "failures_max reached: time_limit")
