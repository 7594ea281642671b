"""This installation: versions, the extras that the settings need, clocks, and who else can read what is stored here.

Exposed are payloads, passwords and secrets that other users of this machine, or readers of a backup, can read.
"""

from __future__ import annotations

import platform
import stat
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from sqlalchemy import func, select

from workq import __version__
from workq.config import Settings, masked
from workq.config.urls import has_password
from workq.diagnose.doctor.check import Check, Level
from workq.errors import ConfigError
from workq.messages.ledger.tables import message_tables
from workq.outbound.vault import PREFIX, Vault
from workq.values.plural import counted
from workq.webhooks.ledger.tables import webhook_tables

if TYPE_CHECKING:
    from workq.ledger.engine.database import Database

SKEW_MAX_S: Final = 2.0
"""Clocks that differ by more are a finding. Nothing depends on it but the due times that producers compute."""
_ZOMBIES: Final = 20
_REAPED_S: Final = 3.0
"""A process that waits for its children, and is merely busy, does not leave so many for so long."""
_LIBRARIES: Final = (
    "sqlalchemy",
    "msgspec",
    "click",
    "apscheduler",
    "psutil",
    "rich",
    "pika",
    "confluent-kafka",
    "redis",
    "psycopg",
    "PyMySQL",
)
_NEEDS: Final = {
    "postgresql": ("psycopg", "postgres"),
    "mysql": ("pymysql", "mysql"),
    "amqp": ("pika", "rabbitmq"),
    "kafka": ("confluent_kafka", "kafka"),
    "redis": ("redis", "redis"),
}


_BESIDE_SQLITE: Final = ("", "-wal", "-shm", "-journal")


def versions() -> Iterator[Check]:
    """Of workq, Python and the libraries; and whether this host knows the year."""
    found = [f"{name} {version}" for name in _LIBRARIES if (version := _version_of(name)) is not None]
    yield Check("versions", Level.OK, f"workq {__version__}, Python {platform.python_version()} on {sys.platform}")
    yield Check("versions", Level.OK, ", ".join(found))
    year = datetime.now(UTC).year
    if not 2025 <= year < 2100:
        yield Check("clock", Level.WARNING, f"this host says that it is {year}; set its clock")


def first_process() -> Iterator[Check]:
    """Process 1 gets all that handlers leave behind: does it wait for them?"""
    ended, ends_at = _zombies_of_first(), time.monotonic() + _REAPED_S
    while len(ended) >= _ZOMBIES and time.monotonic() < ends_at:
        time.sleep(_REAPED_S / 10)
        ended &= _zombies_of_first()
    if len(ended) >= _ZOMBIES:
        yield Check(
            "processes",
            Level.WARNING,
            f"process 1 here does not wait for its children: {len(ended)} that have ended "
            "stay as zombies, until no process can start any more; let workq worker be process 1, or give the "
            "container an init (docker run --init)",
        )


def _zombies_of_first() -> set[int]:
    found = psutil.process_iter(["ppid", "status"])
    return {one.pid for one in found if one.info["ppid"] == 1 and one.info["status"] == psutil.STATUS_ZOMBIE}


def require(kind: str, url: str) -> None:
    """The client library of a URL is installed.

    Raises:
        ConfigError: it is not; the message names the extra.
    """
    module, extra = _NEEDS[kind]
    if find_spec(module) is None:
        raise ConfigError(f"{masked(url)} needs the client library {module}; install the extra [{extra}]")


def skew(what: str, theirs: datetime, asked: datetime, told: datetime) -> Check:
    """Compare a server's clock with this host's, read before and after."""
    middle = asked + (told - asked) / 2
    skew_s = (theirs - middle).total_seconds()
    slack_s = (told - asked).total_seconds() / 2
    if abs(skew_s) > SKEW_MAX_S + slack_s:
        return Check(
            "clock",
            Level.WARNING,
            f"the clock of {what} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this host's; use NTP",
        )
    return Check("clock", Level.OK, f"{what} and this host agree within {SKEW_MAX_S:g} s")


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def exposed_settings(settings: Settings) -> Iterator[Check]:
    """The modes of the files that hold a secret or a URL with a password."""
    for file in settings.secret_files:
        yield from _mode("settings", file, "a password or a key")


def exposed_ledger(database: Database) -> Iterator[Check]:
    """The modes of the files of a SQLite ledger, and which secrets and passwords are stored as they are."""
    if database.dialect == "sqlite" and database.url.database is not None:
        for suffix in _BESIDE_SQLITE:
            content = "payloads, secrets of webhooks and URLs of destinations"
            yield from _mode("ledger", Path(database.url.database + suffix), content)
    yield from _secrets(database)
    yield from _urls(database)


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


def _urls(database: Database) -> Iterator[Check]:
    tables = message_tables(database)
    count = 0
    with database.read() as tx:
        for sealed in (tables.destination.c.sealed, tables.intake.c.sealed):
            stored = tx.execute(select(sealed).where(sealed.is_not(None))).scalars()
            count += sum(not one.startswith(PREFIX) and has_password(Vault().open_url(one)) for one in stored)
    if count:
        yield Check(
            "messages",
            Level.WARNING,
            f"{counted(count, 'password')} of destinations and ways in that "
            f"{'is' if count == 1 else 'are'} not encrypted: a reader of the ledger or of a backup has "
            f"{'it' if count == 1 else 'them'}; set WORKQ_SECRET_KEY and run: workq message destination seal",
        )
