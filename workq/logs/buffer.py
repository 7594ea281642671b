"""Buffer: a logging handler that never waits. A thread of its own hands on what was logged, in order.

Who logs only adds to a queue in memory: a full pipe, a full disk or a slow handler of the application holds up that
thread and nothing else. The queue is bounded. What finds it full is dropped and counted, and so is what cannot be
written; `log.dropped` tells how many as soon as a line can be written again.

A forked child has no such thread: what is logged there is handed on at once. A process that ends calls `flush`, which
waits for a second at most.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import logging
import os
import queue
import select
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from workq.logs.forms import below, escaped, headline
from workq.logs.seldom import tell_counts
from workq.values.time_limit import whole

ITEMS_MAX: Final = 10_000
CHARACTERS_MAX: Final = 16 << 20
"""So much waits at most."""
FLUSH_S: Final = 1.0
LOOK_EVERY_S: Final = 5.0
"""How often what was counted or dropped is looked at while nothing is logged."""
TOGETHER_MAX: Final = 100
PIPE_BUF: Final = 4096
"""A pipe takes so many bytes as a whole: the lines of several processes do not mix."""

T = TypeVar("T", bytes, logging.LogRecord)
_all: weakref.WeakSet[Buffer[Any]] = weakref.WeakSet()


class Buffer(logging.Handler, Generic[T]):
    """The queue and its thread. Takes no lock, so that it may be used anywhere, in a signal handler too."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: queue.SimpleQueue[T | threading.Event] = queue.SimpleQueue()
        self._characters = 0
        self._dropped = 0
        """Each change of these two is one step of CPython's, which no other thread comes between."""
        self._is_stuck = False
        self._thread: threading.Thread | None = None
        _all.add(self)

    def begin(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="workq-log", daemon=True)
        self._thread.start()

    @abstractmethod
    def take(self, record: logging.LogRecord) -> T:
        """What is kept of a record: text, and nothing that somebody may change, or that keeps objects alive."""

    @abstractmethod
    def size(self, item: T) -> int:
        """How many characters these are, about."""

    @abstractmethod
    def hand_on(self, items: Sequence[T]) -> int:
        """Write these, however long it takes. Answers how many could not be written."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Take a record. Never waits and never raises."""
        with whole():  # the time limit of a handler that logs cuts nothing in two
            try:
                self.filter(record)
                item = self.take(record)
            except BaseException as error:  # what a record holds has methods of its own
                item = self.take(_event("log.unreadable", logger=record.name, error=type(error).__name__))
            self._put(item)
        return True

    def _put(self, item: T) -> None:
        if self._thread is None:
            self._hand_on([item])
        elif self._waiting.qsize() >= ITEMS_MAX or self._characters > CHARACTERS_MAX:
            self._dropped += 1
        else:
            self._characters += self.size(item)
            self._waiting.put(item)

    def flush(self) -> None:
        """Wait until what was logged before is handed on; a second at most, and not a second time in vain."""
        if self._thread is None or self._is_stuck or threading.current_thread() is self._thread:
            return
        done = threading.Event()
        self._waiting.put(done)
        self._is_stuck = not done.wait(FLUSH_S)

    @property
    def is_stuck(self) -> bool:
        """Whether the last flush ended before all was handed on, and nothing was since."""
        return self._is_stuck

    def _run(self) -> None:
        while True:
            items: list[T] = []
            with contextlib.suppress(queue.Empty):
                one = self._waiting.get(timeout=LOOK_EVERY_S)
                while True:
                    if isinstance(one, threading.Event):
                        self._hand_on(items)
                        items = []
                        one.set()
                    else:
                        self._characters -= self.size(one)
                        items.append(one)
                    if len(items) >= TOGETHER_MAX:
                        break
                    one = self._waiting.get_nowait()
            self._hand_on(items)
            self._is_stuck = False
            tell_counts()

    def _hand_on(self, items: Sequence[T]) -> None:
        refused = self.hand_on(items) if items else 0
        self._dropped += refused
        if (count := self._dropped) and not self.hand_on([self.take(_event("log.dropped", count=count))]):
            self._dropped -= count

    def forked(self) -> None:
        """This is a forked child, in which the thread does not run."""
        self._thread = None
        self._dropped = 0
        self._waiting = queue.SimpleQueue()


