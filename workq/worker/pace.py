"""Pace: how long attempts take in one process, and so how much it holds and claims ahead. Pure."""

from __future__ import annotations


class Pace:
    """How long attempts take here, smoothed; decides how much to hold and claim ahead."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._run_s: float | None = None
        self._size = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything has ended yet."""
        return self._run_s is not None

    def weigh(self, size: int) -> None:
        """A payload had so many characters."""
        self._size = max(float(size), 0.98 * self._size)

    def add(self, run_s: float) -> None:
        """One attempt took so long."""
        self._run_s = run_s if self._run_s is None else 0.8 * self._run_s + 0.2 * run_s

    def ahead(self, seconds: float, most: int, *, busy_s: float = 0.0) -> int:
        """How many attempts end here within `seconds`, when those that run have all been running for `busy_s`."""
        if self._run_s is None:
            return self._threads
        return min(most, int(self._threads * seconds / max(self._run_s, busy_s, 1e-6)))

    def fit(self, bytes_max: int) -> int:
        """How many payloads as large as the largest of late fit in it. A character counts as one byte."""
        return int(bytes_max / max(self._size, 1.0))
