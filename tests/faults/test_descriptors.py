"""A process whose descriptors were closed writes nothing more: their numbers may be another file's by now."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from workq import WorkQueue
from workq.lab.servers import MariaDB, PostgreSQL
from workq.ledger.engine.migrate import migrate

SHOP = """
import os, sys
from workq import LedgerUnavailable, WorkQueue

url, given = sys.argv[1:]
wq = WorkQueue(ledger=url, broker=None, inflight=None)

@wq.task(name="shop.add")
def add(number: int) -> None:
    pass

add.enqueue(1)
"""
ENQUEUES = f"""{SHOP}
os.closerange(3, 4096)
kept = [os.open(given, os.O_RDWR) for _ in range(30)]  # so that the old numbers lead to the file of the ledger
for number in range(20):
    try:
        add.enqueue(number)
    except LedgerUnavailable as error:
        assert "has closed its descriptors" in str(error), error
    else:
        sys.exit("something was recorded")
for one in kept:
    os.fstat(one)  # none of them was closed
os._exit(0)
"""
FORKS = f"""{SHOP}
child = os.fork()
if not child:
    os.closerange(3, 4096)  # as what makes a daemon does
    try:
        add.enqueue(2)
    except LedgerUnavailable as error:
        os._exit("has closed its descriptors" not in str(error) or not int(given))
    os._exit(int(given))
assert os.waitpid(child, 0)[1] == 0
add.enqueue(3)
"""


def run(code: str, url: str, path: Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, url, str(path)], capture_output=True, text=True, timeout=90, check=False
    )


def made(wq: WorkQueue) -> None:
    with closing(wq.database()) as database:
        migrate(database)


def test_a_sqlite_ledger_outlives_a_process_that_has_closed_its_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    ran = run(ENQUEUES, f"sqlite:///{path}", path)

    assert ran.returncode == 0, ran.stderr
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with WorkQueue(ledger=f"sqlite:///{path}", broker=None, inflight=None) as wq:
        assert len(wq.stores.ledger.questions.tasks()) == 1


@pytest.mark.parametrize("server_name", ["postgres_server", "mariadb_server"])
def test_a_server_and_other_files_get_nothing_from_a_process_that_has_closed_its_descriptors(
    server_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: PostgreSQL | MariaDB = request.getfixturevalue(server_name)
    path = tmp_path / "another"
    path.touch()
    url = server.create_database()
    with WorkQueue(ledger=url, broker=None, inflight=None) as wq:
        made(wq)

        ran = run(ENQUEUES, url, path)

        assert ran.returncode == 0, ran.stderr
        assert len(wq.stores.ledger.questions.tasks()) == 1
    assert path.read_bytes() == b""


def test_a_child_that_closes_what_it_was_born_with_connects_anew_to_a_server(postgres_server: PostgreSQL) -> None:
    url = postgres_server.create_database()
    with WorkQueue(ledger=url, broker=None, inflight=None) as wq:
        made(wq)

        ran = run(FORKS, url, "0")

        assert ran.returncode == 0, ran.stderr
        assert len(wq.stores.ledger.questions.tasks()) == 3


def test_a_child_that_closes_what_it_was_born_with_is_told_on_sqlite(tmp_path: Path) -> None:
    """SQLite would go on with the locks of descriptors that are closed."""
    path = tmp_path / "shop.db"

    ran = run(FORKS, f"sqlite:///{path}", "1")

    assert ran.returncode == 0, ran.stderr
    with WorkQueue(ledger=f"sqlite:///{path}", broker=None, inflight=None) as wq:
        assert len(wq.stores.ledger.questions.tasks()) == 2
