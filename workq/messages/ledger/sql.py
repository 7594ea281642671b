"""What messages keep in the ledger, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workq.messages.ledger.decisions import MessageDecisions
from workq.messages.ledger.edits import DestinationEdits
from workq.messages.ledger.intakes import KnownIntakes
from workq.messages.ledger.known_destinations import KnownDestinations
from workq.messages.ledger.letters import Letters
from workq.messages.ledger.line import DestinationLine
from workq.messages.ledger.matches import MessageMatches
from workq.messages.ledger.pruning import MessagePruning
from workq.messages.ledger.recorded import RecordedMessages
from workq.messages.ledger.taken_records import TakenRecords

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


class MessageLedger:
    """Messages in one ledger: `ledger.part(MessageLedger)`."""

    def __init__(self, ledger: Ledger) -> None:
        database = ledger.database
        self.destinations = KnownDestinations(database, history=ledger.history)
        self.recorded = RecordedMessages(database, tasks=ledger.tasks)
        self.edits = DestinationEdits(database, history=ledger.history)
        self.letters = Letters(database)
        self.line = DestinationLine(database, reserved_s=ledger.reserved_s)
        self.decisions = MessageDecisions(
            database,
            tasks=ledger.tasks,
            history=ledger.history,
            letters=self.letters,
            decisions=ledger.decisions,
            reserved_s=ledger.reserved_s,
        )
        self.pruning = MessagePruning(database)
        self.matches = MessageMatches(database)
        self.intakes = KnownIntakes(database, history=ledger.history)
        self.taken = TakenRecords(database, recorded=self.recorded, decisions=ledger.decisions)
