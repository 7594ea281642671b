"""Private MariaDB, PostgreSQL, and PgBouncer in front of it: their programs, their settings, how each shows that it is
ours.

They share a user and a database named `workq`, and make more databases on demand.
"""

from __future__ import annotations

import re
import secrets
import signal
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from workq.lab.servers.programs import Programs, find_program, is_chosen
from workq.lab.servers.server import Server

_ADMIN: Final = "pgbouncer"
"""The name of the database in which PgBouncer answers for itself."""


class DatabaseServer(Server):
    """A private SQL server. A subclass says how to reach a database, and how to make one."""

    @property
    def url(self) -> str:
        return self._url("workq")

    def create_database(self, name: str | None = None) -> str:
        """Make an empty database and return its URL. The name: a letter, then letters, digits, underscores; or new."""
        name = name or f"db_{secrets.token_hex(6)}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", name):
            raise ValueError(f"{name!r} is no name for a database: a letter, then letters, digits and underscores")
        self._create_database(name)
        return self._url(name)

    @abstractmethod
    def _url(self, database: str) -> str:
        """Where a client connects to this database of the server."""

    @abstractmethod
    def _create_database(self, name: str) -> None:
        """Make it on the running server. The name is checked: it may stand in quotes in a statement."""


class MariaDB(DatabaseServer):
    """A private MariaDB with the user `workq` (password `workq`, all rights) and the database `workq`.

    Debian ships MariaDB where MySQL is asked for; MySQL itself is in its unstable suite alone (programs.py).
    """

    name = "MariaDB"
    _account = "mysql"
    _package = "mariadb-server"
    _server_program = "mariadbd"
    _install_program = "mariadb-install-db"
    _asking_program = "mariadb"
    _without: tuple[str, ...] = ()
    """Which parts of the server are left out, unless the options say otherwise."""

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        self._server = find_program(self._server_program, package=self._package)
        self._install = find_program(self._install_program, package=self._package)
        self._client_program = find_program(self._asking_program, package=self._package)
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
        self._prepare_with(self._installation())

    def _installation(self) -> list[str]:
        """The command that makes the data folder."""
        return [
            *(self._install, "--no-defaults", f"--datadir={self._data}", "--skip-test-db", "--skip-name-resolve"),
            *("--auth-root-authentication-method=normal", *self._storage(), "--skip-innodb-doublewrite"),
        ]

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
            *(f"--init-file={self.folder / 'first.sql'}", *self._storage(), *self._without, *self.options),
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


class MySQL(MariaDB):
    """A private MySQL, in the place of MariaDB and with the same user and database."""

    name = "MySQL"
    _package = "mysql-server"
    _server_program = _install_program = "mysqld"
    _asking_program = "mysql"
    _without = ("--mysqlx=OFF", "--disable-log-bin")  # MariaDB has no binary log by default

    def _installation(self) -> list[str]:
        return [self._install, "--no-defaults", "--initialize-insecure", f"--datadir={self._data}", *self._storage()]

    def _storage(self) -> list[str]:
        return ["--innodb-buffer-pool-size=64M", "--innodb-redo-log-capacity=32M", "--secure-file-priv="]


def start_mariadb(folder: Path | None = None, *, options: Sequence[str] = ()) -> MariaDB:
    """Start a private MariaDB; as `start_rabbitmq`, but `options` are arguments of mariadbd, and win over ours.

    A MySQL where the environment says so (programs.py).
    """
    return (MySQL if is_chosen("mysql") else MariaDB)(folder, options).first_start()


class PostgreSQL(DatabaseServer):
    """A private PostgreSQL with one superuser, `workq`, trusted without a password, and one database, `workq`.

    It refuses to run as root, so under root it runs as the account `postgres` that the Debian package makes; then the
    folder's parents must be open to that account (pytest's own `tmp_path` is not; the default is).
    """

    name = "PostgreSQL"
    _account = "postgres"
    _end_signal = signal.SIGINT  # "fast": does not wait for clients to leave

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        versions = sorted(
            Programs.chosen().folders("usr/lib/postgresql/*/bin"), key=lambda path: _number(path.parent.name)
        )
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
