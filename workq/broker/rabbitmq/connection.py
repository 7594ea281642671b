"""Connections to RabbitMQ: one thread owns one, opens it again whenever it breaks, and never waits without a bound.

pika's connections are not thread-safe, and its BlockingConnection has no deadline for a publish; so each connection
here is a SelectConnection on a thread of its own. Other threads hand it functions (`Link.call`), and wait for answers
with deadlines of their own.

What happens on each failure:

- refused, unknown host, wrong password, too slow: the next attempt follows after 0.1 to 5 s, doubling, with jitter;
- closed by the broker, heartbeats missing, blocked for more than a minute: the same; what was unanswered is the duty's;
- a stopped broker (half-open connection): heartbeats find it; `close` and `recycle` do not wait for it, but cut the
  connection after their bound. pika has no public way to cut one, so the socket is shut down below it: pika then sees
  the end of the stream, and cleans up as after any loss;
- an exception in a callback: the connection is cut and opened again; the exception's text is kept in `trouble`;
- no sockets left to this process, not even for an event loop: as if the broker were away, until there are some.

Passwords never leave this module: messages show `Address`, which masks them.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pika
from pika import SelectConnection, exceptions
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils import connection_workflow

from workq.errors import NAME_PATIENCE_S, BrokerUnavailable, ConfigError
from workq.outbound.amqp_tables import read_any_table
from workq.values.jitter import jitter

T = TypeVar("T")

CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0
"""A broker that lives but leaves a question unanswered for so long (a quorum queue without a leader) is asked anew."""
BLOCKED_S: Final = 60.0
"""A connection that the broker has blocked for so long (an alarm) is opened anew: its end may have been missed."""
BACKOFF_MIN_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
STABLE_S: Final = 5.0
"""A connection that lasted so long starts the backoff from the beginning."""
_CLOSED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_CUT_S: Final = 0.5
"""How long pika may take to clean up after its socket was shut down."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the broker is, and as whom to log in. As text: without the password."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str
    is_tls: bool
    ca_file: str | None
    cert_file: str | None
    key_file: str | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        vhost = "" if self.vhost == "/" else self.vhost
        return f"{'amqps' if self.is_tls else 'amqp'}://{self.user}:***@{host}:{self.port}/{vhost}"

    @staticmethod
    def parse(url: str) -> Address:
        """The address in a URL such as `amqps://user:password@host:5671/vhost?cacertfile=ca.pem`.

        User, password and vhost are percent-decoded; no vhost means `/`. The certificate is always verified.

        Raises:
            ConfigError: it is not such a URL. The message repeats nothing that may be a password.
        """
        form = "use amqp://user:password@host:5672/vhost (amqps:// for TLS)"
        try:
            parts = urlsplit(url.strip())
            port = parts.port
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        except ValueError as error:
            raise ConfigError(f"broker: not a URL with a port between 1 and 65535; {form}") from error
        if parts.scheme not in ("amqp", "amqps"):
            raise ConfigError(f"broker: scheme {parts.scheme!r} is not known; {form}")
        if port == 0 or (not parts.hostname and parts.netloc.rpartition("@")[2]):
            raise ConfigError(f"broker: not a URL with a host and a port between 1 and 65535; {form}")
        files = {name: options.pop(name, None) for name in ("cacertfile", "certfile", "keyfile")}
        if options:
            raise ConfigError(f"broker: option {min(options)!r} in the URL is not known; known: {', '.join(files)}")
        is_tls = parts.scheme == "amqps"
        return Address(
            host=parts.hostname or "localhost",
            port=port or (5671 if is_tls else 5672),
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            vhost=unquote(parts.path[1:]) or "/",
            is_tls=is_tls,
            ca_file=files["cacertfile"],
            cert_file=files["certfile"],
            key_file=files["keyfile"],
        )

    def parameters(self, *, name: str, heartbeat_s: float, connect_s: float = CONNECT_S) -> pika.ConnectionParameters:
        """What pika needs. `name` is shown to the operator.

        Raises:
            ConfigError: a certificate file cannot be used.
        """
        heartbeat = max(1, round(heartbeat_s))
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port,
            virtual_host=self.vhost,
            credentials=pika.PlainCredentials(self.user, self.password),
            heartbeat=heartbeat,
            connection_attempts=1,  # we connect again ourselves
            retry_delay=0,
            socket_timeout=connect_s,
            stack_timeout=connect_s,
            blocked_connection_timeout=BLOCKED_S,
            ssl_options=self._tls() if self.is_tls else None,
            client_properties={"connection_name": name},
            tcp_options={
                "TCP_USER_TIMEOUT": 2000 * heartbeat,
                "TCP_KEEPIDLE": heartbeat,
                "TCP_KEEPINTVL": max(1, heartbeat // 4),
                "TCP_KEEPCNT": 4,
            },
        )

    def _tls(self) -> pika.SSLOptions:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"broker: a certificate file in the URL cannot be used ({error})") from error
        return pika.SSLOptions(context, self.host)


