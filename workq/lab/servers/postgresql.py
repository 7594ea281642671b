"""A private PostgreSQL: its programs, its settings, and how it shows that it is ours."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from workq.lab.servers.database import DatabaseServer
from workq.lab.servers.server import find_program


class PostgreSQL(DatabaseServer):
    """A private PostgreSQL with one superuser, `workq`, trusted without a password, and one database, `workq`.

    It refuses to run as root, so under root it runs as the account `postgres` that the Debian package makes; then the
    folder's parents must be open to that account (pytest's own `tmp_path` is not; the default is).
    """

    name = "PostgreSQL"
    _account = "postgres"
    _end_signal = signal.SIGINT  # "fast": does not wait for clients to leave

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _number(path.parent.name))
        self._server = find_program("postgres", package="postgresql", places=versions[::-1])  # the newest first
        programs = [Path(self._server).resolve().parent]
        self._initdb = find_program("initdb", package="postgresql", places=programs)
        self._psql = find_program("psql", package="postgresql-client", places=programs)
        super().__init__(folder, options)

    def _url(self, database: str) -> str:
        return f"postgresql://workq@127.0.0.1:{self.port}/{database}"

    def _create_database(self, name: str) -> None:
        self._tell([*self._client("postgres"), "-c", f'CREATE DATABASE "{name}"'])

    def _prepare(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        self._prepare_with(
            [
                *(self._initdb, "--pgdata", str(self._data), "--username", "workq", "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync", "--no-instructions"),
            ]
        )

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "dynamic_shared_memory_type": "mmap",  # in the data folder: a kill leaves nothing in /dev/shm
            "logging_collector": "off",
        }
        words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [self._server, "-D", str(self._data), *words, *self.options]

    def _answer(self) -> str | None:
        told = self._ask([*self._client("postgres"), "-c", "SHOW data_directory", "-c", "SHOW server_version"])
        facts = (told or "").split("\n")
        if facts[0] != str(self._data):
            return None
        # initdb made no database of our name; a fresh or wiped server gets it with its first answer.
        exists = self._tell([*self._client("postgres"), "-c", "SELECT 1 FROM pg_database WHERE datname = 'workq'"])
        if not exists.strip():
            self.create_database("workq")
        return facts[1].split()[0]

    def _client(self, database: str) -> list[str]:
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "workq", "-d", database)
        return [self._psql, "--no-psqlrc", "--no-password", "-qAt", "-v", "ON_ERROR_STOP=1", *where]


def start_postgres(folder: Path | None = None, *, options: Sequence[str] = ()) -> PostgreSQL:
    """Start a private PostgreSQL; as `start_rabbitmq`, but `options` are arguments of postgres, and win over ours."""
    return PostgreSQL(folder, options).first_start()


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0
