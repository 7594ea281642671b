"""Reap: the claims of a worker that is gone are ended, and its tasks returned, once; also those that nobody reaped."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import delete, update

from tests.contract.given import Clock, at_once, incarnation
from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Settlement, State


class ReapContract(Steps):
    def test_reaping_returns_what_had_started_and_charges_the_crash(self, ledger: Ledger, worker: Incarnation) -> None:
        claim = self.run_one(ledger, worker)

        reaped = ledger.workers.reap(worker.id, Evidence("exit status 139 (SIGSEGV)", started={claim.task_id: 1}))

        assert reaped is not None
        assert (reaped.worker, reaped.returned, reaped.dead) == (worker.id, 1, 0)
        assert self.unreserved(reaped.hints) == [Unpublished(claim.task_id, "default", 1, 0.0)]
        assert self.marked(ledger, reaped.hints) == [claim.task_id]
        task = self.task(ledger, claim.task_id)
        assert (task.state, task.attempt, task.failures, task.crashes) == (State.READY, 1, 0, 1)
        assert task.error == "its worker process died: exit status 139 (SIGSEGV)"
        [event] = ledger.questions.history(claim.task_id)
        assert (event.kind, event.attempt, event.worker) == ("reaped", 1, worker.id)
        said = {name: event.detail[name] for name in ("kind", "cause", "state", "charged", "started")}
        assert said == {
            "kind": "lease", "cause": "exit status 139 (SIGSEGV)", "state": "ready", "charged": "crash", "started": True
        }  # fmt: skip
        [row] = ledger.questions.workers(live_only=False)
        assert (row.state, row.evidence) == ("reaped", "exit status 139 (SIGSEGV)")

    def test_one_of_ten_sweeps_reaps(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 20)
        ledger.claims.claim(ids, by=worker.id)

        answers = at_once(10, lambda _: ledger.workers.reap(worker.id, Evidence("SIGKILL")))

        [reaped] = [answer for answer in answers if answer is not None]
        assert reaped.returned == 20
        assert all(self.kinds(ledger, task_id) == ["reaped"] for task_id in ids)

    @pytest.mark.parametrize("end", ["unknown", "left"])
    def test_who_is_not_live_is_not_reaped(self, ledger: Ledger, worker: Incarnation, end: str) -> None:
        ledger.workers.leave(worker.id)

        assert ledger.workers.reap(worker.id if end == "left" else "nobody", Evidence("SIGKILL")) is None

    def test_what_was_settled_before_the_reaping_is_not_touched(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        claim = self.run_one(ledger, worker)
        self.settle(ledger, claim, Done("1"))
        before = self.row(database, claim.task_id)

        reaped = ledger.workers.reap(worker.id, Evidence("SIGKILL"))

        assert reaped is not None
        assert (reaped.returned, reaped.dead, reaped.hints) == (0, 0, ())
        assert self.row(database, claim.task_id) == before

    def test_a_settlement_and_a_reaping_at_the_same_time_never_both_win(self, ledger: Ledger) -> None:
        for _ in range(10):
            worker = incarnation()
            ledger.workers.join(worker, queues=["default"], threads=1)
            claims = ledger.claims.claim(self.record(ledger, 5), by=worker.id)
            batch = [Settlement(claim, Done("1")) for claim in claims]

            def act(number: int, worker: Incarnation = worker, batch: list[Settlement] = batch) -> Any:
                return ledger.outcomes.settle(batch) if number else ledger.workers.reap(worker.id, Evidence("SIGKILL"))

            reaped, settled = at_once(2, act)

            assert reaped is not None
            won = {one.task_id for one in settled if one.state is State.SUCCEEDED}
            assert won.isdisjoint(hint.task_id for hint in reaped.hints)
            assert len(won) + reaped.returned == 5

    def test_hints_of_a_reaping_are_taken_again_when_the_reaper_dies_before_it_publishes(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(ledger, worker)
        ledger.workers.reap(worker.id, Evidence("SIGKILL"))
        reserved = ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)
        clock.forward(60.0)

        assert reserved == []
        assert [one.task_id for one in ledger.hints.take_unpublished(limit=10, grace_s=0.0, horizon_s=0.0)] == [
            claim.task_id
        ]

    # -- orphans

    @pytest.mark.parametrize("end", ["left", "reaped", "pruned"])
    def test_what_runs_under_an_incarnation_that_is_not_live_is_returned(
        self, ledger: Ledger, database: Database, worker: Incarnation, end: str
    ) -> None:
        claim = self.run_one(ledger, worker)
        w = database.tables.worker
        with database.engine.begin() as connection:
            if end == "pruned":
                connection.execute(delete(w))
            else:
                connection.execute(update(w).values(state=end))

        dry = ledger.workers.orphans(limit=10, dry_run=True)
        returned = ledger.workers.orphans(limit=10)

        assert dry == self.unreserved(returned) == [Unpublished(claim.task_id, "default", 1, 0.0)]
        assert self.marked(ledger, returned) == [claim.task_id]
        task = self.task(ledger, claim.task_id)
        assert (task.state, task.crashes) == (State.READY, 0)
        assert self.kinds(ledger, claim.task_id) == ["reaped"]
        assert ledger.workers.orphans(limit=10) == []
        assert self.settle(ledger, claim, Done()).state is None

    def test_what_a_live_incarnation_runs_is_no_orphan(self, ledger: Ledger, worker: Incarnation) -> None:
        self.run_one(ledger, worker)

        assert ledger.workers.orphans(limit=10) == []

    def test_orphans_are_bounded_and_shared_by_ten_sweeps(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 40)
        ledger.claims.claim(ids, by=worker.id)
        with database.engine.begin() as connection:
            connection.execute(update(database.tables.worker).values(state="left"))
        first = ledger.workers.orphans(limit=7)

        answers = at_once(10, lambda _: ledger.workers.orphans(limit=7))
        answers += [ledger.workers.orphans(limit=100), first]

        assert len(first) == 7
        assert all(len(answer) <= 7 for answer in answers[:10])
        assert Counter(hint.task_id for answer in answers for hint in answer) == Counter(ids)
        assert all(self.kinds(ledger, task_id) == ["reaped"] for task_id in ids)

    def test_an_orphan_is_never_judged_alone(self, ledger: Ledger, database: Database, worker: Incarnation) -> None:
        """What else ran in its process may have been ended before."""
        claim = self.run_one(ledger, worker, crashes_max=1)
        ledger.workers.leave(worker.id)

        ledger.workers.orphans(limit=10)

        [event] = ledger.questions.history(claim.task_id)
        assert (event.detail["kind"], event.detail["charged"]) == ("orphan", "presence")
        [again] = self.claim_elsewhere(ledger, [claim.task_id])
        assert (again.is_suspect, again.crashes) == (False, 0)

    def test_a_dead_orphan_needs_no_hint(self, ledger: Ledger, database: Database, worker: Incarnation) -> None:
        suspect, _ = self.suspects(ledger, crashes_max=1)
        ledger.claims.claim([suspect], by=worker.id)
        with database.engine.begin() as connection:
            connection.execute(update(database.tables.worker).values(state="left"))

        assert ledger.workers.orphans(limit=10, dry_run=True) == ledger.workers.orphans(limit=10) == []
        assert self.state(ledger, suspect) is State.DEAD