class _Loop(IOLoop):
    """pika's event loop, which also remembers the sockets that it watches: the only public way to reach them."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: set[int] = set()

    def add_handler(self, fd: int, handler: Any, events: int) -> None:
        self._sockets.add(fd)
        super().add_handler(fd, handler, events)

    def remove_handler(self, fd: int) -> None:
        self._sockets.discard(fd)
        super().remove_handler(fd)

    def shut_down_sockets(self) -> None:
        """End every stream from below: pika finds the end of each on its next turn."""
        for fd in self._sockets:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as watched:
                watched.shutdown(socket.SHUT_RDWR)


class AmqpSession:
    """One connection, from its opening to its end, on the thread that calls `run`. Only `call` is for other threads."""

    def __init__(self, parameters: pika.ConnectionParameters, opened: Callable[[SelectConnection], None]) -> None:
        self.was_open = False
        self.error: BaseException | None = None
        self._parameters = parameters
        self._opened = opened
        self._loop = _Loop()
        self._lock = threading.Lock()
        self._is_over = False
        self._has_ended = False
        self._connection: SelectConnection | None = None

    def run(self) -> None:
        """Connect, serve until the connection ends, and free everything. `error` tells why it ended.

        Where the event loop could not even start, for want of sockets, pika does not let it be closed: then what it has
        goes with it.
        """
        read_any_table()
        try:
            self._connection = SelectConnection(
                self._parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_end,
                on_close_callback=self._on_end,
                custom_ioloop=self._loop,
            )
            # pika's own limits start after the name was looked up
            self.later(2 * (self._parameters.stack_timeout or CONNECT_S), self._check_opened)
            self._serve()
            if not self._has_ended:  # a callback raised: end the connection in order
                self.cut()
                self._serve()
        finally:
            with self._lock:
                self._is_over = True
            with contextlib.suppress(AssertionError):
                self._loop.close()

    def call(self, function: Callable[[], None]) -> bool:
        """Run a function on the session's thread, soon. False: the session is over. Any thread may ask."""
        with self._lock:
            if self._is_over:
                return False
            self._loop.add_callback_threadsafe(function)
            return True

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Run a function on this thread after some seconds, unless the session ends before."""
        self._loop.call_later(seconds, function)

    def end(self, *, within_s: float) -> None:
        """Close the connection politely; cut it when the broker has not answered in time."""
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.close()
            self.later(within_s, self.cut)
        else:
            self.cut()

    def cut(self) -> None:
        """End the connection without asking the broker."""
        connection = self._connection
        self.later(_CUT_S, self._loop.stop)
        if connection is not None and not (connection.is_open or connection.is_closing or connection.is_closed):
            connection.close()  # still opening: pika aborts by itself
        else:
            self._loop.shut_down_sockets()

    def _serve(self) -> None:
        try:
            self._loop.start()
        except Exception as error:
            self.error = self.error or error

    def _check_opened(self) -> None:
        if not self.was_open:
            self.error = TimeoutError("no connection in time")
            self.cut()

    def _on_open(self, connection: SelectConnection) -> None:
        self.was_open = True
        self._opened(connection)

    def _on_end(self, _connection: SelectConnection, error: BaseException) -> None:
        self._has_ended = True
        self.error = self.error or error
        self._loop.stop()


class Duty(Protocol):
    """What a link is for. Everything is called on the link's thread."""

    def opened(self, connection: SelectConnection) -> None:
        """A new connection is open: open channels."""
        ...

    def lost(self, *, was_open: bool) -> None:
        """It is gone, with all its channels; or, when it was never open, an attempt has failed."""
        ...


