"""Messages: recorded once, with the caller's transaction; decided about by people; forgotten with their tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from tests.contract.given import HOUR_S, Clock, at_once, let_lock_what_has_changed, new
from tests.contract.ledger.steps import Steps
from workq.errors import KeyConflict, NotFound, Refused
from workq.ledger import CancelAnswer
from workq.ledger.sql import Ledger
from workq.messages.ledger.sql import MessageLedger
from workq.messages.ledger.tables import message_tables
from workq.messages.values import (
    DestinationPolicy,
    MessageRow,
    NewDestination,
    NewMessage,
    SentMessage,
    WhichMessages,
)
from workq.order.ledger.order import Order
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Dead, Done, Failed, State

BY: dict[str, Any] = {"who": "ann@host", "why": "a test"}
ALL = WhichMessages()


def new_message(message_id: str | None = None, **facts: Any) -> NewMessage:
    task_id = codec.new_task_id()
    given: dict[str, Any] = {"destination": "orders", "body": "hello", "is_binary": False, "content_type": "text/plain"}
    return NewMessage(id=message_id or task_id, task_id=task_id, **(given | facts))


class MessageSteps(Steps):
    def destination(self, ledger: Ledger, name: str = "orders", **policy: Any) -> None:
        new = NewDestination(name, "box", {"folder": "/tmp"}, None, DestinationPolicy(**policy))
        ledger.part(MessageLedger).destinations.add_destination(new, **BY)

    def post(self, ledger: Ledger, *messages: NewMessage) -> list[SentMessage]:
        return ledger.part(MessageLedger).recorded.record(messages or [new_message()])[0]

    def message(self, ledger: Ledger, message_id: str) -> MessageRow:
        found = ledger.part(MessageLedger).letters.message(message_id)
        assert found is not None
        return found

    def let_run(self, ledger: Ledger, worker: Incarnation, sent: Sequence[SentMessage], outcome: Any) -> list[Claim]:
        """Their tasks run, to this outcome."""
        claims = ledger.claims.claim([self.message(ledger, one.id).task_id for one in sent], by=worker.id)
        for claim in claims:
            self.settle(ledger, claim, outcome)
        return claims


class MessagesContract(MessageSteps):
    def test_a_message_is_recorded_with_the_task_that_sends_it(self, ledger: Ledger) -> None:
        self.destination(ledger, failures_max=7)
        sent, hints = ledger.part(MessageLedger).recorded.record(
            [
                new_message("a", key="k", headers={"x": "é"}, body="grüße"),
                new_message("b", is_binary=True, body="AP8=", delay_s=60.0),
            ]
        )

        assert [(one.id, one.created) for one in sent] == [("a", True), ("b", True)]
        assert [(one.task_id, one.queue) for one in hints] == [(one.task_id, "workq.messages") for one in sent]
        tasks = [self.task(ledger, one.task_id) for one in sent]
        assert [task.args for task in tasks] == [("orders 1 a",), ("orders 1 b",)]
        assert {(task.name, task.failures_max, task.limit) for task in tasks} == {("workq.message", 7, None)}
        letters = ledger.part(MessageLedger).letters.letters(["a", "b", "none"])
        assert {name: one.body for name, one in letters.items()} == {"a": "grüße".encode(), "b": b"\x00\xff"}
        assert (letters["a"].key, letters["a"].headers, letters["a"].rests_s) == ("k", {"x": "é"}, 0.0)
        first, second = self.message(ledger, "a"), self.message(ledger, "b")
        assert (first.state, first.due_at, second.state) == (State.READY, first.created_at, State.WAITING)
        assert timedelta(seconds=59) < second.due_at - second.created_at < timedelta(seconds=61)
        assert [one.id for one in ledger.part(MessageLedger).letters.all(ALL)] == ["b", "a"]

    def test_the_same_id_is_recorded_once_and_answers_the_first(self, ledger: Ledger) -> None:
        self.destination(ledger)
        self.destination(ledger, "bills")
        [first] = self.post(ledger, new_message("a"))

        again = self.post(ledger, new_message("b"), new_message("a", body="other"), new_message("b"))

        assert [(one.id, one.created) for one in again] == [("b", True), ("a", False), ("b", False)]
        assert again[1].task_id == first.task_id
        assert ledger.part(MessageLedger).letters.body("a") == b"hello"
        assert len(ledger.questions.tasks()) == 2
        with pytest.raises(KeyConflict, match="was sent before, to 'orders'"):
            self.post(ledger, new_message("c"), new_message("a", destination="bills"))
        assert len(ledger.questions.tasks()) == 2

    def test_of_many_who_send_the_same_at_once_one_is_recorded(self, ledger: Ledger) -> None:
        self.destination(ledger)

        answers = at_once(6, lambda _: self.post(ledger, new_message("a")))

        assert len({one.task_id for [one] in answers}) == 1
        assert [one.created for [one] in answers].count(True) == 1
        assert len(ledger.questions.tasks()) == 1

    def test_it_is_sent_with_the_callers_transaction_or_not_at_all(self, ledger: Ledger, theirs: Engine) -> None:
        self.destination(ledger)
        recorded = ledger.part(MessageLedger).recorded
        with Session(theirs) as session:
            recorded.record([new_message("dropped")], connection=session)
            session.rollback()
            recorded.record([new_message("kept")], connection=session)
            with pytest.raises(NotFound, match="no destination 'nowhere'"):
                recorded.record([new_message("x", destination="nowhere")], connection=session)
            recorded.record([new_message("kept"), new_message("too")], connection=session)
            before = ledger.part(MessageLedger).letters.message("kept")
            session.commit()

        assert before is None
        assert {one.id for one in ledger.part(MessageLedger).letters.all(ALL)} == {"kept", "too"}
        assert len(ledger.questions.tasks()) == 2

    def test_a_transaction_that_began_before_gets_the_message_and_the_task_that_stand(
        self, ledger: Ledger, theirs: Engine
    ) -> None:
        self.destination(ledger)
        tables = ledger.database.tables
        keyed = replace(new(1)[0], key="k")
        with Session(theirs) as session:
            let_lock_what_has_changed(session)
            session.execute(select(message_tables(ledger.database).message.c.id)).all()
            session.execute(select(tables.task.c.id)).all()
            [first] = self.post(ledger, new_message("a"))
            [task] = ledger.tasks.record([keyed])

            again, fresh = ledger.part(MessageLedger).recorded.record(
                [new_message("a", body="other"), new_message("b")], connection=session
            )
            [found] = ledger.tasks.record([replace(keyed, id=codec.new_task_id())], connection=session)
            session.commit()

        assert [(one.id, one.created) for one in again] == [("a", False), ("b", True)]
        assert (again[0].task_id, len(fresh)) == (first.task_id, 1)
        assert (found.id, found.created) == (task.id, False)
        assert ledger.part(MessageLedger).letters.body("a") == b"hello"

    def test_a_delay_is_rounded_up_to_the_levels_of_the_destination(self, ledger: Ledger) -> None:
        self.destination(ledger, levels_s=(5.0, 30.0))
        at = ledger.questions.clock().replace(microsecond=0) + timedelta(seconds=3590.0)
        self.post(ledger, new_message("now"), new_message("a", delay_s=6.0), new_message("b", at=at, delay_s=61.0))

        rows = [self.message(ledger, name) for name in ("now", "a", "b")]

        waits = [(row.due_at - row.created_at).total_seconds() for row in rows]
        assert (waits[0], round(waits[1])) == (0, 30)
        assert at <= rows[2].due_at == rows[2].next_at
        assert waits[2] <= 3600.0, "the level is that of the ledger's clock"

    def test_a_limit_of_the_destination_is_that_of_its_tasks(self, ledger: Ledger, worker: Incarnation) -> None:
        self.destination(ledger, concurrency=2)
        sent = self.post(ledger, *[new_message() for _ in range(5)])

        claims = ledger.claims.claim([one.task_id for one in sent], by=worker.id)

        assert len(claims) == 2

    def test_cancelled_is_cancelled_once_and_what_is_on_its_way_is_only_asked(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        first, second = self.post(ledger, new_message("a"), new_message("b"))
        decisions = ledger.part(MessageLedger).decisions
        [claim] = ledger.claims.claim([second.task_id], by=worker.id)

        assert decisions.cancel("a", **BY) is CancelAnswer.CANCELLED
        assert decisions.cancel("a", **BY) is CancelAnswer.ALREADY_CANCELLED
        assert decisions.cancel("b", **BY) is CancelAnswer.REQUESTED
        self.settle(ledger, claim, Failed(1.0, "not confirmed"))

        assert [self.message(ledger, name).state for name in "ab"] == [State.CANCELLED, State.CANCELLED]
        assert ledger.claims.claim([first.task_id, second.task_id], by=worker.id) == []
        event = ledger.questions.history(first.task_id)[-1]
        assert (event.kind, event.detail["who"]) == ("cancelled", "ann@host")
        with pytest.raises(NotFound, match="no message 'none'"):
            decisions.cancel("none", **BY)

    def test_rescheduled_moves_its_time_and_that_of_its_task_together_or_not_at_all(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        [one] = self.post(ledger, new_message("a", delay_s=60.0))
        decisions = ledger.part(MessageLedger).decisions
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)

        decisions.reschedule("a", delay_s=0.0, at=at, **BY)  # the clock of its host is ahead
        moved = self.message(ledger, "a")
        decisions.reschedule("a", delay_s=0.0, **BY)
        ledger.claims.claim([one.task_id], by=worker.id)
        with pytest.raises(Refused, match="running"):
            decisions.reschedule("a", delay_s=60.0, **BY)

        assert moved.due_at == moved.next_at == at
        now = self.message(ledger, "a")
        assert now.state is State.RUNNING
        assert now.due_at < at

    @pytest.mark.parametrize("kind", ["cancel", "reschedule"])
    def test_a_decision_at_the_moment_in_which_it_is_due_has_one_outcome(
        self, ledger: Ledger, worker: Incarnation, kind: str, long_run: bool
    ) -> None:
        self.destination(ledger)
        decisions, rng = ledger.part(MessageLedger).decisions, Random(17)
        claimed = 0
        for number in range(1000 if long_run else 30):
            [one] = self.post(ledger, new_message(f"m{number}", delay_s=0.02))
            due_at = self.message(ledger, one.id).due_at
            begins_at = due_at + timedelta(milliseconds=rng.uniform(-8.0, 3.0))
            is_decided = threading.Event()

            def decide(one: SentMessage = one, at: datetime = begins_at, done: threading.Event = is_decided) -> bool:
                """Whether nothing is sent because of it."""
                while decisions.now() < at:
                    continue
                try:
                    if kind == "cancel":
                        return decisions.cancel(one.id, **BY) is CancelAnswer.CANCELLED
                    decisions.reschedule(one.id, delay_s=HOUR_S, **BY)
                except Refused:
                    return False
                else:
                    return True
                finally:
                    done.set()

            def take(one: SentMessage = one, done: threading.Event = is_decided) -> int:
                """How many claims of it were granted, until the decision and once more behind it."""
                granted, is_last = 0, False
                while not is_last:
                    is_last = done.is_set()
                    granted += len(ledger.claims.claim([one.task_id], by=worker.id))
                return granted

            acts = (decide, take)
            is_kept_back, granted = at_once(2, partial(_act, acts))

            row = self.message(ledger, one.id)
            if is_kept_back:
                assert (granted, row.attempts) == (0, 0)
                assert row.state is (State.CANCELLED if kind == "cancel" else State.WAITING)
            else:
                assert (granted, row.attempts, row.state) == (1, 1, State.RUNNING)
                started_at = self.task(ledger, one.task_id).started_at
                assert started_at is not None
                assert started_at >= due_at
            claimed += granted
        print(f"{ledger.database.dialect}, {kind}: {number + 1} races, {claimed} claimed")

    def test_what_is_dead_is_sent_after_all_as_the_same_sending(self, ledger: Ledger, worker: Incarnation) -> None:
        self.destination(ledger)
        [one] = self.post(ledger, new_message("a"))
        self.let_run(ledger, worker, [one], Dead("not retried: NotTaken", "too large"))

        hint = ledger.part(MessageLedger).decisions.retry("a", **BY)

        row = self.message(ledger, "a")
        assert (row.state, row.sending, row.task_id, hint.task_id) == (State.READY, 1, one.task_id, one.task_id)
        with pytest.raises(Refused):
            ledger.part(MessageLedger).decisions.retry("a", **BY)

    def test_what_was_cancelled_before_its_time_keeps_that_when_it_is_sent_after_all(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        decisions = ledger.part(MessageLedger).decisions
        alone, before, behind = self.post(
            ledger,
            new_message("alone", delay_s=HOUR_S),
            new_message("before", order_key="k"),
            new_message("behind", delay_s=HOUR_S, order_key="k"),
        )
        due_at = self.message(ledger, "alone").due_at
        key = self.task(ledger, behind.task_id).order_key or ""
        for name in ("alone", "behind"):
            decisions.cancel(name, **BY)
        self.let_run(ledger, worker, [before], Done())
        assert ledger.part(Order).advance([key]) == []
        [first] = self.post(ledger, new_message("first", order_key="k"))

        hints = [decisions.retry(name, **BY) for name in ("alone", "behind")]

        row = self.message(ledger, "alone")
        assert (row.state, row.next_at, row.due_at) == (State.WAITING, due_at, due_at)
        assert 0.0 < hints[0].delay_s <= HOUR_S < hints[1].delay_s
        self.let_run(ledger, worker, [first], Done())
        [hint] = ledger.part(Order).advance([key])
        assert 0.0 < hint.delay_s <= HOUR_S
        ids = [alone.task_id, behind.task_id]
        assert ledger.claims.claim(ids, by=worker.id) == []
        clock.forward(HOUR_S)
        assert len(ledger.claims.claim(ids, by=worker.id)) == 2

    def test_all_that_is_not_sent_is_cleared_and_what_is_on_its_way_is_not(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        self.destination(ledger, "bills")
        sent = self.post(ledger, *[new_message() for _ in range(6)], new_message(delay_s=60.0))
        [other] = self.post(ledger, new_message(destination="bills"))
        ledger.claims.claim([sent[0].task_id], by=worker.id)
        decisions = ledger.part(MessageLedger).decisions

        seen: dict[str, Any] = {"before": decisions.now(), "limit": 9, **BY}
        counts = [
            decisions.waiting("orders"),
            decisions.clear("orders", **seen)[0],
            decisions.clear("orders", **seen)[0],
        ]

        assert counts == [6, 6, 0]
        states = [self.message(ledger, one.id).state for one in (*sent, other)]
        assert states == [State.RUNNING, *[State.CANCELLED] * 6, State.READY]
        with pytest.raises(NotFound, match="no destination 'none'"):
            decisions.clear("none", **seen)

    def test_pages_begin_behind_the_page_before_and_read_nothing_of_it(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger, *[new_message(name) for name in "abcd"])
        clock.forward(1.0)
        decisions, which = ledger.part(MessageLedger).decisions, WhichMessages(destination="orders")
        given: dict[str, Any] = {"before": decisions.now(), "limit": 2, **BY}

        _, first_end = decisions.clear("orders", **given)
        decisions.retry("a", **BY)
        second, second_end = decisions.clear("orders", **given, after=first_end)
        end = decisions.clear("orders", **given, after=second_end)
        for claim in self.let_run(ledger, worker, sent[:1], Failed(600.0, "no confirm")):
            assert claim.task_id == sent[0].task_id
        late, late_end = decisions.make_due(which, **BY, after=first_end)

        assert first_end is not None
        assert first_end.id == "b"
        assert (second, end) == (2, (0, None))
        assert self.message(ledger, "a").state is State.WAITING, "it came back, and no page looked there again"
        assert (late, late_end) == ([], None)
        assert self.marked(ledger, decisions.make_due(which, **BY)[0]) == [sent[0].task_id]

    def test_what_is_sent_after_the_count_is_not_cleared_and_no_more_than_was_confirmed(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        self.destination(ledger)
        decisions = ledger.part(MessageLedger).decisions
        self.post(ledger, *[new_message() for _ in range(3)])
        before = decisions.now()
        clock.forward(1.0)
        [later] = self.post(ledger)

        assert (decisions.waiting("orders", before=before), decisions.waiting("orders")) == (3, 4)
        cleared = [decisions.clear("orders", before=before, limit=one, **BY)[0] for one in (2, 9)]
        assert cleared == [2, 1]
        assert self.message(ledger, later.id).state is State.READY

    def test_an_instant_counts_by_the_clock_of_the_ledger_whatever_the_sender_took_for_now(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        """The sender's clock is ahead: to it the instant is past."""
        self.destination(ledger)
        now = ledger.questions.clock().replace(microsecond=0)
        at, past = now + timedelta(minutes=30), now - timedelta(minutes=30)

        early, late = self.post(ledger, new_message(delay_s=0.0, at=at), new_message(delay_s=0.0, at=past))

        assert self.message(ledger, early.id).due_at == at
        assert self.message(ledger, late.id).due_at >= now
        claims = ledger.claims.claim([early.task_id, late.task_id], by=worker.id)
        assert [claim.task_id for claim in claims] == [late.task_id]


def _act(acts: Sequence[Callable[[], int]], which: int) -> int:
    return acts[which]()
