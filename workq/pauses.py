"""Pauses: which queues of a worker are paused, so that it does not fetch what it may not claim.

The ledger decides, with each claim: this is only what a worker last saw. It looks when it begins, when a task was not
granted because its queue is paused, and then every second for as long as one of its queues is: a worker that knows of
no pause asks nobody.

What goes wrong: the ledger away: it is looked at again a second later. A pause that is not known yet: the claim is
refused, and the hint goes back into its queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from workq.errors import Unavailable
from workq.ledger import Ledger

LOOK_EVERY_S: Final = 1.0
"""While one of its queues is paused."""


class Pauses:
    """Those that one worker knows of. Used by one thread."""

    def __init__(self, ledger: Ledger, queues: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._queues = tuple(queues)
        self._clock = clock
        self._look_at: float | None = float("-inf")
        """When to look; None: when it is told."""
        self.open: tuple[str, ...] = self._queues
        """The queues that are not paused."""

    def seen(self) -> None:
        """A claim was not granted because of a pause."""
        if len(self.open) == len(self._queues):
            self._look_at = float("-inf")

    def has_changed(self) -> bool:
        """Look, when it is time; whether other queues are open than before."""
        if self._look_at is None or self._clock() < self._look_at:
            return False
        try:
            paused = self._ledger.pauses()
        except Unavailable:
            self._look_at = self._clock() + LOOK_EVERY_S
            return False
        before, self.open = self.open, tuple(queue for queue in self._queues if queue not in paused)
        self._look_at = None if self.open == self._queues else self._clock() + LOOK_EVERY_S
        return before != self.open
