"""`python -m benchmarks`: every contestant in turn, run by run, on one set of private servers.

Run 1 of all, then run 2 of all: when the machine gets slower or busier, all are hit alike. A step that fails is
reported and does not stop the others; what was measured so far is written after each run, and printed at the end, or
when Ctrl-C ends it early.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import environments, goals, machine, report
from benchmarks.arena import Arena
from benchmarks.crew import StepFailed
from benchmarks.measures import STEPS, Bench, Size, sizes
from benchmarks.results import Failure, Results
from benchmarks.roster import MEASURES, ROSTER, Contestant, chosen

TASKS = 20_000
QUICK_TASKS = 2_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print. Answers 0, 1 when a step failed, 2 for wrong arguments, 130 when interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        contestants = chosen(_names(options.only))
        measures = frozenset(_names(options.measure) or MEASURES)
        if strange := measures - set(MEASURES):
            raise ValueError(f"no measure is called {', '.join(sorted(strange))}; there are {', '.join(MEASURES)}")
        if options.runs < 1 or (options.tasks is not None and options.tasks < 100):
            raise ValueError("at least 1 run and 100 tasks")
    except ValueError as error:
        parser.error(str(error))
    for name in (signal.SIGINT, signal.SIGTERM):  # both end it in order: nothing is left running
        signal.signal(name, signal.default_int_handler)
    runs = 1 if options.quick else options.runs
    size = sizes(options.tasks or (QUICK_TASKS if options.quick else TASKS), is_quick=options.quick)
    return _bench(contestants, measures, runs=runs, kill_runs=options.kill_runs, size=size, output=options.output)


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(one.name for one in ROSTER)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="workq beside its peers: the same tasks on the same private servers, in turn, run by run.",
        epilog=f"contestants: {names}; or a family: workq, pgqueuer, dramatiq, ...",
    )
    parser.add_argument("--runs", type=int, default=5, help="how often each contestant is measured [5]")
    parser.add_argument(
        "--tasks", type=int, help=f"tasks to drain; other sizes follow from it [{TASKS}; {QUICK_TASKS} with --quick]"
    )
    parser.add_argument("--only", default="", metavar="NAME[,NAME]", help="contestants or families [all]")
    parser.add_argument("--measure", default="", metavar="M[,M]", help=f"of {', '.join(MEASURES)} [all]")
    parser.add_argument("--kill-runs", type=int, default=2, help="the kill measure only in the first so many runs [2]")
    parser.add_argument("--quick", action="store_true", help="one short run: to try it, not to quote")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="where all figures go, too")
    return parser


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _bench(
    contestants: Sequence[Contestant],
    measures: frozenset[str],
    *,
    runs: int,
    kill_runs: int,
    size: Size,
    output: Path | None,
) -> int:
    results = Results()
    pythons = _environments(contestants, results)
    taking_part = [one for one in contestants if one.name in pythons]
    _say("starting private servers")
    is_interrupted = False
    with Arena(taking_part) as arena:
        facts = machine.facts(taking_part, arena.versions)
        facts["runs"] = runs
        try:
            for run in range(1, runs + 1):
                asked = measures if run <= kill_runs else measures - {"kill"}
                for contestant in taking_part:
                    bench = Bench(arena, contestant, pythons[contestant.name], size)
                    _take(bench, run, asked & set(contestant.measures), results)
                _write(output, results, facts)
        except KeyboardInterrupt:
            is_interrupted = True
            _say("interrupted: what was measured so far follows")
    facts["ended"] = datetime.now(UTC).isoformat(timespec="seconds")
    _write(output, results, facts)
    for line in report.lines(contestants, results, goals.judged(results), facts):
        print(line)
    return 130 if is_interrupted else 1 if results.failures else 0


def _environments(contestants: Sequence[Contestant], results: Results) -> dict[str, Path]:
    """The interpreter of each contestant whose environment could be made."""
    found: dict[str, Path] = {}
    for contestant in contestants:
        try:
            found[contestant.name] = environments.interpreter(contestant.family)
        except environments.EnvironmentFailed as error:
            _say(f"{contestant.name}: no environment: {error}")
            results.failures.append(Failure(contestant.name, 0, contestant.measures, str(error)))
    return found


def _take(bench: Bench, run: int, asked: frozenset[str], results: Results) -> None:
    """One contestant through the measures of one run."""
    name = bench.contestant.name
    results.add(name, run, {"calibration_ms": machine.calibration_ms()})
    for covers, step in STEPS:
        wanted = covers & asked
        if not wanted:
            continue
        start = time.monotonic()
        try:
            for figures in step(bench, wanted):
                results.add(name, run, figures)
                told = "  ".join(f"{key} {_short(value)}" for key, value in figures.items() if "_cpu_s" not in key)
                _say(f"run {run}  {name:20}  {told}  ({time.monotonic() - start:.0f} s)")
        except Exception as error:  # whatever it is: it must not stop the others
            message = str(error) if isinstance(error, StepFailed) else f"{type(error).__name__}: {error}"
            results.failures.append(Failure(name, run, tuple(sorted(wanted)), message))
            _say(f"run {run}  {name:20}  {step.__name__} FAILED: {message}")


def _write(output: Path | None, results: Results, facts: dict[str, Any]) -> None:
    if output is None:
        return
    verdicts = [verdict.as_json() for verdict in goals.judged(results)]
    roster = {one.name: {"configuration": one.configuration, "survives": one.survives or "yes"} for one in ROSTER}
    document = {"machine": facts, "contestants": roster, **results.as_json(), "goals": verdicts}
    output.write_text(json.dumps(document, indent=1) + "\n")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def _say(text: str) -> None:
    """Progress, to stderr: stdout has the report alone."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
