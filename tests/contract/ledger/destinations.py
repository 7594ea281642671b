"""Destinations of messages: one of each name; they rest, are disabled, edited and forgotten."""

from __future__ import annotations

import pytest

from tests.contract.given import HOUR_S, Clock, at_once
from tests.contract.ledger.messages import BY, MessageSteps, new_message
from workq.errors import NotFound, Refused
from workq.ledger.sql import Ledger
from workq.limits.ledger.limits import Limits
from workq.messages.ledger.sql import MessageLedger
from workq.messages.values import (
    DestinationPolicy,
    DestinationState,
    NewDestination,
    WhichMessages,
)
from workq.values.incarnation import Incarnation
from workq.values.task import Done, Snoozed, State


class DestinationsContract(MessageSteps):
    def test_a_destination_that_is_there_with_another_policy_is_refused(self, ledger: Ledger) -> None:
        self.destination(ledger)
        self.destination(ledger)
        with pytest.raises(Refused, match="is there already"):
            self.destination(ledger, failures_max=2)

    def test_a_destination_rests_longer_each_time_and_of_many_at_once_the_first_decides(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        self.destination(ledger)
        destinations = ledger.part(MessageLedger).destinations

        rests = at_once(4, lambda _: destinations.failed("orders", fault="away", error="no answer"))
        first = destinations.required("orders")
        self.post(ledger, new_message("a"))
        resting_s = ledger.part(MessageLedger).letters.letters(["a"])["a"].rests_s
        later = []
        for _ in range(8):
            clock.forward(61.0)
            later.append(destinations.failed("orders", fault="refused", error="no"))
        clock.forward(61.0)
        asked = destinations.failed("orders", fault="asked", error="slow down", asked_s=600.0)
        recovered = [destinations.arrived("orders"), destinations.arrived("orders")]
        well = destinations.required("orders")

        assert max(rests) < 2.0, "one decided"
        assert (first.failures, first.fault, first.error) == (1, "away", "no answer")
        assert 0.0 < resting_s <= 1.0
        assert later == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
        assert asked == 600.0
        assert recovered == [True, False]
        assert (well.failures, well.failing_since, well.fault, well.rests_until) == (0, None, None, None)

    def test_disabled_and_enabled_again_with_who_and_why_and_what_was_put_off_is_due(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger, new_message("a"), new_message("b"), new_message("later", delay_s=60.0))
        part = ledger.part(MessageLedger)
        first, claim = sorted(
            ledger.claims.claim([one.task_id for one in sent], by=worker.id),
            key=lambda one: one.task_id != sent[0].task_id,
        )
        part.decisions.disable("orders", **BY)
        off = part.destinations.required("orders")
        trouble = [one.name for one in part.destinations.in_trouble()]
        self.settle(ledger, first, Snoozed(HOUR_S, "its destination is disabled"))

        part.decisions.enable("orders", who="bob@host", why="they have moved")
        due, _ = part.decisions.make_due(WhichMessages(destination="orders"), **BY)
        self.settle(ledger, claim, Snoozed(HOUR_S, "its destination is disabled"))
        would, woken = part.decisions.wake(limit=10, dry_run=True), part.decisions.wake(limit=10)

        assert (off.state, off.who, off.why) == (DestinationState.DISABLED, "ann@host", "a test")
        assert trouble == ["orders"]
        assert [one.task_id for one in due] == [sent[0].task_id]
        assert [one.task_id for one in would] == [one.task_id for one in woken] == [sent[1].task_id]
        assert [self.message(ledger, one.id).state for one in sent] == [State.READY, State.READY, State.WAITING]
        on = part.destinations.required("orders")
        assert (on.state, on.who) == (DestinationState.ENABLED, "bob@host")
        assert part.destinations.in_trouble() == []
        with pytest.raises(NotFound):
            part.decisions.disable("none", **BY)

    def test_a_destination_is_not_forgotten_while_messages_to_it_are_open(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger)
        part = ledger.part(MessageLedger)

        with pytest.raises(Refused, match="1 message to 'orders' is open"):
            part.decisions.remove("orders", **BY)
        self.let_run(ledger, worker, sent, Done())
        part.decisions.remove("orders", **BY)

        assert part.destinations.destination("orders") is None
        assert self.message(ledger, sent[0].id).state is State.SUCCEEDED
        assert part.letters.letters([sent[0].id]) == {}
        with pytest.raises(NotFound):
            part.decisions.remove("orders", **BY)

    def test_an_edit_holds_for_what_was_sent_before_and_two_at_once_do_not_mix(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.destination(ledger)
        sent = self.post(ledger, *[new_message() for _ in range(5)])
        self.let_run(ledger, worker, sent[:1], Done())
        part = ledger.part(MessageLedger)
        before = part.destinations.required("orders")
        policy = DestinationPolicy(concurrency=2, failures_max=3)
        after = NewDestination("orders", "box", {"folder": "/elsewhere"}, "sealed", policy)
        other = NewDestination("orders", "box", {"folder": "/nowhere"}, None, policy)

        part.edits.edit(before, after, what="folder", **BY)
        part.edits.edit(before, after, what="folder", **BY)  # as after a commit that was lost
        spread = part.edits.spread("orders", policy)
        with pytest.raises(Refused, match="changed by somebody else"):
            part.edits.edit(before, other, what="folder", **BY)

        now = part.destinations.required("orders")
        assert (now.options, now.sealed, now.policy, now.kind) == ({"folder": "/elsewhere"}, "sealed", policy, "box")
        assert now.changed_at > before.changed_at
        tasks = [self.task(ledger, one.task_id) for one in sent]
        assert (spread, [one.failures_max for one in tasks]) == (4, [30, 3, 3, 3, 3])
        claims = ledger.claims.claim([one.task_id for one in sent[1:]], by=worker.id)
        assert len(claims) == 2, "the limit is new, and holds for them"
        part.edits.spread("orders", DestinationPolicy())
        for claim in claims:
            self.settle(ledger, claim, Done())
        claimed = ledger.part(Limits).admit_and_claim(
            ["message:orders"], by=worker.id, room=5, queues=["workq.messages"]
        )
        assert len(claimed[0]) == 2, "and these had waited for it"
        assert self.decided(ledger) == [
            ("destination orders added", "ann@host", "a test"),
            ("destination orders edited: folder", "ann@host", "a test"),
        ]

    def test_there_is_one_destination_of_a_name(self, ledger: Ledger) -> None:
        self.destination(ledger)
        self.destination(ledger)  # the same, whose commit was lost
        with pytest.raises(Refused, match="is there already"):
            ledger.part(MessageLedger).destinations.add_destination(
                NewDestination("orders", "box", {"folder": "/else"}, None, DestinationPolicy()), **BY
            )
        self.destination(ledger, "bills")
        assert [one.name for one in ledger.part(MessageLedger).destinations.all()] == ["bills", "orders"]
        assert self.decided(ledger) == [
            (f"destination {name} added", "ann@host", "a test") for name in ("orders", "bills")
        ]
