"""Post: one attempt to deliver a webhook, from its URL to what came of it. Whatever goes wrong is an answer too.

A 2xx is a success; everything else has a class of failure that does not change from one version to the next. A redirect
is a failure, and is not followed: what it points at was not checked. Of an answer, 16 KiB are read, and no more is
waited for than that; if it stops in the middle, nobody knows what the receiver has done: that is a failure, also behind
a 200. What surrounds the body has its own limits (answer_limits.py). One deadline holds for all of it, from the lookup
of the name on, however slowly the bytes drip.

With a proxy (proxy.py) an attempt comes to it first. That it is not reached is the one answer that is no attempt.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from yarl import URL

from workq import __version__
from workq.errors import ConfigError
from workq.outbound.answer_limits import ANSWER_MAX_BYTES, LimitedAnswers, TooMuch
from workq.outbound.deadline import Deadline
from workq.outbound.guard import Blocked, Guard, Lookup, Trace, tracing
from workq.outbound.proxy import Proxy
from workq.outbound.target import Target, TargetPolicy, checked

CONNECT_S: Final = 5.0
TOTAL_S: Final = 20.0
HEADER_LINE_MAX: Final = 8190
ERROR_MAX: Final = 500
KEEPALIVE_S: Final = 15.0
TARGETS_MAX: Final = 1_000
"""So many URLs are known to be permitted, whatever their names lead to at the time."""


class ErrorClass(StrEnum):
    """Why an attempt has failed. These words are kept: people filter by them."""

    BLOCKED = "blocked"
    DNS = "dns"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    RESET = "reset"
    PROTOCOL = "protocol"
    CONNECT_TIMEOUT = "connect_timeout"
    ANSWER_TIMEOUT = "answer_timeout"
    BODY_TIMEOUT = "body_timeout"
    REDIRECT = "redirect"
    GONE = "gone"
    THROTTLED = "throttled"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    PROXY = "proxy"


TIMEOUTS: Final = frozenset({ErrorClass.CONNECT_TIMEOUT, ErrorClass.ANSWER_TIMEOUT, ErrorClass.BODY_TIMEOUT})


class Answer(msgspec.Struct, frozen=True):
    """What came of one attempt. `error_class` None: a success.

    `ms`: from its begin to its end. `body`: the first 16 KiB, `is_cut`: there was more. `addresses`: those that the
    name had, `address`: the one that was connected to; None and none where a connection was used again. With a proxy
    both are the proxy's. `is_proxy_away`: it was not reached, or does not know us, so nothing was sent, and the
    receiver has failed in nothing.
    """

    status: int | None
    error_class: ErrorClass | None
    error: str
    ms: float
    body: bytes = b""
    is_cut: bool = False
    retry_after: str | None = None
    addresses: tuple[str, ...] = ()
    address: str | None = None
    tls: str | None = None
    is_proxy_away: bool = False


class _Attempt(Trace):
    """One attempt: how far it has come, for what is said of a deadline. `proxy`: the one that it goes through."""

    def __init__(self, host: str, connect_s: float, proxy: Proxy | None) -> None:
        super().__init__(host if proxy is None else proxy.host)
        self.proxy = proxy
        self.connect_s = connect_s
        self.stage = ErrorClass.CONNECT_TIMEOUT
        self.is_reused = False
        self.status: int | None = None
        self.retry_after: str | None = None
        self.body = bytearray()
        self.is_cut = False
        self.tls: str | None = None
        self.wants_login = False
        """The proxy does: a fault of ours, while one that refuses a receiver has answered as it should."""

    def begin(self) -> None:
        """A connection is wanted; with a proxy, the first part of the way is that to it."""
        self.address = None
        self.stage = ErrorClass.CONNECT_TIMEOUT if self.proxy is None else ErrorClass.PROXY

    def is_of_proxy(self, error: BaseException | None = None) -> bool:
        """Whether the proxy is at fault: it is not reached, makes no tunnel, or answers in the receiver's place."""
        if self.proxy is None:
            return False
        match self.stage:
            case ErrorClass.PROXY:
                return True
            case ErrorClass.CONNECT_TIMEOUT:  # what fails in the tunnel, such as TLS, is a ClientConnectorError
                return isinstance(error, _OF_CONNECT) and not isinstance(error, aiohttp.ClientConnectorError)
            case _:
                return self.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and self.tls is None


