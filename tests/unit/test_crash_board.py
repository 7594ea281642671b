"""The board: what a process ran is readable after its death, and never misread while it writes."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from workq.values.codec import new_task_id
from workq.values.task import Cancelled, Claim, Dead, Done, Failed, Outcome, Settlement
from workq.worker.crash_board import STALE_S, CrashBoard, Started, remove_stale

LINES = 8


def settlement(outcome: Outcome, task_id: str | None = None) -> Settlement:
    claim = Claim(task_id or new_task_id(), "sum", "mail", "", 3, "secret", 1, 0, 5, 3, None)
    return Settlement(claim, outcome)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where boards are: a folder of this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def board(folder: Path) -> Iterator[CrashBoard]:
    board = CrashBoard.create(lines=LINES)
    yield board
    board.remove()


@pytest.fixture
def reader(board: CrashBoard) -> CrashBoard:
    """The same file, as another process sees it."""
    return CrashBoard(board.path)


def test_a_new_board_is_private_and_says_nothing(board: CrashBoard) -> None:
    assert stat.S_IMODE(board.path.stat().st_mode) == 0o600
    assert board.lines == LINES
    assert board.incarnation() is None
    assert board.started() == []
    assert not board.has_left()


def test_a_board_that_finds_no_room_leaves_nothing(folder: Path) -> None:
    code = (
        "import resource\n"
        "from workq.worker.crash_board import CrashBoard\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: CrashBoard.create(lines=8)\n"
        "except OSError as error: print(error)\n"
    )

    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert "File too large" in told.stdout
    assert list(folder.iterdir()) == []


def test_what_has_started_is_seen_by_others_until_it_is_cleared(board: CrashBoard, reader: CrashBoard) -> None:
    one, two = new_task_id(), new_task_id()
    here = threading.get_ident()
    board.start(0, one, 1, started_at=10.0, hard_at=20.0)
    board.start(LINES - 1, two, 4_000_000_000, started_at=11.0, hard_at=0.0)

    assert reader.started() == [Started(one, 1, 10.0, 20.0, here), Started(two, 4_000_000_000, 11.0, 0.0, here)]

    board.clear(0)

    assert [line.task_id for line in reader.started()] == [two]


def test_a_line_that_has_ended_has_no_limit_any_more_and_still_counts(board: CrashBoard, reader: CrashBoard) -> None:
    task_id = new_task_id()
    board.start(3, task_id, 2, started_at=10.0, hard_at=20.0)

    board.ended(3)

    assert reader.started() == [Started(task_id, 2, 10.0, 0.0, threading.get_ident(), is_ended=True)]


def test_a_line_names_the_thread_that_runs_its_attempt(board: CrashBoard, reader: CrashBoard) -> None:
    idents: list[int] = []

    def run() -> None:
        idents.append(threading.get_ident())
        board.start(1, new_task_id(), 1, started_at=1.0, hard_at=0.0)

    running = threading.Thread(target=run)
    running.start()
    running.join()

    assert [line.thread for line in reader.started()] == idents


def test_a_line_serves_one_attempt_after_the_other(board: CrashBoard, reader: CrashBoard) -> None:
    board.start(0, new_task_id(), 7, started_at=1.0, hard_at=2.0)
    board.clear(0)
    second = new_task_id()

    board.start(0, second, 1, started_at=3.0, hard_at=0.0)

    assert reader.started() == [Started(second, 1, 3.0, 0.0, threading.get_ident())]


def test_a_process_is_known_once_it_has_introduced_itself_whole(board: CrashBoard, reader: CrashBoard) -> None:
    board._map[1:5] = b"hos\xc3"  # it died while it wrote its name: the length comes last
    assert reader.incarnation() is None

    board.introduce("host.b007.1.2.abcd")

    assert reader.incarnation() == "host.b007.1.2.abcd"


def test_the_longest_name_fits_and_hides_nothing(board: CrashBoard, reader: CrashBoard) -> None:
    board.introduce("h" * 500)
    board.start(0, new_task_id(), 1, started_at=1.0, hard_at=0.0)

    name = reader.incarnation()

    assert name is not None
    assert name == "h" * len(name)
    assert len(name) >= 120
    assert not reader.has_left()
    assert len(reader.started()) == 1


def test_only_who_says_so_has_left_in_order(board: CrashBoard, reader: CrashBoard) -> None:
    board.introduce("host.1")
    assert not reader.has_left()

    board.leave()

    assert reader.has_left()
    assert reader.incarnation() == "host.1"


def test_a_line_torn_by_death_is_empty_and_garbage_is_no_error(board: CrashBoard, reader: CrashBoard) -> None:
    at = 256
    board._map[at + 1 : at + 20] = bytes(range(200, 219))  # the flag is not set yet
    assert reader.started() == []

    board._map[at] = 1

    assert len(reader.started()) == 1


def test_a_limit_is_never_misread_while_lines_change(board: CrashBoard, reader: CrashBoard) -> None:
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


def test_what_a_killed_process_wrote_is_still_there(board: CrashBoard) -> None:
    task_id = new_task_id()
    code = (
        "import os, signal, sys; from pathlib import Path; from workq.worker.crash_board import CrashBoard\n"
        "board = CrashBoard(Path(sys.argv[1])); board.introduce('victim')\n"
        "board.start(2, sys.argv[2], 5, started_at=1.0, hard_at=0.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    died = subprocess.run([sys.executable, "-c", code, str(board.path), task_id], env=dict(os.environ), timeout=30)

    assert died.returncode == -9
    assert board.incarnation() == "victim"
    [line] = board.started()
    assert (line.task_id, line.attempt, line.started_at, line.hard_at) == (task_id, 5, 1.0, 0.0)
    assert not board.has_left()


@pytest.mark.parametrize(
    "outcome",
    [
        Done('{"rows": 3}'),
        Done(None, "result_error: too long"),
        Failed(1.5, "ValueError: no"),
        Dead("failed", "it is over", failed=False),
        Cancelled("by itself"),
    ],
)
def test_what_has_ended_is_there_to_be_settled_by_others_until_it_is_settled(
    outcome: Outcome, board: CrashBoard, reader: CrashBoard
) -> None:
    ended = settlement(outcome)
    board.start(5, ended.claim.task_id, 3, started_at=10.0, hard_at=20.0)
    assert reader.outcomes() == []

    board.ended(5, ended)

    assert reader.outcomes() == [ended]
    assert [(line.is_ended, line.hard_at) for line in reader.started()] == [(True, 0.0)]

    board.clear(5)

    assert reader.outcomes() == []


def test_the_payload_stays_away_and_a_longer_outcome_than_a_line_takes_is_left_out(
    board: CrashBoard, reader: CrashBoard
) -> None:
    long = settlement(Done("x" * 64 * 1024))
    with_payload = Settlement(replace(settlement(Done("1")).claim, payload="y" * 64 * 1024), Done("1"))
    for line, one in enumerate((long, with_payload, settlement(Done("\ud800")), settlement(Done("2")))):
        board.start(line, one.claim.task_id, 3, started_at=1.0, hard_at=0.0)
        board.ended(line, one)

    assert [one.outcome for one in reader.outcomes()] == [Done("1"), Done("2")]
    assert [line.is_ended for line in reader.started()] == [True] * 4


def test_an_outcome_of_another_version_or_one_that_is_torn_is_left_out(board: CrashBoard, reader: CrashBoard) -> None:
    for line in range(3):
        board.start(line, new_task_id(), 3, started_at=1.0, hard_at=0.0)
        board.ended(line, settlement(Done("1")))
    for line, told in ((0, b"[[1,2],"), (1, b'[["x"],"Better",[]]')):
        at = 256 + 1024 * line + 67
        board._map[at : at + len(told)] = told

    assert len(reader.outcomes()) == 1


def test_a_board_is_found_by_its_incarnation_after_everybody_was_killed(board: CrashBoard, folder: Path) -> None:
    ended = settlement(Done("1"))
    board.introduce("host.b007.1.2.abcd")
    board.start(0, ended.claim.task_id, 3, started_at=1.0, hard_at=0.0)
    board.ended(0, ended)

    found = CrashBoard.of("host.b007.1.2.abcd")

    assert found is not None
    assert found.outcomes() == [ended]
    assert CrashBoard.of("host.b007.1.2.other") is None
    found.remove()
    assert list(folder.iterdir()) == []


def test_no_board_of_somebody_else_and_no_link_to_one_is_read(
    board: CrashBoard, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.introduce("host.1")
    (folder / "workq-board-host.2").symlink_to(board.path)
    (folder / "workq-board-host.3").mkdir()
    (folder / "workq-board-host.4").write_bytes(b"")
    (folder / "workq-board-host.5").write_bytes(board.path.read_bytes())  # it is another's

    assert [CrashBoard.of(f"host.{number}") for number in (2, 3, 4, 5)] == [None] * 4

    monkeypatch.setattr(os, "geteuid", lambda: board.path.stat().st_uid + 1)
    assert CrashBoard.of("host.1") is None


def test_who_leaves_in_order_leaves_no_file(board: CrashBoard, folder: Path, reader: CrashBoard) -> None:
    board.introduce("host.1")

    board.leave()

    assert list(folder.iterdir()) == []
    assert reader.has_left()


def test_boards_of_the_long_gone_are_removed_and_no_others(board: CrashBoard, folder: Path) -> None:
    def left_behind(name: str, pid: int, age_s: float) -> Path:
        one = CrashBoard.create(lines=LINES)
        one.introduce(name)
        struct.pack_into("<I", one._map, 251, pid)
        one._map.flush()
        os.utime(one.path, (time.time() - age_s,) * 2)
        return one.path

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    board.introduce("host.lives")
    old = left_behind("host.gone", gone.pid, STALE_S + 60)
    kept = {
        board.path,
        left_behind("host.just-gone", gone.pid, STALE_S - 60),
        left_behind("host.long-at-work", os.getpid(), STALE_S + 60),
    }

    assert remove_stale() == 1
    assert not old.exists()
    assert set(folder.iterdir()) == kept


def test_a_board_that_somebody_has_open_is_kept_whatever_the_clock_says(board: CrashBoard, folder: Path) -> None:
    """Its worker is just starting: it has not written its pid."""
    os.utime(board.path, (time.time() - 10 * STALE_S,) * 2)
    (folder / "workq-board-empty").touch()  # its maker was killed in between
    os.utime(folder / "workq-board-empty", (time.time() - 10 * STALE_S,) * 2)

    assert remove_stale() == 0
    assert board.path.exists()


def test_the_file_may_vanish_once_both_sides_have_it_open(board: CrashBoard, reader: CrashBoard) -> None:
    reader.path.unlink()
    board.introduce("host.1")

    assert reader.incarnation() == "host.1"
    reader.remove()
