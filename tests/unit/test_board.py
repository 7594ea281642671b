"""The board: what a process ran is readable after its death, and never misread while it writes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from workq.board import Board, Started
from workq.codec import new_task_id

LINES = 8


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(lines=LINES)
    yield board
    board.remove()


@pytest.fixture
def reader(board: Board) -> Board:
    """The same file, as another process sees it."""
    return Board(board.path)


def test_a_new_board_is_private_and_says_nothing(board: Board) -> None:
    assert stat.S_IMODE(board.path.stat().st_mode) == 0o600
    assert board.lines == LINES
    assert board.incarnation() is None
    assert board.started() == []
    assert not board.has_left()


def test_what_has_started_is_seen_by_others_until_it_is_cleared(board: Board, reader: Board) -> None:
    one, two = new_task_id(), new_task_id()
    board.start(0, one, 1, started_at=10.0, hard_at=20.0)
    board.start(LINES - 1, two, 4_000_000_000, started_at=11.0, hard_at=0.0)

    assert reader.started() == [Started(one, 1, 10.0, 20.0), Started(two, 4_000_000_000, 11.0, 0.0)]

    board.clear(0)

    assert [line.task_id for line in reader.started()] == [two]


def test_a_line_that_has_ended_has_no_limit_any_more_and_still_counts(board: Board, reader: Board) -> None:
    task_id = new_task_id()
    board.start(3, task_id, 2, started_at=10.0, hard_at=20.0)

    board.ended(3)

    assert reader.started() == [Started(task_id, 2, 10.0, 0.0)]


def test_a_line_serves_one_attempt_after_the_other(board: Board, reader: Board) -> None:
    board.start(0, new_task_id(), 7, started_at=1.0, hard_at=2.0)
    board.clear(0)
    second = new_task_id()

    board.start(0, second, 1, started_at=3.0, hard_at=0.0)

    assert reader.started() == [Started(second, 1, 3.0, 0.0)]


def test_a_process_is_known_once_it_has_introduced_itself_whole(board: Board, reader: Board) -> None:
    board._map[1:5] = b"hos\xc3"  # it died while it wrote its name: the length comes last
    assert reader.incarnation() is None

    board.introduce("host.b007.1.2.abcd")

    assert reader.incarnation() == "host.b007.1.2.abcd"


def test_the_longest_name_fits_and_hides_nothing(board: Board, reader: Board) -> None:
    board.introduce("h" * 500)
    board.start(0, new_task_id(), 1, started_at=1.0, hard_at=0.0)

    name = reader.incarnation()

    assert name is not None
    assert name == "h" * len(name)
    assert len(name) >= 120
    assert not reader.has_left()
    assert len(reader.started()) == 1


def test_only_who_says_so_has_left_in_order(board: Board, reader: Board) -> None:
    board.introduce("host.1")
    assert not reader.has_left()

    board.leave()

    assert reader.has_left()
    assert reader.incarnation() == "host.1"


def test_a_line_torn_by_death_is_empty_and_garbage_is_no_error(board: Board, reader: Board) -> None:
    at = 256
    board._map[at + 1 : at + 20] = bytes(range(200, 219))  # the flag is not set yet
    assert reader.started() == []

    board._map[at] = 1

    assert len(reader.started()) == 1


def test_a_limit_is_never_misread_while_lines_change(board: Board, reader: Board) -> None:
    """The supervisor kills whoever is over its limit: a torn number would kill an innocent."""
    done = threading.Event()
    wrong: list[Started] = []

    def read() -> None:
        while not done.is_set():
            wrong.extend(line for line in reader.started() if line.hard_at not in (0.0, 1e9))

    watching = threading.Thread(target=read)
    watching.start()
    for _ in range(5000):
        board.start(0, "0" * 36, 1, started_at=1.0, hard_at=1e9)
        board.ended(0)
        board.clear(0)
    done.set()
    watching.join()

    assert wrong == []


def test_what_a_killed_process_wrote_is_still_there(board: Board) -> None:
    task_id = new_task_id()
    code = (
        "import os, signal, sys; from pathlib import Path; from workq.board import Board\n"
        "board = Board(Path(sys.argv[1])); board.introduce('victim')\n"
        "board.start(2, sys.argv[2], 5, started_at=1.0, hard_at=0.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    died = subprocess.run([sys.executable, "-c", code, str(board.path), task_id], env=dict(os.environ), timeout=30)

    assert died.returncode == -9
    assert board.incarnation() == "victim"
    assert board.started() == [Started(task_id, 5, 1.0, 0.0)]
    assert not board.has_left()


def test_the_file_may_vanish_once_both_sides_have_it_open(board: Board, reader: Board) -> None:
    reader.path.unlink()
    board.introduce("host.1")

    assert reader.incarnation() == "host.1"
    reader.remove()
