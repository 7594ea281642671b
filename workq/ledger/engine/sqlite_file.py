"""The file of a SQLite ledger: made once at most, and the same one for as long as a process works with it.

SQLite would make a file wherever a path points, and go on with an open file whose name is gone. So a connection never
makes the file by itself (`mode=rw`), and a transaction begins with a look at what has the name now. A look holds for
10 ms, as it costs 4 % of an enqueue.

On failure: the file was deleted, or another one has its name, or what SQLite keeps beside it was removed while it was
open: LedgerReplaced, until the process opens the ledger anew.
What is written over the file in its place cannot be told from what workq writes.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from sqlalchemy import Engine, event

from workq.config.sqlite import is_there, make_private
from workq.errors import ConfigError, LedgerReplaced, NoLedger
from workq.ledger.engine.descriptors import check_descriptors
from workq.ledger.engine.sqlite_writer import WaitingConnection

LOOK_EVERY_S: Final = 0.01
_IN_URI: Final = re.compile(r"file:(//[^/]*)?(?=.)")
_HEAD: Final = b"SQLite format 3\x00"


class LedgerFile:
    """The file that one `Database` works with: the one that its first connection opened."""

    def __init__(self, path: str, *, makes: bool, origin: str) -> None:
        self.path = os.path.abspath(unquote(_IN_URI.sub("", path)) if _IN_URI.match(path) else path)
        self.makes = makes
        self._origin = origin
        self._opened: tuple[int, int] | None = None
        """Device and inode of the file that the first connection opened."""
        self._beside: dict[str, int] = {}
        """The inodes of its write-ahead log and of the index of that, while a connection is open."""
        self._connections = 0
        self._lock = threading.Lock()
        self._looks_at = 0.0
        """Monotonic: until then the last look holds."""

    def watch(self, engine: Engine) -> None:
        """Let the engine connect to this file alone."""

        @event.listens_for(engine, "do_connect")
        def _connect(_dialect: Any, _record: Any, args: Any, parameters: dict[str, Any]) -> sqlite3.Connection:
            return self._connect(args, parameters)

        @event.listens_for(engine, "close")
        def _close(*_: object) -> None:
            with self._lock:
                self._connections -= 1
                if self._connections <= 0:  # SQLite removes what is beside the file behind the last one of all
                    self._beside = {}

    def reopen(self) -> None:
        """In a forked child: the connections are its parent's."""
        self._lock = threading.Lock()
        self._connections, self._beside = 0, {}

    def has(self, table: str) -> bool:
        """Whether the file has such a table. Nothing is made or changed, not even the journal mode of another's file.

        Raises:
            NoLedger: the file is not there, is empty, or is no SQLite database.
            ConfigError: this user may not look at it, or write to it or beside it.
            sqlite3.Error: it cannot be read for another reason.
        """
        if not is_there(Path(self.path)):
            folder = os.path.dirname(self.path)
            lack = "there is no such file" if os.path.isdir(folder) else f"the folder {folder} does not exist"
            raise self._no_ledger(lack)
        head = _HEAD
        with contextlib.suppress(OSError), open(self.path, "rb") as file:  # SQLite will say what is wrong
            head = file.read(len(_HEAD))
        if head != _HEAD:
            raise self._no_ledger("the file is no SQLite database" if head else "the file is empty")
        try:
            with contextlib.closing(sqlite3.connect(_uri(self.path), uri=True)) as raw:
                named = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
                return raw.execute(named, (table,)).fetchone() is not None
        except sqlite3.OperationalError:
            folder = os.path.dirname(self.path)
            if os.access(self.path, os.W_OK) and os.access(folder, os.W_OK):
                raise
            raise ConfigError(
                f"ledger ({self._origin}): {self.path}: this user may not write to it or to its folder, as SQLite does "
                "even to read it; give this user both"
            ) from None

    def check(self, *, is_open: bool = True) -> None:
        """Done in each transaction. `is_open`: on a connection, not before one is opened.

        Raises:
            LedgerReplaced: what was opened does not have its name any more, or not what belongs beside it.
            LedgerUnavailable: this process has lost its descriptors.
        """
        check_descriptors()
        now = time.monotonic()
        if self._opened is None or now < self._looks_at:
            return
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise self._replaced("was deleted or moved away") from None
        except OSError:
            return  # SQLite will say what is wrong
        if (found.st_dev, found.st_ino) != self._opened:
            raise self._replaced("was replaced by another file")
        if is_open:
            self._check_beside()
            self._looks_at = now + LOOK_EVERY_S

    def _check_beside(self) -> None:
        """Done where a connection is open: then nobody but a stranger removes what SQLite keeps beside the file.

        Others would find neither what was committed there nor who is writing.

        Raises:
            LedgerReplaced: its write-ahead log, or the index of that, was deleted or replaced.
        """
        for name in ("-wal", "-shm"):
            try:
                inode = os.stat(self.path + name).st_ino
            except FileNotFoundError:
                inode = 0
            except OSError:
                continue  # SQLite will say what is wrong
            known = self._beside.get(name)
            if known is None and inode:
                self._beside[name] = inode
            elif known is not None and inode != known:
                raise self._replaced(
                    f"lost the {name} file beside it, which was deleted or replaced,", with_others=True
                )

    def _connect(self, args: list[str], parameters: dict[str, Any]) -> sqlite3.Connection:
        self.check(is_open=False)
        (place,) = args
        if "uri" not in parameters:  # else the URL itself says how the file is opened
            if self._opened is None and self.makes:
                make_private(Path(self.path))
            place, parameters = _uri(self.path), {**parameters, "uri": True}
        raw = sqlite3.connect(place, factory=WaitingConnection, **parameters)
        with self._lock:
            self._connections += 1
        if self._opened is None:
            with contextlib.suppress(OSError):
                found = os.stat(self.path)
                self._opened = found.st_dev, found.st_ino
        return raw

    def _no_ledger(self, lack: str) -> NoLedger:
        return NoLedger(
            f"ledger ({self._origin}): {self.path}: {lack}. Name the right file, or make a ledger there: "
            "workq db migrate"
        )

    def _replaced(self, how: str, *, with_others: bool = False) -> LedgerReplaced:
        cure = "Put it back, and start this process again"
        if with_others:
            cure = (
                "Stop all processes that use it, and start them again; what was committed last may be lost with it: "
                "workq audit"
            )
        return LedgerReplaced(
            f"the ledger {self.path} {how} while this process worked with it: nothing was recorded. {cure}"
        )


def _uri(path: str) -> str:
    """Opens what is there, and makes nothing."""
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode=rw"
