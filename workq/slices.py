"""What the slices add to the path of a task: the closed tuples that a ledger is made with.

A process that never meets a job or a webhook does not load what those keep in the ledger: the counters and the rule of
what stays held begin with a look at values, and load the rest behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from workq.jobs.ledger.entry import JobEntry
from workq.jobs.ledger.gate import JobGate
from workq.ledger.after_settle import AfterSettle, SettleCounter
from workq.ledger.sql import Ledger, Slices
from workq.limits.ledger.entry import LimitEntry
from workq.limits.ledger.permits import LimitGate
from workq.order.ledger.entry import OrderEntry
from workq.values.task import Delivered, Worked
from workq.webhooks.values import TASK_NAME

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from workq.ledger.engine.database import Database


def _counters(ledger: Ledger) -> Sequence[AfterSettle]:
    def of_webhooks() -> SettleCounter:
        from workq.webhooks.ledger.sql import WebhookLedger

        return ledger.part(WebhookLedger).counter

    def of_jobs() -> SettleCounter:
        from workq.jobs.ledger.sql import JobLedger

        return ledger.part(JobLedger).counter

    return (
        AfterSettle(lambda one: isinstance(one.outcome, Delivered), of_webhooks),
        AfterSettle(lambda one: one.claim.job_id is not None or isinstance(one.outcome, Worked), of_jobs),
    )


def _stays_held(tx: Connection, database: Database, task_id: str, name: str) -> bool:
    if name != TASK_NAME:
        return False
    from workq.webhooks.ledger.settle import stays_held

    return stays_held(tx, database, task_id)


SLICES: Final = Slices(
    gates=(JobGate(), LimitGate()),
    counters=_counters,
    entry=(OrderEntry(), LimitEntry(), JobEntry()),
    at_its_turn=(_stays_held,),
)
