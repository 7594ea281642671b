"""Messages that are sent once more: a restore makes new tasks for them, and what retention has removed bars it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from tests.contract.given import HOUR_S, Clock, at_once
from tests.contract.ledger.messages import ALL, BY, MessageSteps, new_message
from workq.errors import NotFound
from workq.ledger.sql import Ledger
from workq.messages.ledger.decisions import removed
from workq.messages.ledger.sql import MessageLedger
from workq.messages.ledger.tables import message_tables
from workq.messages.values import (
    KEPT_AFTER_S,
    MessagePosition,
    Restorable,
    WhichMessages,
)
from workq.order.ledger.order import Order
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Done, State


class RestoringContract(MessageSteps):
    def restored(self, ledger: Ledger, *, is_expired: bool = False, **which: Any) -> int:
        decisions, done = ledger.part(MessageLedger).decisions, 0
        chosen, before = WhichMessages(destination="orders", **which), decisions.now()
        after: MessagePosition | None = None
        while True:
            page, _, after = decisions.restore(chosen, is_expired=is_expired, before=before, after=after, **BY)
            done += page
            if after is None:
                return done

    def test_a_restore_is_a_new_task_of_the_same_id_for_what_has_arrived_or_is_dead(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger, *[new_message(name, order_key="k" if name < "c" else None) for name in "abcde"])
        for one in sent[:2]:  # one after the other, by their order key
            self.let_run(ledger, worker, [one], Done())
            ledger.part(Order).advance(ledger.part(Order).ended_heads(limit=10))
        self.let_run(ledger, worker, [sent[2]], Dead("not retried: NotTaken", "too large"))
        ledger.part(MessageLedger).decisions.cancel("d", **BY)
        clock.forward(60.0)

        expired = ledger.part(MessageLedger).decisions.restorable(WhichMessages(destination="orders"), is_expired=True)
        counts = ledger.part(MessageLedger).decisions.restorable(WhichMessages(destination="orders"), is_expired=False)
        count = self.restored(ledger)

        assert (expired, counts, count) == (Restorable(1, 0, 0), Restorable(3, 0, 0), 3)
        rows = {name: self.message(ledger, name) for name in "abcde"}
        assert {name: row.sending for name, row in rows.items()} == {"a": 2, "b": 2, "c": 2, "d": 1, "e": 1}
        assert (rows["d"].state, rows["e"].state) == (State.CANCELLED, State.READY)
        assert rows["a"].task_id != sent[0].task_id
        assert self.task(ledger, rows["a"].task_id).args == ("orders 2 a",)
        assert ledger.claims.claim([rows["b"].task_id], by=worker.id) == [], "it is the turn of the one before it"
        [claim] = ledger.claims.claim([rows["a"].task_id], by=worker.id)
        history = ledger.questions.history(claim.task_id)
        assert [(event.kind, event.detail["who"]) for event in history] == [("revived", "ann@host")]

    def test_two_who_restore_at_once_send_each_message_once_more(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger, *[new_message() for _ in range(30)])
        self.let_run(ledger, worker, sent, Done())
        clock.forward(60.0)

        counts = at_once(3, lambda _: self.restored(ledger))

        assert sum(counts) == 30
        assert {self.message(ledger, one.id).sending for one in sent} == {2}
        assert len(ledger.questions.tasks(limit=100)) == 60

    def test_what_retention_has_removed_is_counted_and_known_for_a_while(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger, new_message("a"), new_message("b"), new_message("c", delay_s=30 * HOUR_S))
        self.let_run(ledger, worker, sent[:1], Done())
        self.let_run(ledger, worker, sent[1:2], Dead("dead", "dead"))
        [d] = self.post(ledger, new_message("d", delay_s=60.0))
        decisions = ledger.part(MessageLedger).decisions
        decisions.cancel(d.id, **BY)
        clock.forward(3 * HOUR_S)

        ledger.upkeep.prune(limit=10, retention_s=HOUR_S, dead_retention_s=48 * HOUR_S)
        which = WhichMessages(destination="orders")
        counts = [decisions.restorable(which, is_expired=one) for one in (False, True)]
        rows = {name: self.message(ledger, name) for name in "abc"}
        pruning = ledger.part(MessageLedger).pruning
        early = pruning.prune_messages(limit=10)
        clock.forward(KEPT_AFTER_S + HOUR_S)
        late = [pruning.prunable_messages(), pruning.prune_messages(limit=10, dry_run=True)]
        late += [pruning.prune_messages(limit=10), pruning.prune_messages(limit=10)]

        assert counts == [Restorable(1, 0, gone=1), Restorable(1, 0, gone=0)], "a restore would have sent a, not d"
        assert [rows[name].state for name in "abc"] == [None, State.DEAD, State.WAITING]
        assert ledger.part(MessageLedger).letters.body("a") is None
        assert ledger.part(MessageLedger).letters.body("b") == b"hello"
        assert (early, late) == (0, [2, 2, 2, 0])
        assert ledger.part(MessageLedger).letters.message("a") is None
        with pytest.raises(NotFound):
            ledger.part(MessageLedger).decisions.retry("a", **BY)

    def test_the_body_goes_with_the_task_too_where_a_plan_is_applied(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger, new_message("a"))
        self.let_run(ledger, worker, sent, Done())
        clock.forward(3 * HOUR_S)
        kept = {"retention_s": HOUR_S, "dead_retention_s": HOUR_S}
        [old] = ledger.plans.prunable(limit=9, **kept)

        applied = ledger.plans.prune_planned(old, by={"who": "ada", "why": "asked"}, **kept)
        clock.forward(KEPT_AFTER_S + HOUR_S)

        assert applied.changed == (sent[0].task_id,)
        assert ledger.part(MessageLedger).letters.body("a") is None
        assert ledger.part(MessageLedger).pruning.prune_messages(limit=10) == 1

    def test_what_an_older_worker_has_removed_bars_a_restore_as_nobody_knows_how_it_had_ended(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.destination(ledger)
        self.let_run(ledger, worker, self.post(ledger, new_message("a"), new_message("b")), Done())
        clock.forward(3 * HOUR_S)
        ledger.upkeep.prune(limit=10, retention_s=HOUR_S, dead_retention_s=HOUR_S)
        m = message_tables(ledger.database).message
        ledger.database.written(update(m).where(m.c.id == "b").values(ended=None))  # as schema 16 leaves it

        found = ledger.part(MessageLedger).decisions.restorable(ALL, is_expired=False)

        assert found == Restorable(0, 0, gone=1, unknown=1)
        assert str(removed(found, "orders")).startswith(
            "2 messages to 'orders' cannot be restored: retention has removed them "
            "(how 1 of them had ended, schema 16 did not record)"
        )
