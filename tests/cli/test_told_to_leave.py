"""SIGTERM while Python still imports what a command needs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOLD = """
import os, signal, sys
class Told:
    def find_spec(self, name, path=None, target=None):
        if name == "workq.cli.root":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Told())
from workq.cli import main
main()
"""
"""The signal comes while the command line is imported: nobody knows yet which command it is."""


def told(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TOLD, *args], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("command", ["worker --app shop:wq", "intake run", "sweep --every 5s"])
def test_what_runs_on_leaves_in_order_and_says_so(tmp_path: Path, command: str) -> None:
    (tmp_path / "shop.py").write_text("raise AssertionError('it leaves before that')")

    ended = told(tmp_path, *command.split())

    assert (ended.returncode, ended.stderr) == (0, "workq: SIGTERM came before it had begun: it leaves\n")
    assert [one.name for one in tmp_path.iterdir()] == ["shop.py"]


def test_any_other_command_is_ended_by_the_signal_for_it_has_not_done_what_it_was_called_for(tmp_path: Path) -> None:
    assert told(tmp_path, "worker", "ls").returncode == -signal.SIGTERM
