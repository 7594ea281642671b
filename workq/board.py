"""The board: what a worker process is running at this moment, readable by its supervisor after the process was killed.

A small shared file: one line for the incarnation, and one for each attempt that has started and is not settled yet.
A dead process cannot tell what it was doing, and a lease only says that it was; the board tells who is charged with
the crash. It is also how the supervisor, which never runs user code, sees that an attempt has exceeded its hard
limit.

Times are seconds of the machine's monotonic clock, which all its processes share. One process writes; a reader may
meet a line that is being written, and then takes it as empty: the flag is written last and cleared first.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

_HEAD = 256
_LEFT = _HEAD - 1
_LINE = struct.Struct("<36sIdd")
_HARD_AT = struct.Struct("<d")
_FLAG = 1
_SIZE = 64


@dataclass(frozen=True, slots=True)
class Started:
    """One started attempt. `hard_at` is 0.0 when it has no limit, or has ended and waits to be settled."""

    task_id: str
    attempt: int
    started_at: float
    hard_at: float


class Board:
    """The shared file of one worker process."""

    def __init__(self, path: Path, *, lines: int | None = None) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.path = path
        self.lines = (len(self._map) - _HEAD) // _SIZE if lines is None else lines

    @staticmethod
    def create(*, lines: int) -> Board:
        """A new, empty board in a private temporary file."""
        handle, name = tempfile.mkstemp(prefix="workq-board-")
        os.ftruncate(handle, _HEAD + lines * _SIZE)
        os.close(handle)
        return Board(Path(name))

    def introduce(self, incarnation: str) -> None:
        """Say who writes."""
        text = incarnation.encode("utf-8")[: _LEFT - 1]
        self._map[1 : 1 + len(text)] = text
        self._map[0] = len(text)  # last: until then nobody has been introduced

    def incarnation(self) -> str | None:
        """Who writes; None before it has said so."""
        return self._map[1 : 1 + self._map[0]].decode("utf-8", "replace") or None

    def leave(self) -> None:
        """Say that the process has left in order: nothing is claimed, nothing is held, its lease is given up."""
        self._map[_LEFT] = 1

    def has_left(self) -> bool:
        """Whether it has. Exit status 0 alone does not tell: a handler may have ended the process."""
        return bool(self._map[_LEFT])

    def start(self, line: int, task_id: str, attempt: int, *, started_at: float, hard_at: float) -> None:
        """An attempt starts now."""
        at = _HEAD + line * _SIZE
        _LINE.pack_into(self._map, at + _FLAG, task_id.encode("ascii"), attempt, started_at, hard_at)
        self._map[at] = 1

    def ended(self, line: int) -> None:
        """The handler has returned: no limit applies any more, but the attempt is not settled."""
        # this field alone: the supervisor may be reading the line
        _HARD_AT.pack_into(self._map, _HEAD + line * _SIZE + _FLAG + _LINE.size - _HARD_AT.size, 0.0)

    def clear(self, line: int) -> None:
        """The attempt is settled."""
        self._map[_HEAD + line * _SIZE] = 0

    def started(self) -> list[Started]:
        """Every attempt that has started and is not settled."""
        found = []
        for line in range(self.lines):
            at = _HEAD + line * _SIZE
            if self._map[at]:
                task_id, attempt, started_at, hard_at = _LINE.unpack_from(self._map, at + _FLAG)
                found.append(Started(task_id.decode("ascii", "replace"), attempt, started_at, hard_at))
        return found

    def remove(self) -> None:
        """Close the file and delete it."""
        self._map.close()
        self.path.unlink(missing_ok=True)
