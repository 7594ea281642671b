"""The board: what a worker process runs, and what has ended there and is not settled, readable after it was killed.

A small shared file: one line for the incarnation, and one for each attempt that has started and is not settled yet.
A dead process cannot tell what it was doing, and a lease only says that it was; the board tells who is charged with
the crash. It is also how the supervisor, which never runs user code, sees that an attempt has exceeded its hard
limit.

An attempt that has ended leaves its outcome here until the ledger has it. A process that is killed in between has done
the work: whoever buries it settles that in its place, under the same fence, and only what really ran runs again. The
file survives its process (`SIGKILL` loses nothing that was written to it), not its machine: then those attempts run
again too, as do those whose outcome is too long for a line. The file bears the name of its incarnation, so that the
next supervisor of this machine finds it when the former one was killed as well; it holds results and fences, and only
its owner may read it.

Times are seconds of the machine's monotonic clock, which all its processes share. One process writes; a reader may
meet a line that is being written, and then takes it as empty: the flag is written last and cleared first.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from workq.config.sources import temporary_folder
from workq.values.incarnation import is_gone
from workq.values.task import Settlement

PREFIX = "workq-board-"
STALE_S = 3600.0
"""The file of a process that is gone is of no use to anybody after this time."""
HEAD_BYTES = 256
LINE_BYTES = 1024
_LEFT = HEAD_BYTES - 1
_PID = struct.Struct("<I")
_PID_AT = _LEFT - _PID.size
_CONTACT = struct.Struct("<dd")
_CONTACT_AT = _PID_AT - _CONTACT.size
_LINE = struct.Struct("<36sIQdd")
_TIME = struct.Struct("<d")
_LENGTH = struct.Struct("<H")
_FLAG = 1
_LENGTH_AT = _FLAG + _LINE.size
_OUTCOME_AT = _LENGTH_AT + _LENGTH.size
_OUTCOME_MAX = LINE_BYTES - _OUTCOME_AT
_RUNNING, _ENDED, _TOLD = 1, 2, 3
"""It runs; it has ended; it has ended, and the line has its outcome."""
_NAMED_MAX = 200  # characters of an incarnation in the name of a file; it has 120 at most
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Settlement)


@dataclass(frozen=True, slots=True)
class Started:
    """One started attempt. `hard_at` is 0.0 when it has no limit, or has ended and waits to be settled.

    `thread` is the one that runs it, as `threading.get_ident()` has it. `is_ended`: its handler has ended.
    """

    task_id: str
    attempt: int
    started_at: float
    hard_at: float
    thread: int = 0
    is_ended: bool = False


class CrashBoard:
    """The shared file of one worker process."""

    def __init__(self, path: Path, *, lines: int | None = None) -> None:
        with path.open("r+b") as file:
            with contextlib.suppress(OSError):  # a file system without locks: the pid alone tells
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._map = mmap.mmap(file.fileno(), 0)  # it keeps the file open, and with it the lock
        self.path = path
        self.lines = (len(self._map) - HEAD_BYTES) // LINE_BYTES if lines is None else lines

    @staticmethod
    def create(*, lines: int) -> CrashBoard:
        """A new, empty board in a private temporary file, whose room is taken at once.

        Raises:
            OSError: there is no room. Found out later, it would end the process that writes.
        """
        handle, name = tempfile.mkstemp(prefix=PREFIX, dir=temporary_folder())
        path = Path(name)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, HEAD_BYTES + lines * LINE_BYTES)
            else:
                os.ftruncate(handle, HEAD_BYTES + lines * LINE_BYTES)
        except OSError:
            path.unlink()
            os.close(handle)
            raise
        board = CrashBoard(path)
        os.close(handle)
        return board

    @staticmethod
    def of(incarnation: str, *, folder: Path | None = None) -> CrashBoard | None:
        """The board of a process of this machine that is gone, or stands still; None when there is none of ours.

        `folder` is where that process has its temporary files, if not where this one has them.
        """
        path = _place_of(incarnation, folder)
        with contextlib.suppress(OSError, ValueError):  # not there, or cut short
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                board = CrashBoard(path)
                return board if board.incarnation() == incarnation else None
        return None

    def introduce(self, incarnation: str) -> None:
        """Say who writes, and give the file this name."""
        text = incarnation.encode("utf-8")[: _CONTACT_AT - 1]
        self._map[1 : 1 + len(text)] = text
        _PID.pack_into(self._map, _PID_AT, os.getpid())
        with contextlib.suppress(OSError):  # it keeps its name, and only its supervisor can find it
            self.path = self.path.rename(_place_of(incarnation))
        self._map[0] = len(text)  # last: until then nobody has been introduced

    def incarnation(self) -> str | None:
        """Who writes; None before it has said so."""
        return self._map[1 : 1 + self._map[0]].decode("utf-8", "replace") or None

    def reached(self, at: float) -> None:
        """Every store has answered this process, each at this time or later."""
        _TIME.pack_into(self._map, _CONTACT_AT, at)

    def runs(self, now: float) -> None:
        """The threads of this process run."""
        _TIME.pack_into(self._map, _CONTACT_AT + _TIME.size, now)

    def contact(self) -> tuple[float, float]:
        """When its stores had all answered it, and when its threads ran last."""
        reached_at, ran_at = _CONTACT.unpack_from(self._map, _CONTACT_AT)
        return reached_at, ran_at

    def leave(self) -> None:
        """Say that the process has left in order: nothing is claimed, nothing is held, its lease is given up.

        The file goes; the supervisor, if it lives, has it open.
        """
        self._map[_LEFT] = 1
        self.path.unlink(missing_ok=True)

    def has_left(self) -> bool:
        """Whether it has. Exit status 0 alone does not tell: a handler may have ended the process."""
        return bool(self._map[_LEFT])

    def start(self, line: int, task_id: str, attempt: int, *, started_at: float, hard_at: float) -> None:
        """An attempt starts now, in the calling thread."""
        at = HEAD_BYTES + line * LINE_BYTES
        thread = threading.get_ident()
        _LINE.pack_into(self._map, at + _FLAG, task_id.encode("ascii"), attempt, thread, started_at, hard_at)
        self._map[at] = _RUNNING

    def ended(self, line: int, settlement: Settlement | None = None) -> None:
        """The handler has returned: no limit applies any more, but the attempt is not settled, unless by others."""
        at = HEAD_BYTES + line * LINE_BYTES
        # this field alone: the supervisor may be reading the line
        _TIME.pack_into(self._map, at + _FLAG + _LINE.size - _TIME.size, 0.0)
        told = None if settlement is None else _encoded(settlement)
        if told is None or len(told) > _OUTCOME_MAX:
            self._map[at] = _ENDED
            return
        _LENGTH.pack_into(self._map, at + _LENGTH_AT, len(told))
        self._map[at + _OUTCOME_AT : at + _OUTCOME_AT + len(told)] = told
        self._map[at] = _TOLD  # last: until then it is not whole

    def clear(self, line: int) -> None:
        """The attempt is settled."""
        self._map[HEAD_BYTES + line * LINE_BYTES] = 0

    def started(self) -> list[Started]:
        """Every attempt that has started and is not settled."""
        found = []
        for line in range(self.lines):
            at = HEAD_BYTES + line * LINE_BYTES
            flag = self._map[at]
            if flag:
                task_id, attempt, thread, started_at, hard_at = _LINE.unpack_from(self._map, at + _FLAG)
                is_ended = flag in (_ENDED, _TOLD)
                found.append(
                    Started(task_id.decode("ascii", "replace"), attempt, started_at, hard_at, thread, is_ended)
                )
        return found

    def outcomes(self) -> list[Settlement]:
        """What has ended and is not settled. Only for whoever buries the process: it must not be writing any more."""
        found = []
        for line in range(self.lines):
            at = HEAD_BYTES + line * LINE_BYTES
            if self._map[at] == _TOLD:
                [length] = _LENGTH.unpack_from(self._map, at + _LENGTH_AT)
                told = _decoded(bytes(self._map[at + _OUTCOME_AT : at + _OUTCOME_AT + length]))
                if told is not None:
                    found.append(told)
        return found

    def remove(self) -> None:
        """Close the file and delete it, whatever its name is by now."""
        incarnation = self.incarnation()
        self._map.close()
        for path in {self.path, *([] if incarnation is None else [_place_of(incarnation)])}:
            path.unlink(missing_ok=True)


def remove_stale() -> int:
    """Delete the boards of this user that nobody has open and whose processes have been gone for an hour; how many.

    They are left when a process and its supervisor were killed, and nobody of this machine has buried them. A board
    that somebody has open is kept, whatever the clock says: a worker that is just starting has not written its pid.
    """
    removed = 0
    for path in temporary_folder().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if time.time() - found.st_mtime < STALE_S or found.st_size < HEAD_BYTES:
                continue
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: somebody has it open
                [pid] = _PID.unpack_from(file.read(HEAD_BYTES), _PID_AT)
                if pid == 0 or is_gone(pid):
                    path.unlink()
                    removed += 1
    return removed


def _place_of(incarnation: str, folder: Path | None = None) -> Path:
    return (folder or temporary_folder()) / f"{PREFIX}{incarnation[:_NAMED_MAX]}"


def _encoded(settlement: Settlement) -> bytes | None:
    """A settlement without the payload; None when it cannot be written, which only costs a repetition."""
    claim = msgspec.structs.replace(settlement.claim, payload="")
    try:
        return _encoder.encode(Settlement(claim, settlement.outcome))
    except ValueError:  # text with half a character in it
        return None


def _decoded(told: bytes) -> Settlement | None:
    try:
        return _decoder.decode(told)
    except ValueError:  # not of this version
        return None
