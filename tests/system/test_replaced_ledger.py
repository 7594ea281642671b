"""A SQLite ledger that is deleted or replaced under processes that work with it: noticed, said, and not made anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from tests.stores import database_of
from tests.system.fleet import wait_until
from tests.zygote import FORKED_WITH, Forked
from workq.app import WorkQueue
from workq.errors import LedgerReplaced, LedgerUnavailable
from workq.ledger.engine.sqlite_file import LOOK_EVERY_S

BOUND_S = 120.0
SHOP = """
from workq import WorkQueue

wq = WorkQueue(ledger="sqlite:///shop.db")

@wq.task(name="shop.add")
def add(a: int) -> int:
    return a
"""
TIMES = "[times]\nbeat_s = 0.5\nlease_s = 3\nworker_beat_s = 1\nsweep_s = 0.5\ngrace_s = 3\n"


def queue_in(folder: Path) -> WorkQueue:
    wq = WorkQueue(ledger=f"sqlite:///{folder}/shop.db")
    wq.task(name="shop.add")(lambda a: a)
    return wq


def take_away(folder: Path) -> None:
    """Delete the ledger with what is beside it, and let the last look of this process become old."""
    for one in folder.glob("shop.db*"):
        one.unlink()
    time.sleep(LOOK_EVERY_S)


def replace(folder: Path) -> None:
    """Put an older copy in its place, as a restore does."""
    take_away(folder)
    shutil.copy(folder / "old.db", folder / "shop.db")


def take_log(folder: Path) -> None:
    """Delete what SQLite keeps beside the ledger alone."""
    for one in folder.glob("shop.db-*"):
        one.unlink()
    time.sleep(LOOK_EVERY_S)


def replace_index(folder: Path) -> None:
    """Another index of the log has the name: who opens it later does not see who writes."""
    (folder / "shop.db-shm").rename(folder / "old-shm")
    (folder / "shop.db-shm").touch()
    time.sleep(LOOK_EVERY_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ledger with one task, and a copy of it."""
    with queue_in(tmp_path) as wq:
        wq.handler("shop.add").enqueue(1)
    shutil.copy(tmp_path / "shop.db", tmp_path / "old.db")
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "workq.toml").write_text(TIMES)
    return tmp_path


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (take_away, "was deleted or moved away"),
        (replace, "was replaced by an"),
        (take_log, "lost the -wal file"),
        (replace_index, "lost the -shm file"),
    ],
)
def test_a_producer_is_told_instead_of_recording_into_a_file_that_is_gone(
    folder: Path, harm: Callable[[Path], None], said: str
) -> None:
    with queue_in(folder) as wq:
        task = wq.handler("shop.add")
        first = task.enqueue(2)
        harm(folder)
        before = sorted(one.name for one in folder.iterdir())

        for ask in (
            lambda: task.enqueue(3),
            lambda: task.enqueue_many([{"a": 4}]),
            lambda: wq.get(first.id),
            lambda: wq.pause_queue("default", why="?"),
            lambda: wq.stores.ledger.questions.counts(),
        ):
            with pytest.raises(LedgerUnavailable, match=said) as told:
                ask()
            assert isinstance(told.value, LedgerReplaced)
            assert f"{folder}/shop.db" in str(told.value)
        assert sorted(one.name for one in folder.iterdir()) == before

    if harm is replace:  # closed and opened again, it works with what is there now
        with wq:
            assert len(wq.stores.ledger.questions.tasks()) == 1
            wq.handler("shop.add").enqueue(5)
            assert len(wq.stores.ledger.questions.tasks()) == 2


def test_a_file_that_is_put_back_is_the_same_one_and_work_goes_on(folder: Path) -> None:
    with queue_in(folder) as wq:
        (folder / "shop.db").rename(folder / "moved.db")
        shutil.copy(folder / "old.db", folder / "shop.db")
        wq.handler("shop.add").enqueue(2)  # the first use: this is the file that it works with

        (folder / "shop.db").rename(folder / "away.db")
        time.sleep(LOOK_EVERY_S)  # what was seen before holds for so long
        with pytest.raises(LedgerReplaced, match="deleted or moved away"):
            wq.handler("shop.add").enqueue(3)
        (folder / "away.db").rename(folder / "shop.db")
        wq.handler("shop.add").enqueue(4)

        assert len(wq.stores.ledger.questions.tasks()) == 3


def test_a_process_that_was_alone_and_closed_all_of_its_connections_goes_on(folder: Path) -> None:
    """SQLite itself removes what is beside the file then, and makes it anew."""
    with queue_in(folder) as wq:
        task = wq.handler("shop.add")
        for number in range(3):
            task.enqueue(number)
            database_of(wq).engine.dispose()
            time.sleep(LOOK_EVERY_S)

        assert len(wq.stores.ledger.questions.tasks()) == 4


def has_swept(wq: WorkQueue) -> bool:
    """Whether a sweep has ended a pass over this ledger, which it notes there."""
    meta = database_of(wq).tables.meta
    passes = select(meta.c.at).where(meta.c.name == "swept")
    return database_of(wq).ask(lambda tx: tx.execute(passes).first()) is not None


@contextmanager
def stopped(processes: Sequence[Forked]) -> Iterator[None]:
    """They and their children stand still: who opens a file while what is beside it is deleted makes that anew."""
    each = [psutil.Process(process.pid) for process in processes]
    each += [child for one in each for child in one.children(recursive=True)]
    for one in each:
        one.suspend()
    try:
        yield
    finally:
        for one in each:
            one.resume()


@pytest.mark.parametrize("harm", [take_away, replace, take_log])
def test_a_worker_and_a_sweep_say_so_and_end_with_4_and_make_no_ledger(
    folder: Path, harm: Callable[[Path], None]
) -> None:
    """A process manager that starts them again decides on what is there then."""
    started: list[Forked] = []
    without_settings = {name: value for name, value in os.environ.items() if not name.startswith("WORKQ_")}

    def start(*args: str) -> None:
        started.append(
            Forked(
                [sys.executable, "-m", "workq", *args],
                cwd=folder,
                env=without_settings | FORKED_WITH,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    try:
        with queue_in(folder) as wq:  # whoever opens it later has the new one, so each has worked with this one before
            start("sweep", "--every", "1s", "--url", "sqlite:///shop.db")
            wait_until(lambda: has_swept(wq), timeout_s=BOUND_S, what="the sweep has made a pass")
            start("worker", "--app", "shop:wq")
            workers = wq.stores.ledger.questions.workers
            wait_until(lambda: workers() != [], timeout_s=BOUND_S, what="the worker has joined")
        started.reverse()
        with stopped(started):
            harm(folder)

        ended = [process.communicate(timeout=BOUND_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()

    assert [process.returncode for process in started] == [4, 4], ended
    assert "ERROR" in next(line for line in ended[0].splitlines() if "supervisor.ledger_replaced" in line)
    verb = "lost" if harm is take_log else "was"
    assert f"{folder}/shop.db {verb} " in ended[0]
    assert f"workq: error: the ledger {folder}/shop.db {verb} " in ended[1]
    assert (folder / "shop.db").exists() == (harm is not take_away)
    assert not list(folder.glob("shop.db-*"))
