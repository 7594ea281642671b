"""A private PgBouncer, in front of a private PostgreSQL: its settings, and how it shows that it is ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from workq.lab.servers.database import DatabaseServer
from workq.lab.servers.postgresql import PostgreSQL
from workq.lab.servers.server import find_program

_ADMIN: Final = "pgbouncer"
"""The name of the database in which PgBouncer answers for itself."""


class PgBouncer(DatabaseServer):
    """A private PgBouncer in transaction mode, with few connections to the server: clients share each of them.

    The databases are those of the server behind it, with the same user.

    It refuses to run as root, so under root it runs as the account `postgres`, as the server behind it does.
    """

    name = "PgBouncer"
    _account = "postgres"

    def __init__(self, folder: Path | None, options: Sequence[str], *, server: PostgreSQL) -> None:
        self._program = find_program("pgbouncer", package="pgbouncer")
        self._psql = find_program("psql", package="postgresql-client")
        self._server = server
        super().__init__(folder, options)

    def _url(self, database: str) -> str:
        return f"postgresql://workq@127.0.0.1:{self.port}/{database}"

    def _create_database(self, name: str) -> None:
        self._server.create_database(name)

    def _prepare(self) -> None:
        users = self.folder / "users.txt"
        users.write_text('"workq" ""\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(users),
            "auth_user": "workq",  # asks the server for users that the file does not name
            "admin_users": "workq",
            "pool_mode": "transaction",
            "default_pool_size": "3",
            "max_client_conn": "300",
            "server_login_retry": "0.2",
        }
        settings |= dict(option.split("=", 1) for option in self.options)
        lines = [f"{name} = {value}" for name, value in settings.items()]
        self._ini.write_text(
            "\n".join(["[databases]", f"* = host=127.0.0.1 port={self._server.port}", "[pgbouncer]", *lines, ""])
        )

    @property
    def _ini(self) -> Path:
        return self.folder / "pgbouncer.ini"

    def _command(self) -> list[str]:
        return [self._program, str(self._ini)]

    def _answer(self) -> str | None:
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "workq", "-d", _ADMIN)
        ask = [self._psql, "--no-psqlrc", "--no-password", "-qAt", "-v", "ON_ERROR_STOP=1", *where]
        config = self._ask([*ask, "-c", "SHOW CONFIG"])
        if f"conffile|{self._ini}|" not in (config or ""):
            return None
        return (self._ask([*ask, "-c", "SHOW VERSION"]) or "").strip().removeprefix("PgBouncer ") or None


def start_pgbouncer(folder: Path | None = None, *, server: PostgreSQL, options: Sequence[str] = ()) -> PgBouncer:
    """Start a private PgBouncer; as `start_rabbitmq`, but `options` are settings such as `pool_mode=session`."""
    return PgBouncer(folder, options, server=server).first_start()
