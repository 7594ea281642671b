"""What the driver asked of the queue: each call is written before it is made, and completed with what came of it.

A task is known by its number, which the driver chooses: so a call whose outcome nobody saw can still be found in the
ledger. The same lines stand in a file, for a person who looks at a kept run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class TaskKind(StrEnum):
    """How tasks are enqueued, and what they do."""

    ONE = "one"
    MANY = "many"
    DELAYED = "delayed"
    FAILING = "failing"
    """Fails once or twice, then succeeds."""
    DOOMED = "doomed"
    """Always fails."""
    KEYED = "keyed"
    """The same call twice, under one key."""
    CANCELLED = "cancelled"
    """Delayed, and cancelled at once."""


class EnqueueAnswer(StrEnum):
    """What came of an enqueue."""

    NONE = "no answer"
    """The call has not returned."""
    ACKNOWLEDGED = "acknowledged"
    UNKNOWN = "unknown"
    """The commit may stand or not: CommitUnknown."""
    REFUSED = "refused"
    """An error that says that nothing was recorded."""


@dataclass(slots=True)
class JournalEntry:
    """One call. `numbers` are the tasks that it asked for; times are monotonic."""

    kind: TaskKind
    numbers: range
    called_at: float
    delay_s: float = 0.0
    answer: EnqueueAnswer = EnqueueAnswer.NONE
    answered_at: float = 0.0
    ids: tuple[str, ...] = ()
    """As answered; empty after a bulk, which answers with a count."""
    cancelled_at: float | None = None
    """When a cancel answered that the task is cancelled."""
    error: str = ""


@dataclass(slots=True)
class Journal:
    """Every call so far. For several threads."""

    file: Path
    entries: list[JournalEntry] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """Exceptions that no caller should ever see."""
    acknowledged: int = 0
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, kind: TaskKind, count: int, *, delay_s: float = 0.0) -> JournalEntry:
        """A call is about to be made, for so many new numbers."""
        with self._lock:
            entry = JournalEntry(kind, range(self._next, self._next + count), time.monotonic(), delay_s)
            self._next += count
            self.entries.append(entry)
            self._note("call", entry)
        return entry

    def again(self, entry: JournalEntry) -> JournalEntry:
        """The same call is about to be made once more."""
        with self._lock:
            repeated = JournalEntry(entry.kind, entry.numbers, time.monotonic(), entry.delay_s)
            self.entries.append(repeated)
            self._note("call", repeated)
        return repeated

    def end(self, entry: JournalEntry, answer: EnqueueAnswer, *, ids: Sequence[str] = (), error: str = "") -> None:
        """The call has returned."""
        with self._lock:
            entry.answer, entry.answered_at, entry.ids, entry.error = answer, time.monotonic(), tuple(ids), error
            if answer is EnqueueAnswer.ACKNOWLEDGED:
                self.acknowledged += len(entry.numbers)
            self._note(answer.value, entry)

    def cancelled(self, entry: JournalEntry) -> None:
        """A cancel has answered that the entry's task is cancelled."""
        with self._lock:
            entry.cancelled_at = time.monotonic()
            self._note("cancelled", entry)

    def _note(self, what: str, entry: JournalEntry) -> None:
        line = f"{time.monotonic():.6f} {what} {entry.kind} {entry.numbers.start}-{entry.numbers.stop - 1}"
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line} {' '.join(entry.error.split())[:300]}".rstrip() + "\n")
