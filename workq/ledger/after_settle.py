"""After-settle counters: who follows what becomes of attempts, in the transaction that settles them.

They are a closed tuple, put together with the ledger, and called plainly, one after the other: what one of them raises
rolls the outcomes back with it.

To add one: whom it concerns and a class of these two functions, in the tuple of workq/slices.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from workq.ledger.answers import Settled, Unpublished
from workq.values.task import Settlement

Afterwards = Callable[[], list[Unpublished]]
"""What is to be done when the transaction stands; answers what is to be hinted."""


class SettleCounter(Protocol):
    """What follows attempts."""

    def plain(self, one: Settlement) -> Settlement:
        """What is written into the row of the task, of one that concerns it."""

    def count_settled(
        self, tx: Connection, settlements: Sequence[Settlement], settled: Sequence[Settled]
    ) -> Afterwards:
        """Count what concerns it among these, and what became of it. Called again when the transaction is repeated."""


class AfterSettle(NamedTuple):
    """One of them, and whom it concerns: what it needs is loaded when the first settlement does."""

    concerned: Callable[[Sequence[Settlement]], list[int]]
    """The places of those of these that it counts: mostly none, and asked of all at once, as it costs each task."""
    load: Callable[[], SettleCounter]
    """What counts, made when it is first asked for: before a transaction, so that none waits for it."""
