"""Connections to RabbitMQ: one thread owns one, opens it again whenever it breaks, and never waits without a bound.

pika's connections are not thread-safe, and its BlockingConnection has no deadline for a publish; so each connection
here is a SelectConnection on a thread of its own. Other threads hand it functions (`Link.call`), and wait for answers
with deadlines of their own.

What happens on each failure:

- refused, unknown host, wrong password, too slow: the next node is tried at once (nodes.py), and after the last one all
  of them again, after 0.1 to 5 s, doubling, with jitter;
- closed by the broker, heartbeats missing, blocked for more than a minute: the same; what was unanswered is the duty's;
- a stopped broker (half-open connection): not even a heartbeat comes from it, and after that silence (nodes.py) the
  connection is cut; `close` and `recycle` do not wait for it, but cut the connection after their bound. pika has no
  public way to cut one, so the socket is shut down below it: pika then sees the end of the stream, and cleans up as
  after any loss;
- an exception in a callback: the connection is cut and opened again; the exception's text is kept in `trouble`;
- no sockets left to this process, not even for an event loop: as if the broker were away, until there are some.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from pika import SelectConnection, exceptions

from workq.broker.rabbitmq.nodes import Address, ConnectAttempt, Nodes
from workq.broker.rabbitmq.unavailable import unavailable
from workq.outbound.amqp_loop import WatchedLoop
from workq.outbound.amqp_tables import read_any_table
from workq.values.jitter import jitter

T = TypeVar("T")

ANSWER_S: Final = 10.0
"""A broker that lives but leaves a question unanswered for so long (a quorum queue without a leader) is asked anew."""
BACKOFF_MIN_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
STABLE_S: Final = 5.0
"""A connection that lasted so long starts the backoff from the beginning."""
_LISTEN_S: Final = 1.0
_CUT_S: Final = 0.5
"""How long pika may take to clean up after its socket was shut down."""


class AmqpSession:
    """One connection, from its opening to its end, on the thread that calls `run`. Only `call` is for other threads."""

    def __init__(self, attempt: ConnectAttempt, opened: Callable[[SelectConnection], None]) -> None:
        self.was_open = False
        self.error: BaseException | None = None
        self._attempt = attempt
        self._opened = opened
        self._loop = WatchedLoop()
        self._lock = threading.Lock()
        self._is_over = False
        self._has_ended = False
        self._connection: SelectConnection | None = None
        self._heard = 0
        """How many bytes have come."""
        self._silent_s = 0.0
        """For so long none has come."""

    def run(self) -> None:
        """Connect, serve until the connection ends, and free everything. `error` tells why it ended.

        Where the event loop could not even start, for want of sockets, pika does not let it be closed: then what it has
        goes with it.
        """
        read_any_table()
        try:
            self._connection = SelectConnection(
                self._attempt.parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_end,
                on_close_callback=self._on_end,
                custom_ioloop=self._loop,
            )
            self.later(self._attempt.limit_s, self._check_opened)
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

    def _listen(self) -> None:
        """Cut a connection that has been silent for too long.

        pika looks once in `heartbeat + 5` seconds whether anything has come since its last look: 5 seconds become up to
        20. A look that is late counts as one in time, since it is this process that was late.
        """
        connection: Any = self._connection  # pika declares no type of what it counts
        if connection is None or not connection.is_open:
            return
        heard = connection.bytes_received
        self._silent_s = self._silent_s + _LISTEN_S if heard == self._heard else 0.0
        self._heard = heard
        if self._silent_s >= self._attempt.silence_s:
            self.error = self.error or exceptions.AMQPHeartbeatTimeout(f"nothing came for {self._silent_s:g} s")
            self.cut()
        else:
            self.later(_LISTEN_S, self._listen)

    def _on_open(self, connection: SelectConnection) -> None:
        self.was_open = True
        self.later(_LISTEN_S, self._listen)
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

    def __init__(self, nodes: Nodes, duty: Duty, *, name: str) -> None:
        """`name` is shown to the operator."""
        self.trouble: str | None = None
        """Why nothing works just now. Set when a connection ends; the duty sets None once it works again."""
        self._nodes = nodes
        self._name = name
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
            lasted_s, troubles = self._connect_in_turn(failures)
            self.trouble = str(unavailable(troubles))
            self._duty.lost(was_open=lasted_s is not None)
            failures = 0 if lasted_s is not None and lasted_s > STABLE_S else failures + 1
            bound_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(failures, 16))
            if self._closing.wait(jitter.uniform(bound_s / 2, bound_s)):
                return

    def _connect_in_turn(self, failures: int) -> tuple[float | None, list[tuple[Address, BaseException | None]]]:
        """One connection, to its end, with the first node that answers.

        Answers how long it lasted, or None if there was none; and why it ended, or what each node said. After failures
        there is more time: up to as much for each node as a single one has.
        """
        troubles: list[tuple[Address, BaseException | None]] = []
        within_s = self._nodes.connect_s * min(len(self._nodes.address.hosts), 2 ** min(failures, 16))
        for attempt in self._nodes.attempts(self._name, within_s=within_s):
            began = time.monotonic()
            was_open, error = self._connect_once(attempt)
            if self._closing.is_set():
                return None, [(attempt.node, error)]
            self._nodes.avoid(attempt.node)
            if was_open:
                return time.monotonic() - began, [(attempt.node, error)]
            troubles.append((attempt.node, error))
        return None, troubles

    def _connect_once(self, attempt: ConnectAttempt) -> tuple[bool, BaseException | None]:
        """One connection, to its end; answers whether it was open, and why it ended.

        Even its event loop takes sockets: a process that has none left now may have some in a moment.
        """
        session: AmqpSession | None = None
        try:
            with self._lock:
                if self._closing.is_set():
                    return False, None
                self._session = session = AmqpSession(attempt, self._duty.opened)
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
    nodes: Nodes,
    talk: Callable[[SelectConnection, Callable[[T | Exception], None]], None],
    *,
    name: str,
    deadline_s: float,
) -> T:
    """Connect, ask one thing, and leave, on the caller's thread. `talk` asks, and answers once, or with an exception.

    It is asked of the first node that answers. `name` is shown to the operator.

    Raises:
        BrokerUnavailable: there was no answer within `deadline_s`; the message says why.
    """
    ends = time.monotonic() + deadline_s
    troubles: list[tuple[Address, BaseException | None]] = []
    for attempt in nodes.attempts(name, within_s=min(nodes.connect_s, deadline_s)):
        answers, was_open, error = _ask_once(attempt, talk, ends)
        if answers:
            return answers[0]
        if not was_open or isinstance(error, TimeoutError):
            nodes.avoid(attempt.node)
        troubles.append((attempt.node, error))
        if was_open:
            raise unavailable(troubles[-1:])
        if time.monotonic() >= ends:
            break
    raise unavailable(troubles)


def server_of(nodes: Nodes, *, deadline_s: float) -> str:
    """Name and version of the first node that answers.

    Raises:
        BrokerUnavailable: none did within `deadline_s`.
    """

    def talk(connection: SelectConnection, answer: Callable[[str | Exception], None]) -> None:
        told = connection.server_properties or {}
        answer(f"{told.get('product', 'AMQP broker')} {told.get('version', '(version unknown)')}")

    return converse(nodes, talk, name="workq check", deadline_s=deadline_s)


def _ask_once(
    attempt: ConnectAttempt, talk: Callable[[SelectConnection, Callable[[T | Exception], None]], None], ends: float
) -> tuple[list[T], bool, BaseException | None]:
    """One conversation with one node: its answer, if there was one; whether a connection was open; what happened."""
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
        session = AmqpSession(attempt, lambda connection: talk(connection, answer))
    except OSError as error:  # not even an event loop: no sockets are left to this process
        return [], False, error
    session.later(max(0.0, ends - time.monotonic()), give_up)
    session.run()
    return answers, session.was_open, session.error
