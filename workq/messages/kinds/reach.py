"""Reach: from a name to a socket, and only to addresses that may be reached.

A name is looked up for each connection, and every address that it has then is judged: one that may not be reached
refuses them all. What was judged is what is connected to; nothing looks the name up again in between.
"""

from __future__ import annotations

import errno
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from workq.config.addresses import Allowed, literal
from workq.config.place import shown
from workq.messages.kinds import SendFault, Unsent

Lookup = Callable[..., list[Any]]
T = TypeVar("T")
LEAST_S: Final = 0.001


class NotAllowed(OSError):
    """An address that messages may not go to."""


class ReachFailed(Exception):
    """Nothing can be sent just now, and why: the same for each message."""

    def __init__(self, unsent: Unsent) -> None:
        super().__init__(unsent.text)
        self.unsent = unsent


def left(ends: float) -> float:
    """Seconds until an instant of the monotonic clock; a little when it has passed."""
    return max(LEAST_S, ends - time.monotonic())


def judged(host: str, port: int, allowed: Allowed, *, lookup: Lookup, within_s: float) -> list[str]:
    """The addresses of a host, all of them permitted; at least one.

    Raises:
        NotAllowed: one of them may not be reached. OSError: it has none, or the lookup took too long (TimeoutError).
    """
    if allowed.forbids_host(host):
        raise NotAllowed(allowed.refusal(host))
    address = literal(host)
    if address is not None:
        found = [host]
    else:
        answers = within(
            lambda: lookup(host, port, family=socket.AF_UNSPEC, type=socket.SOCK_STREAM),
            within_s,
            late="the name was not looked up in time",
        )
        found = list(dict.fromkeys(str(where[0]) for *_, where in answers))
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
    for one in found:
        one_address = literal(one)
        if one_address is None or not (allowed.permits(one_address) or allowed.permits_host(host)):
            of = "" if one == host else f"{host} has a "
            raise NotAllowed(f"{of}{allowed.refusal(one_address or one)}")
    return found


def permitted(host: str, port: int, allowed: Allowed, *, lookup: Lookup, ends: float) -> list[str]:
    """As `judged`, until an instant of the monotonic clock.

    Raises:
        ReachFailed: one of them may not be reached, or there is none.
    """
    try:
        return judged(host, port, allowed, lookup=lookup, within_s=left(ends))
    except OSError as error:
        raise ReachFailed(trouble_of(error, host, port)) from None


def remembering(lookup: Lookup) -> Lookup:
    """The same server of names, asked for each name once: what was judged is what the next one gets."""
    known: dict[tuple[str, int], list[Any]] = {}

    def asked(host: str, port: int, **more: Any) -> list[Any]:
        if (host, port) not in known:
            known[host, port] = lookup(host, port, **more)
        return known[host, port]

    return asked


def connect(
    host: str, port: int, allowed: Allowed, *, lookup: Lookup, ends: float, trust: ssl.SSLContext | None
) -> socket.socket:
    """A connection to a host, with TLS where `trust` is given: what it shows has to be good for `host`.

    `ends`: by the monotonic clock. Until then it has tried each address that the host has.

    Raises:
        NotAllowed, OSError, ssl.SSLError: there is none.
    """
    trouble: OSError = OSError("no address")
    addresses = judged(host, port, allowed, lookup=lookup, within_s=left(ends))
    for number, address in enumerate(addresses):
        try:
            made = socket.create_connection((address, port), timeout=left(ends) / (len(addresses) - number))
        except OSError as error:
            trouble = error
            continue
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            made.settimeout(left(ends))
            return made if trust is None else trust.wrap_socket(made, server_hostname=host)
        except BaseException:
            made.close()
            raise
    raise trouble


def trust_of(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Which certificates are accepted, and what we show: the files that the options name.

    Raises:
        ReachFailed: a file cannot be used.
    """
    try:
        made = ssl.create_default_context(cafile=options.get("ca_file"))
        if options.get("cert_file") is not None:
            made.load_cert_chain(options["cert_file"], options.get("key_file"))
    except (OSError, ssl.SSLError) as error:
        raise ReachFailed(
            Unsent(SendFault.REFUSED, f"a certificate file of the destination cannot be used: {error}")
        ) from None
    return made


def trouble_of(error: BaseException, host: str, port: int) -> Unsent:
    """What it means that there is no connection, or none any more."""
    at = shown(host, port)
    causes = list(_causes(error))
    for one in causes:
        match one:
            case NotAllowed():
                return Unsent(SendFault.REFUSED, str(one))
            case ssl.SSLCertVerificationError():
                return Unsent(SendFault.REFUSED, f"{at} could not be verified by TLS: {one.verify_message}")
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
                return Unsent(SendFault.AWAY, f"{at} has closed the connection")
            case ssl.SSLError() if one.reason is not None:
                return Unsent(SendFault.REFUSED, f"{at} has no TLS in common with us: {one.reason}")
            case socket.gaierror():
                return Unsent(SendFault.AWAY, f"the name {host} has no address: {one.strerror}")
            case TimeoutError():
                return Unsent(SendFault.AWAY, f"{at} did not answer in time")
            case OSError() if one.errno == errno.ECONNREFUSED:
                return Unsent(SendFault.AWAY, f"nothing listens at {at}")
    last = causes[-1]
    return Unsent(SendFault.AWAY, f"the connection to {at} broke: {type(last).__name__} {last}")


def unsent_to_all(each: Sequence[Unsent]) -> Unsent:
    """What it means that none of some hosts has a connection for us."""
    return Unsent(each[0].fault, "; ".join(dict.fromkeys(one.text for one in each)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what has caused it, whatever it was wrapped in."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.append(one)
        yield one
        inner = [*getattr(one, "exceptions", ()), getattr(one, "exception", None), *one.args]
        waiting += [each for each in [*inner, one.__cause__, one.__context__] if isinstance(each, BaseException)]


def within(call: Callable[[], T], within_s: float, *, late: str) -> T:
    """What a call answers that knows no deadline; a thread that is late is left alone.

    Raises what the call raises, and TimeoutError, which says `late`.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, name="workq-within", daemon=True).start()
    try:
        value, error = answers.get(timeout=within_s)
    except queue.Empty:
        raise TimeoutError(late) from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # there was no error
