"""Private RabbitMQ, Redis, PostgreSQL and MariaDB for tests: started here, seen by nobody else, gone afterwards.

    with start_redis() as redis:
        client = connect(redis.url)
        redis.kill()        # as if the machine lost power, but what the server wrote is kept
        redis.start()       # the same port, the same data

Each server runs the Debian binary in a folder of its own, on free loopback ports. No service of the machine is used,
started or stopped, and no configuration file of the machine is read. A server is ready only when the process that
answers on the port is proved to be ours, so a port that two runs chose at once leads to another try, never to somebody
else's server.

What happens on each failure:

- The binary is not installed: `ServerMissing`, naming the package. Nothing was started.
- The server ends while it starts, or never answers: `ServerFailed` with the last lines of its log. If it was the first
  start, nothing is left behind.
- The test process ends without `stop()`, even by SIGKILL: a guardian process, one for each server, waits on the pid of
  the test process, kills the server with all its children, and removes the folder. Only a SIGKILL of the guardian
  itself defeats that. (PR_SET_PDEATHSIG is not used: it fires when the *thread* that started the server ends.)

Durability is as in production (`fsync` on, append-only file on): what a server acknowledged survives `kill()`. A crash
of the machine is not simulated: the page cache survives.

This file is also the guardian's program, so it imports nothing of workq.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import psutil

__all__ = [
    "MariaDB",
    "PostgreSQL",
    "RabbitMQ",
    "Redis",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "start_mariadb",
    "start_postgres",
    "start_rabbitmq",
    "start_redis",
]

_PORT_TAKEN = re.compile(
    r"address already in use|eaddrinuse|port \d+ (?:is )?in use|already in use by another", re.IGNORECASE
)
_PORT_TRIES = 5
_ANSWER_LIMIT_S = 3.0
"""How long one question to a server that is starting may take."""

_STANDSTILL_S = 3.0
"""How long the threads of a process may run on after SIGSTOP; one that waits for a disk needs more than moments."""

_PATH = os.pathsep.join([os.defpath, "/usr/local/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"])


class ServerMissing(RuntimeError):
    """The server's binary is not on this machine. The message names the Debian package."""


class ServerFailed(RuntimeError):
    """The server could not be started, or a command to it failed. The message ends with the last lines of its log."""


class _PortTakenError(Exception):
    """Another process was faster on one of the ports."""


