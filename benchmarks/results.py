"""What a run has measured: figures of each contestant in each run, and what failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of the runs that have the figure."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that failed: which measures are missing for it, and the message with the last lines of the log."""

    contestant: str
    run: int
    measures: tuple[str, ...]
    message: str


@dataclass(slots=True)
class Results:
    """All figures so far: contestant, then run (1, 2, ...), then the figure's name."""

    figures: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(self, contestant: str, run: int, figures: dict[str, float]) -> None:
        """Add figures of one contestant in one run to those that it has."""
        self.figures.setdefault(contestant, {}).setdefault(run, {}).update(figures)

    def of(self, contestant: str, figure: str) -> dict[int, float]:
        """One figure, by run; empty when there is none."""
        runs = self.figures.get(contestant, {})
        return {run: figures[figure] for run, figures in runs.items() if figure in figures}

    def spread(self, contestant: str, figure: str) -> Spread | None:
        """One figure over the runs, or None when no run has it."""
        return spread(self.of(contestant, figure).values())

    def as_json(self) -> dict[str, Any]:
        """Every figure of every run, the spreads, and the failures."""
        names = {one: sorted({name for run in runs.values() for name in run}) for one, runs in self.figures.items()}
        return {
            "runs": {one: {str(run): figures for run, figures in runs.items()} for one, runs in self.figures.items()},
            "spreads": {
                one: {name: _as_dict(self.spread(one, name)) for name in found} for one, found in names.items()
            },
            "failures": [
                {"contestant": one.contestant, "run": one.run, "measures": list(one.measures), "message": one.message}
                for one in self.failures
            ],
        }


def spread(values: Iterable[float]) -> Spread | None:
    """Of some values, or None when there are none."""
    found = list(values)
    if not found:
        return None
    return Spread(median(found), min(found), max(found), len(found))


def _as_dict(found: Spread | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"median": found.median, "min": found.low, "max": found.high, "runs": found.runs}
