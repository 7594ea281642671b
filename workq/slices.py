"""What the slices add to the path of a task: the closed tuples that a ledger is made with.

A process that never settles what concerns a job or a webhook does not load what counts that: a counter says by values
alone whom it concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from workq.jobs.ledger.entry import JobEntry
from workq.jobs.ledger.gate import JobGate
from workq.jobs.ledger.tables import JobTables
from workq.ledger.after_settle import AfterSettle, SettleCounter
from workq.ledger.columns import TableSpace
from workq.ledger.schema import CoreTables, Tables
from workq.ledger.sql import Ledger, Slices
from workq.limits.ledger.entry import LimitEntry
from workq.limits.ledger.gate import LimitGate
from workq.limits.ledger.tables import LimitTables
from workq.messages.ledger.entry import MessageEntry
from workq.messages.ledger.gate import DestinationGate
from workq.messages.ledger.pruning import forget_bodies
from workq.messages.ledger.tables import MessageTables
from workq.messages.values import BEYOND_SUSPICION as MESSAGES
from workq.order.ledger.entry import OrderEntry
from workq.order.ledger.tables import OrderTables
from workq.values.task import Delivered, Settlement, Worked
from workq.webhooks.ledger.held import stays_held
from workq.webhooks.ledger.tables import WebhookTables
from workq.webhooks.values import BEYOND_SUSPICION as WEBHOOKS

if TYPE_CHECKING:
    from sqlalchemy import MetaData


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


def every_table(tables: Tables) -> MetaData:
    """The whole schema, for what concerns all of it: the files of `sql/`, a namespace that is removed.

    A copy, in one MetaData: what a ledger asks for at run time it makes slice by slice, when it is first used.
    """
    from workq.schedules.ledger import ScheduleTables

    space = TableSpace(tables.namespace, tables.dialect)
    parts: tuple[Callable[[TableSpace], object], ...] = (
        CoreTables,
        OrderTables,
        LimitTables,
        ScheduleTables,
        JobTables,
        WebhookTables,
        MessageTables,
    )
    for part in parts:
        part(space)
    return space.metadata


SLICES: Final = Slices(
    gates=(JobGate(), DestinationGate(), LimitGate()),
    counters=_counters,
    entry=(OrderEntry(), LimitEntry(), JobEntry(), MessageEntry()),
    at_its_turn=(stays_held,),
    with_pruned=(forget_bodies,),
)
BEYOND_SUSPICION: Final = WEBHOOKS | MESSAGES
"""Names of tasks that are not what their process has died of: many of them are under way at once."""