class Server(ABC):
    """One private server: a process, its ports and its folder, from `start_...()` until `stop()`.

    Not for use from several threads at once, nor from a forked child. As a context manager it stops at the block's end.

    Attributes:
        name: what it is, for people ("RabbitMQ").
        version: of the server that answers, for example "3.10.8".
        port: on 127.0.0.1; the same for the whole life of this object.
        folder: everything the server wrote; removed by `stop()`.
        log: the server's own messages.
    """

    name: ClassVar[str]
    _account: ClassVar[str | None] = None
    """The system account that runs the server when we are root, for servers that refuse root."""
    _end_signal: ClassVar[signal.Signals] = signal.SIGTERM
    _start_limit_s: ClassVar[float] = 60.0
    _end_limit_s: ClassVar[float] = 30.0

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        """Prepare the folder; start nothing. Use the `start_...()` functions."""
        self.version = ""
        self.port = 0
        self.options = tuple(options)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"workq-{self.name.lower()}-", dir=folder)).absolute()
        self.log = self.folder / "server.log"
        self._data = self.folder / "data"
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._helpers: list[subprocess.Popen[bytes]] = []  # outlive `kill()`, end with `stop()`
        self._guardian = _Guardian(self.folder)
        self._run_as = self._account if os.geteuid() == 0 else None
        self._own(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<{self.name} {self.version} on port {self.port}, {state}>"

    @property
    @abstractmethod
    def url(self) -> str:
        """Where a client connects, credentials included."""

    @property
    def pid(self) -> int:
        """The server's main process; of its last life when it is not running."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the main process exists. A paused server is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start on the same port and data, and return when it answers.

        Raises:
            ServerFailed: it ended or did not answer; it is not running now, its data is kept.
        """
        if self.is_running:
            raise RuntimeError(f"{self.name} is running already (pid {self.pid})")
        if not self.folder.exists():
            raise RuntimeError(f"{self.name} was stopped, and its folder is gone: start a new one")
        try:
            self._start()
        except _PortTakenError:
            raise self._failed("found its port taken by another process") from None

    def kill(self) -> None:
        """SIGKILL to the server and all its processes, and wait until they are gone. Data and port stay. Repeatable."""
        if self._process is not None:
            _kill_trees([self._process.pid] if self.is_running else [])
            self._process.wait()
        self._tell_guardian()

    def stop(self) -> None:
        """End the server (gracefully when it runs), then remove its folder. Repeatable."""
        self._end()
        self._end_helpers()
        _remove(self.folder)
        self._guardian.dismiss()

    def restart(self) -> None:
        """End the server gracefully and start it again: the same port and data."""
        self._end()
        self.start()

    def pause(self) -> None:
        """SIGSTOP to all its processes: connections stay open, nobody answers. `resume`, `kill` and `stop` end it.

        Returns when every thread stands still: on a busy machine some run on for a moment after the signal.
        """
        for process in self._tree():  # the parent first: it must not notice anything, nor start new children
            with suppress(psutil.NoSuchProcess):
                process.suspend()
                _await_standstill(process)

    def resume(self) -> None:
        """SIGCONT to all its processes, the children first."""
        for process in reversed(self._tree()):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def wipe(self) -> None:
        """Forget all data of a server that is not running; `start()` then gives a fresh one on the same port.

        Raises:
            RuntimeError: it is running. Call `kill()` first.
        """
        if self.is_running:
            raise RuntimeError(f"{self.name} is running (pid {self.pid}): kill it before its data is wiped")
        _remove(self._data)

    # What each server says about itself.

    @abstractmethod
    def _prepare(self) -> None:
        """Make the data folder usable. Called before each start; `_data` may be missing."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The program that becomes the server's main process: it must not fork away."""

    @abstractmethod
    def _answer(self) -> str | None:
        """The version, if a server answers on our port and is proved to be this process; None when not (yet)."""

    def _choose_ports(self) -> None:
        self.port = _free_port()

    def _environment(self) -> dict[str, str]:
        """Nothing is inherited: a PGPORT or RABBITMQ_NODENAME of the user's shell must not reach a private server."""
        return {"PATH": _PATH, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}

    # What is the same for all.

    def _first_start(self) -> None:
        for _ in range(_PORT_TRIES):
            self._choose_ports()
            try:
                self._start()
            except _PortTakenError:
                self._end_helpers()
                _remove(self._data)
                continue
            except BaseException:
                self.stop()
                raise
            return
        error = self._failed(f"found {_PORT_TRIES} ports taken")
        self.stop()
        raise error

    def _start(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._prepare()
        self._process = self._spawn(self._command())
        self._tell_guardian(self._process)
        deadline = time.monotonic() + self._start_limit_s
        try:
            while True:
                if _PORT_TAKEN.search(self._log_of_this_start()):  # RabbitMQ needs ten seconds to end after saying so
                    raise _PortTakenError
                if self._process.poll() is not None:
                    raise self._failed(f"ended with {self._process.returncode} while it started")
                version = self._answer()
                if version is not None:
                    self.version = version
                    return
                if time.monotonic() > deadline:
                    raise self._failed(f"did not answer within {self._start_limit_s:.0f} s")
                time.sleep(0.02)
        except BaseException:
            self.kill()
            raise

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own: a Ctrl-C at the terminal is for the tests, not for their servers."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment(),
                user=self._run_as,
                group=self._run_as,
                extra_groups=None if self._run_as is None else [],
                start_new_session=True,
            )

    def _prepare_with(self, command: Sequence[str]) -> None:
        """Run a program that makes the data folder, as the server's account. Its output goes to the log."""
        process = self._spawn(command)
        self._tell_guardian(process)
        try:
            status = process.wait(self._start_limit_s)
        except BaseException:
            _kill_trees([process.pid])
            process.wait()
            raise
        if status != 0:
            raise self._failed(f"could not make its data folder ({Path(command[0]).name} ended with {status})")

    def _ask(self, command: Sequence[str]) -> str | None:
        """What a client program printed, or None if it failed or took too long."""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, env=self._environment(), check=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
        return done.stdout

    def _tell(self, command: Sequence[str], *, limit_s: float = 60.0) -> str:
        """What a client program printed; an error of the program is raised with its own words."""
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, env=self._environment(), check=False
        )
        if done.returncode != 0:
            words = (done.stderr or done.stdout).strip()
            raise ServerFailed(f"{Path(command[0]).name} ended with {done.returncode}: {words}")
        return done.stdout

    def _end(self) -> None:
        """End the main process in the server's own orderly way, and by SIGKILL when that takes too long."""
        if self._process is not None and self.is_running:
            self.resume()  # a stopped process does not see the signal
            self._process.send_signal(self._end_signal)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._end_limit_s)
        self.kill()

    def _tree(self) -> list[psutil.Process]:
        if not self.is_running:
            raise RuntimeError(f"{self.name} is not running")
        return list(_with_children(self.pid))

    def _end_helpers(self) -> None:
        for helper in self._helpers:
            helper.kill()
            helper.wait()
        self._helpers.clear()

    def _tell_guardian(self, *main: subprocess.Popen[bytes]) -> None:
        self._guardian.watch([process.pid for process in (*main, *self._helpers) if process.poll() is None])

    def _own(self, folder: Path) -> None:
        if self._run_as is not None:
            shutil.chown(folder, self._run_as, self._run_as)

    def _log_of_this_start(self) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _failed(self, what: str) -> ServerFailed:
        lines = self._log_of_this_start().strip().splitlines()[-25:]
        return ServerFailed("\n    ".join([f"{self.name} {what}. Its last words:", *(lines or ["(none)"])]))


