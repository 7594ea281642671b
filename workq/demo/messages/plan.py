"""What is sent: which message to where and when, and which are cancelled or moved just before they are due. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

COUNT: Final = 20_000
COUNT_MIN: Final = 100
WITHIN_S: Final = 20.0
WITHIN_MIN_S: Final = 2.0
KINDS: Final = ("amqp", "kafka", "http", "call")

DECIDED_PART: Final = 0.4
"""In this part of the time messages are cancelled and moved: before a process is killed. What a killed process has sent
may be unknown to the ledger for a while, and then a message can be cancelled that has arrived."""
KILL_AT: Final = 0.45
"""The part of the time after which a process is killed, and a destination goes away."""
AWAY_PART: Final = 0.2
"""The destination is away for this part of the time, at least."""
_CANCELLED_PART: Final = 0.005
"""Of all messages, five at least; and as many are moved."""
_CANCELLED_MIN: Final = 5
_JUST_BEFORE_S: Final = 0.25
"""The last moment: some decisions meet the moment at which their message is due."""


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """One message. Its moments are seconds after the first one is due, in whole milliseconds.

    `decide_after_s` None: nothing is decided about it. `moved_to_s` None: it is cancelled, if anything.
    """

    number: int
    box: str
    due_after_s: float
    decide_after_s: float | None = None
    moved_to_s: float | None = None

    @property
    def id(self) -> str:
        """Its `workq-id`."""
        return f"demo-{self.number}"

    @property
    def body(self) -> str:
        """What it says: its number, so that a copy with another id would be seen."""
        return f"message {self.number}"


def planned(count: int, within_s: float, boxes: Sequence[str], *, rng: Random) -> Iterator[PlannedMessage]:
    """So many messages to these mailboxes in turn, in the order of their times."""
    decided = rng.sample(range(int(count * DECIDED_PART)), 2 * max(_CANCELLED_MIN, int(count * _CANCELLED_PART)))
    either, moved = set(decided), set(decided[1::2])
    for number in range(count):
        due_s = round(within_s * number / count, 3)
        decide_s = due_s - rng.uniform(0.0, _JUST_BEFORE_S) if number in either else None
        moved_s = round(due_s + within_s / 2, 3) if number in moved else None
        yield PlannedMessage(number, boxes[number % len(boxes)], due_s, decide_s, moved_s)
