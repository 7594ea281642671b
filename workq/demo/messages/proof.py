"""The proof: what has arrived at the destinations, against what was sent, cancelled and moved. Pure.

Who decides: what stands in the mailboxes. All of them, and the ledger, are on one machine and read its one clock, so an
arrival is early by the ledger's clock, too. A copy is what came again with its own id and its own body: a message is
sent at least once. An arrival whose id and body do not belong together is foreign.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EARLY_S: Final = 0.001
"""Some clocks are read in whole milliseconds."""


class Fate(StrEnum):
    """What has to come of a message."""

    SENT = "sent"
    """It arrives."""
    CANCELLED = "cancelled"
    """It does not: the cancel has answered so."""
    TOO_LATE = "too late"
    """It may: the cancel has answered that it was on its way."""


@dataclass(frozen=True, slots=True)
class ExpectedMessage:
    """What has to come of one message. `due_at`: not before this, in seconds since the epoch."""

    body: str
    due_at: float
    fate: Fate = Fate.SENT


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came once, and when, in seconds since the epoch."""

    id: str
    body: str
    at: float


@dataclass(frozen=True, slots=True)
class Lateness:
    """From due to arrived, in seconds."""

    half_s: float
    p99_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class MailboxTally:
    """What came to one mailbox. Messages are named by their ids.

    Attributes:
        sent: messages that had to arrive.
        arrived: how many of them have.
        missing: those that have not.
        early: what came before it was due.
        foreign: what was never sent there, or came with the id of another message.
        uncancelled: what came though its cancel had answered that it would not.
        copies: how often something came again, with its own id.
        too_late: of those that were on their way when they were cancelled, how many came.
        lateness: of the first arrivals; None when nothing has arrived.
    """

    name: str
    sent: int
    arrived: int
    missing: tuple[str, ...]
    early: tuple[str, ...]
    foreign: tuple[str, ...]
    uncancelled: tuple[str, ...]
    copies: int
    too_late: int
    lateness: Lateness | None

    @property
    def is_right(self) -> bool:
        """Whether every message has arrived that had to, none before its time, and nothing else."""
        return not any((self.missing, self.early, self.foreign, self.uncancelled))


def tally(name: str, expected: Mapping[str, ExpectedMessage], arrivals: Iterable[Arrival]) -> MailboxTally:
    """Count what came to one mailbox. `expected`: what was sent there, by id."""
    came: defaultdict[str, list[float]] = defaultdict(list)
    foreign: set[str] = set()
    for one in arrivals:
        if one.id in expected and expected[one.id].body == one.body:
            came[one.id].append(one.at)
        else:
            foreign.add(one.id)
    first_at = {message_id: min(moments) for message_id, moments in came.items()}
    wanted = {message_id for message_id, one in expected.items() if one.fate is Fate.SENT}
    return MailboxTally(
        name=name,
        sent=len(wanted),
        arrived=len(wanted & first_at.keys()),
        missing=tuple(sorted(wanted - first_at.keys())),
        early=tuple(sorted(one for one, at in first_at.items() if at < expected[one].due_at - EARLY_S)),
        foreign=tuple(sorted(foreign)),
        uncancelled=tuple(sorted(one for one in first_at if expected[one].fate is Fate.CANCELLED)),
        copies=sum(len(moments) - 1 for moments in came.values()),
        too_late=sum(expected[one].fate is Fate.TOO_LATE for one in first_at),
        lateness=_lateness(sorted(first_at[one] - expected[one].due_at for one in wanted & first_at.keys())),
    )


def _lateness(found: Sequence[float]) -> Lateness | None:
    if not found:
        return None
    return Lateness(found[(len(found) - 1) // 2], found[int(0.99 * (len(found) - 1))], found[-1])