class Redis(Server):
    """A private Redis that appends to a file (fsync once a second) and never evicts, as production should.

    `kill()` keeps what was written before; `wipe()` and `start()` give the empty Redis that a lost disk leaves.
    """

    name = "Redis"

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        self._server = _find("redis-server", package="redis-server")
        self._cli = _find("redis-cli", package="redis-tools")
        super().__init__(folder, options)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        self._data.mkdir(exist_ok=True)

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._data),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "databases": "16",
        }
        return [self._server, *(word for key, value in settings.items() for word in (f"--{key}", value)), *self.options]

    def _answer(self) -> str | None:
        # Without PING first: INFO is answered while the data is still being loaded, `loading` says so.
        told = self._ask([self._cli, "-h", "127.0.0.1", "-p", str(self.port), *self._login(), "INFO"])
        facts = dict(line.split(":", 1) for line in (told or "").splitlines() if ":" in line)
        if facts.get("process_id") != str(self.pid) or facts.get("loading") != "0":
            return None
        return facts["redis_version"]

    def _login(self) -> list[str]:
        """A password among the options must not lock us out."""
        words = dict(zip(self.options, self.options[1:], strict=False))
        return ["--no-auth-warning", "-a", words["--requirepass"]] if "--requirepass" in words else []


class PostgreSQL(Server):
    """A private PostgreSQL with one superuser, `workq`, trusted without a password, and one database, `workq`.

    It refuses to run as root, so under root it runs as the account `postgres` that the Debian package makes; then the
    folder's parents must be open to that account (pytest's own `tmp_path` is not; the default is).
    """

    name = "PostgreSQL"
    _account = "postgres"
    _end_signal = signal.SIGINT  # "fast": does not wait for clients to leave

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        newest_first = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _number(path.parent.name))[
            ::-1
        ]
        self._server = _find("postgres", package="postgresql", places=newest_first)
        programs = [Path(self._server).resolve().parent]
        self._initdb = _find("initdb", package="postgresql", places=programs)
        self._psql = _find("psql", package="postgresql-client", places=programs)
        super().__init__(folder, options)

    @property
    def url(self) -> str:
        return self._url("workq")

    def create_database(self, name: str | None = None) -> str:
        """Make an empty database and return its URL. The name: a letter, then letters, digits, underscores; or new."""
        name = name or f"db_{secrets.token_hex(6)}"
        self._tell([*self._client("postgres"), "-c", f'CREATE DATABASE "{_checked(name)}"'])
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql://workq@127.0.0.1:{self.port}/{database}"

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


