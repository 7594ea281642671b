"""What the logs of the workers tell of a run: warnings, tracebacks, how long a start took, last words."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from workq.lab.fleet import Host


def logged(folder: Path) -> tuple[Counter[str], list[str]]:
    """Events at warning and above by name; and those that came with a traceback, which only a death should."""
    counted: Counter[str] = Counter()
    broken: list[str] = []
    for log in sorted(folder.glob("worker-*.log")):
        event = ""
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split(" ", 5)
            if line.startswith("  Traceback") and event != "task.dead":
                broken.append(f"a worker logged {event} with a traceback; see --keep")
            elif len(words) > 4 and words[2] in ("WARNING", "ERROR", "CRITICAL"):
                event = words[4].rstrip(":")
                counted[event] += 1
                if words[2] == "CRITICAL":
                    broken.append(f"a worker logged {event}")
    return counted, broken


def startup_s(folder: Path) -> float:
    """How long three of four consumer processes took to start at most, as the logs of the workers tell.

    The others may have been paused, or cut off, while they started.
    """
    found = [0.0]
    for log in sorted(folder.glob("worker-*.log")):
        started: dict[str, datetime] = {}
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split(" ")
            if len(words) < 6 or words[4] not in ("supervisor.started", "worker.started"):
                continue
            at = datetime.strptime(f"{words[0]} {words[1]}", "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)
            if words[4] == "supervisor.started":
                started[words[5].removeprefix("pid=")] = at
            elif words[3] in started:
                found.append((at - started.pop(words[3])).total_seconds())
    return sorted(found)[len(found) * 3 // 4]


def last_words(hosts: list[Host]) -> str:
    """The last line that a worker logged, as the end of a message."""
    lines = [line for host in hosts if host.log.exists() for line in host.log.read_text(errors="replace").splitlines()]
    return f". Its last words: {lines[-1]}" if lines else ""
