"""After-settle counters: who follows what becomes of attempts, in the transaction that settles them.

They are a closed tuple, put together with the ledger, and called plainly, one after the other: what one of them raises
rolls the outcomes back with it.

To add one: a class of these three functions, in the tuple of workq/slices.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sqlalchemy import Connection

from workq.ledger.answers import Settled, Unpublished
from workq.values.task import Settlement

Afterwards = Callable[[], list[Unpublished]]
"""What is to be done when the transaction stands; answers what is to be hinted."""


class AfterSettle(Protocol):
    """One of them."""

    def concerns(self, one: Settlement) -> bool:
        """Whether it counts this one. Asked before the transaction."""

    def plain(self, one: Settlement) -> Settlement:
        """What is written into the row of the task, of one that concerns it."""

    def count_settled(
        self, tx: Connection, settlements: Sequence[Settlement], settled: Sequence[Settled]
    ) -> Afterwards:
        """Count what concerns it among these, and what became of it. Called again when the transaction is repeated."""