class Sender:
    """Sends webhooks. One for an event loop: it keeps connections that receivers leave open."""

    def __init__(
        self,
        policy: TargetPolicy,
        *,
        connect_s: float = CONNECT_S,
        total_s: float = TOTAL_S,
        trust: ssl.SSLContext | None = None,
        lookup: Lookup = socket.getaddrinfo,
    ) -> None:
        """`trust`: which certificates are accepted, by default those that the system trusts. `lookup`: for tests.

        To be made in the event loop that it is used in.
        """
        self._loop = asyncio.get_running_loop()
        self._checked = lru_cache(TARGETS_MAX)(partial(checked, policy=policy))
        self._connect_s = connect_s
        self._total_s = total_s
        self._proxy = policy.proxy
        guard = Guard(policy.allowed, lookup=lookup)
        self._guard = guard
        self._connector = _Connector(
            resolver=guard,
            socket_factory=guard.make_socket,
            use_dns_cache=False,
            ssl=trust or True,
            limit=0,  # the queue says how many there are at once
            keepalive_timeout=KEEPALIVE_S,
        )

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close what is open. Repeatable."""
        await self._connector.close()
        await self._guard.close()

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        connect_s: float | None = None,
        total_s: float | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """Send this body to this URL, once. Never raises for what a receiver does.

        `connect_s`, `total_s`: other deadlines than the sender's own.
        """
        begun = time.monotonic()
        try:
            target = self._checked(url)
        except ConfigError as error:  # the policy has changed since it was saved
            return Answer(None, ErrorClass.BLOCKED, _short(str(error)), 0.0)
        attempt = _Attempt(target.host, self._connect_s if connect_s is None else connect_s, self._proxy)
        token = tracing.set(attempt)
        failure: tuple[ErrorClass, str] | None
        is_of_proxy = False
        try:
            with Deadline(self._loop, self._total_s if total_s is None else total_s):
                await self._deliver(target, body, {**headers, **_FIXED, "content-type": content_type}, attempt)
            failure, is_of_proxy = _of_status(attempt.status or 0), attempt.is_of_proxy()
        except TimeoutError:
            failure, is_of_proxy = (attempt.stage, _LATE[attempt.stage]), attempt.is_of_proxy()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure, is_of_proxy = _of_error(error), attempt.is_of_proxy(error)
            attempt.wants_login = isinstance(error, aiohttp.ClientHttpProxyError) and _LOGIN in (error.headers or {})
        finally:
            tracing.reset(token)
        kind, text = failure or (None, "")
        if self._proxy is not None and is_of_proxy:
            kind, text = ErrorClass.PROXY, f"the proxy {self._proxy.url}: {text}"
        return Answer(
            attempt.status,
            kind,
            _short(text),
            (time.monotonic() - begun) * 1000.0,
            bytes(attempt.body),
            attempt.is_cut,
            attempt.retry_after,
            attempt.addresses,
            attempt.address,
            attempt.tls,
            is_proxy_away=is_of_proxy and (attempt.stage is ErrorClass.PROXY or attempt.wants_login),
        )

    async def _deliver(self, target: Target, body: bytes, headers: Mapping[str, str], attempt: _Attempt) -> None:
        """A connection that was kept may have been closed by its other end: that is no answer, and one is made anew."""
        url, request = URL(target.url, encoded=True), self._request(target, dict(headers))
        while True:
            attempt.is_reused = False
            try:
                return await self._exchange(url, body, request, attempt)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not attempt.is_reused or attempt.status is not None:
                    raise

    def _request(self, target: Target, headers: dict[str, str]) -> dict[str, Any]:
        """What the request is made of. The login is for the proxy alone: in a tunnel it is not said again."""
        proxy = self._proxy
        if proxy is None:
            return {"headers": headers}
        if target.scheme == "http":
            return {"headers": headers | proxy.headers, "proxy": URL(proxy.url)}
        return {
            "headers": headers,
            "proxy": URL(proxy.url),
            "proxy_headers": CIMultiDict({"user-agent": _FIXED["user-agent"], **proxy.headers}),
            "server_hostname": target.host.rstrip("."),  # as without a proxy: certificates have no dot at the end
        }

    async def _exchange(self, url: URL, body: bytes, request: dict[str, Any], attempt: _Attempt) -> None:
        answer = await self._connector.ask(url, body, request, loop=self._loop)
        try:
            attempt.stage = ErrorClass.BODY_TIMEOUT
            attempt.status = answer.status
            attempt.retry_after = answer.headers.get("Retry-After")
            attempt.wants_login = _LOGIN in answer.headers
            async for part in answer.content.iter_any():
                attempt.body += part
                if len(attempt.body) > ANSWER_MAX_BYTES:
                    del attempt.body[ANSWER_MAX_BYTES:]
                    attempt.is_cut = True
                    answer.close()  # what else it says is not read
                    return
        finally:
            answer.release()
            await answer.wait_for_close()


class _Connector(aiohttp.TCPConnector):
    """Tells the attempt that it has a connection, and whether that was used before; and that it has reached the proxy.

    aiohttp's own tracing tells the first two, too, and costs every request a tenth of its time.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        make: Callable[..., ResponseHandler] = LimitedAnswers
        self._factory = partial(make, loop=self._loop)

    async def ask(
        self, url: URL, body: bytes, request: dict[str, Any], *, loop: asyncio.AbstractEventLoop
    ) -> aiohttp.ClientResponse:
        """Send a request, and wait for the begin of its answer.

        A session would do the same, but for cookies, redirects, logins and traces: things that webhooks have not, and
        that it looks for in each request, for a quarter of the request's time.

        Raises:
            aiohttp.ClientError, TimeoutError: as a session.
        """
        asked = aiohttp.ClientRequest(
            "POST", url, data=body, loop=loop, response_class=aiohttp.ClientResponse, **request
        )
        try:
            connection = await self.connect(asked, [], _NO_DEADLINE)
            try:
                if connection.protocol is None:
                    raise aiohttp.ServerDisconnectedError
                connection.protocol.set_response_params(
                    read_until_eof=True,
                    auto_decompress=False,
                    max_line_size=HEADER_LINE_MAX,
                    max_field_size=HEADER_LINE_MAX,
                )
                answer = await asked.send(connection)
                try:
                    return await answer.start(connection)
                except BaseException:
                    answer.close()
                    raise
            except BaseException:
                connection.close()
                raise
        except (aiohttp.ClientError, TimeoutError):
            raise
        except OSError as error:
            raise aiohttp.ClientOSError(*error.args) from error

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        attempt = tracing.get()
        if isinstance(attempt, _Attempt):
            attempt.begin()
        connection = await super().connect(req, traces, timeout)
        if isinstance(attempt, _Attempt):
            attempt.stage, attempt.is_reused = ErrorClass.ANSWER_TIMEOUT, attempt.address is None
            attempt.tls = _tls_of(connection.transport)
        return connection

    async def _create_connection(self, *args: Any, **more: Any) -> Any:
        """To the receiver, or the tunnel to it: in time."""
        attempt = tracing.get()
        async with asyncio.timeout(attempt.connect_s if isinstance(attempt, _Attempt) else None):
            return await super()._create_connection(*args, **more)

    async def _create_direct_connection(self, *args: Any, **more: Any) -> Any:
        """To the receiver; or to the proxy, and then the tunnel is to be made."""
        made = await super()._create_direct_connection(*args, **more)
        attempt = tracing.get()
        if isinstance(attempt, _Attempt):
            attempt.stage = ErrorClass.CONNECT_TIMEOUT
        return made


