"""Order: tasks of one order key have their turn one after the other, in the order in which they were committed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, event

from tests.contract.given import HOUR_S, LONG_S, OUTCOMES, Clock, at_once, new
from tests.contract.ledger.steps import Steps
from workq.errors import Refused
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.order.ledger.order import Order
from workq.values.incarnation import Incarnation
from workq.values.task import AfterDeath, Cancelled, Dead, Done, Failed, Outcome, State


class OrderContract(Steps):
    def turns(self, ledger: Ledger, ids: list[str]) -> list[str]:
        """Which of these could be claimed now."""
        claims = self.claim_elsewhere(ledger, ids)
        return [claim.task_id for claim in claims]

    def test_only_the_first_is_claimable_and_the_next_when_it_has_succeeded(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        recorded = ledger.tasks.record(new(3, order_key="k"))
        ids = [one.id for one in recorded]
        order = []
        for _ in ids:
            [claim] = ledger.claims.claim(ids, by=worker.id)
            assert claim.order_key == "k"
            order.append(claim.task_id)
            self.settle(ledger, claim, Done())
            hints = ledger.part(Order).advance(["k"])
            assert ledger.part(Order).advance(["k"]) == []

        assert [one.is_behind for one in recorded] == [False, True, True]
        assert order == ids
        assert hints == []
        assert ledger.part(Order).sequences() == []

    def test_who_comes_next_gets_a_hint_and_what_it_waits_for_itself_still_counts(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        first, later = (
            one.id for one in ledger.tasks.record([*new(order_key="k"), *new(order_key="k", delay_s=HOUR_S)])
        )
        [claim] = ledger.claims.claim([first, later], by=worker.id)
        self.settle(ledger, claim, Done())

        [hint] = ledger.part(Order).advance(["k"])
        assert self.marked(ledger, [hint]) == [later]
        early = self.turns(ledger, [later])
        clock.forward(HOUR_S + 1.0)

        assert hint.task_id == later
        assert HOUR_S - 60.0 < hint.delay_s <= HOUR_S
        assert early == []
        assert self.turns(ledger, [later]) == [later]

    @pytest.mark.parametrize("outcome", ["failed", "snoozed", "handed_back"])
    def test_nobody_overtakes_what_will_run_again(self, ledger: Ledger, worker: Incarnation, outcome: str) -> None:
        ids = self.record(ledger, 2, order_key="k")
        [claim] = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, claim, OUTCOMES[outcome])

        assert ledger.part(Order).advance(["k"]) == []
        assert ids[1] not in self.turns(ledger, ids)

    def test_nobody_overtakes_what_is_returned_from_the_dead(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 2, order_key="k")
        ledger.claims.claim(ids, by=worker.id)
        ledger.workers.reap(worker.id, Evidence("SIGKILL"))

        assert ledger.part(Order).ended_heads(limit=9) == []
        assert ledger.part(Order).advance(["k"]) == []
        assert self.turns(ledger, ids) == ids[:1]

    def test_a_dead_one_blocks_its_key_until_a_person_decides(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = self.record(ledger, 3, order_key="k")
        [claim] = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, claim, Dead("no", "no"))

        blocked = ledger.part(Order).advance(["k"]), ledger.part(Order).ended_heads(limit=9)
        [row] = ledger.part(Order).sequences(blocked_only=True)
        ledger.decisions.revive(ids[0], who="ada", why="mended")
        [again] = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, again, Dead("no", "no"))
        ledger.bulk.discard_dead([ids[0]], who="ada", why="given up")
        ended = ledger.part(Order).ended_heads(limit=9)
        hints = ledger.part(Order).advance(ended)

        assert blocked == ([], [])
        assert (row.key, row.head, row.state, row.behind) == ("k", ids[0], State.DEAD, 2)
        assert row.blocked_since is not None
        assert again.task_id == ids[0]
        assert ended == ["k"]
        assert [hint.task_id for hint in hints] == [ids[1]]
        assert self.turns(ledger, ids) == [ids[1]]

    def test_a_dead_one_is_skipped_when_it_says_so_and_comes_last_when_it_is_revived(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 3, order_key="k", after_death=AfterDeath.SKIP)
        [claim] = ledger.claims.claim(ids, by=worker.id)
        self.settle(ledger, claim, Dead("no", "no"))
        assert ledger.part(Order).ended_heads(limit=9) == ["k"]
        ledger.part(Order).advance(["k"])

        ledger.decisions.revive(ids[0], who="ada", why="once more")
        order = []
        for _ in ids:
            [claim] = ledger.claims.claim(ids, by=worker.id)
            order.append(claim.task_id)
            self.settle(ledger, claim, Done())
            ledger.part(Order).advance(["k"])

        assert order == [ids[1], ids[2], ids[0]]

    def test_who_was_cancelled_or_has_expired_behind_is_passed_over(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        recorded = ledger.tasks.record(
            [*new(order_key="k"), *new(order_key="k"), *new(order_key="k", expires_s=5.0), *new(order_key="k")]
        )
        ids = [one.id for one in recorded]
        [claim] = ledger.claims.claim(ids, by=worker.id)
        ledger.decisions.cancel(ids[1], who="ada", why="not needed")
        clock.forward(6.0)
        assert ledger.upkeep.expire(limit=9) == 1
        self.settle(ledger, claim, Done())

        hints = ledger.part(Order).advance(["k"])

        assert [hint.task_id for hint in hints] == [ids[3]]
        assert self.turns(ledger, ids) == [ids[3]]

    def test_many_in_a_row_that_were_cancelled_are_passed_over_at_once(
        self, ledger: Ledger, database: Database, worker: Incarnation
    ) -> None:
        ids = self.record(ledger, 60, order_key="k")
        [claim] = ledger.claims.claim(ids, by=worker.id)
        for one in ids[1:-1]:
            ledger.decisions.cancel(one, who="ada", why="not needed")
        self.settle(ledger, claim, Done())
        statements = []
        event.listen(database.engine, "before_cursor_execute", lambda *of: statements.append(of[2]))

        hints = ledger.part(Order).advance(["k"])

        assert [hint.task_id for hint in hints] == [ids[-1]]
        assert len(statements) < 20, statements

    def test_a_cancelled_first_one_ends_and_a_sweep_finds_it(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 2, order_key="k")
        ledger.decisions.cancel(ids[0], who="ada", why="not needed")

        assert ledger.part(Order).ended_heads(limit=9) == ["k"]
        assert [hint.task_id for hint in ledger.part(Order).advance(["k"])] == [ids[1]]

    def test_what_stands_behind_needs_no_hint_and_is_not_promoted(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger, 2, order_key="k")
        clock.forward(400 * 86400.0)

        unpublished = ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=3.2e8)

        assert len(unpublished) == 1
        assert ledger.upkeep.promote(limit=9) == 0

    def test_what_stands_behind_is_not_rescheduled(self, ledger: Ledger) -> None:
        ids = self.record(ledger, 2, order_key="k")

        ledger.decisions.reschedule(ids[0], delay_s=60.0, who="ada", why="later")
        with pytest.raises(Refused, match="waits for its turn in order key 'k'"):
            ledger.decisions.reschedule(ids[1], delay_s=0.0, who="ada", why="now")

    def test_keys_mind_only_their_own_tasks(self, ledger: Ledger) -> None:
        tasks = [*new(order_key="a"), *new(), *new(order_key="b"), *new(order_key="a"), *new(order_key="a")]
        ids = [one.id for one in ledger.tasks.record(tasks)]

        assert self.turns(ledger, ids) == sorted([ids[0], ids[1], ids[2]])
        assert [(row.key, row.behind) for row in ledger.part(Order).sequences()] == [("a", 2), ("b", 0)]
        assert [row.key for row in ledger.part(Order).sequences(key="b")] == ["b"]

    def test_what_is_rolled_back_leaves_no_position(self, ledger: Ledger, theirs: Engine) -> None:
        with theirs.connect() as connection:
            ledger.tasks.record(new(2, order_key="k"), connection=connection)
            connection.rollback()

        assert ledger.part(Order).sequences() == []
        assert not ledger.tasks.record(new(order_key="k"))[0].is_behind

    def test_a_task_whose_key_is_taken_takes_no_position(self, ledger: Ledger) -> None:
        ledger.tasks.record(new(key="taken"))

        again, fresh = ledger.tasks.record([*new(key="taken", order_key="k"), *new(key="free", order_key="k")])

        assert (again.created, fresh.created, fresh.is_behind) == (False, True, False)
        assert [(row.head, row.behind) for row in ledger.part(Order).sequences()] == [(fresh.id, 0)]

    def test_producers_and_workers_at_once_keep_one_line(self, ledger: Ledger) -> None:
        """Six threads enqueue into one key while each runs what it can claim: never two at a time, none left out."""
        running, most, done = [], [], []

        def live(number: int) -> None:
            me = Incarnation(f"worker.{number}", "host", number)
            ledger.workers.join(me, queues=["default"], threads=1)
            for _ in range(6):
                ledger.tasks.record(new(order_key="k"))
                for claim in ledger.claims.claim(
                    [one.id for one in ledger.questions.tasks(state=State.READY)], by=me.id
                ):
                    running.append(claim.task_id)
                    most.append(len(running))
                    running.remove(claim.task_id)
                    self.settle(ledger, claim, Done())
                    done.append(claim.task_id)
                    ledger.part(Order).advance(["k"])

        at_once(6, live)
        while ready := ledger.questions.tasks(state=State.READY):
            for claim in self.claim_elsewhere(ledger, [one.id for one in ready]):
                self.settle(ledger, claim, Done())
                done.append(claim.task_id)
                ledger.part(Order).advance(["k"])

        assert max(most) == 1
        assert len(set(done)) == len(done) == 36
        assert ledger.part(Order).sequences() == []

    def test_a_failure_that_is_out_of_budget_moves_the_line_only_if_it_skips(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        [task_id, _] = self.record(ledger, 2, order_key="k", after_death=AfterDeath.SKIP)
        [claim] = ledger.claims.claim([task_id], by=worker.id)
        self.settle(ledger, claim, Failed(5.0, "boom"))
        clock.forward(6.0)
        [claim] = ledger.claims.claim([task_id], by=worker.id)
        self.settle(ledger, claim, Dead("failures_max reached", "boom"))

        assert len(ledger.part(Order).advance(["k"])) == 1

    @pytest.mark.parametrize("ended", [Dead("failures_max reached", "boom"), Cancelled("no need")])
    def test_who_is_sent_back_blocks_or_is_skipped_as_it_said_when_it_was_enqueued(
        self, ledger: Ledger, worker: Incarnation, ended: Outcome
    ) -> None:
        for policy, goes_on in ((AfterDeath.SKIP, 1), (AfterDeath.BLOCK, 0)):
            [task_id] = self.record(ledger, 1, order_key="k", after_death=policy)
            [claim] = ledger.claims.claim([task_id], by=worker.id)
            self.settle(ledger, claim, ended)
            ledger.part(Order).advance(["k"])
            ledger.decisions.revive(task_id, who="ada", why="?")
            [behind] = self.record(ledger, 1, order_key="k")
            [claim] = ledger.claims.claim([task_id], by=worker.id)
            self.settle(ledger, claim, Dead("failures_max reached", "boom"))

            assert len(ledger.part(Order).ended_heads(limit=9)) == goes_on
            assert [hint.task_id for hint in ledger.part(Order).advance(["k"])] == [behind] * goes_on
            ledger.decisions.cancel(behind, who="ada", why="?")
            ledger.part(Order).advance(["k"])


class OrderOnServersContract(Steps):
    """Order where transactions write side by side."""

    def test_the_order_is_that_of_the_commits(self, ledger: Ledger, database: Database) -> None:
        with ThreadPoolExecutor(1) as pool:
            with database.engine.begin() as slow:
                [first] = ledger.tasks.record(new(order_key="k"), connection=slow)
                waits = pool.submit(ledger.tasks.record, new(order_key="k"))
            [second] = waits.result(LONG_S)

        assert (first.is_behind, second.is_behind) == (False, True)
