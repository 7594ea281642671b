"""What a failure of Redis means, in words for whoever reads the message; and whether waiting may mend it."""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import redis

from workq.errors import NAME_PATIENCE_S

_REASON_MAX: Final = 500
_NO_LOGIN: Final = ("WRONGPASS", "NOAUTH", "invalid password")
_NO_DATABASE: Final = ("DB index", "invalid DB", "Invalid Database")
_LASTING: Final = (redis.exceptions.AuthenticationError, redis.exceptions.InvalidResponse)


def reason_of(error: Exception, where: str, *, socket_s: float, grant: str, is_cluster: bool) -> str:
    """One line: what, why, and what to do next.

    Args:
        socket_s: for how long an answer was waited for.
        grant: what gives this user its rights.
    """
    links = list(chain(error))
    text = " ".join(str(error).split())[:_REASON_MAX] or type(error).__name__
    at = f"Redis at {where}"

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(link, kinds) for link in links)

    if caused_by(socket.gaierror):
        return f"cannot find the host of {at} ({text}); check the name in the in-flight URL"
    if caused_by(ConnectionRefusedError):
        return f"nothing listens at {where}; is Redis running? Check host and port of the in-flight URL"
    if caused_by(ssl.SSLCertVerificationError):
        return (
            f"{at} has a certificate that is not trusted ({text}); "
            "name its authority with ?ssl_ca_certs=/path/to/ca.pem in the in-flight URL"
        )
    if caused_by(ssl.SSLError):
        return f"{at} does not speak TLS as expected ({text}); is this its TLS port? Without TLS use redis://"
    if caused_by(redis.exceptions.TimeoutError, TimeoutError):
        tls = " If this is not its TLS port, use redis://." if where.startswith("rediss:") else ""
        return (
            f"{at} did not answer within {socket_s:g} s; it may be stopped, overloaded or cut off.{tls} "
            "Try: workq doctor"
        )
    if caused_by(redis.exceptions.NoPermissionError) or says(text, "NOPERM", "user executing the script"):
        return f"{at} does not allow this user what workq needs ({text}). Grant it: {grant}"
    if caused_by(redis.exceptions.AuthenticationError) or says(text, *_NO_LOGIN):
        return f"{at} refused the user name or password; check the in-flight URL"
    if says(text, *_NO_DATABASE):
        return f"{at} has no database of that number ({text}); check the number at the end of the in-flight URL"
    if caused_by(redis.exceptions.OutOfMemoryError) or says(text, "OOM "):
        return f"{at} is full (maxmemory) and takes no more holds; give it more memory, or remove what is not workq's"
    if caused_by(redis.exceptions.BusyLoadingError):
        return f"{at} is still loading its data; it answers when that is done"
    if caused_by(redis.exceptions.ReadOnlyError):
        return f"{at} is a read-only replica; the in-flight URL must name the primary"
    if caused_by(redis.exceptions.ClusterDownError):
        return f"{at} says that nobody serves this namespace now ({text}); a node is down, or has just come back"
    if caused_by(redis.exceptions.TryAgainError):
        return f"{at} is still moving the slot of this namespace elsewhere; it answers when that is done"
    if caused_by(redis.exceptions.AskError):
        if not is_cluster:
            return f"{at} is a node of a cluster; write redis+cluster://host:6379,host:6379 in the in-flight URL"
        return f"{at} and other nodes do not agree who serves this namespace ({text}). Try: redis-cli --cluster check"
    return f"cannot use {at} ({text}). Is it a healthy Redis? Try: workq doctor"


def patience_of(error: Exception) -> float:
    """For how long waiting may mend it."""
    links, text = list(chain(error)), str(error)
    if any(isinstance(link, (socket.gaierror, ssl.SSLEOFError, ssl.SSLZeroReturnError)) for link in links):
        return NAME_PATIENCE_S
    if any(isinstance(link, (*_LASTING, ssl.SSLError)) for link in links) or says(text, *_NO_LOGIN, *_NO_DATABASE):
        return 0.0
    return math.inf


def says(text: str, *marks: str) -> bool:
    """Whether a text has one of these marks."""
    return any(mark.lower() in text.lower() for mark in marks)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
