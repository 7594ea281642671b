"""Keys: of the tasks with one name and one key, only one at a time is not settled."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from tests.contract.given import HOUR_S, LONG_S, OUTCOMES, Clock, at_once, new
from tests.contract.ledger.steps import Steps
from workq.errors import KeyConflict
from workq.ledger import Evidence, Prunes
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Enqueued, State


class KeysContract(Steps):
    def test_a_second_task_with_the_key_of_a_live_one_answers_the_first(self, ledger: Ledger) -> None:
        [first] = ledger.tasks.record(new(key="k"))
        second, other = ledger.tasks.record([*new(key="k"), *new(key="other")])

        assert second == Enqueued(first.id, State.READY, created=False)
        assert other.created
        assert len(ledger.questions.tasks()) == 2

    def test_the_same_key_twice_in_one_batch_makes_one_task(self, ledger: Ledger) -> None:
        first, second = ledger.tasks.record(new(2, key="k"))

        assert (first.created, second.created) == (True, False)
        assert first.id == second.id

    def test_a_key_belongs_to_the_name_of_its_task(self, ledger: Ledger) -> None:
        answers = ledger.tasks.record([*new(name="a", key="b:c"), *new(name="a:b", key="c"), *new(name="b", key="b:c")])

        assert all(one.created for one in answers)

    def test_a_key_that_is_held_with_other_arguments_is_a_conflict(self, ledger: Ledger) -> None:
        [holder] = self.record(ledger, key="k")

        with pytest.raises(KeyConflict, match=holder) as caught:
            ledger.tasks.record(new(key="k", payload='{"a":["secret"],"k":{}}'))

        assert "secret" not in str(caught.value)

    def test_the_longest_name_and_key_are_told_apart(self, ledger: Ledger) -> None:
        answers = ledger.tasks.record([new(name="n" * 200, key="é" * 199 + end)[0] for end in "aba"])

        assert [one.created for one in answers] == [True, True, False]

    @pytest.mark.parametrize("outcome", ["done", "dead", "cancelled"])
    def test_a_key_is_free_again_when_its_task_is_settled(
        self, ledger: Ledger, worker: Incarnation, outcome: str
    ) -> None:
        claim = self.run_one(ledger, worker, key="k")
        [running] = ledger.tasks.record(new(key="k"))
        self.settle(ledger, claim, OUTCOMES[outcome])
        [after] = ledger.tasks.record(new(key="k"))

        assert running == Enqueued(claim.task_id, State.RUNNING, created=False)
        assert after.created

    @pytest.mark.parametrize("outcome", ["failed", "snoozed", "handed_back"])
    def test_a_key_is_held_while_its_task_will_run_again(
        self, ledger: Ledger, worker: Incarnation, outcome: str
    ) -> None:
        claim = self.run_one(ledger, worker, key="k")
        self.settle(ledger, claim, OUTCOMES[outcome])

        assert not ledger.tasks.record(new(key="k"))[0].created

    def test_a_key_is_free_again_when_its_task_is_cancelled_by_a_person(self, ledger: Ledger) -> None:
        [task_id] = self.record(ledger, key="k")
        ledger.decisions.cancel(task_id, who="ada", why="why")

        assert ledger.tasks.record(new(key="k"))[0].created

    def test_a_key_is_free_again_when_its_task_has_killed_too_many_workers(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        claim = self.run_one(ledger, worker, key="k", crashes_max=1)
        ledger.workers.reap(worker.id, Evidence("SIGKILL", started={claim.task_id: 1}))

        assert ledger.tasks.record(new(key="k"))[0].created

    def test_a_key_is_held_for_its_time_though_its_task_is_settled(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(ledger, worker, key="k", key_for_s=100.0)
        self.settle(ledger, claim, Done())

        within = ledger.tasks.record([*new(key="other"), *new(key="k"), *new(key="k", key_for_s=500.0), *new()])
        with pytest.raises(KeyConflict, match=claim.task_id):
            ledger.tasks.record(new(key="k", payload='{"a":[],"k":{}}'))
        clock.forward(101.0)
        [later] = ledger.tasks.record(new(key="k"))

        original = Enqueued(claim.task_id, State.SUCCEEDED, created=False)
        assert [one.created for one in within] == [True, False, False, True]
        assert within[1:3] == [original] * 2
        assert later.created

    def test_a_key_is_held_by_a_task_that_lives_longer_than_its_time(self, ledger: Ledger, clock: Clock) -> None:
        ledger.tasks.record(new(key="k", key_for_s=10.0))
        clock.forward(60.0)

        assert not ledger.tasks.record(new(key="k", key_for_s=10.0))[0].created

    def test_the_time_of_a_key_begins_anew_with_each_task_that_takes_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        for _ in range(2):
            claim = self.run_one(ledger, worker, key="k", key_for_s=100.0)
            self.settle(ledger, claim, Done())
            clock.forward(60.0)
            assert not ledger.tasks.record(new(key="k"))[0].created
            clock.forward(41.0)

        assert ledger.tasks.record(new(key="k"))[0].created

    def test_what_is_rolled_back_leaves_no_key_behind(self, ledger: Ledger, theirs: Engine) -> None:
        with theirs.connect() as connection:
            ledger.tasks.record(new(key="k", key_for_s=100.0), connection=connection)
            connection.rollback()

        assert ledger.tasks.record(new(key="k"))[0].created

    def test_of_producers_at_once_one_takes_a_key_for_a_time(self, ledger: Ledger, worker: Incarnation) -> None:
        def live(_: int) -> int:
            created = 0
            for _ in range(5):
                [one] = ledger.tasks.record(new(key="k", key_for_s=100.0))
                if one.created:
                    created += 1
                    self.settle(ledger, ledger.claims.claim([one.id], by=worker.id)[0], Done())
            return created

        assert sum(at_once(6, live)) == 1
        assert len(ledger.questions.tasks()) == 1

    def test_windows_that_are_over_are_removed(self, ledger: Ledger, database: Database, clock: Clock) -> None:
        kept = {"retention_s": HOUR_S, "dead_retention_s": HOUR_S}
        ledger.tasks.record(
            [*new(key="a", key_for_s=10.0), *new(key="b", key_for_s=10.0), *new(key="c", key_for_s=100.0)]
        )
        clock.forward(11.0)

        [over] = [one for one in ledger.plans.prunable(limit=1, **kept) if one.what is Prunes.WINDOWS]
        applied = ledger.plans.prune_planned(over, by=self.BY, **kept)
        counts = [ledger.upkeep.prune(limit=9, retention_s=HOUR_S, dead_retention_s=HOUR_S).windows for _ in range(2)]

        assert len(applied.changed) == 1
        assert counts == [1, 0]
        assert len(self.everything(database)[database.tables.window.name]) == 1

    def test_sixteen_producers_with_one_key_make_one_task(self, ledger: Ledger) -> None:
        for round_number in range(5):
            batch = new(16, key=f"k{round_number}")
            answers = at_once(16, lambda number, batch=batch: ledger.tasks.record([batch[number]])[0])  # type: ignore[misc]  # a lambda's default has no type

            assert sum(one.created for one in answers) == 1
            assert len({one.id for one in answers}) == 1
        assert len(ledger.questions.tasks()) == 5

    def test_producers_that_take_the_same_keys_in_other_orders_agree(self, ledger: Ledger) -> None:
        keys = [f"k{number}" for number in range(10)]

        def produce(number: int) -> list[Enqueued]:
            mine = keys if number % 2 else keys[::-1]
            return ledger.tasks.record([new(key=key)[0] for key in mine])

        answers = at_once(6, produce)

        assert sum(one.created for batch in answers for one in batch) == 10
        assert len({one.id for batch in answers for one in batch}) == 10

    def test_a_key_changes_hands_between_many_threads_without_a_second_holder(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        def live(number: int) -> int:
            created = 0
            for _ in range(8):
                [one] = ledger.tasks.record(new(key="k"))
                if one.created:
                    created += 1
                    for claim in ledger.claims.claim([one.id], by=worker.id):
                        self.settle(ledger, claim, Done())
            return created

        created = sum(at_once(6, live))

        assert created == len(ledger.questions.tasks()) >= 1
        assert {task.state for task in ledger.questions.tasks()} == {State.SUCCEEDED}


class KeysOnServersContract(Steps):
    """Keys where transactions write side by side."""

    def test_who_waits_for_a_key_holds_none_that_comes_after_it(self, ledger: Ledger, database: Database) -> None:
        """All take their keys in one order: a circle of waiting producers is impossible.

        No other test has had these keys: MariaDB locks the gap behind one that was deleted and is not purged yet.
        """
        first, last = (f"{letter}{secrets.token_hex(8)}" for letter in "az")
        with ThreadPoolExecutor(2) as pool:
            with database.engine.begin() as holder:
                ledger.tasks.record(new(key=first), connection=holder)
                waits = pool.submit(ledger.tasks.record, [new(key=key)[0] for key in (last, first)])
                time.sleep(0.3)

                other = pool.submit(ledger.tasks.record, new(key=last))
                # before the wait for a lock runs out, after 5 s, and frees what it holds
                assert other.result(4.0)[0].created
                assert not waits.done()
            assert [one.created for one in waits.result(LONG_S)] == [False, False]
