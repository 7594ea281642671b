"""Resting: queues that took nothing of what was sent to them, and for how long they are left alone.

A queue may be refused (it exists otherwise than it should), full (a bound, `reject-publish`), or without its majority.
Nothing of that is for the others to wait for. A broker that is away altogether looks the same from one queue, and is to
be tried again soon. What tells them apart: whether another queue has taken all that was sent to it meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

REST_S: Final = 1.0
"""After a queue took nothing, or not all."""
REFUSED_S: Final = 10.0
"""The same, where the broker refuses it, or has confirmed hints of others since it failed the last time."""
BRIEF_S: Final = 0.3
"""So long a confirm of such a queue is waited for, since the others wait meanwhile."""
FULL_EVERY: Final = 6
"""Of so many tries one waits as long as for any queue: it may be well, and slow."""


@dataclass(frozen=True, slots=True)
class _Rest:
    failed_at: float
    until: float
    sick: int = 0
    """How often, one after the other, it took nothing though others did."""


class Resting:
    """The queues of one mover that have failed. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rests: dict[str, _Rest] = {}
        self._confirmed_at = -math.inf

    def __contains__(self, queue: str) -> bool:
        """Whether it is to be left alone now."""
        return queue in self._rests and self._rests[queue].until > self._clock()

    @property
    def failed(self) -> frozenset[str]:
        """Queues that did not take all when they were tried the last time: one row is enough to try them again."""
        return frozenset(self._rests)

    def is_brief(self, queue: str) -> bool:
        """Whether to wait for it only `BRIEF_S` when it is tried now."""
        return queue in self._rests and self._rests[queue].sick % FULL_EVERY != 0

    def note(self, *, sent: Collection[str], kept: Collection[str], refused: Collection[str]) -> frozenset[str]:
        """Note how a batch fared: queues with hints that were confirmed, with others, and those that are refused.

        Answers those of `kept` that take nothing though the broker answers.
        """
        now = self._clock()
        if any(queue not in kept for queue in sent):
            self._confirmed_at = now
        for queue in sent:
            self._rests.pop(queue, None)
        sick = frozenset(queue for queue in kept if queue in refused or self._is_sick(queue))
        for queue in kept:
            before = self._rests[queue].sick if queue in self._rests else 0
            times, rest_s = (before + 1, REFUSED_S) if queue in sick else (0, REST_S)
            self._rests[queue] = _Rest(now, now + rest_s, times)
        return sick

    def _is_sick(self, queue: str) -> bool:
        return queue in self._rests and self._rests[queue].failed_at < self._confirmed_at
