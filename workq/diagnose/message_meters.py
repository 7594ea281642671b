"""Meters of messages: how many were confirmed, in how many attempts, and how late; and what each way in took in.

From the ledger's rows alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workq.diagnose.meters import Spread
from workq.messages.ledger.sql import MessageLedger
from workq.values.task import State

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger

MESSAGES_MAX: Final = 100_000
"""How many of the newest are read at most."""


INTAKES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class IntakeMeter:
    """The records of one way in since it was added, as the ledger has counted them with each batch.

    `duplicates`: their ids were recorded before.
    """

    name: str
    recorded: int
    duplicates: int
    cancelled: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class MessageMeters:
    """The messages that have ended lately. `attempts`: how many were confirmed in one, in two, ...

    `late`: from when a message was due to its settlement, in seconds; of confirmed ones that no person sent again.
    """

    outcomes: Mapping[State, int]
    attempts: Mapping[int, int]
    late: Spread
    is_complete: bool
    intakes: Sequence[IntakeMeter] = ()


def measure_messages(ledger: Ledger, *, within_s: float) -> MessageMeters:
    """What became of messages lately, by the ledger's account.

    Raises:
        LedgerUnavailable: it did not answer.
    """
    part = ledger.part(MessageLedger)
    ended = part.letters.ended(within_s=within_s, limit=MESSAGES_MAX)
    sent = [one for one in ended if one.state is State.SUCCEEDED]
    return MessageMeters(
        outcomes=dict(Counter(one.state for one in ended)),
        attempts=dict(sorted(Counter(one.attempts for one in sent).items())),
        late=Spread.of(one.late_s for one in sent if one.sending == 1),
        is_complete=len(ended) < MESSAGES_MAX,
        intakes=[
            IntakeMeter(one.name, one.recorded, one.repeated, one.cancelled, one.quarantined)
            for one in part.intakes.all(limit=INTAKES_MAX)
        ],
    )
