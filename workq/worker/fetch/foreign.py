"""Foreign messages: what a queue delivers besides hints of tasks. Markers go back to the ledger, the rest is set aside.

A foreign message goes to the quarantine; a hint of a newer version first waits for a worker that can read it, as there
will be in a rolling upgrade. Used by one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workq.broker import Consumer, Delivery
from workq.logs.seldom import Seldom
from workq.values.failpoints import reach

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


RETURNS_MAX = 5
"""How often a hint of a newer version waits a beat for a worker that can read it."""


class ForeignMessages:
    """What one consumer has received and is to be dealt with before hints."""

    def __init__(self, consumer: Consumer, ledger: Ledger, *, beat_s: float, seldom: Seldom) -> None:
        self._consumer = consumer
        self._ledger = ledger
        self._beat_s = beat_s
        self._seldom = seldom
        self._markers: list[Delivery] = []
        """Markers that have come out of their queues, and are to be handed back to the ledger."""

    @property
    def is_empty(self) -> bool:
        """Whether no marker waits."""
        return not self._markers

    def sort(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Our hints; whatever else arrived is dealt with here."""
        ours = []
        for delivery in deliveries:
            if delivery.fault is not None:
                self._set_aside(delivery, delivery.fault)
            elif delivery.marker is not None:
                self._markers.append(delivery)
            else:
                ours.append(delivery)
        return ours

    def return_markers(self) -> None:
        """Tell the ledger that these have come out of their queues; the hints that came before them are held by now.

        Raises Unavailable while the ledger is away; then they are kept.
        """
        if not self._markers:
            return
        reach("worker.before_return")
        self._ledger.hints.marker_returned([one.marker for one in self._markers if one.marker is not None])
        self._consumer.ack(self._markers)
        self._markers = []

    def _set_aside(self, delivery: Delivery, fault: str) -> None:
        if fault == "newer_version" and delivery.returns < RETURNS_MAX:
            self._seldom.warning("hint.newer_version", reason=fault, queue=delivery.queue)
            self._consumer.put_back(delivery, delay_s=self._beat_s)
            return
        self._seldom.warning("hint.quarantined", reason=fault, queue=delivery.queue)
        self._consumer.quarantine(delivery, reason=fault)
