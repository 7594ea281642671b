"""Whether this process still has the descriptors that it has opened.

A handler that closes all of them (`os.closerange`, what makes a daemon) closes the ledger's too. What is opened next
gets their numbers, and a connection that knows nothing of it goes on with them: its log would be written into another
file, its locks would lock another one, and a SQLite file is destroyed that way. So a descriptor that nothing else uses
is opened before the first connection; once it is gone, no connection is opened or used any more.

Who closes some descriptors and leaves that one is not found out.
"""

from __future__ import annotations

import os
import threading

from sqlalchemy import Engine, event

from workq.errors import LedgerUnavailable

_lock = threading.Lock()
_mark: tuple[int, int, int] | None = None
"""The descriptor, the inode of the pipe that it leads to, and the process that has opened it."""


def check_descriptors(*, forgives_parent: bool = False) -> None:
    """Done before a connection is opened, and before each use of one: it costs about a microsecond.

    `forgives_parent`: a forked child may have closed what it was born with, and connects anew. Not so with SQLite,
    which would go on with the locks of its parent's descriptors.

    Raises:
        LedgerUnavailable: they were closed. It stays so until the process starts again.
    """
    global _mark
    mark = _mark or _made()
    try:
        if os.fstat(mark[0]).st_ino == mark[1]:
            return
    except OSError:  # the number leads nowhere
        pass
    if forgives_parent and mark[2] != os.getpid():
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


def _made() -> tuple[int, int, int]:
    global _mark
    with _lock:
        if _mark is None:
            reading, writing = os.pipe()
            os.close(writing)
            _mark = reading, os.fstat(reading).st_ino, os.getpid()
        return _mark


def _unlock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
