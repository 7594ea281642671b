"""The lines of destinations: messages wait at no cost while theirs is out, and come in the order of their time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import event

from tests.contract.given import HOUR_S, Clock, at_once
from tests.contract.ledger.messages import BY, MessageSteps, new_message
from workq.ledger import Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.limits.ledger.limits import Limits
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import QUEUE, SentMessage, WhichMessages
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Done, Failed, Snoozed, State

FAR_S = 600.0
"""For so long a destination has asked to rest: no rest ends in the middle of a test."""


class MovedMessagesContract(MessageSteps):
    def test_a_message_has_the_time_of_its_task_when_it_was_moved(self, ledger: Ledger) -> None:
        self.destination(ledger)
        self.post(ledger, new_message("a", delay_s=60.0))

        ledger.part(MessageLedger).decisions.reschedule("a", delay_s=600.0, **BY)

        moved = self.message(ledger, "a")
        assert (moved.due_at, self.task(ledger, moved.task_id).due_at) == (moved.next_at, moved.next_at)

    def test_what_is_moved_while_the_late_ones_are_made_due_keeps_its_time(
        self, ledger: Ledger, database: Database, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger, new_message("moved"), new_message("late"))
        self.let_run(ledger, worker, sent, Failed(FAR_S, "no confirm"))
        clock.forward(60.0)
        decisions = ledger.part(MessageLedger).decisions
        statements: list[str] = []

        def move(*of: Any) -> None:
            """Between its page, which is one statement, and the locks on what is there."""
            statements.append(of[2])
            if len(statements) == 2 and database.dialect != "sqlite":  # there nobody writes beside it
                decisions.reschedule("moved", delay_s=HOUR_S, **BY)

        if database.dialect == "sqlite":
            decisions.reschedule("moved", delay_s=HOUR_S, **BY)
        event.listen(database.engine, "before_cursor_execute", move)
        made, _ = decisions.make_due(WhichMessages(destination="orders"), **BY)
        event.remove(database.engine, "before_cursor_execute", move)

        assert self.hinted(made) == [sent[1].task_id]
        moved = self.message(ledger, "moved")
        assert (moved.state, moved.next_at) == (State.WAITING, moved.due_at)
        assert self.message(ledger, "late").state is State.READY

    @staticmethod
    def hinted(hints: Iterable[Unpublished]) -> list[str]:
        return [one.task_id for one in hints]


class DestinationLinesContract(MovedMessagesContract):
    @staticmethod
    def let_rest(ledger: Ledger, *, for_s: float = FAR_S) -> None:
        ledger.part(MessageLedger).destinations.failed("orders", fault="asked", error="slow down", asked_s=for_s)

    def in_line(self, ledger: Ledger, sent: Iterable[SentMessage]) -> list[str]:
        """Of these, what waits for its destination."""
        return [one.id for one in sent if self.message(ledger, one.id).waits_for == "destination"]

    @staticmethod
    def claim_sent(ledger: Ledger, worker: Incarnation, sent: Sequence[SentMessage]) -> list[str]:
        return [one.task_id for one in ledger.claims.claim([one.task_id for one in sent], by=worker.id)]

    def test_while_it_is_disabled_they_wait_without_an_event_and_come_in_the_order_of_their_time(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        part = ledger.part(MessageLedger)
        delays = (30.0, 10.0, 20.0, 0.0)
        sent = self.post(ledger, *[new_message(f"in-{delay_s:.0f}", delay_s=delay_s) for delay_s in delays])
        later = self.post(ledger, new_message("later", delay_s=HOUR_S))
        part.decisions.disable("orders", **BY)
        clock.forward(60.0)

        claimed = [self.claim_sent(ledger, worker, sent), self.claim_sent(ledger, worker, sent)]
        waiting, length = self.in_line(ledger, [*sent, *later]), part.line.length("orders")
        row, history = self.message(ledger, "in-10"), ledger.questions.history(sent[1].task_id)
        still = part.line.tend(limit=10)
        part.decisions.enable("orders", **BY)
        pages = [self.marked(ledger, part.line.come("orders", limit=2)) for _ in range(3)]

        assert claimed == [[], []]
        assert (waiting, length, still) == (["in-30", "in-10", "in-20", "in-0"], 4, [])
        assert (row.state, row.attempts, row.next_at, history) == (State.WAITING, 0, None, [])
        assert self.task(ledger, sent[1].task_id).waits_for is None, "it has come"
        by_time = [sent[3].task_id, sent[1].task_id, sent[2].task_id, sent[0].task_id]
        assert pages == [by_time[:2], by_time[2:], []]
        assert sorted(self.claim_sent(ledger, worker, sent)) == sorted(by_time)
        assert part.line.length("orders") == 0

    def test_while_it_rests_one_waits_for_the_end_and_is_the_only_one_that_tries_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        part = ledger.part(MessageLedger)
        sent = self.post(ledger, *[new_message(name) for name in "abcd"])
        self.let_rest(ledger)

        resting = self.claim_sent(ledger, worker, sent)
        [probe] = [one for one in sent if self.message(ledger, one.id).waits_for is None]
        due_at, rests_until = self.message(ledger, probe.id).next_at, part.destinations.required("orders").rests_until
        clock.forward(FAR_S + 1.0)
        others = [one for one in sent if one is not probe]
        tried = [
            self.claim_sent(ledger, worker, others),
            part.line.tend(limit=10),
            self.claim_sent(ledger, worker, [probe]),
        ]
        behind = self.post(ledger, new_message("e"))
        tried += [self.claim_sent(ledger, worker, behind), part.line.tend(limit=10)]
        recovered = part.destinations.arrived("orders")
        coming = part.line.tend(limit=10)

        assert (resting, len(self.in_line(ledger, sent)), recovered) == ([], 0, True)
        assert due_at == rests_until
        assert tried == [[], [], [probe.task_id], [], []]
        assert sorted(self.hinted(coming)) == sorted(one.task_id for one in [*others, *behind])
        assert len(self.claim_sent(ledger, worker, [*others, *behind])) == 4

    def test_after_each_failure_the_next_in_line_tries_it_when_the_rest_ends(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        part = ledger.part(MessageLedger)
        sent = self.post(ledger, *[new_message(name) for name in "abc"])
        self.let_rest(ledger)
        self.claim_sent(ledger, worker, sent)
        clock.forward(FAR_S + 1.0)
        [first] = ledger.claims.claim([one.task_id for one in sent], by=worker.id)

        self.let_rest(ledger)
        next_one = part.line.next_probe("orders")
        is_marked = self.marked(ledger, next_one)
        self.settle(ledger, first, Failed(5.0, "no confirm"))
        early = self.claim_sent(ledger, worker, sent)
        clock.forward(FAR_S + 1.0)
        second = self.claim_sent(ledger, worker, sent)

        [hint] = next_one
        assert is_marked == [hint.task_id]
        assert FAR_S - 60.0 < hint.delay_s <= FAR_S
        assert (early, second) == ([], [hint.task_id])
        assert hint.task_id != first.task_id

    def test_a_probe_that_is_not_heard_of_is_followed_by_another(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger, timeout_s=5.0)
        part = ledger.part(MessageLedger)
        sent = self.post(ledger, *[new_message(name) for name in "abc"])
        self.let_rest(ledger)
        self.claim_sent(ledger, worker, sent)
        clock.forward(FAR_S + 1.0)
        [lost] = self.claim_sent(ledger, worker, sent)

        early = part.line.tend(limit=10)
        clock.forward(60.0)
        would, coming = part.line.tend(limit=10, dry_run=True), part.line.tend(limit=10)

        assert early == []
        assert (len(would), len(coming)) == (1, 1)
        assert self.claim_sent(ledger, worker, sent) == self.hinted(coming)
        assert coming[0].task_id != lost

    def test_whoever_is_put_in_line_as_it_is_enabled_comes_all_the_same(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        part = ledger.part(MessageLedger)
        for number in range(8):
            sent = self.post(ledger, *[new_message(f"{number}-{name}") for name in "ab"])
            part.decisions.disable("orders", **BY)

            def act(which: int, sent: list[SentMessage] = sent) -> object:
                if which:
                    part.decisions.enable("orders", **BY)
                    return self.hinted(part.line.come("orders"))
                return self.claim_sent(ledger, worker, sent)

            claimed, came = at_once(2, act)
            again = self.claim_sent(ledger, worker, sent)

            assert isinstance(claimed, list)
            assert sorted([*claimed, *again]) == sorted(one.task_id for one in sent), came
            assert self.in_line(ledger, sent) == []

    def test_what_a_person_decides_about_one_that_waits_holds(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        part = ledger.part(MessageLedger)
        sent = self.post(ledger, *[new_message(name) for name in "abcd"])
        part.decisions.disable("orders", **BY)
        self.claim_sent(ledger, worker, sent)

        part.decisions.cancel("a", **BY)
        part.decisions.reschedule("b", delay_s=HOUR_S, **BY)
        part.decisions.cancel("c", **BY)
        part.decisions.retry("c", **BY)
        back = self.claim_sent(ledger, worker, sent[2:3])
        waiting = self.in_line(ledger, sent)
        part.decisions.enable("orders", **BY)
        coming = self.hinted(part.line.come("orders"))

        assert (back, waiting) == ([], ["c", "d"])
        assert sorted(coming) == sorted(one.task_id for one in sent[2:])
        rows = [self.message(ledger, name) for name in "ab"]
        assert [row.state for row in rows] == [State.CANCELLED, State.WAITING]
        assert rows[1].next_at is not None

    def test_a_limit_lets_nothing_start_that_the_destination_keeps_back(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger, concurrency=1)
        part = ledger.part(MessageLedger)
        sent = self.post(ledger, *[new_message(name) for name in "abc"])
        [runs] = ledger.claims.claim([one.task_id for one in sent], by=worker.id)
        part.decisions.disable("orders", **BY)

        self.settle(ledger, runs, Done())
        claims, hints = ledger.part(Limits).admit_and_claim(["message:orders"], by=worker.id, room=5, queues=[QUEUE])
        refused = ledger.claims.claim(self.hinted(hints), by=worker.id)
        waiting = self.in_line(ledger, sent)
        part.decisions.enable("orders", **BY)
        came = self.hinted(part.line.come("orders"))
        ran: list[str] = []
        for _ in range(6):
            claimed = ledger.claims.claim(came, by=worker.id)
            ran += [claim.task_id for claim in claimed]
            for claim in claimed:
                self.settle(ledger, claim, Done())
            came = self.hinted(ledger.part(Limits).admit(["message:orders"]))

        assert (claims, refused, len(hints), len(waiting)) == ([], [], 1, 1)
        assert sorted(ran) == sorted(one.task_id for one in sent if one.task_id != runs.task_id)

    def test_a_drain_waits_for_those_that_may_come_and_for_no_others(self, ledger: Ledger, worker: Incarnation) -> None:
        self.destination(ledger)
        part = ledger.part(MessageLedger)
        sent = self.post(ledger, *[new_message(name) for name in "ab"])
        part.decisions.disable("orders", **BY)
        self.claim_sent(ledger, worker, sent)

        off = ledger.questions.has_due([QUEUE])
        part.decisions.enable("orders", **BY)
        on = ledger.questions.has_due([QUEUE])
        part.line.come("orders")

        assert (off, on, self.in_line(ledger, sent)) == (False, True, [])

    def test_what_was_on_its_way_when_it_was_disabled_joins_the_others_and_a_removed_one_has_no_line(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        part = ledger.part(MessageLedger)
        first, second = self.post(ledger, new_message("a"), new_message("b"))
        on_its_way: list[Claim] = ledger.claims.claim([first.task_id], by=worker.id)
        part.decisions.disable("orders", **BY)
        self.claim_sent(ledger, worker, [second])

        self.settle(ledger, on_its_way[0], Snoozed(0.0, "its destination is disabled"))
        again = self.claim_sent(ledger, worker, [first])
        waiting = self.in_line(ledger, [first, second])
        cleared, _ = part.decisions.clear("orders", before=part.decisions.now(), limit=10, **BY)
        part.decisions.remove("orders", **BY)
        self.destination(ledger)

        assert (again, waiting) == ([], ["a", "b"])
        assert cleared == 2
        assert part.line.come("orders") == []
        assert part.letters.counts(WhichMessages(destination="orders")) == {"cancelled": 2}
