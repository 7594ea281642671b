"""The traces of acts, of which CI runs the shortest: one enqueue, in one SQLite file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.traces import ACTS


def test_an_enqueue_goes_through_some_files_and_more_calls() -> None:
    command = [sys.executable, "-m", "benchmarks.traces", "--leg", "sqlite", "--only", "enqueue", "--runs", "1"]

    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2]
    )

    head, line = done.stdout.splitlines()
    name, files, calls, depth = line.split()
    assert head.split() == ["act", "files", "calls", "frames", "deep"]
    assert name in ACTS
    assert 5 < int(files) < 60
    assert int(files) < int(calls) < 500
    assert 5 < int(depth) < 40