class MariaDB(Server):
    """A private MariaDB with the user `workq` (password `workq`, all rights) and the database `workq`.

    Debian ships MariaDB where MySQL is asked for; what holds only for MySQL is tested with the compose file.
    """

    name = "MariaDB"
    _account = "mysql"

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        self._server = _find("mariadbd", package="mariadb-server")
        self._install = _find("mariadb-install-db", package="mariadb-server")
        self._client_program = _find("mariadb", package="mariadb-client")
        super().__init__(folder, options)

    @property
    def url(self) -> str:
        return self._url("workq")

    def create_database(self, name: str | None = None) -> str:
        """Make an empty database and return its URL. The name: a letter, then letters, digits, underscores; or new."""
        name = name or f"db_{secrets.token_hex(6)}"
        self._tell([*self._client(), "-e", f"CREATE DATABASE `{_checked(name)}` CHARACTER SET utf8mb4"])
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"mysql://workq:workq@127.0.0.1:{self.port}/{database}"

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


class RabbitMQ(Server):
    """A private RabbitMQ node without plugins: `guest` / `guest` on 127.0.0.1, two schedulers, its own epmd.

    Debian's command drops root for the account `rabbitmq` and reads /etc; this calls the server's own script instead,
    which `exec`s the Erlang machine: `pid` is the broker itself. epmd (Erlang's port mapper) is our child as well, on a
    port of its own; it outlives `kill()` and ends with `stop()`.

    RabbitMQ 3.10 writes the name of a new quorum queue to disk a second after it confirmed the declaration. A queue
    that a `kill()` caught in that second comes back dead: declaring it succeeds, every other operation hangs for 30 to
    65 s and ends with 541, and only deleting it helps. `wait_registered()` is for tests that are not about that.
    """

    name = "RabbitMQ"

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        scripts = [Path("/usr/lib/rabbitmq/bin")]
        self._server = _find("rabbitmq-server", package="rabbitmq-server", places=scripts)
        self._ctl = _find("rabbitmqctl", package="rabbitmq-server", places=scripts)
        self._epmd = _find("epmd", package="erlang-base")
        self._dist_port = 0
        self._epmd_port = 0
        super().__init__(folder, options)
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (self.folder / "rabbitmq-env.conf").touch()
        (self.folder / "enabled_plugins").write_text("[].\n")

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def node(self) -> str:
        """The Erlang node's name; the data on disk belongs to it."""
        return f"workq-{self.port}@localhost"

    def ctl(self, *args: str) -> str:
        """Run `rabbitmqctl` against this node and return what it printed. Takes half a second.

        Raises:
            ServerFailed: the command failed; its message is included.
        """
        if not self.is_running:
            raise RuntimeError(f"{self.name} is not running: rabbitmqctl would start an epmd that nobody ends")
        return self._tell([self._ctl, "--quiet", *args])

    def wait_registered(self, queue: str) -> None:
        """Return when a quorum queue of the default virtual host, just declared, is sure to survive `kill()`."""
        names = self._data / self.node / "quorum" / self.node / "names.dets"
        deadline = time.monotonic() + self._start_limit_s
        while f"%2F_{queue}".encode() not in names.read_bytes():
            if time.monotonic() > deadline:
                raise self._failed(f"has no quorum queue {queue!r} on disk")
            time.sleep(0.02)

    def _choose_ports(self) -> None:
        self.port, self._dist_port, self._epmd_port = _free_port(), _free_port(), _free_port()

    def _prepare(self) -> None:
        self._data.mkdir(exist_ok=True)
        settings = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            "log.console = true",
            "log.console.use_colors = off",
            "log.file = false",
            *self.options,
        ]
        (self.folder / "rabbitmq.conf").write_text("\n".join([*settings, ""]))
        if all(helper.poll() is not None for helper in self._helpers):
            self._start_epmd()

    def _start_epmd(self) -> None:
        """Without a running epmd the broker would start one that survives it."""
        epmd = self._spawn([self._epmd, "-port", str(self._epmd_port), "-address", "127.0.0.1"])
        self._helpers = [epmd]
        self._tell_guardian()
        deadline = time.monotonic() + _ANSWER_LIMIT_S
        while not _listens(self._epmd_port, epmd.pid):
            if epmd.poll() is not None:
                raise _PortTakenError
            if time.monotonic() > deadline:
                raise self._failed("has an epmd that does not listen")
            time.sleep(0.01)

    def _command(self) -> list[str]:
        return [self._server]

    def _environment(self) -> dict[str, str]:
        mine = {
            "ERL_CRASH_DUMP_BYTES": "0",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),  # does not exist; /etc has one
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_CTL_DIST_PORT_MAX": "0",  # any free port: the default is a range of eleven
            "RABBITMQ_CTL_DIST_PORT_MIN": "0",
            "RABBITMQ_CTL_ERL_ARGS": "+S 1:1 +sbwt none",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(self._data),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_PLUGINS_EXPAND_DIR": str(self.folder / "plugins"),
            "RABBITMQ_SCHEDULER_BIND_TYPE": "u",  # do not bind to cores: several private nodes may share two
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 -kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": "true",  # makes the script exec the Erlang machine, and SIGTERM orderly
        }
        return super()._environment() | mine

    def _answer(self) -> str | None:
        """Ask for an AMQP connection, and leave at the greeting: it names the node, and comes after the boot."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=_ANSWER_LIMIT_S) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                greeting = connection.recv(4096)
        except OSError:
            return None
        if not greeting.startswith(b"\x01") or f"workq-{self.port}@".encode() not in greeting:
            return None
        home = Path(self._server).resolve().parent.parent.name
        return home.rpartition("-")[2]


_AnyServer = TypeVar("_AnyServer", bound=Server)


def start_rabbitmq(folder: Path | None = None, *, options: Sequence[str] = ()) -> RabbitMQ:
    """Start a private RabbitMQ.

    Args:
        folder: where its own folder is made; the system's temporary folder by default.
        options: more lines for its rabbitmq.conf, for example `consumer_timeout = 10000`.

    Raises:
        ServerMissing: it is not installed.
        ServerFailed: it could not be started.
    """
    return _started(RabbitMQ(folder, options))


def start_redis(folder: Path | None = None, *, options: Sequence[str] = ()) -> Redis:
    """Start a private Redis; as `start_rabbitmq`, but `options` are arguments of redis-server, and win over ours."""
    return _started(Redis(folder, options))


def start_postgres(folder: Path | None = None, *, options: Sequence[str] = ()) -> PostgreSQL:
    """Start a private PostgreSQL; as `start_rabbitmq`, but `options` are arguments of postgres, and win over ours."""
    return _started(PostgreSQL(folder, options))


def start_mariadb(folder: Path | None = None, *, options: Sequence[str] = ()) -> MariaDB:
    """Start a private MariaDB; as `start_rabbitmq`, but `options` are arguments of mariadbd, and win over ours."""
    return _started(MariaDB(folder, options))


def _started(server: _AnyServer) -> _AnyServer:
    server._first_start()
    return server


# Programs, ports, folders.


def _find(program: str, *, package: str, places: Sequence[Path] = ()) -> str:
    path = shutil.which(program, path=os.pathsep.join([*map(str, places), os.environ.get("PATH", ""), _PATH]))
    if path is None:
        raise ServerMissing(f"{program} is not installed: apt-get install {package}")
    return path


def _free_port() -> int:
    """A port on 127.0.0.1 that nobody uses now, below the range that the kernel hands to outgoing connections.

    From that range, a client that reconnects to a killed server would sooner or later be given the server's own port as
    its local one, connect to itself, and keep the server from coming back.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_000, first_outgoing)
    for _ in range(1000 if ports else 0):
        port = _RANDOM.choice(ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    with socket.socket() as probe:  # a machine whose outgoing range leaves nothing: take what the kernel gives
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_RANDOM = random.SystemRandom()
"""Not the shared generator: test plugins seed it, and two runs with one seed would fight for the same ports."""


def _listens(port: int, pid: int) -> bool:
    """Whether this very process listens on the port."""
    try:
        connections = psutil.Process(pid).net_connections("inet")
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr[1] == port for one in connections)