_NO_DEADLINE: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
"""Deadlines are kept here: aiohttp has one for the connection of each request, also where that is there already."""
_LOGIN: Final = "Proxy-Authenticate"
_OF_CONNECT: Final = (aiohttp.ClientResponseError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, TooMuch)
"""What may come of asking a proxy for a tunnel."""
_LATE: Final = {
    ErrorClass.PROXY: "no connection in time",
    ErrorClass.CONNECT_TIMEOUT: "no connection in time",
    ErrorClass.ANSWER_TIMEOUT: "connected, and no answer in time",
    ErrorClass.BODY_TIMEOUT: "answered, and its answer did not end in time",
}


_FIXED: Final = {
    "user-agent": f"workq/{__version__}",
    "accept": "*/*",
    "accept-encoding": "identity",
}
"""What every request says; a receiver's own headers say nothing else of it."""


def _tls_of(transport: asyncio.Transport | None) -> str | None:
    wrapped = None if transport is None else transport.get_extra_info("ssl_object")
    return None if wrapped is None else wrapped.version()


def _of_status(status: int) -> tuple[ErrorClass, str] | None:
    """What a status means; None: a success."""
    if 200 <= status < 300:
        return None
    try:
        text = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        text = str(status)
    match status:
        case 410:
            return ErrorClass.GONE, text
        case 429:
            return ErrorClass.THROTTLED, text
        case _ if 300 <= status < 400:
            return ErrorClass.REDIRECT, f"{text}: a webhook follows no redirect; change the endpoint's URL"
        case _ if 400 <= status < 500:
            return ErrorClass.CLIENT_ERROR, text
        case _:
            return ErrorClass.SERVER_ERROR, text


