"""What all private servers share: a process in a folder of its own, from its start until it answers, to its end.

A subclass says what its program is, which files it wants, and how to tell that the one who answers is our process.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

import psutil

from workq.lab import standstill
from workq.lab.servers.guardian import Guardian, kill_trees, remove, with_children
from workq.lab.servers.programs import PATH, Programs

ANSWER_LIMIT_S = 3.0
"""How long one question to a server that is starting may take."""
COMMAND_LIMIT_S = 180.0
"""How long one command of an operator may take: `rabbitmqctl` has needed more than a minute on a busy machine."""

_PORT_TAKEN = re.compile(
    r"address already in use|eaddrinuse|port \d+ (?:is )?in use|already in use by another"
    r"|could not bind to distribution port",  # RabbitMQ's, for other nodes
    re.IGNORECASE,
)
_PORT_TRIES = 5

_RANDOM = random.SystemRandom()
"""Not the shared generator: test plugins seed it, and two runs with one seed would fight for the same ports."""


def free_port() -> int:
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


def listens(port: int, pid: int) -> bool:
    """Whether this very process listens on the port."""
    with socket.socket() as probe:  # to list the sockets of a process takes milliseconds, and a start looks often
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
    try:
        connections = psutil.Process(pid).net_connections("inet")
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr[1] == port for one in connections)


class ServerFailed(RuntimeError):
    """The server could not be started, or a command to it failed. The message ends with the last lines of its log."""


class PortTakenError(Exception):
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

    name: str
    _account: ClassVar[str | None] = None
    """The system account that runs the server when we are root, for servers that refuse root."""
    _is_packaged: ClassVar[bool] = True
    """Else the Java of this machine runs it, also where the other servers are those of another Debian."""
    _end_signal: ClassVar[signal.Signals] = signal.SIGTERM
    _start_limit_s: ClassVar[float] = 120.0
    _end_limit_s: ClassVar[float] = 30.0

    def __init__(self, folder: Path | None, options: Sequence[str]) -> None:
        """Prepare the folder; start nothing. Use the `start_...()` functions."""
        self._programs = Programs.chosen() if self._is_packaged else Programs()
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
        self._guardian = Guardian(self.folder)
        self._run_as = self._programs.account(self._account) if self._account and os.geteuid() == 0 else None
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

    def first_start(self) -> Self:
        """Choose free ports and start on them; others, when somebody was faster. For the `start_...()` functions.

        Raises:
            ServerFailed: it ended or did not answer, or no port stayed free; nothing is left of it.
        """
        for _ in range(_PORT_TRIES):
            self._choose_ports()
            try:
                self._start()
            except PortTakenError:
                self._end_helpers()
                remove(self._data)
                continue
            except BaseException:  # an interrupt too: no server is left behind
                self.stop()
                raise
            return self
        error = self._failed(f"found {_PORT_TRIES} ports taken")
        self.stop()
        raise error

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
        except PortTakenError:
            raise self._failed("found its port taken by another process") from None

    def kill(self) -> None:
        """SIGKILL to the server and all its processes, and wait until they are gone. Data and port stay. Repeatable."""
        if self._process is not None:
            kill_trees([self._process.pid] if self.is_running else [])
            self._process.wait()
        self._tell_guardian()

    def stop(self) -> None:
        """End the server (gracefully when it runs), then remove its folder. Repeatable."""
        self._end()
        self._end_helpers()
        remove(self.folder)
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
                standstill.stop(process)

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
        remove(self._data)

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
        self.port = free_port()

    def _environment(self) -> dict[str, str]:
        """Nothing is inherited: a PGPORT or RABBITMQ_NODENAME of the user's shell must not reach a private server.

        Nor is the folder for temporary files shared: a MariaDB that starts removes those of all others that it finds.
        """
        return {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": str(self.folder), "TMPDIR": str(self.folder)}

    # What is the same for all.

    def _start(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._prepare()
        self._process = self._spawn(self._command())
        self._tell_guardian(self._process)
        deadline = time.monotonic() + self._start_limit_s
        try:
            while True:
                if _PORT_TAKEN.search(self._log_of_this_start()):  # RabbitMQ needs ten seconds to end after saying so
                    raise PortTakenError
                if self._process.poll() is not None:
                    raise self._failed(f"ended with {self._process.returncode} while it started")
                version = self._answer()
                if version is not None:
                    self.version = version
                    return
                if time.monotonic() > deadline:
                    raise self._failed(f"did not answer within {self._start_limit_s:.0f} s")
                time.sleep(0.02)
        except BaseException:  # as above
            self.kill()
            raise

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own: a Ctrl-C at the terminal is for the tests, not for their servers."""
        user, group = (None, None) if self._run_as is None or self._programs.root else self._run_as
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._programs.command(command, run_as=self._run_as),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment(),
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                start_new_session=True,
            )

    def _prepare_with(self, command: Sequence[str]) -> None:
        """Run a program that makes the data folder, as the server's account. Its output goes to the log."""
        process = self._spawn(command)
        self._tell_guardian(process)
        try:
            status = process.wait(self._start_limit_s)
        except BaseException:  # as above
            kill_trees([process.pid])
            process.wait()
            raise
        if status != 0:
            raise self._failed(f"could not make its data folder ({Path(command[0]).name} ended with {status})")

    def _ask(self, command: Sequence[str]) -> str | None:
        """What a client program printed, or None if it failed or took too long."""
        try:
            done = subprocess.run(
                self._programs.command(command),
                capture_output=True,
                text=True,
                timeout=ANSWER_LIMIT_S,
                env=self._environment(),
                check=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
        return done.stdout

    def _tell(self, command: Sequence[str], *, limit_s: float = COMMAND_LIMIT_S, read: str | None = None) -> str:
        """What a client program printed, which found this to read; an error of it is raised with its own words."""
        done = subprocess.run(
            self._programs.command(command),
            input=read,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=self._environment(),
            check=False,
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
        return list(with_children(self.pid))

    def _end_helpers(self) -> None:
        for helper in self._helpers:
            helper.kill()
            helper.wait()
        self._helpers.clear()

    def _tell_guardian(self, *main: subprocess.Popen[bytes]) -> None:
        self._guardian.watch([process.pid for process in (*main, *self._helpers) if process.poll() is None])

    def _own(self, folder: Path) -> None:
        if self._run_as is not None:
            os.chown(folder, *self._run_as)

    def _log_of_this_start(self) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _failed(self, what: str) -> ServerFailed:
        # a program that gives up may fill half of them with advice
        lines = self._log_of_this_start().strip().splitlines()[-60:]
        return ServerFailed("\n    ".join([f"{self.name} {what}. Its last words:", *(lines or ["(none)"])]))
