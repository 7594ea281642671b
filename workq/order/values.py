"""Order keys as values."""

from __future__ import annotations

from datetime import datetime

import msgspec

from workq.values.task import SETTLED, State


class SequenceRow(msgspec.Struct, frozen=True):
    """One order key with open tasks: who stands first, in which state, and how many behind it.

    `blocked_since`: when the first one died, if the others wait for a person.
    """

    key: str
    head: str
    state: State | None
    behind: int
    blocked_since: datetime | None

    @property
    def moves_on(self) -> bool:
        """Whether the first one has ended and blocks nothing: the next sweep lets the next one go on."""
        return self.blocked_since is None and (self.state is None or self.state in SETTLED)
