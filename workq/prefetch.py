"""How many unacked deliveries a process asks the broker for: few, until it is seen to need more.

A delivery may be a page of 100 tasks or a single one, and a task may take a microsecond or an hour. Few deliveries
leave work for others, and are soon given back by a process that turns out to be slow; a fast process that gets single
tasks needs many at a time, or it goes to its stores for each of them. So it begins with a few, and asks for four times
as many while what it could hold at its pace is more than what it may get. It is back to few when it was full, or idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workq.broker import PAGE, Delivery

MOST = 400
_GROWS_BY = 4
_WEIGHT = 0.2
"""Of the newest deliveries, in the smoothed number of ids of one."""


class Prefetch:
    """The prefetch of one consumer."""

    def __init__(self, threads: int) -> None:
        self.least = max(2, min(50, threads * 2))
        self.count = self.least
        self._ids_each = float(PAGE)

    def grow(self, deliveries: Sequence[Delivery], ahead: int) -> int:
        """After these have come to a process that can hold `ahead` ids at its pace: what to ask for now."""
        sizes = [len(one.task_ids) for one in deliveries if one.task_ids]
        if sizes:
            self._ids_each += _WEIGHT * (sum(sizes) / len(sizes) - self._ids_each)
        if math.ceil(ahead / self._ids_each) > self.count:
            self.count = min(MOST, self.count * _GROWS_BY)
        return self.count

    def shrink(self) -> int:
        """This process was full for long, or idle: few again."""
        self.count = self.least
        return self.count
