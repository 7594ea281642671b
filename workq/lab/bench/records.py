"""What the tasks wrote down: one record for each start, and for each end of those that take time."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = "records"
RECORD: Final = struct.Struct("<dqqq")
START: Final = 0
END: Final = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One start or end: when, by the machine's monotonic clock in seconds, of which task, in which process."""

    at: float
    number: int
    pid: int
    what: int


class Records:
    """The file of one run, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._read = 0
        self.all: list[Record] = []

    def refresh(self) -> None:
        """Read what was written since."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            body = file.read()
        whole = len(body) - len(body) % RECORD.size
        self._read += whole
        self.all += [Record(*one) for one in RECORD.iter_unpack(body[:whole])]

    def starts(self, numbers: range) -> list[Record]:
        """The starts of some tasks, in the order in which they were written."""
        return [one for one in self.all if one.what == START and one.number in numbers]

    def ends(self, numbers: range) -> list[Record]:
        """The ends of some tasks."""
        return [one for one in self.all if one.what == END and one.number in numbers]
