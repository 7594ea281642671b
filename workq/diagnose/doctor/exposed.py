"""Exposed: payloads, passwords and secrets that other users of this machine, or readers of a backup, can read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from workq.config import Settings
from workq.diagnose.doctor.check import Check, Level
from workq.outbound.vault import PREFIX
from workq.webhooks.ledger.tables import webhook_tables

if TYPE_CHECKING:
    from workq.ledger.engine.database import Database

_BESIDE_SQLITE: Final = ("", "-wal", "-shm", "-journal")


def settings_files(settings: Settings) -> Iterator[Check]:
    """The modes of the files that hold a secret or a URL with a password."""
    for file in settings.secret_files:
        yield from _mode("settings", file, "a password or a key")


def ledger(database: Database) -> Iterator[Check]:
    """The modes of the files of a SQLite ledger, and the secrets of webhook endpoints that are stored as they are."""
    if database.dialect == "sqlite" and database.url.database is not None:
        for suffix in _BESIDE_SQLITE:
            yield from _mode("ledger", Path(database.url.database + suffix), "payloads and secrets of webhooks")
    yield from _secrets(database)


def _mode(area: str, file: Path, content: str) -> Iterator[Check]:
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:  # not there, or not to be looked at: told by what reads it
        return
    if mode & stat.S_IRWXO:
        yield Check(
            area,
            Level.WARNING,
            f"every user of this machine can open {file} (mode {mode:04o}), which holds {content}; "
            f"run: chmod o-rwx {file}",
        )


def _secrets(database: Database) -> Iterator[Check]:
    endpoint = webhook_tables(database).endpoint
    with database.read() as tx:
        count = tx.execute(
            select(func.count()).select_from(endpoint).where(~endpoint.c.sealed.startswith(PREFIX))
        ).scalar_one()
    if count:
        yield Check(
            "webhooks",
            Level.WARNING,
            f"{count} webhook {'endpoint has' if count == 1 else 'endpoints have'} secrets that are not encrypted: a "
            "reader of the ledger or of a backup can sign as you; set WORKQ_SECRET_KEY and run: "
            "workq webhook endpoint seal",
        )
