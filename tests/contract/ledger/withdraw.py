"""Withdrawing: many tasks that nobody wants are found by what they have in common, and each is cancelled once."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.contract.given import HOUR_S, OUTCOMES, Clock, at_once
from tests.contract.ledger.steps import Steps
from workq.ledger import WhichOpen
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Done, Failed, State

ALL = WhichOpen()
OPEN = (State.READY, State.WAITING, State.RUNNING)


class WithdrawContract(Steps):
    def test_each_filter_leaves_those_that_it_names(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        old = self.record(ledger, 2)
        began = ledger.questions.clock()
        clock.forward(HOUR_S)
        mail = self.record(ledger, queue="mail")
        named = self.record(ledger, name="refund")
        waiting = self.record(ledger, delay_s=HOUR_S)
        running = [self.run_one(ledger, worker).task_id]
        self.settle(ledger, self.run_one(ledger, worker), Done())
        self.settle(ledger, self.run_one(ledger, worker), Dead("failures_max reached", "boom"))
        ledger.decisions.cancel(self.record(ledger)[0], who="ada", why="not needed")
        new = mail + named + waiting + running

        meant = {
            ALL: old + new,
            WhichOpen(queue="mail"): mail,
            WhichOpen(name="refund"): named,
            WhichOpen(name="refund", queue="mail"): [],
            WhichOpen(older_s=HOUR_S / 2): old,
            WhichOpen(younger_s=HOUR_S / 2): new,
            WhichOpen(before=began): old,
            WhichOpen((State.WAITING,)): waiting,
            WhichOpen((State.RUNNING,)): running,
            WhichOpen((State.READY,), queue="default"): old + named,
            WhichOpen((State.SUCCEEDED, State.DEAD, State.CANCELLED)): [],
        }

        assert {which: sorted(ledger.bulk.open_ids(which, limit=99)) for which in meant} == {
            which: sorted(ids) for which, ids in meant.items()
        }
        assert {which: sum(ledger.bulk.open_count(which).values()) for which in meant} == {
            which: len(ids) for which, ids in meant.items()
        }
        assert ledger.bulk.open_count(ALL) == {State.READY: 4, State.WAITING: 1, State.RUNNING: 1}
        assert len(ledger.bulk.open_ids(ALL, limit=5)) == 5

    def test_what_waits_is_cancelled_and_what_runs_is_asked_once(self, ledger: Ledger, worker: Incarnation) -> None:
        ready, waiting = self.record(ledger), self.record(ledger, delay_s=HOUR_S)
        running = self.run_one(ledger, worker)
        ids = [*ready, *waiting, running.task_id]

        cancelled, asked = ledger.bulk.cancel_all(
            [*ids, "no id"], states=OPEN, who="ada", why="the campaign was withdrawn"
        )
        again = ledger.bulk.cancel_all(ids, states=OPEN, who="ada", why="once more")

        assert (sorted(cancelled), asked) == (sorted(ready + waiting), [running.task_id])
        assert again == ([], [])
        assert ledger.bulk.open_ids(ALL, limit=9) == []
        for task_id in ready + waiting:
            task = self.task(ledger, task_id)
            assert (task.state, task.reason) == (State.CANCELLED, "the campaign was withdrawn")
            assert [(one.kind, one.detail) for one in ledger.questions.history(task_id)] == [
                ("cancelled", {"reason": "the campaign was withdrawn", "who": "ada"})
            ]
        assert self.task(ledger, running.task_id).is_cancel_requested
        assert self.settle(ledger, running, Failed(5.0, "boom")).state is State.CANCELLED
        assert self.kinds(ledger, running.task_id) == ["cancelled", "failed"]

    def test_what_has_left_the_states_since_is_left_alone(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        ready = self.record(ledger)
        running = self.run_one(ledger, worker)
        done = self.run_one(ledger, worker)
        self.settle(ledger, done, Done())
        before = self.everything(database)

        answers = [
            ledger.bulk.cancel_all(ready, states=[State.RUNNING, State.WAITING], who="ada", why="?"),
            ledger.bulk.cancel_all([running.task_id], states=[State.READY], who="ada", why="?"),
            ledger.bulk.cancel_all([done.task_id], states=OPEN, who="ada", why="?"),
            ledger.bulk.cancel_all([], states=OPEN, who="ada", why="?"),
            ledger.bulk.cancel_all(ready, states=[], who="ada", why="?"),
        ]

        assert answers == [([], [])] * 5
        assert self.everything(database) == before

    def test_a_key_is_free_again(self, ledger: Ledger) -> None:
        first = self.record(ledger, key="k")

        ledger.bulk.cancel_all(first, states=OPEN, who="ada", why="?")

        assert self.record(ledger, key="k") != first

    @pytest.mark.parametrize("outcome", ["done", "failed"])
    def test_one_whose_cancel_was_asked_ends_by_the_rules(
        self, ledger: Ledger, worker: Incarnation, outcome: str
    ) -> None:
        running = self.run_one(ledger, worker)

        ledger.bulk.cancel_all([running.task_id], states=OPEN, who="ada", why="?")

        ended = self.settle(ledger, running, OUTCOMES[outcome]).state
        assert ended is {"done": State.SUCCEEDED, "failed": State.CANCELLED}[outcome]

    def test_many_at_once_cancel_each_once(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 60)

        answers = at_once(
            4,
            lambda number: ledger.bulk.cancel_all(ids[number * 10 : number * 10 + 30], states=OPEN, who="ada", why="?"),
        )

        assert Counter(one for cancelled, _ in answers for one in cancelled) == Counter(ids)
        assert [self.kinds(ledger, one) for one in ids] == [["cancelled"]] * 60

    def test_a_claim_at_the_same_moment_is_asked_or_comes_too_late(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 200)

        def one(number: int) -> set[str]:
            if number:
                return {claim.task_id for claim in ledger.claims.claim(ids, by=worker.id)}
            return set(ledger.bulk.cancel_all(ids, states=OPEN, who="ada", why="?")[0])

        cancelled, claimed = at_once(2, one)

        assert not cancelled & claimed
        assert cancelled | claimed == set(ids)
        assert {self.task(ledger, one).state for one in cancelled} <= {State.CANCELLED}
        assert {self.task(ledger, one).state for one in claimed} <= {State.RUNNING}