class LineBuffer(Buffer[bytes]):
    """Writes lines to standard error as it was at the start, whatever a handler makes of `sys.stderr`."""

    def __init__(self, form: logging.Formatter, *, fd: int = 2) -> None:
        """`fd`: 2, or 1 for standard output."""
        super().__init__()
        self.setFormatter(form)
        self.has_reader = True
        """False: it is a pipe, and its reader has gone away."""
        self._fd = _own(fd)
        self._file = _identity(self._fd)
        self._encoding = getattr(sys.stderr if fd == 2 else sys.stdout, "encoding", None) or "utf-8"
        self._is_cut = False
        """The last line was written in part."""
        self.begin()

    def say(self, text: str) -> None:
        """Write this line."""
        self.handle(logging.makeLogRecord({"name": "workq", "msg": text}))

    def take(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def size(self, item: bytes) -> int:
        return len(item)

    def hand_on(self, items: Sequence[bytes]) -> int:
        refused = done = 0
        while done < len(items):
            end, size = done + 1, len(items[done])
            while end < len(items) and size + len(items[end]) <= PIPE_BUF:
                size += len(items[end])
                end += 1
            if not self._write(b"".join(items[done:end])):
                refused += end - done
            done = end
        return refused

    def _write(self, lines: bytes) -> bool:
        """All of it. False: it is refused (no room on the disk, no reader), in part at least."""
        if self._file is None or _identity(self._fd) != self._file:
            return False  # a handler has closed it, and its number may be that of another file now
        left = memoryview(b"\n" + lines if self._is_cut else lines)
        try:
            while left:
                try:
                    left = left[os.write(self._fd, left) :]
                    self._is_cut = True
                except BlockingIOError:  # whoever started this process has made it so
                    writable = select.poll()
                    writable.register(self._fd, select.POLLOUT)
                    writable.poll()
        except OSError as error:
            self.has_reader = not isinstance(error, BrokenPipeError)
            return False
        self._is_cut = False
        return True


class RecordBuffer(Buffer[logging.LogRecord]):
    """Hands what workq logs to the handlers that an application has configured."""

    def __init__(self, handlers: Sequence[logging.Handler], *, has_root: bool) -> None:
        """`handlers`: those of the logger `workq`. `has_root`: those of the root logger get it too."""
        super().__init__()
        self._handlers = list(handlers)
        self._has_root = has_root
        self.begin()

    def take(self, record: logging.LogRecord) -> logging.LogRecord:
        """Its fields are in its message too: a format that does not know them would not show them."""
        taken = copy.copy(record)
        taken.msg, taken.args = headline(record), None
        taken.exc_text = "\n".join(escaped(line) for line in below(record)) or None
        taken.exc_info = taken.stack_info = None
        return taken

    def size(self, item: logging.LogRecord) -> int:
        return len(item.msg) + len(item.exc_text or "")

    def hand_on(self, items: Sequence[logging.LogRecord]) -> int:
        refused = 0
        for record in items:
            for handler in (*self._handlers, *(logging.getLogger().handlers if self._has_root else ())):
                try:
                    if record.levelno >= handler.level:
                        handler.handle(record)
                except BaseException:  # it is the application's
                    refused += 1
        return refused


def _event(event: str, **fields: object) -> logging.LogRecord:
    levels = {"name": "workq.logs", "levelno": logging.WARNING, "levelname": "WARNING"}
    return logging.makeLogRecord({"msg": event, **levels, **fields})


def _own(fd: int) -> int:
    """A descriptor of our own for standard output or standard error; -1 when there is none."""
    if (sys.__stderr__ if fd == 2 else sys.__stdout__) is None:  # closed at the start: its number is another file's
        return -1
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:  # there are no more descriptors
        return fd


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _forked() -> None:
    for one in list(_all):
        one.forked()


os.register_at_fork(after_in_child=_forked)
