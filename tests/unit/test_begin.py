"""What a process imports at its start is not looked through for garbage, neither meanwhile nor afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import gc
from workq.values.begin import begin, begun
usual = gc.get_threshold()
begin()
before = gc.get_stats()[0]["collections"]
kept = [[number] for number in range(50_000)]
assert gc.get_stats()[0]["collections"] == before
{application}
begun({every})
assert gc.get_freeze_count() > len(kept)
print(*gc.get_threshold(), *usual)
"""


def thresholds(application: str = "", every: str = "") -> tuple[list[str], list[str]]:
    """Of a process that has begun, and those that it had at first."""
    code = START.format(application=application, every=every)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    told = ran.stdout.split()
    return told[:3], told[3:]


def test_afterwards_garbage_is_looked_for_as_often_as_before() -> None:
    now, usual = thresholds()

    assert now == usual


def test_a_process_that_never_says_that_it_has_begun_looks_as_before_after_its_first_look() -> None:
    code = """
import gc
from workq.values.begin import begin
usual = gc.get_threshold()
begin()
kept = [[number] for number in range(150_000)]
assert gc.get_threshold() == usual, gc.get_threshold()
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


@pytest.mark.parametrize(
    ("application", "every", "first"), [("gc.set_threshold(321, 9, 9)", "", "321"), ("", "10_000", "10000")]
)
def test_or_as_often_as_the_application_or_the_worker_wants(application: str, every: str, first: str) -> None:
    now, _ = thresholds(application, every)

    assert now[0] == first
