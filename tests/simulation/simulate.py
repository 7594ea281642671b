"""The long run: `.venv/bin/python -m tests.simulation.simulate --seeds N [--first SEED] [--mutants]`.

Runs seeds in as many processes as there are cores, prints what was done, what was injected, and each failure with the
command that replays it. Then, with `--mutants`, every mutant is hunted. Exit status 3 with a violation or a survivor.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.mutants import MUTANTS, SEEDS_MAX, Caught, hunt
from tests.simulation.run import database, run

CHUNK = 100


class Sums:
    """What many runs showed together."""

    def __init__(self) -> None:
        self.seeds = 0
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.rest_s = 0.0
        self.failed: list[str] = []

    def add(self, other: Sums) -> None:
        """Take another part in."""
        self.seeds += other.seeds
        self.counts += other.counts
        self.faults += other.faults
        self.rest_s = max(self.rest_s, other.rest_s)
        self.failed += other.failed


def simulate(first: int, count: int) -> Sums:
    """Run some seeds."""
    sums = Sums()
    for seed in range(first, first + count):
        result = run(seed, database())
        sums.seeds += 1
        sums.faults += result.faults
        sums.rest_s = max(sums.rest_s, result.rest_s)
        sums.counts += Counter(
            steps=result.steps,
            tasks=result.tasks,
            starts=result.starts,
            overlaps=result.duplicate_starts,
            repaired=result.repaired,
            audits=result.audits,
            **{f"{result.kind} worlds": 1},
        )
        if result.violations:
            sums.failed.append(f"{result.violations[0]}\n  replay: {result.replay}")
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutants", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    whole = Sums()
    with ProcessPoolExecutor(options.processes) as pool:
        last = options.first + options.seeds
        parts = [pool.submit(simulate, first, min(CHUNK, last - first)) for first in range(options.first, last, CHUNK)]
        for done, part in enumerate(as_completed(parts), 1):
            sums = part.result()
            whole.add(sums)
            for failure in sums.failed:
                print(f"VIOLATED {failure}", flush=True)
            if done % 10 == 0:
                print(f"... {whole.seeds} seeds, {whole.counts['steps']} steps", flush=True)
        hunts = [pool.submit(hunt, name) for name in MUTANTS] if options.mutants else []
        caught = [each.result() for each in hunts]
    counts = ", ".join(f"{count} {what}" for what, count in sorted(whole.counts.items()))
    print(f"simulate: seeds {options.first} to {last - 1}: {counts}")
    print("faults: " + ", ".join(f"{count} {what}" for what, count in sorted(whole.faults.items())))
    print(f"longest way to rest: {whole.rest_s:.0f} virtual seconds")
    print(f"violations: {len(whole.failed)}; {time.monotonic() - began:.0f} s with {options.processes} processes")
    return _tell(caught) or (3 if whole.failed else 0)


def _tell(caught: list[Caught]) -> int:
    for one in caught:
        shown = f"SURVIVED {SEEDS_MAX} seeds" if one.result is None else one.result.violations[0][:100]
        print(f"mutant {one.name:60} {one.seeds:5} seeds  {shown}")
    survivors = sum(one.result is None for one in caught)
    if caught:
        print(f"mutants: {len(caught) - survivors} of {len(caught)} caught")
    return 3 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
