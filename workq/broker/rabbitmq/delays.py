"""How hints wait in RabbitMQ until they are due, in one of two ways. Pure: no connection here.

    ladder.py   binary: 13 queues, a hint passes some of them; exact
    levels.py   one queue for each level, a hint waits in one of them; late, by less than the gap between two

Both end at the exchange `{ns}.due`, which knows the main queues. No two queues of one name have another way or another
time to live, and nothing is ever deleted: so when a namespace changes its ladder, what waits in the old one arrives.

Who decides: the ledger. A hint that is lost here is published again.
"""

from __future__ import annotations

from typing import Protocol

from workq.broker.rabbitmq.ladder import Binary, DelayQueue
from workq.broker.rabbitmq.levels import Levels
from workq.config import levels_ms


class Delays(Protocol):
    """What both ways have. A delay that is negative, no number, or above the horizon is a ValueError."""

    @property
    def horizon_s(self) -> float:
        """The longest delay. Later tasks wait in the ledger."""
        ...

    @property
    def unit_s(self) -> float:
        """See `Broker.unit_s`."""
        ...

    @property
    def is_late(self) -> bool:
        """See `Broker.is_late`."""
        ...

    @property
    def late_max_s(self) -> float:
        """How late a hint may come at most: the largest gap between two levels."""
        ...

    def waits_s(self, delay_s: float) -> float:
        """See `Broker.waits_s`."""
        ...

    def way(self, namespace: str, main_queue: str, delay_s: float) -> tuple[str, str, int]:
        """Exchange and routing key of a hint, and how many milliseconds are left for its consumer to wait.

        Without an exchange it goes straight to its queue.
        """
        ...

    def queues(self, namespace: str) -> list[DelayQueue]:
        """All queues with their exchanges, in the order in which they are declared."""
        ...


def delays_of(ladder: str) -> Delays:
    """What a setting `ladder` names.

    Raises:
        ConfigError: it is not of the right form.
    """
    levels = levels_ms(ladder)
    return Levels(levels) if levels else Binary()
