"""Holding: what waits for a disabled endpoint, and what people send once more."""

from __future__ import annotations

import pytest

from tests.contract.given import HOUR_S, Clock
from tests.contract.ledger.webhook_steps import ALL, WebhookSteps, sent
from workq.errors import NotFound, Refused
from workq.ledger.sql import Ledger
from workq.limits.ledger.limits import Limits
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Delivered, Done, State
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import (
    Cause,
    DeliveryState,
    EndpointState,
    limit_key,
)


class HoldingContract(WebhookSteps):
    def test_what_waits_for_a_disabled_endpoint_is_held_until_a_person_releases_or_discards_it(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        before = [self.send(ledger)[0] for _ in range(3)]
        [running] = self.carried(ledger, worker, before[:1])
        ledger.part(WebhookLedger).decisions.disable_endpoint("a", who="eve", why="moving")
        at_once_held = ledger.part(WebhookLedger).deliveries.delivery_counts(ALL)
        ledger.part(WebhookLedger).decisions.disable_endpoint("a", who="eve", why="again")
        during = self.send(ledger)
        assert self.carried(ledger, worker, [*before[1:], *during]) == []
        self.settle(ledger, running, Delivered(sent(running), Done()))
        [limit] = ledger.part(Limits).all(key=limit_key("a"))
        assert limit.closed_until is not None, "what was under way has arrived, and a person has disabled it"

        held = [
            ledger.part(WebhookLedger).decisions.hold_deliveries(limit=9, dry_run=True),
            *(ledger.part(WebhookLedger).decisions.hold_deliveries(limit=9) for _ in range(2)),
        ]
        with pytest.raises(Refused, match="is disabled; first: workq webhook endpoint enable a"):
            ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen")
        count = ledger.part(WebhookLedger).decisions.enable_endpoint("a", who="eve", why="moved")
        after = self.send(ledger)

        assert at_once_held == {DeliveryState.PENDING: 1, DeliveryState.HELD: 2}
        assert held == [1, 1, 0]
        assert count == 3
        assert ledger.part(Limits).admit([limit_key("a")]) == []
        assert {self.delivery(ledger, one.delivery_id).state for one in [*before[1:], *during]} == {DeliveryState.HELD}
        assert len(self.carried(ledger, worker, after)) == 1
        released, hints = ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen", limit=2)
        assert (released, [hint.task_id for hint in hints]) == (2, [one.delivery_id for one in before[1:]])
        assert [
            ledger.part(WebhookLedger).decisions.discard_held("a", who="ada", why="old", limit=1) for _ in range(2)
        ] == [1, 0]
        assert ledger.part(WebhookLedger).decisions.release_held("a", who="ada", why="seen") == (0, [])
        wanted = [self.delivery(ledger, one.delivery_id).cause for one in [*before[1:], *after]]
        assert wanted == [Cause.MANUAL, Cause.MANUAL, Cause.SCHEDULED], "whatever the age of what a person releases"
        assert len(self.carried(ledger, worker, before[1:])) == 2
        gone = self.delivery(ledger, during[0].delivery_id)
        assert (gone.state, gone.ended_at is None) == (DeliveryState.CANCELLED, False)
        assert self.state(ledger, during[0].delivery_id) is State.CANCELLED
        decided = [ledger.questions.history(one.delivery_id) for one in (before[1], during[0])]
        assert [(one.kind, one.detail["who"], one.detail["why"]) for events in decided for one in events] == [
            ("rescheduled", "ada", "seen"),
            ("cancelled", "ada", "old"),
        ]
        row = ledger.part(WebhookLedger).endpoints.endpoint("a")
        assert row is not None
        assert (row.state, row.who, row.why) == (EndpointState.ENABLED, "eve", "moved")
        for call in (
            ledger.part(WebhookLedger).decisions.disable_endpoint,
            ledger.part(WebhookLedger).decisions.enable_endpoint,
        ):
            with pytest.raises(NotFound):
                call("nobody", who="eve", why="no more")
        with pytest.raises(NotFound):
            ledger.part(WebhookLedger).decisions.release_held("nobody", who="ada", why="seen")

    def test_enabling_holds_first_what_no_sweep_has_held_yet(self, ledger: Ledger) -> None:
        self.endpoint(ledger)
        ledger.part(WebhookLedger).decisions.disable_endpoint("a", who="eve", why="moving")
        sent_to = self.send(ledger)

        assert ledger.part(WebhookLedger).decisions.enable_endpoint("a", who="eve", why="moved") == 1
        assert self.delivery(ledger, sent_to[0].delivery_id).state is DeliveryState.HELD

    def test_a_person_may_want_what_is_open_and_nothing_else(self, ledger: Ledger, worker: Incarnation) -> None:
        self.endpoint(ledger)
        ended, open_one, other = (self.send(ledger)[0] for _ in range(3))
        [claim] = self.carried(ledger, worker, [ended])
        self.settle(ledger, claim, Delivered(sent(claim), Done()))

        for one in (ended, open_one, open_one):
            ledger.part(WebhookLedger).decisions.want_delivery(one.delivery_id)

        causes = [self.delivery(ledger, one.delivery_id).cause for one in (ended, open_one, other)]
        assert causes == [Cause.SCHEDULED, Cause.MANUAL, Cause.SCHEDULED]

    def test_what_has_ended_is_sent_again_by_a_task_of_its_own_and_goes_on_counting(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        ended, arrived, open_one = [self.send(ledger)[0] for _ in range(3)]
        claims = self.carried(ledger, worker, [ended, arrived])
        by_id = {claim.task_id: claim for claim in claims}
        self.settle(
            ledger,
            by_id[ended.delivery_id],
            Delivered(sent(by_id[ended.delivery_id], error_class="tls", status=None), Dead("exhausted: tls", "tls")),
        )
        self.settle(ledger, by_id[arrived.delivery_id], Delivered(sent(by_id[arrived.delivery_id]), Done()))
        ids = [one.delivery_id for one in (ended, arrived, open_one)]

        found = ledger.part(WebhookLedger).decisions.resendable(ALL)
        again, hints = ledger.part(WebhookLedger).decisions.resend(ids, cause=Cause.REPLAY, who="ada", why="seen")
        twice, none = ledger.part(WebhookLedger).decisions.resend(ids, cause=Cause.REPLAY, who="ada", why="seen")

        assert sorted(again) == sorted(found) == sorted(ids[:2])
        assert (twice, none) == ([], [])
        assert ledger.part(WebhookLedger).decisions.resendable(ALL) == []
        rows = [self.delivery(ledger, one) for one in ids]
        decided = [event for row in rows for event in ledger.questions.history(row.task_id)]
        assert [(one.kind, one.detail["who"], one.detail["why"]) for one in decided] == [("revived", "ada", "seen")] * 2
        assert [(row.state, row.cause.value, row.attempts) for row in rows] == [
            (DeliveryState.PENDING, "replay", 1),
            (DeliveryState.PENDING, "replay", 1),
            (DeliveryState.PENDING, "scheduled", 0),
        ]
        assert {hint.task_id for hint in hints} == {row.task_id for row in rows[:2]}
        assert not {row.task_id for row in rows[:2]} & set(ids)
        [claim] = self.carried(ledger, worker, [ended])
        self.settle(ledger, claim, Delivered(sent(claim, number=2), Done()))
        assert [one.number for one in ledger.part(WebhookLedger).deliveries.attempts(ended.delivery_id)] == [1, 2]
        assert self.delivery(ledger, ended.delivery_id).state is DeliveryState.SUCCEEDED

    def test_what_cannot_be_sent_is_not_sent_again(self, ledger: Ledger, worker: Incarnation, clock: Clock) -> None:
        self.endpoint(ledger)
        self.endpoint(ledger, "b")
        sent_to = self.send(ledger)
        claims = self.carried(ledger, worker, sent_to)
        endpoints = {one.delivery_id: one.endpoint_id for one in sent_to}
        for claim in claims:
            self.settle(ledger, claim, Delivered(sent(claim, endpoint_id=endpoints[claim.task_id]), Done()))
        ledger.part(WebhookLedger).decisions.disable_endpoint("b", who="eve", why="no more")

        assert [endpoints[one] for one in ledger.part(WebhookLedger).decisions.resendable(ALL)] == ["a"]
        clock.forward(2 * HOUR_S)
        ledger.part(WebhookLedger).pruning.prune_webhooks(limit=9, body_retention_s=HOUR_S, retention_s=9 * HOUR_S)
        assert ledger.part(WebhookLedger).decisions.resend(
            list(endpoints), cause=Cause.MANUAL, who="ada", why="seen"
        ) == ([], [])
