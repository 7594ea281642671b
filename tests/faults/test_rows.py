"""The table of faults is complete, and what it names exists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.rows import ROWS
from tests.system.fleet import REPOSITORY

# The numbers that the table has; the others were never given.
NUMBERS = (
    *(range(1, 8), range(9, 11), range(12, 20), range(21, 27), range(28, 31), range(32, 36), range(38, 44)),
    *(range(45, 47), range(48, 51), range(52, 54), range(55, 56), range(57, 61), range(62, 71), (72, 74)),
)


@pytest.fixture(scope="module")
def existing(every_test: frozenset[str] | None) -> frozenset[str]:
    """Every test of the files that the rows name, with and without the brackets of its variant."""
    found = {name.removeprefix("tests/") for name in every_test or _collected()}
    return frozenset(found | {name.partition("[")[0] for name in found})


def _collected() -> set[str]:
    files = sorted({test.partition("::")[0] for row in ROWS.values() for test in row.tests})
    told = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "--both-legs",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
        ]
        + [str(Path("tests") / file) for file in files],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-1000:]
    return {line for line in told.stdout.splitlines() if "::" in line}


def test_every_kind_of_fault_has_a_test_and_nothing_else_is_listed() -> None:
    assert set(ROWS) == {f"F{number}" for numbers in NUMBERS for number in numbers}
    assert [name for name, row in ROWS.items() if not row.tests or not row.what] == []


def test_every_test_that_a_row_names_exists(existing: frozenset[str]) -> None:
    missing = [f"{name}: {test}" for name, row in ROWS.items() for test in row.tests if test not in existing]

    assert missing == []
