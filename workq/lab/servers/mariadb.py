"""A private MariaDB: its programs, its settings, and how it shows that it is ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workq.lab.servers.database import DatabaseServer
from workq.lab.servers.server import find_program


class MariaDB(DatabaseServer):
    """A private MariaDB with the user `workq` (password `workq`, all rights) and the database `workq`.

    Debian ships MariaDB where MySQL is asked for; what holds only for MySQL is tested with the compose file.
    """

    name = "MariaDB"
    _account = "mysql"

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        self._server = find_program("mariadbd", package="mariadb-server")
        self._install = find_program("mariadb-install-db", package="mariadb-server")
        self._client_program = find_program("mariadb", package="mariadb-client")
        super().__init__(folder, options)

    def _url(self, database: str) -> str:
        return f"mysql://workq:workq@127.0.0.1:{self.port}/{database}"

    def _create_database(self, name: str) -> None:
        self._tell([*self._client(), "-e", f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4"])

    def _prepare(self) -> None:
        first = self.folder / "first.sql"  # run at each start, before anybody can connect; repeatable
        first.write_text(
            "CREATE DATABASE IF NOT EXISTS workq CHARACTER SET utf8mb4;\n"
            "CREATE USER IF NOT EXISTS workq@'%' IDENTIFIED BY 'workq';\n"
            "GRANT ALL ON *.* TO workq@'%' WITH GRANT OPTION;\n"
        )
        if (self._data / "mysql").exists():
            return
        self._prepare_with(
            [
                *(self._install, "--no-defaults", f"--datadir={self._data}", "--skip-test-db", "--skip-name-resolve"),
                *("--auth-root-authentication-method=normal", *self._storage(), "--skip-innodb-doublewrite"),
            ]
        )

    def _command(self) -> list[str]:
        return [
            *(
                self._server,
                "--no-defaults",
                f"--datadir={self._data}",
                "--socket=private.sock",
                "--pid-file=private.pid",
            ),
            *("--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve", "--max-connections=200"),
            *(f"--init-file={self.folder / 'first.sql'}", *self._storage(), *self.options),
        ]

    def _storage(self) -> list[str]:
        return ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M"]

    def _answer(self) -> str | None:
        told = self._ask([*self._client(), "-e", "SELECT @@datadir, VERSION()"])
        datadir, _, version = (told or "").strip().partition("\t")
        if datadir.rstrip("/") != str(self._data):
            return None
        return version.partition("-")[0]

    def _client(self) -> list[str]:
        where = ("--protocol=tcp", "--host=127.0.0.1", f"--port={self.port}", "--user=workq", "--password=workq")
        return [self._client_program, "--no-defaults", *where, "--batch", "--skip-column-names"]


def start_mariadb(folder: Path | None = None, *, options: Sequence[str] = ()) -> MariaDB:
    """Start a private MariaDB; as `start_rabbitmq`, but `options` are arguments of mariadbd, and win over ours."""
    return MariaDB(folder, options).first_start()
