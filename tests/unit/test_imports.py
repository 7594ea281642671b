"""Importing workq is cheap: no client library, no database toolkit, nothing for terminals."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

import workq

HEAVY = {"pika", "redis", "sqlalchemy", "aiohttp", "rich", "click", "apscheduler", "psycopg", "pymysql"}


@pytest.mark.parametrize("statement", ["import workq", "from workq import WorkQueue, current, State"])
def test_importing_pulls_in_no_heavy_module(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(' '.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY, loaded & HEAVY


def test_a_queue_can_be_made_and_tasks_registered_without_them() -> None:
    code = """
from workq import WorkQueue
wq = WorkQueue(ledger='postgresql://u:p@h/d', broker='amqp://u:p@h', inflight='redis://h')
@wq.task(name='a')
def a(): ...
import sys
print(' '.join(sorted(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY, loaded & HEAVY


def test_a_worker_on_one_file_loads_nothing_of_the_other_databases(tmp_path: Path) -> None:
    code = """
import sys
import workq.worker.process
from workq import WorkQueue
from workq.ledger.engine import migrate
with WorkQueue(ledger=sys.argv[1]) as wq:
    database = wq.database()
    migrate.migrate(database)
    database.close()
    wq.stores.ledger.questions.workers()
print(' '.join(name for name in sys.modules if name.startswith("sqlalchemy.dialects.")))
"""
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path}/workq.db"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    loaded = {name.split(".")[2] for name in done.stdout.split()}
    assert "sqlite" in loaded
    assert not loaded & {"postgresql", "mysql"}


def test_no_part_of_workq_draws_from_the_random_numbers_of_the_application() -> None:
    """An application that has seeded them, or a test that watches them, gets those that it would get without workq."""
    drawn = [
        f"{path}:{node.lineno}"
        for path in sorted(Path(workq.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and hasattr(random, node.attr)  # of this module, not of another by that name
        and node.attr not in ("Random", "SystemRandom")
    ]
    assert drawn == []


IGNORED: Final = 1
"""So many imports break the layers of pyproject.toml today. Lower it together with the list; it never grows."""


def test_the_list_of_imports_that_break_the_layers_only_becomes_shorter() -> None:
    settings = tomllib.loads((Path(workq.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    [layers] = [one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == "layers"]

    assert len(layers["ignore_imports"]) == IGNORED
