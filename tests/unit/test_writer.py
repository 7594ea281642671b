"""Whose turn it is to write to an SQLite file, in a process and between processes; and who gives way to a writer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.fleet import wait_until
from workq.ledger.engine.sqlite_writer import NotInTurn, WaitingConnection, Writer, begin_reading, begin_writing
from workq.worker import loop

LONG_S = 30.0

Both = tuple[WaitingConnection, WaitingConnection]


class Waiter:
    """A thread that wants a turn, and says so when it has it."""

    def __init__(self, writer: Writer, name: str, order: list[str]) -> None:
        self.thread = threading.Thread(target=self._run, args=(writer, name, order), daemon=True)
        self.thread.start()

    @staticmethod
    def _run(writer: Writer, name: str, order: list[str]) -> None:
        with writer.turn(is_short=True):
            order.append(name)


class Waiting:
    """A thread that does something, and whether it has come back from it."""

    def __init__(self, what: Callable[[], None]) -> None:
        self.is_back = threading.Event()
        self._what = what
        threading.Thread(target=self._do, daemon=True).start()

    def _do(self) -> None:
        self._what()
        self.is_back.set()


def is_held(lock: threading.RLock) -> bool:
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


@pytest.fixture
def writer() -> Writer:
    return Writer(give_way_s=LONG_S)


def test_who_waits_comes_before_who_has_just_written(writer: Writer) -> None:
    order: list[str] = []
    with writer.turn(is_short=True):
        waiter = Waiter(writer, "waited", order)
        wait_until(lambda: is_held(writer._door), timeout_s=LONG_S, what="it is next")
    with writer.turn(is_short=True):
        order.append("again")
    waiter.thread.join(LONG_S)

    assert order == ["waited", "again"]


def test_a_thread_that_has_its_turn_is_told_so_instead_of_waiting_for_itself(writer: Writer) -> None:
    with writer.turn(is_short=True), pytest.raises(NotInTurn) as caught, writer.turn(is_short=True):
        pass

    assert caught.value.is_interrupted


def test_one_whose_turn_does_not_come_is_told() -> None:
    writer = Writer(turn_s=0.05)
    told: list[bool] = []

    def want() -> None:
        try:
            with writer.turn(is_short=True):
                pass
        except NotInTurn as error:
            told.append(error.is_interrupted)

    with writer.turn(is_short=True):
        thread = threading.Thread(target=want)
        thread.start()
        thread.join(LONG_S)
    with writer.turn(is_short=True):
        pass

    assert told == [False]


def test_a_loop_gives_way_while_somebody_writes_and_only_then(writer: Writer) -> None:
    writer.give_way()
    with writer.turn(is_short=True):
        writer.give_way()  # it only waits for the file still
        writer.begun()
        waiting = Waiting(writer.give_way)
        assert not waiting.is_back.wait(0.05)
    assert waiting.is_back.wait(LONG_S)
    writer.give_way()


def test_a_loop_gives_way_once_to_each_and_not_for_long(writer: Writer) -> None:
    writer.give_way_s = 0.01
    with writer.turn(is_short=True):
        writer.begun()
        writer.give_way()
        writer.give_way_s = LONG_S
        writer.give_way()  # does not wait: this would take half a minute
    with writer.turn(is_short=True):
        writer.begun()
        waiting = Waiting(writer.give_way)
        assert not waiting.is_back.wait(0.05)
    assert waiting.is_back.wait(LONG_S)


def test_nobody_gives_way_to_a_transaction_of_an_application(writer: Writer) -> None:
    with writer.turn(is_short=False):
        writer.begun()
        writer.give_way()  # does not wait


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[Both]:
    both = [
        sqlite3.connect(tmp_path / "q.db", isolation_level=None, check_same_thread=False, factory=WaitingConnection)
        for _ in range(2)
    ]
    both[0].execute("PRAGMA journal_mode = WAL")
    both[0].execute("CREATE TABLE t (n)")
    yield both[0], both[1]
    for one in both:
        one.close()


def test_a_file_is_had_when_the_other_one_lets_it_go(connections: Both) -> None:
    other, ours = connections
    begin_writing(other, wait_s=1.0)
    waiting = Waiting(lambda: begin_writing(ours, wait_s=LONG_S))
    assert not waiting.is_back.wait(0.05)
    other.execute("COMMIT")

    assert waiting.is_back.wait(LONG_S)
    assert ours.in_transaction
    ours.execute("COMMIT")


def test_a_file_that_stays_another_s_is_an_error_after_the_time_for_it(connections: Both) -> None:
    other, ours = connections
    begin_writing(other, wait_s=1.0)

    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        begin_writing(ours, wait_s=0.05)

    assert not ours.in_transaction
    assert busy_ms(ours) == 50, "other statements wait as before"


def busy_ms(raw: sqlite3.Connection) -> int:
    return int(raw.execute("PRAGMA busy_timeout").fetchone()[0])


@pytest.mark.parametrize(("is_wal", "is_short"), [(True, False), (False, True), (False, False)])
def test_what_others_may_hold_up_waits_as_sqlite_does(connections: Both, *, is_wal: bool, is_short: bool) -> None:
    """Statements of an application, which may write to a second file; and a commit that waits for those who read."""
    ours, _ = connections
    ours.is_wal = is_wal
    begin_writing(ours, wait_s=0.05, is_short=is_short)

    assert busy_ms(ours) == 50


def test_a_connection_on_which_was_written_waits_again_when_it_reads(connections: Both) -> None:
    ours, _ = connections
    ours.is_wal = True
    begin_writing(ours, wait_s=0.05, is_short=True)
    ours.execute("COMMIT")
    assert busy_ms(ours) == 0, "else this shows nothing"
    begin_reading(ours, wait_s=0.05)

    assert busy_ms(ours) == 50


def test_an_event_loop_gives_way_before_each_look_at_what_has_come() -> None:
    looks: list[str] = []
    ours = loop.new_event_loop(lambda: looks.append("gave way"))

    async def two_rounds() -> int:
        before = len(looks)
        await asyncio.sleep(0)
        return len(looks) - before

    assert ours.run_until_complete(two_rounds()) == 1
    ours.close()


def test_an_event_loop_of_another_kind_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(asyncio.SelectorEventLoop):
        pass

    monkeypatch.setattr(asyncio, "new_event_loop", Other)
    theirs = loop.new_event_loop(lambda: None)

    assert isinstance(theirs, Other)
    theirs.close()
