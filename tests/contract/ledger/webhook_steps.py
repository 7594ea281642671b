"""What the tests of webhooks share: an endpoint, what is sent to it, and how a worker tells what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.contract.ledger.steps import Steps
from workq.ledger import Evidence
from workq.ledger.sql import Ledger
from workq.values import codec
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Delivered, Failed, Sent, Settlement
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.values import (
    CRASHES_MAX,
    DeliveryRow,
    EndpointOptions,
    EndpointRow,
    NewEndpoint,
    NewWebhook,
    SentTo,
    WhichDeliveries,
)

ALL = WhichDeliveries()
BY: dict[str, Any] = {"who": "eve@host", "why": "a test"}
URL = "https://example.org/hooks"
BODY = '{"type":"invoice.paid","timestamp":"2026-11-23T12:00:00+00:00","data":{"id":17}}'


def webhook(event_type: str = "invoice.paid", **facts: Any) -> NewWebhook:
    """One to send, to the topic `acme`."""
    given: dict[str, Any] = {"topic": "acme", "data_hash": "0" * 64, "body": BODY} | facts
    return NewWebhook(id=given.pop("id", f"msg_{codec.new_task_id()}"), type=event_type, **given)


def sent(claim: Claim, *, endpoint_id: str = "a", number: int = 1, **facts: Any) -> Sent:
    """A try that has arrived, unless the facts say otherwise."""
    given: dict[str, Any] = {"status": 200, "error_class": None, "error": None, "cause": "scheduled"} | facts
    return Sent(
        delivery_id=codec.decode(claim.payload)["a"][0],
        endpoint_id=endpoint_id,
        number=number,
        url=URL,
        duration_ms=12.5,
        **given,
    )


def failed(claim: Claim, *, delay_s: float = 5.0, **facts: Any) -> Delivered:
    """A try that has failed, and is tried again."""
    given: dict[str, Any] = {"status": 503, "error_class": "server_error", "error": "503", "answer": "sorry"} | facts
    return Delivered(sent(claim, **given), Failed(delay_s, "server_error: 503"))


class WebhookSteps(Steps):
    @staticmethod
    def endpoint(ledger: Ledger, endpoint_id: str = "a", **facts: Any) -> EndpointRow:
        given: dict[str, Any] = {"topic": "acme", "url": URL, "types": ("*",), "sealed": "{}"} | facts
        return ledger.part(WebhookLedger).endpoints.add_endpoint(
            NewEndpoint(endpoint_id, options=given.pop("options", EndpointOptions()), **given), **BY
        )

    def send(self, ledger: Ledger, **facts: Any) -> list[SentTo]:
        return ledger.part(WebhookLedger).sent.send(webhook(**facts))[0]

    def delivery(self, ledger: Ledger, delivery_id: str) -> DeliveryRow:
        found = ledger.part(WebhookLedger).deliveries.delivery(delivery_id)
        assert found is not None
        return found

    def carried(self, ledger: Ledger, worker: Incarnation, to: Sequence[SentTo]) -> list[Claim]:
        """Their tasks, claimed."""
        return ledger.claims.claim([self.delivery(ledger, one.delivery_id).task_id for one in to], by=worker.id)

    def all_fail(self, ledger: Ledger, claims: Sequence[Claim], **facts: Any) -> None:
        ledger.outcomes.settle([Settlement(claim, failed(claim, **facts)) for claim in claims])

    def crash(self, ledger: Ledger, delivery_id: str) -> None:
        """Its workers die while they send it, until its task is dead."""
        for _ in range(CRASHES_MAX + 1):
            for claim in self.claim_elsewhere(ledger, [delivery_id]):
                worker = self.task(ledger, claim.task_id).worker
                assert worker is not None
                ledger.workers.reap(worker, Evidence("SIGSEGV", started={claim.task_id: claim.attempt}))