class Link:
    """One thread with one connection, opened again whenever it breaks, until `close`."""

    def __init__(self, parameters: pika.ConnectionParameters, address: Address, duty: Duty) -> None:
        self.trouble: str | None = None
        """Why nothing works just now. Set when a connection ends; the duty sets None once it works again."""
        self._parameters = parameters
        self._address = address
        self._duty = duty
        self._lock = threading.Lock()
        self._session: AmqpSession | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin to connect. Repeatable."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._run, name="workq-amqp", daemon=True)
                thread.start()
                self._thread = thread

    def call(self, function: Callable[[], None]) -> bool:
        """Run a function on the link's thread. False: there is no connection, nor an attempt at one, just now."""
        with self._lock:
            return self._session is not None and self._session.call(function)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Run a function after some seconds, unless this connection ends before. Only on the link's thread."""
        if self._session is not None:
            self._session.later(seconds, function)

    def recycle(self, reason: str) -> None:
        """This connection is of no more use: end it, and open another. Only on the link's thread."""
        if self._session is not None:
            self._session.error = self._session.error or exceptions.AMQPError(reason)
            self._session.end(within_s=1.0)

    def close(self, *, within_s: float) -> None:
        """End the connection and the thread, politely when the broker answers. Repeatable; not from its own thread."""
        with self._lock:
            self._closing.set()
            session, thread = self._session, self._thread
            if session is not None:
                session.call(lambda: session.end(within_s=max(0.1, within_s - _CUT_S)))
        if thread is not None:
            thread.join(within_s + 2 * _CUT_S)

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            began = time.monotonic()
            was_open, error = self._connect_once()
            self.trouble = str(unavailable(error, self._address))
            self._duty.lost(was_open=was_open)
            failures = 0 if was_open and time.monotonic() - began > STABLE_S else failures + 1
            bound_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures, 16))
            if self._closing.wait(jitter.uniform(bound_s / 2, bound_s)):
                return

    def _connect_once(self) -> tuple[bool, BaseException | None]:
        """One connection, to its end; answers whether it was open, and why it ended.

        Even its event loop takes sockets: a process that has none left now may have some in a moment.
        """
        session: AmqpSession | None = None
        try:
            with self._lock:
                if self._closing.is_set():
                    return False, None
                self._session = session = AmqpSession(self._parameters, self._duty.opened)
            session.run()
            return session.was_open, session.error
        except Exception as error:
            if session is None:
                return False, error
            return session.was_open, session.error or error
        finally:
            with self._lock:
                self._session = None


def converse(
    parameters: pika.ConnectionParameters,
    address: Address,
    talk: Callable[[SelectConnection, Callable[[T | Exception], None]], None],
    *,
    deadline_s: float,
) -> T:
    """Connect, ask one thing, and leave, on the caller's thread. `talk` asks, and answers once, or with an exception.

    Raises:
        BrokerUnavailable: there was no answer within `deadline_s`; the message says why.
    """
    answers: list[T] = []

    def answer(value: T | Exception) -> None:
        if isinstance(value, Exception):
            session.error = value
        else:
            answers.append(value)
        session.end(within_s=_CUT_S)

    def give_up() -> None:
        session.error = session.error or TimeoutError("no answer in time")
        session.cut()

    try:
        session = AmqpSession(parameters, lambda connection: talk(connection, answer))
    except OSError as error:  # not even an event loop: no sockets are left to this process
        raise unavailable(error, address) from None
    session.later(deadline_s, give_up)
    session.run()
    if not answers:
        raise unavailable(session.error, address) from None
    return answers[0]


