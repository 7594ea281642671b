"""Where RabbitMQ is: the nodes that a URL names, as whom to log in, and in which order one process tries them.

A connection goes to the first node that answers, in an order of each process's own. What happens on each failure:

- a node refuses: the next one is tried at once;
- a node does not answer: it takes an equal share of the time that is left, and then the next one is tried;
- a connection breaks, or a node did not answer: for `AVOIDED_S` that node is tried after all others;
- none answers: that is the failure of the attempt. A link tries again, and gives each node more time.

Passwords never leave this module: messages show `Address`, which masks them.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pika

from workq.config.place import shown
from workq.errors import ConfigError
from workq.values.own_order import own_order

CONNECT_S: Final = 5.0
BLOCKED_S: Final = 60.0
"""A connection that the broker has blocked for so long (an alarm) is opened anew: its end may have been missed."""
AVOIDED_S: Final = 30.0
"""So long a node that has failed is tried last."""
LATE_S: Final = 3.0
"""RabbitMQ sends something within each heartbeat. So much later a busy one may be heard before it is taken for dead."""
_LEAST_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Address:
    """Where the broker is, and as whom to log in. As text: without the password."""

    hosts: tuple[tuple[str, int], ...]
    """Each node's, as the URL names them; at least one."""
    user: str
    password: str = field(repr=False)
    vhost: str
    is_tls: bool
    ca_file: str | None
    cert_file: str | None
    key_file: str | None

    def __str__(self) -> str:
        hosts = ",".join(shown(*one) for one in self.hosts)
        vhost = "" if self.vhost == "/" else self.vhost
        return f"{'amqps' if self.is_tls else 'amqp'}://{self.user}:***@{hosts}/{vhost}"

    @property
    def nodes(self) -> tuple[Address, ...]:
        """The same for each host alone."""
        return tuple(self.at(one) for one in self.hosts)

    def at(self, *hosts: tuple[str, int]) -> Address:
        """The same at these hosts."""
        return replace(self, hosts=hosts)

    @staticmethod
    def parse(url: str) -> Address:
        """The address in a URL such as `amqps://user:password@one:5671,two:5671/vhost?cacertfile=ca.pem`.

        User, password and vhost are percent-decoded; no vhost means `/`, and without a login it is `guest`'s. An
        empty password is one. The certificate is always verified.

        Raises:
            ConfigError: it is not such a URL. The message repeats nothing that may be a password.
        """
        form = "use amqp://user:password@host:5672/vhost (amqps:// for TLS; several hosts: one:5672,two:5672)"
        try:
            scheme, _, rest = url.strip().partition("://")
            place = re.split("[/?#]", rest, maxsplit=1)[0]
            login, at, named = place.rpartition("@")
            parts = [urlsplit(f"{scheme}://{login}{at}{one}{rest[len(place) :]}") for one in named.split(",")]
            found = [(one.hostname, one.port) for one in parts]
            whole = parts[0]
            options = dict(parse_qsl(whole.query, strict_parsing=True)) if whole.query else {}
        except ValueError as error:
            raise ConfigError(f"broker: not a URL with a port between 1 and 65535; {form}") from error
        if whole.scheme not in ("amqp", "amqps"):
            raise ConfigError(f"broker: scheme {whole.scheme!r} is not known; {form}")
        if any(port == 0 or (host is None and named) for host, port in found):
            raise ConfigError(f"broker: not a URL with a host and a port between 1 and 65535; {form}")
        files = {name: options.pop(name, None) for name in ("cacertfile", "certfile", "keyfile")}
        if options:
            raise ConfigError(f"broker: option {min(options)!r} in the URL is not known; known: {', '.join(files)}")
        is_tls = whole.scheme == "amqps"
        return Address(
            hosts=tuple((host or "localhost", port or (5671 if is_tls else 5672)) for host, port in found),
            user=unquote(whole.username or "guest"),
            password=unquote("guest" if whole.password is None else whole.password),
            vhost=unquote(whole.path[1:]) or "/",
            is_tls=is_tls,
            ca_file=files["cacertfile"],
            cert_file=files["certfile"],
            key_file=files["keyfile"],
        )


@dataclass(frozen=True, slots=True)
class ConnectAttempt:
    """One try to connect to one node."""

    node: Address
    parameters: pika.ConnectionParameters
    limit_s: float
    """After so long it has failed, whatever it is waiting for: also the lookup of the node's name."""
    silence_s: float
    """A connection over which nothing has come for so long is dead."""


class Nodes:
    """The nodes of one URL, for all connections of a process to them. For any thread. `clock` is monotonic."""

    def __init__(
        self,
        address: Address,
        *,
        heartbeat_s: float,
        connect_s: float = CONNECT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`connect_s`: for one attempt at a connection, whatever the number of nodes.

        Raises:
            ConfigError: a certificate file cannot be used.
        """
        self.address = address
        self.connect_s = connect_s
        self._heartbeat = max(1, round(heartbeat_s))
        self._clock = clock
        self._trust = _trust(address) if address.is_tls else None
        self._avoided: dict[Address, float] = {}

    def attempts(self, name: str, *, within_s: float) -> Iterator[ConnectAttempt]:
        """One for each node, in turn, which share this time. `name` is shown to the operator."""
        ends = self._clock() + within_s
        nodes = self.in_turn()
        for place, node in enumerate(nodes):
            share_s = max(_LEAST_S, (ends - self._clock()) / (len(nodes) - place))
            # pika's own limits start after the name was looked up
            limit_s = 2 * share_s if len(nodes) == 1 else share_s
            yield ConnectAttempt(node, self._parameters(node, name, share_s), limit_s, self._heartbeat + LATE_S)

    def in_turn(self) -> Sequence[Address]:
        """The nodes in the order of this process, those that have failed lately after all others."""
        now = self._clock()
        return sorted(own_order(self.address.nodes), key=lambda node: self._avoided.get(node, now) > now)

    def avoid(self, node: Address) -> None:
        """It did not answer, or a connection to it broke."""
        self._avoided[node] = self._clock() + AVOIDED_S

    def _parameters(self, node: Address, name: str, connect_s: float) -> pika.ConnectionParameters:
        [(host, port)] = node.hosts
        return pika.ConnectionParameters(
            host=host,
            port=port,
            virtual_host=node.vhost,
            credentials=pika.PlainCredentials(node.user, node.password),
            heartbeat=self._heartbeat,
            connection_attempts=1,  # we connect again ourselves
            retry_delay=0,
            socket_timeout=connect_s,
            stack_timeout=connect_s,
            blocked_connection_timeout=BLOCKED_S,
            ssl_options=None if self._trust is None else pika.SSLOptions(self._trust, host),
            client_properties={"connection_name": name},
            tcp_options={
                "TCP_USER_TIMEOUT": 2000 * self._heartbeat,
                "TCP_KEEPIDLE": self._heartbeat,
                "TCP_KEEPINTVL": max(1, self._heartbeat // 4),
                "TCP_KEEPCNT": 4,
            },
        )


def _trust(address: Address) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.ca_file)
        if address.cert_file:
            context.load_cert_chain(address.cert_file, address.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"broker: a certificate file in the URL cannot be used ({error})") from error
    return context
