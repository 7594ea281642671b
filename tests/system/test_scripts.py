"""A script that enqueues what it defines: the worker that imports it as a module runs its tasks, or it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.system.fleet import REPOSITORY

SCRIPT = """
import sys
from pathlib import Path
from workq import WorkQueue
wq = WorkQueue()
@wq.task(failures_max=1)
def hello(how: str) -> None:
    (Path(__file__).parent / f"{how}.ran").touch()
if __name__ == "__main__":
    with wq:
        hello.enqueue(sys.argv[1])
"""
WAYS = {"module": ("-m", "pkg.jobs"), "file": ("pkg/jobs.py",), "dotted": ("./pkg/jobs.py",)}


def test_the_worker_of_a_module_runs_what_its_script_has_enqueued_however_that_was_started(tmp_path: Path) -> None:
    """A file in a package may be two modules to a worker: then the application is named, or nothing is recorded."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(SCRIPT, encoding="ascii")
    ledger = f"sqlite:///{tmp_path}/shop.db"
    unnamed = {**os.environ, "WORKQ_LEDGER_URL": ledger, "PYTHONPATH": str(REPOSITORY)}
    named = {**unnamed, "WORKQ_APP": "pkg.jobs:wq"}

    def run(*words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
        )

    enqueued = [run(*words, name, environ=named).returncode for name, words in WAYS.items()]
    refused = run("pkg/jobs.py", "refused", environ=unnamed)
    worked = run("-m", "workq", "worker", "--app", "pkg.jobs:wq", "--processes", "1", "--drain", environ=unnamed)

    assert enqueued == [0, 0, 0]
    assert "may be the module 'jobs' or 'pkg.jobs' to a worker" in refused.stderr
    assert worked.returncode == 0, worked.stderr
    assert sorted(one.stem for one in package.glob("*.ran")) == sorted(WAYS)
