"""Whether this process still has the descriptors that it has opened.

A handler that closes all of them (`os.closerange`, what makes a daemon) closes the ledger's too. What is opened next
gets their numbers, and a connection that knows nothing of it goes on with them: its log would be written into another
file, its locks would lock another one, and a SQLite file is destroyed that way. So a descriptor that nothing else uses
is opened before the first connection; once it is gone, no connection is opened, used or ended any more: a goodbye over
TLS would be written into the other file, and that would be closed.

Who closes some descriptors and leaves that one is not found out.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine, event

from workq.errors import LedgerUnavailable

_SIZE: Final = 1 << 15
"""Of the pipe, in bytes: no other pipe has it, neither as Linux makes one nor where it makes them smaller."""


class _Mark(NamedTuple):
    """A pipe that nothing else uses. `inode` is 0 where it is known by its size, which costs half of a look."""

    descriptor: int
    inode: int
    process: int

    def is_there(self) -> bool:
        try:
            if self.inode:
                return os.fstat(self.descriptor).st_ino == self.inode
            return fcntl.fcntl(self.descriptor, fcntl.F_GETPIPE_SZ) == _SIZE
        except OSError:  # the number leads nowhere, or to something else
            return False


_lock = threading.Lock()
_mark: _Mark | None = None
_kept: Final[list[object]] = []
"""Connections whose descriptors were closed: what would be freed would be closed."""


def check_descriptors(*, forgives_parent: bool = False) -> None:
    """Done before a connection is opened, and before each use of one: it costs two microseconds.

    `forgives_parent`: a forked child may have closed what it was born with, and connects anew. Not so with SQLite,
    which would go on with the locks of its parent's descriptors.

    Raises:
        LedgerUnavailable: they were closed. It stays so until the process starts again.
    """
    global _mark
    mark = _mark or _made()
    if mark.is_there():
        return
    if forgives_parent and mark.process != os.getpid():
        _mark = None
        return
    error = LedgerUnavailable(
        "something in this process has closed its descriptors, those of the ledger too (os.closerange, or a library "
        "that makes a daemon): nothing was recorded, and nothing more is, as their numbers may be another file's by "
        "now. Start this process again, and close descriptors before workq is used"
    )
    error.patience_s = 0.0
    raise error


def guard_descriptors(engine: Engine) -> None:
    """Let the engine, one of a server, open no connection, and use none, once they are closed."""

    @event.listens_for(engine, "do_connect")
    def _connect(*_: object) -> None:
        check_descriptors(forgives_parent=True)

    @event.listens_for(engine, "checkout")
    def _checkout(*_: object) -> None:
        check_descriptors(forgives_parent=True)

    for name in ("do_close", "do_terminate"):  # what the pool ends a connection with
        setattr(engine.dialect, name, _while_there(getattr(engine.dialect, name)))


def _while_there(end: Callable[[Any], None]) -> Callable[[Any], None]:
    def end_or_keep(connection: Any) -> None:
        if _mark is None or _mark.is_there():
            end(connection)
        else:
            _kept.append(connection)

    return end_or_keep


def _made() -> _Mark:
    global _mark
    with _lock:
        if _mark is None:
            reading, writing = os.pipe()
            os.close(writing)
            inode = 0 if _is_sized(reading) else os.fstat(reading).st_ino
            _mark = _Mark(reading, inode, os.getpid())
        return _mark


def _is_sized(pipe: int) -> bool:
    """Give it a size that tells it from others. False: this system cannot, or this user has too many pipes."""
    try:
        return fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _SIZE) == _SIZE
    except (AttributeError, OSError):
        return False


def _unlock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
