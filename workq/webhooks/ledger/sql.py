"""What webhooks keep in the ledger, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workq.webhooks.ledger.decisions import WebhookDecisions
from workq.webhooks.ledger.deliveries import Deliveries
from workq.webhooks.ledger.known_endpoints import KnownEndpoints
from workq.webhooks.ledger.notices import Notices
from workq.webhooks.ledger.pruning import Pruning
from workq.webhooks.ledger.sent import SentWebhooks
from workq.webhooks.ledger.settle import DeliveryCounter

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


class WebhookLedger:
    """Webhooks in one ledger: `ledger.part(WebhookLedger)`."""

    def __init__(self, ledger: Ledger) -> None:
        database, tasks = ledger.database, ledger.tasks
        notices = Notices(database, tasks=tasks)
        self.endpoints = KnownEndpoints(database, history=ledger.history)
        self.sent = SentWebhooks(database, tasks=tasks)
        self.deliveries = Deliveries(database)
        self.counter = DeliveryCounter(database, notices=notices)
        self.decisions = WebhookDecisions(
            database,
            deliveries=self.deliveries,
            counter=self.counter,
            notices=notices,
            tasks=tasks,
            history=ledger.history,
            reserved_s=ledger.reserved_s,
        )
        self.pruning = Pruning(database)
