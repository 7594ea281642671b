"""Show one seed: `.venv/bin/python -m tests.simulation.replay --seed N [--mutant NAME]`."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.run import database, run, show


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    result = run(options.seed, database(), is_traced=True)
    print(show(result))
    print(result.steps, "steps,", dict(result.faults))
    return 3 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