def _remove(folder: Path) -> None:
    """Remove a folder and what the kernel keeps for a PostgreSQL that was killed in it (one small System V segment)."""
    for lock in (folder / "postmaster.pid", folder / "data" / "postmaster.pid"):
        with suppress(OSError, IndexError):
            segment = lock.read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", segment], capture_output=True, check=False)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", name):
        raise ValueError(f"{name!r} is no name for a database: a letter, then letters, digits and underscores")
    return name


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


# Processes.


def _await_standstill(process: psutil.Process) -> None:
    """Until all threads of a process that got SIGSTOP are stopped, or it is gone."""
    deadline = time.monotonic() + _STANDSTILL_S
    while not all(_is_still(process.pid, thread.id) for thread in process.threads()) and time.monotonic() < deadline:
        time.sleep(0.001)


def _is_still(pid: int, thread: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
    except OSError:
        return True  # it has ended
    return status.rpartition(")")[2].split()[0] in "TtZX"


def _with_children(pid: int) -> Iterator[psutil.Process]:
    """The process and everything under it, the process first. Nothing if it is gone."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        yield root
        yield from root.children(recursive=True)


def _kill_trees(pids: Iterable[int]) -> None:
    """SIGKILL these processes and everything under them, and wait until all are gone.

    Each root is stopped before its children are listed: it can neither start another one nor react to their deaths.
    """
    doomed: list[psutil.Process] = []
    for pid in pids:
        for process in _with_children(pid):
            with suppress(psutil.NoSuchProcess):
                if process.pid == pid:
                    process.suspend()
                doomed.append(process)
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + 10.0
    while any(map(_is_alive, doomed)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class _Guardian:
    """A process that outlives us by a moment, to end our server and remove its folder when we could not.

    It is told which processes are the server's. It learns of our death from a pidfd: no signal, no thread is involved.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(os.getpid()), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def watch(self, pids: Sequence[int]) -> None:
        """From now on these processes, and only these, are the server's."""
        self._say(" ".join(map(str, pids)))

    def dismiss(self) -> None:
        """The server is stopped and the folder is gone: nothing is left to guard. Repeatable."""
        if self._process.poll() is None:
            self._say("dismissed")
            self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def _say(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.write(f"{line}\n".encode())
                pipe.flush()


def _guard(parent_pid: int, folder: Path) -> None:
    """The guardian's life: until it is dismissed, or its parent dies and everything of it is cleared away."""
    parent = _pidfd_of_parent(parent_pid)
    guarded: Mapping[int, psutil.Process] = {}
    waiting = select.poll()
    waiting.register(sys.stdin, select.POLLIN)
    if parent is not None:
        waiting.register(parent, select.POLLIN)
    heard = b""
    while True:
        ready = {fd for fd, _ in waiting.poll(0 if parent is None else None)}
        if sys.stdin.fileno() in ready:
            heard += (chunk := os.read(sys.stdin.fileno(), 4096))
            if not chunk:
                waiting.unregister(sys.stdin)
            *lines, heard = heard.split(b"\n")
            if b"dismissed" in lines:
                return
            if lines:
                guarded = _known(lines[-1].split())
        elif parent is None or parent in ready:  # only after everything that it said was heard
            _kill_trees(pid for pid, process in guarded.items() if process.is_running())
            _remove(folder)
            return


def _pidfd_of_parent(parent_pid: int) -> int | None:
    """A descriptor that becomes readable when the parent ends; None if it ended before we looked."""
    try:
        descriptor = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        return None
    return descriptor if os.getppid() == parent_pid else None


def _known(pids: Iterable[bytes]) -> dict[int, psutil.Process]:
    """Processes as they are now: a pid that is used again later is another process."""
    found: dict[int, psutil.Process] = {}
    for pid in map(int, pids):
        with suppress(psutil.NoSuchProcess):
            found[pid] = psutil.Process(pid)
    return found


if __name__ == "__main__":
    _guard(int(sys.argv[1]), Path(sys.argv[2]))
