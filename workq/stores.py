"""The three stores that a process works with. Opened by app.py alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workq.broker import Broker
from workq.broker.signs import BrokerSigns
from workq.inflight import InFlight

if TYPE_CHECKING:
    from workq.broker.embedded import EmbeddedBroker
    from workq.broker.later.mover import Mover
    from workq.ledger.sql import Ledger


@dataclass(frozen=True, slots=True)
class Stores:
    """Ledger, broker and in-flight store of one namespace."""

    ledger: Ledger
    broker: Broker
    inflight: InFlight
    direct: EmbeddedBroker | None = None
    """The broker, where all three are in one database: hints are claimed directly (worker/fetch/one_database.py)."""

    mover: Mover | None = None
    """Moves delayed hints from the ledger to the broker, where that is a server of its own. Not started."""

    signs: BrokerSigns | None = None
    """Signs of life in the broker, where that is a server of its own that can tell."""

    def close(self) -> None:
        """Close all three, the ledger last. Repeatable."""
        if self.mover is not None:
            self.mover.close()
        self.broker.close()
        self.inflight.close()
        self.ledger.close()
