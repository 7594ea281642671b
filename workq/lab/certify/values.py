"""What a run of `workq certify` was asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random

from workq.config import Settings
from workq.lab.certify.verdict import RunFinding, RunVerdict


@dataclass(frozen=True, slots=True)
class CertifyWishes:
    """What was asked for. `divide` None: chosen to fit the minutes. `only` are names of faults; none means all."""

    minutes: float = 3.0
    seed: int = 0
    processes: int = 1
    threads: int = 4
    rate: float = 200.0
    divide: float | None = None
    only: frozenset[str] = frozenset()
    keep: bool = False

    @property
    def divided_by(self) -> float:
        """By how much the times are divided."""
        if self.divide is not None:
            return self.divide
        return 10.0 if self.minutes < 1.0 else 5.0

    @property
    def command(self) -> str:
        """What repeats the run."""
        words = [f"workq certify --minutes {self.minutes:g} --seed {self.seed}"]
        words += [f"--processes {self.processes} --threads {self.threads} --rate {self.rate:g}"]
        words += [f"--divide {self.divide:g}"] if self.divide is not None else []
        words += [f"--only {','.join(sorted(self.only))}"] if self.only else []
        return " ".join(words)


@dataclass(slots=True)
class CertifyReport:
    """What came of it."""

    wishes: CertifyWishes
    began_at: datetime
    seconds: float
    namespace: str
    settings: Settings
    versions: dict[str, str]
    start_s: float
    """How long a worker took to start on this machine, at most."""
    stall_s: float
    """The longest time for which this machine did not let a waiting thread run."""
    struck: dict[str, int]
    left_out: dict[str, str]
    rounds_composed: int
    verdict: RunVerdict
    logged: dict[str, int]
    shown: list[tuple[RunFinding, list[str]]]
    kept: Path | None = None
    not_removed: list[str] = field(default_factory=list)


def new_seed() -> int:
    """A seed for a run that was given none."""
    return Random().randrange(1_000_000)
