"""Delivering: each attempt is recorded with the settlement of its task, and what came of it can be found."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.contract.given import Clock
from tests.contract.ledger.webhook_steps import ALL, BODY, URL, WebhookSteps, failed, sent, webhook
from workq.ledger import Evidence
from workq.ledger.sql import Ledger
from workq.outbound.backoff import JITTER, STEPS_S
from workq.outbound.post import Answer, ErrorClass
from workq.outbound.target import TargetPolicy
from workq.outbound.vault import Vault
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Dead, Delivered, Done, Settlement, State
from workq.webhooks.carry import Carrier
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import (
    Cause,
    DeliveryState,
    WhichDeliveries,
)


class DeliveringContract(WebhookSteps):
    def test_what_is_needed_to_send_is_read_at_once_and_what_is_gone_is_missing(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        self.endpoint(ledger, sealed="sealed")
        [one] = self.send(ledger, id="paid-17")
        clock.forward(10.0)

        parcels = ledger.part(WebhookLedger).deliveries.parcels([one.delivery_id, codec.new_task_id()])

        assert set(parcels) == {one.delivery_id}
        parcel = parcels[one.delivery_id]
        assert (parcel.webhook_id, parcel.body, parcel.url, parcel.sealed) == ("paid-17", BODY, URL, "sealed")
        assert (parcel.attempts, parcel.state, parcel.cause) == (0, "enabled", "scheduled")
        assert 10.0 <= parcel.age_s < 70.0

    def test_each_attempt_is_recorded_with_the_settlement_of_its_task_and_once(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        [claim] = self.carried(ledger, worker, [one])
        first = Settlement(claim, failed(claim, is_cut=True))

        settled = [ledger.outcomes.settle([first]), ledger.outcomes.settle([first])]

        assert [result.state for [result] in settled] == [State.WAITING] * 2
        row = self.delivery(ledger, one.delivery_id)
        assert (row.state, row.attempts, row.status, row.error_class) == (
            *(DeliveryState.PENDING, 1),
            *(503, "server_error"),
        )
        assert row.ended_at is None
        assert row.next_at is not None
        clock.forward(6.0)
        [claim] = self.carried(ledger, worker, [one])
        self.settle(ledger, claim, Delivered(sent(claim, number=2, answer="ok\x00"), Done()))

        row = self.delivery(ledger, one.delivery_id)
        log = ledger.part(WebhookLedger).deliveries.attempts(one.delivery_id)
        assert (row.state, row.attempts, row.error_class, row.next_at) == (DeliveryState.SUCCEEDED, 2, None, None)
        assert row.ended_at is not None
        assert [(a.number, a.status, a.error_class, a.answer, a.is_cut) for a in log] == [
            (1, 503, "server_error", "sorry", True),
            (2, 200, None, "ok\\x00", False),
        ]
        assert [(a.url, a.cause, a.duration_ms, a.next_at is None) for a in log] == [
            (URL, Cause.SCHEDULED, 12.5, False),
            (URL, Cause.SCHEDULED, 12.5, True),
        ]

    def test_each_attempt_of_the_schedule_is_due_at_its_time_and_none_before(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        carrier = Carrier(
            ledger.part(WebhookLedger).deliveries.parcels, vault=Vault(), policy=TargetPolicy.of(), rng=Random(7)
        )
        answer = Answer(500, ErrorClass.SERVER_ERROR, "500", 3.0)

        def fail() -> Any:
            [claim] = self.carried(ledger, worker, [one])
            parcel = ledger.part(WebhookLedger).deliveries.parcels([one.delivery_id])[one.delivery_id]
            self.settle(ledger, claim, carrier.delivered(claim, parcel, answer))
            return self.delivery(ledger, one.delivery_id)

        waited = []
        for step_s in STEPS_S:
            row = fail()
            assert row.next_at is not None
            assert row.attempted_at is not None
            waited.append((row.next_at - row.attempted_at).total_seconds() / step_s)
            clock.forward(step_s / 3)
            assert self.carried(ledger, worker, [one]) == []
            clock.forward(step_s)
        last = fail()

        assert all(1.0 <= part <= 1.0 + JITTER for part in waited), waited
        assert (last.state, last.attempts, last.next_at) == (DeliveryState.EXHAUSTED, len(STEPS_S) + 1, None)

    @pytest.mark.parametrize(
        ("facts", "state"),
        [({"error_class": "tls", "status": None}, "exhausted"), ({"error_class": "gone", "is_gone": True}, "gone")],
    )
    def test_one_that_is_not_tried_again_is_exhausted_or_gone(
        self, ledger: Ledger, worker: Incarnation, facts: dict[str, Any], state: str
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        [claim] = self.carried(ledger, worker, [one])

        self.settle(ledger, claim, Delivered(sent(claim, **facts), Dead("exhausted: tls", "tls: no")))

        row = self.delivery(ledger, one.delivery_id)
        assert (row.state.value, row.error_class) == (state, facts["error_class"])
        assert row.ended_at is not None
        assert self.state(ledger, claim.task_id) is State.DEAD

    def test_an_attempt_that_comes_late_is_recorded_and_decides_nothing(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        [one] = self.send(ledger)
        [late] = self.carried(ledger, worker, [one])
        ledger.workers.reap(worker.id, Evidence("killed", started={late.task_id: 1}))
        [claim] = self.claim_elsewhere(ledger, [late.task_id])
        self.settle(ledger, claim, Delivered(sent(claim), Done()))

        assert self.settle(ledger, late, failed(late)).state is None

        row = self.delivery(ledger, one.delivery_id)
        assert (row.state, row.status) == (DeliveryState.SUCCEEDED, 200)
        assert sorted(
            a.error_class or "-" for a in ledger.part(WebhookLedger).deliveries.attempts(one.delivery_id)
        ) == [
            "-",
            "server_error",
        ]
        found = ledger.part(WebhookLedger).endpoints.endpoint("a")
        assert found is not None
        assert found.failures == 0

    def test_one_whose_task_ended_without_its_handler_is_ended_by_a_sweep(
        self, ledger: Ledger, worker: Incarnation
    ) -> None:
        self.endpoint(ledger)
        crashed, cancelled, open_one = [self.send(ledger)[0] for _ in range(3)]
        self.crash(ledger, crashed.delivery_id)
        ledger.decisions.cancel(cancelled.delivery_id, who="ada", why="not wanted")

        counts = [
            ledger.part(WebhookLedger).counter.tend_deliveries(limit=9, dry_run=True),
            *(ledger.part(WebhookLedger).counter.tend_deliveries(limit=9) for _ in range(2)),
        ]

        assert counts == [2, 2, 0]
        dead, gone = self.delivery(ledger, crashed.delivery_id), self.delivery(ledger, cancelled.delivery_id)
        assert (dead.state, dead.error_class) == (DeliveryState.EXHAUSTED, "worker_lost")
        assert (gone.state, gone.error_class) == (DeliveryState.CANCELLED, None)
        assert dead.ended_at == self.task(ledger, crashed.delivery_id).settled_at
        assert self.delivery(ledger, open_one.delivery_id).state is DeliveryState.PENDING

    def test_deliveries_are_found_by_what_became_of_them(
        self, ledger: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        self.endpoint(ledger)
        self.endpoint(ledger, "b", types=("user.*",))
        paid = self.send(ledger, id="paid-17")
        clock.forward(3600.0)
        user = ledger.part(WebhookLedger).sent.send(webhook("user.added"))[0]
        [claim] = self.carried(ledger, worker, paid)
        self.settle(ledger, claim, failed(claim, delay_s=86_400.0))

        def found(**facts: Any) -> set[str]:
            return {one.id for one in ledger.part(WebhookLedger).deliveries.all(WhichDeliveries(**facts))}

        of_paid, of_user = {one.delivery_id for one in paid}, {one.delivery_id for one in user}
        assert found() == of_paid | of_user
        assert found(endpoint_id="b") == {one.delivery_id for one in user if one.endpoint_id == "b"}
        assert found(webhook_id="paid-17") == found(type="invoice.*") == found(type="invoice.paid") == of_paid
        assert found(type="user.*") == found(since_s=1800.0) == of_user
        assert found(until_s=1800.0) == found(status=503) == found(error_class="server_error") == of_paid
        assert found(state=DeliveryState.SUCCEEDED) == found(type="invoice") == set()
        assert ledger.part(WebhookLedger).deliveries.delivery_counts(ALL) == {DeliveryState.PENDING: 3}
        assert len(ledger.part(WebhookLedger).deliveries.all(ALL, limit=2)) == 2
        newest = ledger.part(WebhookLedger).deliveries.all(ALL, limit=1)[0].id
        assert newest == max(of_paid | of_user)
        assert {one.id for one in ledger.part(WebhookLedger).deliveries.all(ALL, after=newest)} == (
            of_paid | of_user
        ) - {newest}
        assert ledger.part(WebhookLedger).deliveries.delivery("nobody") is None
