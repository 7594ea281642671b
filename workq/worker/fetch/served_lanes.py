"""Served lanes: which bands of its queues a worker serves: those that are in use and not paused.

The ledger decides about a pause, with each claim: this is only what a worker last saw. It looks when it begins, when a
task was not granted because its queue is paused, and then every second for as long as something of its queues is: a
worker that knows of no pause asks nobody about them.

A queue's band of normal priority is always in use, the others from their first task on. So a worker asks every second
which are, one small read, until all of its queues have all of theirs; and RabbitMQ has no queue that nobody ever used.

What goes wrong: the ledger away: it is looked at again a second later. A pause that is not known yet: the claim is
refused, and the hint goes back into its queue. A band that is not known yet: its tasks wait for up to a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from workq.errors import Unavailable
from workq.values.lane import all_of

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


LOOK_EVERY_S: Final = 1.0
"""While one of its queues is paused; and for bands that come into use."""
_AT_ONCE: Final = float("-inf")
_WHEN_TOLD: Final = float("inf")


class ServedLanes:
    """Those that one worker knows of. Used by one thread."""

    def __init__(self, ledger: Ledger, queues: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._all = tuple(band for queue in queues for band in all_of(queue))
        self._pauses_at = self._bands_at = _AT_ONCE
        """When to look."""
        self._paused: frozenset[str] = frozenset()
        self.bands: tuple[str, ...] = tuple(queues)
        """Those of its queues that are in use."""
        self.open: tuple[str, ...] = self.bands
        """Those of them that are not paused."""

    def seen(self) -> None:
        """A claim was not granted because of a pause."""
        if len(self.open) == len(self.bands):
            self._pauses_at = _AT_ONCE

    def has_changed(self) -> bool:
        """Look, when it is time; whether others are open than before."""
        now = self._clock()
        if now < self._bands_at and now < self._pauses_at:
            return False
        try:
            if now >= self._bands_at:
                self._look_for_bands(now)
            if now >= self._pauses_at:
                self._paused = frozenset(self._ledger.pauses.all())
        except Unavailable:
            self._bands_at = max(self._bands_at, now + LOOK_EVERY_S)
            self._pauses_at = max(self._pauses_at, now + LOOK_EVERY_S)
            return False
        before, self.open = self.open, tuple(band for band in self.bands if band not in self._paused)
        if now >= self._pauses_at:
            self._pauses_at = _WHEN_TOLD if self.open == self.bands else now + LOOK_EVERY_S
        return before != self.open

    def _look_for_bands(self, now: float) -> None:
        used = self._ledger.lanes.bands()
        bands = tuple(band for band in self._all if band in used or band in self.bands)
        if bands != self.bands:
            self.bands = bands
            self._pauses_at = _AT_ONCE
        self._bands_at = _WHEN_TOLD if bands == self._all else now + LOOK_EVERY_S
