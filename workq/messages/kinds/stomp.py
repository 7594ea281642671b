"""stomp: to an address of Artemis, ActiveMQ or RabbitMQ by STOMP 1.2, persistent, confirmed by a RECEIPT.

All messages of a call are sent at once, and their receipts awaited together. The few frames that this takes are made
here, on a socket that was made to an address that may be reached.

The limit of a receipt: Artemis gives it for a message to an address without a queue, too, and throws that away. So a
message asks for a queue (`routing` is `anycast`, the header `destination-type`). With `multicast` a message goes to
those who have subscribed, and to nobody when there are none: `test` finds that out of Artemis. RabbitMQ has no word for
a message that an exchange leads nowhere: send to `/queue/NAME`, which makes the queue, or use the kind amqp.

Artemis drops a message that has the `_AMQ_DUPL_ID` of another: it is the id and the number of the sending, so that what
a person restores arrives.

What happens on each failure:

- the connection breaks before a receipt: `LATE`, and the next call makes a new one;
- the server answers with an ERROR, which ends the connection: those that are left are sent again one by one, so that
  the one that it is about gets its own answer; some of the others may arrive twice then.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from workq.config.addresses import Allowed
from workq.config.given_options import GivenOptions, check_files
from workq.config.place import UrlPlace, place_of
from workq.errors import ConfigError
from workq.messages.kinds import (
    Answer,
    Confirmed,
    DestinationAddress,
    DestinationLink,
    Kind,
    Posting,
    SendFault,
    Unsent,
)
from workq.messages.kinds.reach import Lookup, ReachFailed, connect, left, trouble_of, trust_of
from workq.messages.kinds.stomp_artemis import Management, NotTold
from workq.messages.kinds.stomp_frames import Frame, Frames, encoded

FORM: Final = "stomp://user:password@host:61613 or, with TLS, stomps://..."
ADDRESS_MAX: Final = 1024
IDLE_S: Final = 30.0
"""A connection that was not used for so long may have been dropped on its way, unseen: there are no heartbeats."""
HEADERS_MAX_BYTES: Final = 60_000
CLOSE_S: Final = 0.5
_OURS: Final = frozenset(
    {"destination", "receipt", "content-length", "content-type", "transaction", "destination-type", "persistent"}
    | {"workq-id", "_AMQ_DUPL_ID", "selector", "ack", "id", "login", "passcode", "host", "reply-to"}
)
"""Headers that say what becomes of a frame."""


class StompKind(Kind):
    """`--address A`: `orders` for Artemis, `/queue/orders` for RabbitMQ and ActiveMQ."""

    name = "stomp"

    def __init__(self, *, lookup: Lookup = socket.getaddrinfo) -> None:
        """`lookup`: for tests."""
        self._lookup = lookup

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See the port. `url`, `address`, `routing` (anycast, multicast), `vhost`, `ca_file` and the like."""
        given = GivenOptions(options)
        place = _place(given.take("url", why=f"it is {FORM}"))
        given.stored["url"] = str(place)
        if place.path:
            raise ConfigError(f"url: nothing follows the port; need {FORM}, and the address as an option")
        given.text("address", why="as in orders, or /queue/orders", most=ADDRESS_MAX)
        given.choice("routing", ("anycast", "multicast"), default="anycast")
        given.text("vhost", why="the virtual host of RabbitMQ", default="/")
        check_files(given, is_tls=place.is_tls)
        return given.done(kind=self.name)

    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:
        """See the port."""
        return _StompLink(address, allowed=allowed, lookup=self._lookup)


def _place(url: object) -> UrlPlace:
    return place_of(url, {"stomp": 61613, "stomps": 61614}, form=FORM, tls="stomps")