def _of_error(error: BaseException) -> tuple[ErrorClass, str]:
    """What an error means, whatever it was wrapped in."""
    causes = list(_causes(error))
    for one in causes:
        if isinstance(one, Blocked):
            return ErrorClass.BLOCKED, str(one)
        if isinstance(one, TooMuch):
            return ErrorClass.PROTOCOL, str(one)
    if isinstance(error, aiohttp.ClientHttpProxyError):  # what it was asked with has the login in it
        return ErrorClass.PROXY, f"{error.status} {error.message}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ErrorClass.DNS, f"the name has no address: {_said(causes)}"
    if any(isinstance(one, ssl.SSLError | ssl.CertificateError | aiohttp.ClientSSLError) for one in causes):
        return ErrorClass.TLS, _said(causes)
    numbers = {one.errno for one in causes if isinstance(one, OSError)}
    if errno.ETIMEDOUT in numbers:
        return ErrorClass.CONNECT_TIMEOUT, _LATE[ErrorClass.CONNECT_TIMEOUT]
    if errno.ECONNREFUSED in numbers:
        return ErrorClass.REFUSED, "nothing listens there"
    if numbers & {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED}:
        return ErrorClass.RESET, "it has closed the connection in the middle"
    if isinstance(error, aiohttp.ClientConnectorError):
        return ErrorClass.UNREACHABLE, _said(causes)
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return ErrorClass.RESET, "it has closed the connection in the middle"
    return ErrorClass.PROTOCOL, f"it does not speak HTTP: {_said(causes)}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what has caused it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        inner = getattr(found, "os_error", None)
        found = found.__cause__ or (inner if inner is not found else None) or found.__context__


def _said(causes: list[BaseException]) -> str:
    last = causes[-1]
    return f"{type(last).__name__}: {last}"


def _short(text: str) -> str:
    return " ".join(text.split())[:ERROR_MAX]
