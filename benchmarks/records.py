"""What tasks wrote about themselves: fixed-size records, appended by one write each.

Contestants import this in their own environments: standard library only."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RECORD = struct.Struct("<dqq")
"""Seconds since the epoch, the task's index, the pid that ran it: 24 bytes, appended by one write."""

DUE = "due"
"""The file in which a producer says when its tasks are due: records, with that instant as their time."""

STARTED = 1 << 40
"""Added to the index in the record of a start; only tasks that take time write one."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a task: `at` is seconds since the epoch, `index` is -1 for a probe."""

    at: float
    index: int
    pid: int
    is_start: bool


class Tail:
    """Reads a growing file of records from where it left off. The file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def fresh(self) -> Iterator[Record]:
        """The complete records that were appended since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = len(data) - len(data) % RECORD.size
        self._offset += whole
        for at, index, pid in RECORD.iter_unpack(data[:whole]):
            is_start = index >= STARTED
            yield Record(at, index - STARTED if is_start else index, pid, is_start)
