"""What the slices add to the path of a task: the closed tuples that a ledger is made with."""

from __future__ import annotations

from typing import Final

from workq.jobs.ledger.entry import JobEntry
from workq.jobs.ledger.gate import JobGate
from workq.jobs.ledger.sql import JobLedger
from workq.ledger.sql import Slices
from workq.limits.ledger.limit_queue import LimitEntry
from workq.limits.ledger.permits import LimitGate
from workq.order.ledger.positions import OrderEntry
from workq.webhooks.ledger.settle import stays_held
from workq.webhooks.ledger.sql import WebhookLedger

SLICES: Final = Slices(
    gates=(JobGate(), LimitGate()),
    counters=lambda ledger: (ledger.part(WebhookLedger).counter, ledger.part(JobLedger).counter),
    entry=(OrderEntry(), LimitEntry(), JobEntry()),
    at_its_turn=(stays_held,),
)
