"""SQLite: where the file lies, how it is written, and how much room is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from sqlalchemy import Connection

from workq.config import masked
from workq.config.sqlite import is_there
from workq.diagnose.doctor.check import Check, Level

if TYPE_CHECKING:
    from workq.ledger.engine.database import Database

FREE_MIN_BYTES: Final = 256 * 1024 * 1024
"""Less room than this on the disk of the file is a finding: a full disk refuses every enqueue."""
_NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smbfs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)


def place(url: str, file: Path, *, origin: str) -> Iterator[Check]:
    """Whether the file can be made or written there, and whether that is a good place."""
    folder = file.absolute().parent
    if not is_there(file):
        if folder.is_dir() and os.access(folder, os.W_OK):
            yield Check(
                "ledger",
                Level.UNCHECKED,
                f"there is no file {file.absolute()} ({origin}); is it the right one? To make it: workq db migrate",
            )
        else:
            yield Check("ledger", Level.ERROR, f"{masked(url)}: cannot be created in {folder}; set WORKQ_LEDGER_URL")
            return
    elif not os.access(file, os.W_OK) or not os.access(folder, os.W_OK):
        yield Check("ledger", Level.ERROR, f"{masked(url)}: the file or its folder {folder} is not writable")
    yield from _names(url, file)
    if (kind := _filesystem(file)) in _NETWORK_FILESYSTEMS:
        yield Check(
            "ledger",
            Level.ERROR,
            f"{masked(url)} is on a network filesystem ({kind}): SQLite's locks do not hold there; "
            "use a local disk, or PostgreSQL",
        )
    free = shutil.disk_usage(folder).free
    if free < FREE_MIN_BYTES:
        yield Check(
            "ledger",
            Level.WARNING,
            f"only {free >> 20} MiB are free on the disk of {masked(url)}: when it is full, enqueue() fails and "
            "nothing can be settled; make room, or see `workq sweep --only prune`",
        )


def _names(url: str, file: Path) -> Iterator[Check]:
    """Whether the file has one name, as the log beside it has.

    A symbolic link is no second name: SQLite follows it, and keeps its log beside the file that the link leads to.
    """
    beside = "SQLite keeps its newest writes in a -wal and a -shm file beside one name"
    if is_there(file) and (names := file.stat().st_nlink) > 1:
        yield Check(
            "ledger",
            Level.WARNING,
            f"the file of {masked(url)} has {names} names (hard links): {beside}, so processes that use another name "
            "do not see them, and may damage the file; stop all, let each use the same name, and remove the others",
        )
    if any(Path(one.mountpoint) == file.resolve() for one in psutil.disk_partitions(all=True)):
        yield Check(
            "ledger",
            Level.WARNING,
            f"the file of {masked(url)} is mounted alone: {beside}, which others do not see; mount its folder",
        )


def server(tx: Connection) -> str:
    """Its name and version."""
    return f"SQLite {tx.exec_driver_sql('SELECT sqlite_version()').scalar()}"


def checks(tx: Connection, _database: Database) -> Iterator[Check]:
    """What the file says, opened as workq opens it."""
    mode = str(tx.exec_driver_sql("PRAGMA journal_mode").scalar())
    if mode.lower() == "wal":
        yield Check("ledger", Level.OK, "journal mode WAL")
    else:
        yield Check(
            "ledger", Level.WARNING, f"journal mode is {mode}, not WAL: readers and the writer block each other"
        )


def _filesystem(file: Path) -> str:
    real = file.resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if real.is_relative_to(one.mountpoint)]
    mount = max(mounts, key=lambda one: len(one.mountpoint), default=None)
    return "" if mount is None else mount.fstype.lower()