def unavailable(error: BaseException | None, address: Address) -> BrokerUnavailable:
    """Why there is no connection, in our words, with what to do next."""
    at = f"RabbitMQ at {address}"
    patience_s = math.inf
    leaves = list(_leaves(error))

    def find(*kinds: type[BaseException]) -> BaseException | None:
        return next((leaf for leaf in leaves if isinstance(leaf, kinds)), None)

    if (found := find(exceptions.ProbableAccessDeniedError)) and "(530)" in str(found):
        why = (
            f"{at} has no vhost {address.vhost!r}, or user {address.user!r} may not use it. "
            "See: rabbitmqctl list_vhosts, rabbitmqctl list_permissions"
        )
        patience_s = 0.0
    elif (found := find(exceptions.ChannelClosedByBroker)) and "(403)" in str(found):
        why = (
            f"{at} says that this user lacks a right ({found}). "
            f"Grant it: rabbitmqctl set_permissions -p {address.vhost} {address.user} ... (see least-privilege.md)"
        )
        patience_s = 0.0
    elif find(exceptions.AuthenticationError) or (
        (found := find(exceptions.ProbableAuthenticationError)) and "(403)" in str(found)
    ):
        why = f"{at} refused the login: wrong user or password. (The user guest may only come from the same host.)"
        patience_s = 0.0
    elif found := find(ssl.SSLError):
        reason = getattr(found, "verify_message", "") or getattr(found, "reason", "") or type(found).__name__
        why = (
            f"{at} could not be verified by TLS ({reason}). Name the CA in the URL, ?cacertfile=/path/ca.pem, "
            "and the host as its certificate does; a port without TLS needs amqp://"
        )
        patience_s = NAME_PATIENCE_S if isinstance(found, _CLOSED) else 0.0
    elif find(exceptions.IncompatibleProtocolError):
        why = f"what listens at {address} does not speak AMQP 0-9-1. Is it the port of AMQP (5672), without TLS?"
        patience_s = NAME_PATIENCE_S  # pika says the same of a port that accepts, and closes at once
    elif found := find(socket.gaierror):
        why = f"the host {address.host!r} of {address} is unknown. Check the name, or the DNS"
        patience_s = NAME_PATIENCE_S
    elif find(ConnectionRefusedError):
        why = f"nothing listens at {address} (connection refused). Is RabbitMQ running, on that port?"
    elif find(TimeoutError, connection_workflow.AMQPConnectorStackTimeout):
        why = f"{at} did not answer in time. Is it overloaded or stopped, or does a firewall drop packets?"
    elif find(exceptions.ConnectionBlockedTimeout):
        why = f"{at} has blocked publishing for {BLOCKED_S:.0f} s: a memory or disk alarm. See: rabbitmqctl status"
    elif find(exceptions.AMQPHeartbeatTimeout):
        why = f"{at} sent no heartbeat in time. Is it overloaded or stopped?"
    elif found := find(exceptions.ConnectionClosed):
        why = f"{at} closed the connection ({found})"
    else:
        last = leaves[-1] if leaves else None
        why = f"the connection to {at} broke ({type(last).__name__}: {last})"
    if address.password and address.password != address.user:
        why = why.replace(address.password, "***")
    unavailable = BrokerUnavailable(f"broker: {why}")
    unavailable.patience_s = patience_s
    return unavailable


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    """The errors that pika has wrapped, innermost ones only."""
    if error is None:
        return
    inner = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args]
    inner = [one for one in inner if isinstance(one, BaseException)]
    if not inner:
        yield error
    for one in inner:
        yield from _leaves(one)
