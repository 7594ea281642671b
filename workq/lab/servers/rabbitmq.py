"""A private RabbitMQ: a node and its epmd, their settings, and how the node shows that it is ours."""

from __future__ import annotations

import re
import secrets
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from workq.lab.servers import server
from workq.lab.servers.place import NetworkPlace
from workq.lab.servers.programs import find_program
from workq.lab.servers.rabbitmq_home import link_plugins
from workq.lab.servers.rabbitmq_operator import RabbitMQOperator
from workq.lab.servers.server import ANSWER_LIMIT_S, COMMAND_LIMIT_S, PortTakenError, Server, ServerFailed

_LISTENER: Final = re.compile(r"(?:(?:stomp\.)?listeners\.ssl\.\d+|management\.tcp\.port)\s*=\s*(?:[\d.]+:)?(\d+)")


class RabbitMQ(Server):
    """A private RabbitMQ node: `guest` / `guest` on 127.0.0.1, two schedulers, its own epmd, no plugins but STOMP's.

    Debian's command drops root for the account `rabbitmq` and reads /etc; this calls the server's own script instead,
    which `exec`s the Erlang machine: `pid` is the broker itself. epmd (Erlang's port mapper) is our child as well, on a
    port of its own; it outlives `kill()` and ends with `stop()`.

    RabbitMQ 3.10 writes the name of a new quorum queue to disk a second after it confirmed the declaration. A queue
    that a `kill()` caught in that second comes back dead: declaring it succeeds, every other operation hangs for 30 to
    65 s and ends with 541, and only deleting it helps. `wait_registered()` is for tests that are not about that.
    """

    name = "RabbitMQ"

    def __init__(
        self,
        folder: Path | None,
        options: Sequence[str],
        *,
        with_stomp: bool = False,
        plugins: Sequence[str] = (),
        cookie: str | None = None,
        place: NetworkPlace | None = None,
    ) -> None:
        """`plugins`: more of them, beside STOMP's.

        `cookie`: the secret that the nodes of a cluster share; by default one of its own.
        """
        self.place = place or NetworkPlace()
        scripts = [Path("/usr/lib/rabbitmq/bin")]
        self._server = find_program("rabbitmq-server", package="rabbitmq-server", places=scripts)
        self._ctl = find_program("rabbitmqctl", package="rabbitmq-server", places=scripts)
        self._epmd = find_program("epmd", package="erlang-base")
        self._dist_port = 0
        self._epmd_port = 0
        self._with_stomp = with_stomp
        self.stomp_port = 0
        super().__init__(folder, options)
        self._programs = replace(self._programs, enter=self.place.enter)
        secret = self.folder / ".erlang.cookie"
        secret.write_text(cookie or secrets.token_hex(16))
        secret.chmod(0o400)
        enabled = [*plugins, *(["rabbitmq_stomp"] if with_stomp else [])]
        (self.folder / "enabled_plugins").write_text(f"[{','.join(enabled)}].\n")
        (self.folder / "rabbitmq-env.conf").write_text(self._settle_home(enabled))

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.place.address}:{self.port}/"

    @property
    def stomp_url(self) -> str:
        """Where a client of STOMP connects; only where it was asked for."""
        return f"stomp://guest:guest@127.0.0.1:{self.stomp_port}"

    @property
    def node(self) -> str:
        """The Erlang node's name; the data on disk belongs to it."""
        return f"workq-{self.port}@{self.place.host}"

    def ctl(self, *args: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        """Run `rabbitmqctl` against this node and return what it printed. Takes half a second; `operator` does not.

        Raises:
            ServerFailed: the command failed; its message is included.
        """
        if not self.is_running:
            raise RuntimeError(f"{self.name} is not running: rabbitmqctl would start an epmd that nobody ends")
        return self._tell([self._ctl, "--quiet", *args], limit_s=limit_s)

    @property
    def operator(self) -> RabbitMQOperator:
        """What an operator may do to this node."""
        return RabbitMQOperator(self.evaluate)

    def evaluate(self, expression: str, *, limit_s: float = COMMAND_LIMIT_S) -> str:
        """Have this node evaluate an Erlang expression, which ends with a full stop; what that is.

        As `rabbitmqctl eval` does it, but by a program in C, in some milliseconds instead of half a second.

        Raises:
            ServerFailed: it failed; the reason is included. ServerMissing: that program is not installed.
        """
        if not self.is_running:
            raise RuntimeError(f"{self.name} is not running: there is nobody to evaluate anything")
        call = find_program("erl_call", package="erlang-base")
        cookie = (self.folder / ".erlang.cookie").read_text()
        there = f"{self.place.address}:{self._dist_port}"
        said = self._tell([call, "-c", cookie, "-address", there, "-e"], limit_s=limit_s, read=f"{expression}\n")
        done = re.fullmatch(r"\{ok, (.*)\}", said.strip(), re.DOTALL)
        if done is None:
            raise ServerFailed(f"{self.name} did not evaluate {expression}: {said.strip()}")
        return done[1]

    def wait_registered(self, queue: str) -> None:
        """Return when a quorum queue of the default virtual host, just declared, is sure to survive `kill()`."""
        names = self._data / self.node / "quorum" / self.node / "names.dets"
        deadline = time.monotonic() + self._start_limit_s
        while f"%2F_{queue}".encode() not in names.read_bytes():
            if time.monotonic() > deadline:
                raise self._failed(f"has no quorum queue {queue!r} on disk")
            time.sleep(0.02)

    def _more_ports(self) -> list[int]:
        """Those of STOMP, of TLS and of the management API, where they are asked for: RabbitMQ 4 greets before them."""
        found = (_LISTENER.fullmatch(option) for option in self.options)
        return [*filter(None, [self.stomp_port]), *(int(one[1]) for one in found if one)]

    @property
    def _installed(self) -> Path:
        """The home that the server's script has, as we see it."""
        return self._programs.seen_from_here(Path(self._server)).resolve().parent.parent

    def _settle_home(self, enabled: Sequence[str]) -> str:
        """Make a home with the plugins that are needed; the line that tells the script of it.

        Nothing, where RabbitMQ is not installed as Debian does it: then it has its own home, and sees all of them.
        """
        home = self.folder / "home"
        for plugins in self._programs.folders(f"usr/lib/rabbitmq/lib/{self._installed.name}/plugins"):
            link_plugins(home / "plugins", plugins, enabled, seen=self._programs.seen_from_here)
            return f"RABBITMQ_HOME={shlex.quote(str(home))}\n"
        return ""

    def _choose_ports(self) -> None:
        self.port, self._dist_port, self._epmd_port = server.free_port(), server.free_port(), server.free_port()
        self.stomp_port = server.free_port() if self._with_stomp else 0

    def _prepare(self) -> None:
        self._data.mkdir(exist_ok=True)
        settings = [
            f"listeners.tcp.1 = {self.place.address}:{self.port}",
            "log.console = true",
            "log.console.use_colors = off",
            "log.file = false",
            *([f"stomp.listeners.tcp.1 = 127.0.0.1:{self.stomp_port}"] if self._with_stomp else []),
            *self.options,
        ]
        (self.folder / "rabbitmq.conf").write_text("\n".join([*settings, ""]))
        if self.place.hosts:
            known = [f'{{host, {_tuple(address)}, ["{name}"]}}.' for name, address in self.place.hosts]
            self._hosts.write_text("\n".join(["{lookup, [file]}.", *known, ""]))
        if all(helper.poll() is not None for helper in self._helpers):
            self._start_epmd()

    def _start_epmd(self) -> None:
        """Without a running epmd the broker would start one that survives it."""
        epmd = self._spawn([self._epmd, "-port", str(self._epmd_port), "-address", self.place.address])
        self._helpers = [epmd]
        self._tell_guardian()
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while not self.place.listens(self._epmd_port, epmd.pid):
            if epmd.poll() is not None:
                raise PortTakenError
            if time.monotonic() > deadline:
                raise self._failed("has an epmd that does not listen")
            time.sleep(0.01)

    @property
    def _hosts(self) -> Path:
        """Where Erlang finds the addresses of hosts."""
        return self.folder / "hosts.erl"

    def _command(self) -> list[str]:
        return [self._server]

    def _environment(self) -> dict[str, str]:
        mine = {
            "ERL_CRASH_DUMP_BYTES": "0",
            "ERL_EPMD_ADDRESS": self.place.address,
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
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"+S 2:2 -kernel inet_dist_use_interface {_tuple(self.place.address)}"
            ),
            "RUNNING_UNDER_SYSTEMD": "true",  # makes the script exec the Erlang machine, and SIGTERM orderly
        }
        if self.place.hosts:
            mine["ERL_INETRC"] = str(self._hosts)
        return super()._environment() | mine

    def _answer(self) -> str | None:
        """Ask for an AMQP connection, and leave at the greeting: it names the node, and comes after the boot."""
        try:
            with socket.create_connection((self.place.address, self.port), timeout=ANSWER_LIMIT_S) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                greeting = connection.recv(4096)
        except OSError:
            return None
        if not greeting.startswith(b"\x01") or not self._greets(greeting):
            return None
        if not all(self.place.listens(port, self.pid) for port in self._more_ports()):
            return None
        return self._installed.name.rpartition("-")[2]

    def _greets(self, greeting: bytes) -> bool:
        """Whether it is this node that says so: its name is in the greeting."""
        return f"workq-{self.port}@".encode() in greeting


def _tuple(address: str) -> str:
    """An address, as Erlang writes it."""
    return f"{{{address.replace('.', ',')}}}"


def start_rabbitmq(
    folder: Path | None = None, *, options: Sequence[str] = (), with_stomp: bool = False, plugins: Sequence[str] = ()
) -> RabbitMQ:
    """Start a private RabbitMQ.

    Args:
        folder: where its own folder is made; the system's temporary folder by default.
        options: more lines for its rabbitmq.conf, for example `consumer_timeout = 10000`.
        with_stomp: it speaks STOMP, too, on `stomp_port` (its plugin comes with it).
        plugins: more plugins of those that came with it.

    Raises:
        ServerMissing: it is not installed.
        ServerFailed: it could not be started.
    """
    return RabbitMQ(folder, options, with_stomp=with_stomp, plugins=plugins).first_start()
