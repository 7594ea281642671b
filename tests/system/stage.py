"""Where a demo is run as a newcomer runs it: in a process of its own, and all that it starts or leaves is seen."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.zygote import FORKED_WITH, Forked

MARK = "WORKQTEST_MARK"
GONE_WITHIN_S = 30.0
LIMIT_S = 150.0
_PROGRESS = re.compile(" +[0-9]+% ")


class Stage:
    """Runs demos in a folder, with settings of somebody else around them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.is_afresh = False
        """Whether each process is started as a user starts it, not forked."""
        # settings of somebody else, which the demo must not touch
        self.environment = os.environ | {
            MARK: self.mark,
            "TMPDIR": str(folder),
            "WORKQ_BROKER_URL": "amqp://127.0.0.1:1",
        }
        self.environment |= FORKED_WITH

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start Python with these arguments."""
        start = subprocess.Popen if self.is_afresh else Forked
        return start(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=self.environment,
            cwd=self.folder,
        )

    def run(self, *command: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments to its end."""
        process = self.start(command)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its worker itself
            out, err = process.communicate()
            pytest.fail(f"no end within {limit_s} s:\n{out}\n{err}")
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def demo(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `workq demo NAME`."""
        return self.run("-m", "workq", "demo", name, *options)

    def interrupt(self, name: str, *options: str, by: signal.Signals) -> int:
        """Run `workq demo NAME` until its worker is at work, and send it a signal; answers its exit status."""
        process = self.start(["-m", "workq", "demo", name, *options])
        assert process.stderr is not None
        while not _PROGRESS.match(line := process.stderr.readline()):
            assert line, "it ended before it began"
        process.send_signal(by)
        process.communicate(timeout=60)
        return process.returncode

    def processes(self) -> Iterator[psutil.Process]:
        """All processes that come from here."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    yield process
            except psutil.Error:
                continue

    def close(self) -> None:
        """Kill whatever is left."""
        for process in self.processes():
            process.kill()

    def assert_nothing_is_left(self) -> None:
        """No process, now or after a moment (guardians of servers leave after us), and no file."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := self._commands()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
        assert list(self.folder.iterdir()) == []

    def _commands(self) -> list[str]:
        found = []
        for process in self.processes():
            try:
                found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The report of a run with `-o json`, which must have proved what it says."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that it printed, but for its progress: of that there is the more, the longer it takes."""
    return [line for line in (done.stdout + done.stderr).splitlines() if not _PROGRESS.match(line)]
