"""A look at a Kafka before a client of it is made: which brokers it advertises, and whether a topic is there.

librdkafka connects to advertised brokers as soon as it knows of them, and no program can come between. So the few
requests that this takes (SaslHandshake 1, SaslAuthenticate 0, Metadata 4: every Kafka since 1.0 knows them) are made
here, on a socket that was made to an address that may be reached.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from workq.config.addresses import Allowed
from workq.config.place import UrlPlace, shown
from workq.messages.kinds import SendFault, Unsent
from workq.messages.kinds.reach import Lookup, ReachFailed, connect, left, trouble_of

ANSWER_MAX_BYTES: Final = 16_777_216
_METADATA: Final = (3, 4)
_SASL_HANDSHAKE: Final = (17, 1)
_SASL_AUTHENTICATE: Final = (36, 0)
_UNKNOWN_TOPIC: Final = 3
_INVALID_TOPIC: Final = 17
_NOT_ALLOWED: Final = (29, 30, 31)
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Advertised:
    """Where clients are sent to. `topic_error`: Kafka's code of the topic, 0 when all is well with it."""

    brokers: tuple[tuple[str, int], ...]
    topic_error: int


class _LoginRefused(Exception):
    """Kafka has answered, and does not want us."""


def look(
    place: UrlPlace,
    topic: str,
    *,
    mechanism: str | None,
    trust: ssl.SSLContext | None,
    allowed: Allowed,
    lookup: Lookup,
    ends: float,
) -> Advertised:
    """What the first host that answers says.

    Raises:
        ReachFailed: none does, or one may not be reached, or refuses us.
    """
    trouble = Unsent(SendFault.AWAY, "no broker of Kafka answers")
    for number, (host, port) in enumerate(place.hosts):
        share = time.monotonic() + left(ends) / (len(place.hosts) - number)
        try:
            made = connect(host, port, allowed, lookup=lookup, ends=share, trust=trust)
            with made:
                return _ask(_Talk(made, share), place, topic, mechanism)
        except _LoginRefused as refused:
            text = place.clean(f"{shown(host, port)} refused the login: {refused}")
            raise ReachFailed(Unsent(SendFault.REFUSED, text)) from None
        except (ValueError, struct.error, IndexError) as error:
            text = place.clean(f"what listens at {shown(host, port)} does not speak Kafka's protocol: {error}")
            raise ReachFailed(Unsent(SendFault.REFUSED, text)) from None
        except OSError as error:
            trouble = trouble_of(error, host, port)
            if trouble.fault is SendFault.REFUSED:
                break
    raise ReachFailed(Unsent(trouble.fault, place.clean(trouble.text)))


def meaning(code: int, topic: str) -> Unsent | None:
    """What Kafka's code of a topic means; None: nothing that lasts."""
    if code in (_UNKNOWN_TOPIC, _INVALID_TOPIC):
        return Unsent(SendFault.NO_TARGET, f"Kafka has no topic {topic!r}")
    if code in _NOT_ALLOWED:
        return Unsent(SendFault.REFUSED, f"this user has no right to the topic {topic!r}")
    return None


def _ask(talk: _Talk, place: UrlPlace, topic: str, mechanism: str | None) -> Advertised:
    if place.user is not None and mechanism is not None:
        handshake = talk.ask(_SASL_HANDSHAKE, _text(mechanism))
        if handshake.number(2) != 0:
            raise _LoginRefused(f"it has no mechanism {mechanism}")
        password = place.password or ""
        if mechanism == "PLAIN":
            _authenticate(talk, f"\0{place.user}\0{password}".encode())
        else:
            _scram(talk, _HASHES[mechanism], place.user, password)
    answer = talk.ask(_METADATA, struct.pack(">i", 1) + _text(topic) + b"\0")
    answer.number(4)
    brokers = []
    for _ in range(answer.number(4)):
        answer.number(4)
        brokers.append((answer.text() or "", answer.number(4)))
        answer.text()
    answer.text()
    answer.number(4)
    code = answer.number(2) if answer.number(4) else _UNKNOWN_TOPIC
    return Advertised(tuple(brokers), code)


def _authenticate(talk: _Talk, data: bytes) -> bytes:
    answer = talk.ask(_SASL_AUTHENTICATE, struct.pack(">i", len(data)) + data)
    code, said = answer.number(2), answer.text()
    if code != 0:
        raise _LoginRefused(said or f"error {code}")
    return answer.take(max(0, answer.number(4)))


def _scram(talk: _Talk, name: str, user: str, password: str) -> None:
    """RFC 5802, without a channel binding: TLS has verified the server, and so does its signature."""
    digest: Callable[[bytes, bytes], bytes] = lambda key, data: hmac.digest(key, data, name)  # noqa: E731
    ours = secrets.token_urlsafe(24)
    escaped = user.replace("=", "=3D").replace(",", "=2C")
    begin = f"n={escaped},r={ours}"
    told = _authenticate(talk, f"n,,{begin}".encode()).decode()
    parts = dict(one.split("=", 1) for one in told.split(","))
    nonce, salt, iterations = parts["r"], base64.b64decode(parts["s"]), int(parts["i"])
    if not nonce.startswith(ours) or not 1 <= iterations <= _ITERATIONS_MAX:
        raise ValueError("its SCRAM is not right")
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    key = digest(salted, b"Client Key")
    end = f"c=biws,r={nonce}"
    signed = f"{begin},{told},{end}".encode()
    signature = digest(hashlib.new(name, key).digest(), signed)
    proof = base64.b64encode(bytes(one ^ other for one, other in zip(key, signature, strict=True))).decode()
    last = _authenticate(talk, f"{end},p={proof}".encode()).decode()
    expected = base64.b64encode(digest(digest(salted, b"Server Key"), signed)).decode()
    if not hmac.compare_digest(last, f"v={expected}"):
        raise ValueError("it does not know the password either")


class _Answer:
    """The body of an answer, read from its begin on."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) < size:
            raise ValueError("an answer is too short")
        self._at += size
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def text(self) -> str | None:
        size = self.number(2)
        return None if size < 0 else self.take(size).decode()


class _Talk:
    """Requests and answers on one connection."""

    def __init__(self, made: socket.socket, ends: float) -> None:
        self._socket = made
        self._ends = ends
        self._number = 0

    def ask(self, what: tuple[int, int], body: bytes) -> _Answer:
        """Raises OSError: the connection ended; ValueError: what came is no answer to this."""
        self._number += 1
        head = struct.pack(">hhi", *what, self._number) + _text("workq")
        self._socket.settimeout(left(self._ends))
        self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        size = int.from_bytes(self._read(4), "big")
        if not 4 <= size <= ANSWER_MAX_BYTES:
            raise ValueError("an answer has no right size")
        answer = _Answer(self._read(size))
        if answer.number(4) != self._number:
            raise ValueError("it answers something else")
        return answer

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._socket.settimeout(left(self._ends))
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise ConnectionResetError("it has closed the connection")
            found += piece
        return bytes(found)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
