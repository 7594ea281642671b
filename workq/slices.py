"""What the slices add to the path of a task: the closed tuples that a ledger is made with.

A process that never settles what concerns a job or a webhook does not load what counts that: a counter says by values
alone whom it concerns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from workq.jobs.ledger.entry import JobEntry
from workq.jobs.ledger.gate import JobGate
from workq.ledger.after_settle import AfterSettle, SettleCounter
from workq.ledger.sql import Ledger, Slices
from workq.limits.ledger.entry import LimitEntry
from workq.limits.ledger.permits import LimitGate
from workq.order.ledger.entry import OrderEntry
from workq.values.task import Delivered, Settlement, Worked
from workq.webhooks.ledger.held import stays_held


def _delivered(given: Sequence[Settlement]) -> list[int]:
    return [place for place, one in enumerate(given) if isinstance(one.outcome, Delivered)]


def _in_jobs(given: Sequence[Settlement]) -> list[int]:
    return [place for place, one in enumerate(given) if one.claim.job_id is not None or isinstance(one.outcome, Worked)]


def _counters(ledger: Ledger) -> Sequence[AfterSettle]:
    def of_webhooks() -> SettleCounter:
        from workq.webhooks.ledger.sql import WebhookLedger

        return ledger.part(WebhookLedger).counter

    def of_jobs() -> SettleCounter:
        from workq.jobs.ledger.sql import JobLedger

        return ledger.part(JobLedger).counter

    return (
        AfterSettle(_delivered, of_webhooks),
        AfterSettle(_in_jobs, of_jobs),
    )


SLICES: Final = Slices(
    gates=(JobGate(), LimitGate()),
    counters=_counters,
    entry=(OrderEntry(), LimitEntry(), JobEntry()),
    at_its_turn=(stays_held,),
)
