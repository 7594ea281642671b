"""Pace: how much one process fetches, holds and claims ahead, from how long its attempts take. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workq.broker import PAGE, Delivery

PREFETCH_MAX = 400
_LEAST = 2
_FEW_MAX = 50
_GROWS_BY = 4
_WEIGHT = 0.2
"""Of the newest deliveries, in the smoothed number of ids of one."""


class Pace:
    """How long runs take here, and how many attempts one is, smoothed; decides how much to hold and claim ahead."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._run_s: float | None = None
        self._together = 1.0
        self._size = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything has ended yet."""
        return self._run_s is not None

    def weigh(self, size: int) -> None:
        """A payload had so many characters."""
        self._size = max(float(size), 0.98 * self._size)

    def add(self, run_s: float, *, attempts: int = 1) -> None:
        """One run took so long; of a batch, it was several attempts."""
        self._run_s = run_s if self._run_s is None else 0.8 * self._run_s + 0.2 * run_s
        self._together = 0.8 * self._together + 0.2 * attempts

    def ahead(self, seconds: float, most: int, *, busy_s: float = 0.0) -> int:
        """How many attempts end here within `seconds`, when those that run have all been running for `busy_s`."""
        if self._run_s is None:
            return self._threads
        return min(most, int(self._threads * seconds * self._together / max(self._run_s, busy_s, 1e-6)))

    def fit(self, bytes_max: int) -> int:
        """How many payloads as large as the largest of late fit in it. A character counts as one byte."""
        return int(bytes_max / max(self._size, 1.0))


class Prefetch:
    """The prefetch of one consumer.

    A delivery may be a page of 100 tasks or a single one, and a task may take a microsecond or an hour. Few deliveries
    leave work for others, and are soon given back by a process that turns out to be slow; a fast process that gets
    single tasks needs many at a time, or it goes to its stores for each of them. So it begins as if all were pages: a
    fleet that is started on a short queue of pages shares it. The first delivery tells better, and from then on it asks
    for two tasks a thread, and for more while what it could hold at its pace is more than what it may get. It is back
    to few when it was full, or idle.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._ids_each: float | None = None
        """How many ids a delivery has, smoothed. None: none has come."""
        self.count = self.least

    @property
    def least(self) -> int:
        """Few: enough for two tasks a thread."""
        return max(_LEAST, min(_FEW_MAX, math.ceil(2 * self._threads / (self._ids_each or PAGE))))

    def grow(self, deliveries: Sequence[Delivery], ahead: int) -> int:
        """After these have come to a process that can hold `ahead` ids at its pace: what to ask for now."""
        sizes = [len(one.task_ids) for one in deliveries if one.task_ids]
        if not sizes:
            return self.count
        mean = sum(sizes) / len(sizes)
        self._ids_each = mean if self._ids_each is None else self._ids_each + _WEIGHT * (mean - self._ids_each)
        self.count = max(self.count, self.least)
        wanted = ahead / self._ids_each
        if wanted > self.count:  # in steps of two and of four: each step is a new subscription
            self.count = min(PREFETCH_MAX, self.count * _GROWS_BY, 1 << math.ceil(math.log2(wanted)))
        return self.count

    def shrink(self) -> int:
        """This process was full for long, or idle: few again."""
        self.count = self.least
        return self.count
