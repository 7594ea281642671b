"""The proof: what has arrived at the receivers, against the application's own rows. Pure.

Who decides: the receivers' log of requests and the table of the application. The ledger is only asked whether it says
the same: that every delivery has succeeded, and how many requests it knows of.

A process that is killed leaves requests of which nobody has recorded the answer. Those are sent again, with the same
webhook-id: they are the only ones that may come twice, or earlier than a receiver has asked for. So what the killed
process had in hand is told to the proof, and nothing else is excused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

EARLY_S: Final = 0.01
"""Clocks are read at two places."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that a receiver got. The moments are of the monotonic clock."""

    webhook_id: str
    came_at: float
    answered_at: float
    status: int
    retry_after_s: float | None = None
    is_signed: bool = True

    @property
    def is_taken(self) -> bool:
        """Whether the receiver has taken the event."""
        return self.is_signed and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger says of one delivery."""

    is_succeeded: bool
    attempts: int


@dataclass(frozen=True, slots=True)
class Waits:
    """From sent to taken, in seconds. `most_undisturbed_s`: of what no killed process had in hand."""

    half_s: float
    p99_s: float
    most_s: float
    most_undisturbed_s: float


@dataclass(frozen=True, slots=True)
class ReceiverTally:
    """What one receiver got. Events are named by their webhook-ids.

    Attributes:
        sent: events that should have arrived.
        arrived: how many of them have.
        lost: those that have not.
        foreign: what came and was not sent, or was rolled back.
        unsigned: requests with a signature that does not fit.
        requests: all of them.
        refused: how many requests were answered with which status other than 2xx.
        twice: what came again after it had been taken.
        unexcused: of those, what no killed process had in hand.
        early: what came again earlier than the receiver had asked for, though no killed process had it in hand.
        unfinished: what the ledger does not call succeeded.
        unrecorded: of which the ledger does not know as many requests as came, though no killed process had it in hand.
        attempts: requests that the ledger knows of.
        waits: None when nothing has arrived.
        span_s: from the first one sent to the last one taken.
    """

    name: str
    event_type: str
    sent: int
    arrived: int
    lost: tuple[str, ...]
    foreign: tuple[str, ...]
    unsigned: int
    requests: int
    refused: Mapping[int, int]
    twice: tuple[str, ...]
    unexcused: tuple[str, ...]
    early: tuple[str, ...]
    unfinished: tuple[str, ...]
    unrecorded: tuple[str, ...]
    attempts: int
    waits: Waits | None
    span_s: float

    @property
    def is_right(self) -> bool:
        """Whether every event has arrived, and nothing else, as the ledger says, too."""
        wrong = (self.lost, self.foreign, self.unexcused, self.early, self.unfinished, self.unrecorded)
        return not any(wrong) and self.unsigned == 0


def tally(
    name: str,
    event_type: str,
    *,
    sent_at: Mapping[str, float],
    requests: Sequence[Request],
    recorded: Mapping[str, Recorded],
    in_hand: frozenset[str],
) -> ReceiverTally:
    """Count what one receiver got.

    Args:
        sent_at: when each event was sent that should have arrived there.
        requests: all that came.
        recorded: what the ledger says, by webhook-id.
        in_hand: what a killed process had in hand.
    """
    of_each: defaultdict[str, list[Request]] = defaultdict(list)
    for one in sorted(requests, key=lambda one: one.came_at):
        of_each[one.webhook_id].append(one)
    came = Counter(one.webhook_id for one in requests)
    taken_at = {
        webhook_id: min(one.answered_at for one in found if one.is_taken)
        for webhook_id, found in of_each.items()
        if any(one.is_taken for one in found)
    }
    arrived = sent_at.keys() & taken_at.keys()
    twice = [webhook_id for webhook_id, found in of_each.items() if any(one.is_taken for one in found[:-1])]
    return ReceiverTally(
        name=name,
        event_type=event_type,
        sent=len(sent_at),
        arrived=len(arrived),
        lost=_sorted(sent_at.keys() - taken_at.keys()),
        foreign=_sorted(of_each.keys() - sent_at.keys()),
        unsigned=sum(not one.is_signed for one in requests),
        requests=len(requests),
        refused=dict(sorted(Counter(one.status for one in requests if not one.is_taken).items())),
        twice=_sorted(twice),
        unexcused=_sorted(set(twice) - in_hand),
        early=_sorted(one for one, found in of_each.items() if one not in in_hand and _is_early(found)),
        unfinished=_sorted(one for one in sent_at if one not in recorded or not recorded[one].is_succeeded),
        unrecorded=_sorted(
            one
            for one, known in recorded.items()
            if known.attempts > came[one] or (one not in in_hand and known.attempts != came[one])
        ),
        attempts=sum(one.attempts for one in recorded.values()),
        waits=_waits({one: taken_at[one] - sent_at[one] for one in arrived}, in_hand),
        span_s=max(taken_at[one] for one in arrived) - min(sent_at.values()) if arrived else 0.0,
    )


def _is_early(requests: Sequence[Request]) -> bool:
    return any(
        one.retry_after_s is not None and then.came_at < one.answered_at + one.retry_after_s - EARLY_S
        for one, then in pairwise(requests)
    )


def _waits(waits: Mapping[str, float], in_hand: frozenset[str]) -> Waits | None:
    if not waits:
        return None
    found = sorted(waits.values())
    return Waits(
        half_s=found[(len(found) - 1) // 2],
        p99_s=found[int(0.99 * (len(found) - 1))],
        most_s=found[-1],
        most_undisturbed_s=max((wait for one, wait in waits.items() if one not in in_hand), default=0.0),
    )


def _sorted(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ids))