class _Refusal(Exception):
    """The server has answered with an ERROR."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame.said)
        self.frame = frame


class _Stream:
    """One connection. `server`: what it calls itself."""

    def __init__(self, made: socket.socket) -> None:
        self.server = ""
        self.used_at = time.monotonic()
        self._socket = made
        self._frames = Frames()

    def send(self, data: bytes, *, ends: float) -> None:
        """Raises OSError."""
        self._socket.settimeout(left(ends))
        self._socket.sendall(data)

    def read(self, *, ends: float) -> Iterator[Frame]:
        """What comes until an instant. Raises OSError, when the connection ends; ValueError: it speaks no STOMP."""
        while time.monotonic() < ends:
            self._socket.settimeout(left(ends))
            try:
                data = self._socket.recv(65_536)
            except TimeoutError:
                return
            if not data:
                raise ConnectionResetError("it has closed the connection")
            self.used_at = time.monotonic()
            yield from self._frames.add(data)

    def has_ended(self) -> bool:
        """Whether something has come that nobody waits for: an end, or an ERROR before one."""
        polled = select.poll()
        polled.register(self._socket, select.POLLIN)
        return bool(polled.poll(0))

    def close(self, *, is_polite: bool) -> None:
        """A DISCONNECT before the end, when nothing is open."""
        with contextlib.suppress(OSError):
            if is_polite:
                self.send(encoded("DISCONNECT", {}), ends=time.monotonic() + CLOSE_S)
        self._socket.close()


class _StompLink(DestinationLink):
    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._options = address.options
        self._place = _place(address.url)
        self._allowed = allowed
        self._lookup = lookup
        self._stream: _Stream | None = None
        self._receipts = itertools.count(1)

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        """See the port."""
        ends = time.monotonic() + timeout_s
        answers: dict[int, Answer] = {}
        for index, posting in enumerate(postings):
            if problem := _problem(posting):
                answers[index] = Unsent(SendFault.MESSAGE, problem)
        waiting = [index for index in range(len(postings)) if index not in answers]
        is_single = False
        while waiting:
            now = waiting[:1] if is_single else waiting
            try:
                found = self._exchange({index: postings[index] for index in now}, ends)
            except ReachFailed as failed:
                found = dict.fromkeys(waiting, failed.unsent)
            is_single = True  # what has no answer yet is left by an ERROR
            answers |= found
            waiting = [index for index in waiting if index not in answers]
        return [answers[index] for index in range(len(postings))]

    def test(self, *, timeout_s: float) -> list[str]:
        """See the port. Artemis is asked for the queues of the address; others are not: they make what is missing."""
        ends = time.monotonic() + timeout_s
        is_multicast = self._options["routing"] == "multicast"
        try:
            stream = self._connected(ends)
            problems = self._lacks(stream, ends) if "artemis" in stream.server.lower() else []
        except ReachFailed as failed:
            problems = [failed.unsent.text]
        except NotTold as error:  # a user who may send need not be one who may manage
            said = self._place.clean(str(error))
            problems = [f"Artemis does not tell whether the address has a queue: {said}"] if is_multicast else []
        except (OSError, ValueError) as error:
            problems = [self._trouble(error).text]
        self.close()
        return problems

    def close(self) -> None:
        """See the port."""
        self._end(is_polite=True)

    def _exchange(self, postings: Mapping[int, Posting], ends: float) -> dict[int, Answer]:
        """Send these and wait for their receipts. One without an answer is to be sent again, alone.

        Raises:
            ReachFailed: there is no connection.
        """
        stream = self._connected(ends)
        answers: dict[int, Answer] = {}
        receipts = {f"workq-{next(self._receipts)}": index for index in postings}
        data = b"".join(self._frame(postings[index], receipt) for receipt, index in receipts.items())
        text = "no receipt came in time"
        try:
            stream.send(data, ends=ends)
            for frame in stream.read(ends=ends):
                if frame.command == "ERROR":
                    raise _Refusal(frame)
                if frame.command == "RECEIPT":
                    index = receipts.pop(frame.headers.get("receipt-id", ""), None)
                    if index is not None:
                        answers[index] = Confirmed()
                if not receipts:
                    return answers
        except _Refusal as refusal:
            self._end(is_polite=False)
            if len(postings) == 1:
                return dict.fromkeys(postings, self._meaning(refusal.frame))
            return answers
        except (OSError, ValueError) as error:
            text = f"before its receipt: {self._trouble(error).text}"
        self._end(is_polite=False)
        return answers | dict.fromkeys(receipts.values(), Unsent(SendFault.LATE, text))

    def _frame(self, posting: Posting, receipt: str) -> bytes:
        anycast = self._options["routing"] == "anycast"
        headers = {
            **posting.headers,
            "destination": self._options["address"],
            "destination-type": "ANYCAST" if anycast else "MULTICAST",
            "persistent": "true",
            "content-type": posting.content_type,
            "workq-id": posting.id,
            "_AMQ_DUPL_ID": f"{posting.id}-{posting.sending}",
            "receipt": receipt,
        }
        return encoded("SEND", headers, posting.body)

    def _connected(self, ends: float) -> _Stream:
        """The connection, after its login.

        Raises:
            ReachFailed: there is none.
        """
        stream = self._stream
        if stream is not None and (time.monotonic() - stream.used_at > IDLE_S or stream.has_ended()):
            self._end(is_polite=not stream.has_ended())
            stream = None
        if stream is not None:
            return stream
        [(host, port)] = self._place.hosts
        trust = trust_of(self._options) if self._place.is_tls else None
        try:
            made = connect(host, port, self._allowed, lookup=self._lookup, ends=ends, trust=trust)
        except OSError as error:
            raise ReachFailed(self._trouble(error)) from None
        self._stream = stream = _Stream(made)
        try:
            self._log_in(stream, ends)
        except ReachFailed:
            self._end(is_polite=False)
            raise
        except (OSError, ValueError) as error:
            self._end(is_polite=False)
            raise ReachFailed(self._trouble(error)) from None
        return stream

    def _log_in(self, stream: _Stream, ends: float) -> None:
        headers = {"accept-version": "1.2", "host": self._options["vhost"], "heart-beat": "0,0"}
        if self._place.user is not None:
            headers |= {"login": self._place.user, "passcode": self._place.password or ""}
        stream.send(encoded("CONNECT", headers), ends=ends)
        for frame in stream.read(ends=ends):
            if frame.command == "CONNECTED":
                stream.server = frame.headers.get("server", "")
                return
            said = self._place.clean(frame.said)
            raise ReachFailed(Unsent(SendFault.REFUSED, f"the server refused the login: {said}"))
        raise TimeoutError("no answer to the login")

    def _lacks(self, stream: _Stream, ends: float) -> list[str]:
        """Whether Artemis has a queue for a message to the address, or makes one."""
        management = Management(lambda data: stream.send(data, ends=ends), lambda: stream.read(ends=ends))
        problem = management.lacks(self._options["address"], routing=self._options["routing"])
        management.end()
        return [] if problem is None else [problem]

    def _meaning(self, frame: Frame) -> Unsent:
        """What an ERROR means that a message got alone."""
        text = self._place.clean(f"the server says: {frame.said}")
        low = frame.said.lower()
        if any(one in low for one in ("does not exist", "not_found", "not found", "unknown destination", "amq339001")):
            return Unsent(SendFault.NO_TARGET, text)
        if any(one in low for one in ("permission", "access_refused", "access refused", "unauthorized", "security")):
            return Unsent(SendFault.REFUSED, text)
        if any(one in low for one in ("too large", "larger than", "exceed", "too big", "frame size", "max size")):
            return Unsent(SendFault.MESSAGE, text)
        return Unsent(SendFault.AWAY, text)

    def _trouble(self, error: BaseException) -> Unsent:
        [(host, port)] = self._place.hosts
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            return Unsent(SendFault.REFUSED, f"what listens there does not speak STOMP: {error}")
        unsent = trouble_of(error, host, port)
        return Unsent(unsent.fault, self._place.clean(unsent.text))

    def _end(self, *, is_polite: bool) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close(is_polite=is_polite)


def _problem(posting: Posting) -> str | None:
    """Why a message cannot be sent by STOMP; None: it can."""
    for name in posting.headers:
        if not name or name in _OURS:
            return f"the header {name[:60]!r} says something else to a server of STOMP"
    size = sum(len(name.encode()) + len(value.encode()) for name, value in posting.headers.items())
    if size > HEADERS_MAX_BYTES:
        return f"its headers have {size} bytes, at most {HEADERS_MAX_BYTES} are sent"
    return None
