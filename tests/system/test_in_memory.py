"""The folder in memory that a run of the tests has: it is told to the command, and gone when the command has ended."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.system.fleet import REPOSITORY, wait_until

SCRIPT = REPOSITORY / "scripts" / "in-memory.sh"


def test_a_command_has_a_folder_of_its_own_that_goes_even_when_the_command_is_killed() -> None:
    """Where a machine has no room in memory, it has none of its own, and all else holds."""
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    told = "touch ${TMPDIR:-/dev/null}/left; echo $TMPDIR; kill -9 $$"

    ran = subprocess.run([SCRIPT, "sh", "-c", told], env=env, stdout=subprocess.PIPE, text=True, timeout=60)

    assert ran.returncode == -9
    if folder := ran.stdout.strip():
        wait_until(lambda: not Path(folder).exists(), timeout_s=60, what=f"{folder} is gone")


def test_a_folder_that_the_caller_has_chosen_stays(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}

    ran = subprocess.run([SCRIPT, "sh", "-c", "echo $TMPDIR; exit 7"], env=env, stdout=subprocess.PIPE, text=True)

    assert (ran.returncode, ran.stdout.strip()) == (7, str(tmp_path))
    assert tmp_path.exists()
