"""On what was measured: the machine, the date, the versions. Nothing here names the host or a path of it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import subprocess
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks import arena, environments
from benchmarks.roster import Contestant

_OWN = ("workq-ledger", "psycopg", "pika", "confluent-kafka", "redis", "SQLAlchemy", "msgspec")
_CALIBRATION_STEPS = 300_000


def facts(contestants: Iterable[Contestant], servers: dict[str, str]) -> dict[str, Any]:
    """What a reader needs to judge the figures, as JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "load_1min_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "servers": servers,
        "server_settings": {name: arena.SETTINGS[name] for name in servers},
        "workq": {"commit": _commit(), **{name: _version(name) for name in _OWN}},
        "peers": {
            family: environments.versions(family)
            for family in sorted({one.family for one in contestants if one.family is not None})
        },
    }


def calibration_ms() -> float:
    """Milliseconds of a fixed loop: rises when the machine is slower, or busy with something else."""
    start = time.perf_counter()
    counts: dict[int, int] = {}
    for step in range(_CALIBRATION_STEPS):
        counts[step & 255] = counts.get(step & 255, 0) + step
    return 1e3 * (time.perf_counter() - start)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit of this checkout, with a mark when files differ from it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
