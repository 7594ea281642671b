"""Health: what the handler of messages tells the ledger of a destination, and who may be sent because of that."""

from __future__ import annotations

from collections.abc import Callable

from workq.ledger import Unpublished
from workq.messages.ledger.sql import MessageLedger


class DestinationHealth:
    """How destinations fare, in one ledger. `announce`: sends hints."""

    def __init__(self, ledger: MessageLedger, announce: Callable[[list[Unpublished]], object]) -> None:
        self._ledger = ledger
        self._announce = announce

    def failed(self, name: str, *, fault: str, error: str, asked_s: float | None = None) -> float:
        """It rests, and the first that waits for it tries it afterwards; answers for how many seconds it rests."""
        rest_s = self._ledger.destinations.failed(name, fault=fault, error=error, asked_s=asked_s)
        self._announce(self._ledger.line.next_probe(name))
        return rest_s

    def arrived(self, name: str) -> bool:
        """It does not fail any more; answers whether it had."""
        return self._ledger.destinations.arrived(name)

    def let_come(self, name: str) -> None:
        """Some of those that wait for it are due now. As each call that it confirms lets some come, all of them do."""
        self._announce(self._ledger.line.come(name))
