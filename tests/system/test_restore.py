"""The ledger is restored from a backup: under workers that live on, and as docs/how-to/back-up-and-restore.md says."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import State
from workq.recovery.rebuild import rebuild
from workq.slices import every_table

TASKS, THREADS = 240, 4


class Backup:
    """The tables of one leg, as the tools of its database copy and restore them."""

    def __init__(self, leg: Leg) -> None:
        self.file = leg.folder / "backup"
        self._url = leg.environ["WORKQ_LEDGER_URL"]
        self._kind = self._url.partition(":")[0]
        database = leg.app.database()
        self._tables = [table.name for table in every_table(database.tables).sorted_tables]
        database.close()

    def take(self) -> None:
        """Copy all tables as they are at one moment."""
        match self._kind:
            case "sqlite":
                with closing(sqlite3.connect(self._sqlite)) as ledger, closing(sqlite3.connect(self.file)) as copy:
                    ledger.backup(copy)
            case "postgresql":
                tables = [word for name in self._tables for word in ("--table", name)]
                run("pg_dump", "--format=custom", f"--file={self.file}", *tables, self._url)
            case _:
                self._dump()

    def restore(self) -> None:
        """Put them back, as the page says."""
        match self._kind:
            case "sqlite":
                with closing(sqlite3.connect(self.file)) as copy, closing(sqlite3.connect(self._sqlite)) as ledger:
                    copy.backup(ledger)
            case "postgresql":
                run("pg_restore", "--clean", "--if-exists", "--single-transaction", f"--dbname={self._url}", self.file)
            case _:
                run("mariadb", *self._mariadb, stdin=self.file.read_text())

    def restore_in_one_transaction(self) -> None:
        """The same, so that others never see a part of it: MariaDB's tools drop one table after the other."""
        if self._kind != "mysql":
            self.restore()
            return
        words = ["SET autocommit = 0; SET foreign_key_checks = 0;", *(f"DELETE FROM {one};" for one in self._tables)]
        run("mariadb", *self._mariadb, stdin="\n".join([*words, self.file.read_text(), "COMMIT;"]))

    def take_rows(self) -> None:
        """As `take`, for `restore_in_one_transaction`."""
        if self._kind == "mysql":
            self._dump("--no-create-info", "--skip-add-locks", "--skip-disable-keys")
        else:
            self.take()

    def _dump(self, *options: str) -> None:
        words = ["mariadb-dump", *self._mariadb[:-1], "--single-transaction", *options, self._mariadb[-1]]
        self.file.write_text(run(*words, *self._tables))

    @property
    def _sqlite(self) -> str:
        return self._url.removeprefix("sqlite:///")

    @property
    def _mariadb(self) -> list[str]:
        url = urlsplit(self._url)
        who = [f"--user={url.username}", f"--password={url.password}"]
        return ["--no-defaults", f"--host={url.hostname}", f"--port={url.port}", *who, url.path.lstrip("/")]


def run(*words: str | Path, stdin: str | None = None) -> str:
    done = subprocess.run([str(one) for one in words], input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{words[0]}: {done.stderr}"
    return done.stdout


def forgotten(leg: Leg) -> int:
    """How many claims living workers gave back because they did not have them."""
    events = leg.app.stores.ledger.questions.happened(["reaped"], within_s=3600.0, limit=10 * TASKS)
    return sum(event.detail["kind"] == "forgotten" for event in events)


@pytest.mark.parametrize("name", ["sqlite", "mariadb", "servers"])
def test_what_ran_in_an_older_copy_of_the_ledger_runs_again_though_all_workers_live_on(
    name: str, open_leg: OpenLeg
) -> None:
    """What runs when the copy is made is settled when it is restored: by the ledger, living workers run it for ever."""
    leg = open_leg(name, divide=10.0)
    backup = Backup(leg)
    leg["note"].enqueue_many({"number": n, "seconds": 0.1} for n in range(TASKS))
    ids = {task.id for task in leg.app.stores.ledger.questions.tasks(limit=2 * TASKS)}
    with leg.fleet(processes=2, threads=THREADS) as fleet:
        wait_until(lambda: len(leg.starts()) > 5 * THREADS, timeout_s=60, what="all threads run")
        backup.take_rows()
        gone = leg["note"].enqueue(TASKS)
        ran = len(leg.starts())
        wait_until(
            lambda: len(leg.starts()) > ran + 5 * THREADS or leg.states()[State.SUCCEEDED] == TASKS + 1,
            timeout_s=60,
            what="what ran then has ended",
        )
        backup.restore_in_one_transaction()
        leg.wait_settled(timeout_s=90)
        fleet.terminate()
        assert fleet.wait(30) == 0

    assert leg.states()[State.SUCCEEDED] == TASKS
    assert set(leg.starts()) - {gone.id} == ids
    assert leg.app.get(gone.id) is None, "it was recorded after the copy was made"
    assert forgotten(leg) > 0


@pytest.mark.parametrize("name", ["mariadb", "servers"])
def test_a_restore_as_the_page_says_runs_all_that_was_open_in_the_backup_and_nothing_else(
    name: str, open_leg: OpenLeg
) -> None:
    leg = open_leg(name, divide=10.0)
    backup = Backup(leg)
    leg["note"].enqueue_many({"number": n, "seconds": 0.1} for n in range(TASKS))
    with leg.fleet(processes=2, threads=THREADS) as fleet:
        wait_until(lambda: len(leg.starts()) > 5 * THREADS, timeout_s=60, what="all threads run")
        backup.take()
        leg.wait_settled(timeout_s=90)
        fleet.terminate()
        assert fleet.wait(30) == 0

    backup.restore()
    done = {task.id for task in leg.app.stores.ledger.questions.tasks(limit=2 * TASKS) if task.state is State.SUCCEEDED}
    rebuild(leg.app.stores, leg.app.settings)
    with leg.fleet(processes=1, threads=THREADS) as fleet:
        leg.wait_settled(timeout_s=90)
        fleet.terminate()
        assert fleet.wait(30) == 0

    assert 0 < len(done) < TASKS
    assert leg.states()[State.SUCCEEDED] == TASKS
    assert {task_id for task_id, starts in leg.starts().items() if starts == 1} == done
    assert set(leg.starts().values()) == {1, 2}
