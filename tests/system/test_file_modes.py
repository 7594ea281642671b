"""Whatever the umask is: what workq writes, its user alone can open; what a handler writes has its own mode."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from workq.ledger.engine import migrate
from workq.ledger.engine.database import Database

REPOSITORY = Path(__file__).parents[2]
BOUND_S = 120.0
APP = """
import json, os, pathlib, workq

wq = workq.WorkQueue()

@wq.task(name="shop.look")
def look():
    seen = [one for folder in (".", os.environ["TMPDIR"]) for one in pathlib.Path(folder).rglob("*")]
    pathlib.Path("seen.json").write_text(json.dumps({one.name: one.stat().st_mode for one in seen}))
"""
RUN = """
umask 000
workq enqueue shop.look
workq worker --drain
workq sweep --plan plan.json
"""


def test_only_its_user_can_open_what_workq_writes_whatever_the_umask_is(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "app.py").write_text(APP)
    env = {name: value for name, value in os.environ.items() if not name.startswith("WORKQ_")}
    env |= {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path / "tmp"), "WORKQ_APP": "app:wq"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1"}
    script = RUN.replace("\nworkq", f"\n{shlex.quote(sys.executable)} -m workq")

    done = subprocess.run(
        ["sh", "-e", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=BOUND_S, check=False
    )

    assert done.returncode == 0, done.stderr
    amid = json.loads((tmp_path / "seen.json").read_text())
    after = {one.name: one.stat().st_mode for one in tmp_path.iterdir()}
    ours = {name: stat.filemode(mode) for name, mode in (amid | after).items() if name.startswith(("work", "plan"))}
    assert {"workq.db", "workq.db-wal", "workq.db-shm", "plan.json"} < set(ours)
    assert any(name.startswith("workq-board-") for name in ours)
    assert set(ours.values()) == {"-rw-------"}, ours
    assert stat.S_IMODE(after["seen.json"]) == 0o666


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_a_new_ledger_is_private_and_one_that_is_there_keeps_its_mode(tmp_path: Path, umask: int) -> None:
    theirs, linked = tmp_path / "theirs.db", tmp_path / "linked.db"
    theirs.touch()
    theirs.chmod(0o640)
    linked.symlink_to(tmp_path / "behind.db")  # SQLite would make the file that it leads to
    before = os.umask(umask)
    try:
        for name in ("ours.db", theirs.name, linked.name):
            database = Database(f"sqlite:///{tmp_path / name}")
            migrate.ensure(database)
            database.close()
    finally:
        os.umask(before)

    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours.db", "theirs.db", "behind.db")}
    assert modes == {"ours.db": 0o600, "theirs.db": 0o640, "behind.db": 0o600}
