"""What has arrived, judged against when it was due. Pure.

A message that arrived twice is late by its first arrival; what came after that is a copy. Early is whatever arrived
before its instant, by however little: sender and reader have the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Of one load. In ms from the instant at which each was due; less than nothing is early.

    `per_s`: arrivals a second, from the first instant to the last arrival. Where nothing arrived, these are 0.0.
    """

    sent: int
    missing: int
    early: int
    copies: int
    p50_ms: float
    p99_ms: float
    most_ms: float
    least_ms: float
    per_s: float

    @property
    def faults(self) -> str:
        """What went wrong, for a person; empty when nothing did."""
        counted = {"missing": self.missing, "early": self.early, "copies": self.copies}
        return ", ".join(f"{count:,} {name}" for name, count in counted.items() if count)


def judged(due: Mapping[int, float], arrived: Iterable[tuple[int, float]]) -> Arrivals:
    """`due`: the instant of each message; `arrived`: message and instant of each arrival, in any order.

    Raises:
        ValueError: nothing was due, or something has arrived that was never sent.
    """
    first: dict[int, float] = {}
    copies = 0
    for index, at in arrived:
        if index not in due:
            raise ValueError(f"message {index} has arrived and was never sent")
        copies += index in first
        first[index] = min(at, first.get(index, at))
    late_ms = sorted(1e3 * (at - due[index]) for index, at in first.items())
    span_s = max(first.values(), default=0.0) - min(due.values())
    return Arrivals(
        sent=len(due),
        missing=len(due) - len(first),
        early=sum(one < 0.0 for one in late_ms),
        copies=copies,
        p50_ms=quantile(late_ms, 0.5),
        p99_ms=quantile(late_ms, 0.99),
        most_ms=quantile(late_ms, 1.0),
        least_ms=quantile(late_ms, 0.0),
        per_s=len(first) / span_s if span_s > 0.0 else 0.0,
    )


def over_runs(found: Sequence[Arrivals]) -> Arrivals:
    """Of several runs of one load: sums of what was counted, extremes, and else the medians."""
    how: dict[str, Any] = {"most_ms": max, "least_ms": min, "p50_ms": median, "p99_ms": median, "per_s": median}
    names = [one.name for one in fields(Arrivals)]
    return Arrivals(**{name: how.get(name, sum)([getattr(one, name) for one in found]) for name in names})


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that so much of an ordered list does not exceed; 0.0 of an empty one."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
