"""http: one POST for each message, one after the other, on a connection that is kept. A 2xx is the confirm.

What carries webhooks sends it: which addresses and ports may be reached, no redirects, bounds for answers. What is
secret stands before the host of the URL: `user:password@` becomes the header `Authorization`, and with `whsec_...@`
each request is signed as Standard Webhooks say, with the message's id as `webhook-id`.

What an answer means: 429, and 503 with a `Retry-After`, `ASKED`; 400, 413, 414, 415, 422 and 431 `MESSAGE`; 401, 403
and 407 `REFUSED`; 404, 405, 410 and a redirect `NO_TARGET`; 502, 503 and 504 `AWAY`; everything else, and what breaks
in the middle, `LATE`: what the receiver has done is unknown.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from workq.config.addresses import Allowed, Ports
from workq.config.given_options import GivenOptions, check_files
from workq.config.urls import masked
from workq.errors import ConfigError, MissingExtra
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
from workq.messages.kinds.reach import Lookup, ReachFailed, connect, trouble_of, trust_of
from workq.outbound.backoff import retry_after_s
from workq.outbound.signing import PREFIX, check_secret, signed
from workq.outbound.target import SCHEMES, Target, TargetPolicy, check_headers, checked

try:
    from workq.outbound import post
except ModuleNotFoundError as error:
    raise MissingExtra("a destination of the kind http needs a client library: install the extra [webhooks]") from error

FORM: Final = "https://host/path, with user:password@ before the host for a login, or whsec_...@ for a signature"
CONTENT_TYPE_MAX: Final = 255
_LOGIN: Final = re.compile(r"(https?://)([^@/?#]*)@(.*)", re.DOTALL)
_OF_STATUS: Final = {
    **dict.fromkeys((400, 413, 414, 415, 422, 431), SendFault.MESSAGE),
    **dict.fromkeys((401, 403, 407), SendFault.REFUSED),
    **dict.fromkeys((404, 405, 410), SendFault.NO_TARGET),
    **dict.fromkeys((502, 503, 504), SendFault.AWAY),
    429: SendFault.ASKED,
}
_OF_CLASS: Final = {
    post.ErrorClass.BLOCKED: SendFault.REFUSED,
    post.ErrorClass.TLS: SendFault.REFUSED,
    post.ErrorClass.REDIRECT: SendFault.NO_TARGET,
    **dict.fromkeys(
        (
            post.ErrorClass.DNS,
            post.ErrorClass.REFUSED,
            post.ErrorClass.UNREACHABLE,
            post.ErrorClass.CONNECT_TIMEOUT,
            post.ErrorClass.PROXY,
        ),
        SendFault.AWAY,
    ),
}
"""Where there is no status. What is not here is `LATE`."""
_TURNS: Final = 2
"""The loop stood still since the last call. In so many turns it reads what a receiver has said unasked meanwhile, such
as the 408 of some before they close: that ends the connection (outbound/answer_limits.py), and answers no message."""


class HttpKind(Kind):
    """`--url https://...`"""

    name = "http"

    def __init__(self, *, lookup: Lookup = socket.getaddrinfo) -> None:
        """`lookup`: for tests."""
        self._lookup = lookup

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See the port. `url`, `ca_file` and the like."""
        given = GivenOptions(options)
        url, user, password = _parts(given.take("url", why=f"it is {FORM}"))
        target = checked(url, _policy(Allowed.of("*")))
        login = "" if password is None else "***@" if user is None else f"{quote(user, safe='')}:***@"
        begin, _, rest = url.partition("://")
        given.stored["url"] = masked(f"{begin}://{login}{rest}")
        check_files(given, is_tls=target.scheme == "https")
        return given.done(kind=self.name)

    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:
        """See the port."""
        return _HttpLink(address, allowed=allowed, lookup=self._lookup)


def _parts(url: object) -> tuple[str, str | None, str | None]:
    """The URL without what is secret, then a user and a password; without a user it is what requests are signed with.

    Raises:
        ConfigError: it is not one of these; the message shows nothing of it.
    """
    if not isinstance(url, str):
        raise ConfigError(f"url: need {FORM}")
    match = _LOGIN.fullmatch(url)
    if match is None:
        return url, None, None
    if match[2].startswith(PREFIX):
        return match[1] + match[3], None, check_secret(unquote(match[2]))
    user, colon, password = match[2].partition(":")
    if not user or not colon or ":" in password or "@" in match[3].partition("/")[0]:
        raise ConfigError(f"url: a login is a user and a password, with @ as %40 and : as %3A in them; need {FORM}")
    return match[1] + match[3], unquote(user), unquote(password)


def _policy(allowed: Allowed) -> TargetPolicy:
    return TargetPolicy(allowed, Ports.of(""), SCHEMES)


class _HttpLink(DestinationLink):
    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._options = address.options
        self._url, user, self._password = _parts(address.url)
        self._secret = self._password if user is None else None
        self._login: dict[str, str] = {}
        if user is not None:
            told = f"{user}:{self._password}".encode()
            self._login = {"authorization": f"Basic {b64encode(told).decode()}"}
        self._policy = _policy(allowed)
        self._lookup = lookup
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sender: post.Sender | None = None

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        """See the port. The time is for all of them: those that it does not suffice for are `AWAY`."""
        ends = time.monotonic() + timeout_s
        self._loop = self._loop or asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(self._send(postings, ends))
        except ReachFailed as failed:
            return [failed.unsent for _ in postings]

    def test(self, *, timeout_s: float) -> list[str]:
        """See the port. A connection is made, with TLS where the URL wants it, and no request is sent."""
        try:
            target = self._target()
            trust = trust_of(self._options) if target.scheme == "https" else None
            made = connect(
                target.host,
                target.port,
                self._policy.allowed,
                lookup=self._lookup,
                ends=time.monotonic() + timeout_s,
                trust=trust,
            )
        except ReachFailed as failed:
            return [failed.unsent.text]
        except OSError as error:
            return [trouble_of(error, target.host, target.port).text]
        made.close()
        return []

    def close(self) -> None:
        """See the port."""
        loop, self._loop = self._loop, None
        sender, self._sender = self._sender, None
        if loop is not None:
            if sender is not None:
                loop.run_until_complete(sender.close())
            loop.close()

    async def _send(self, postings: Sequence[Posting], ends: float) -> list[Answer]:
        if self._sender is None:
            trust = trust_of(self._options) if self._url.startswith("https") else None
            self._sender = post.Sender(self._policy, trust=trust, lookup=self._lookup)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return [await self._post(self._sender, posting, ends) for posting in postings]

    async def _post(self, sender: post.Sender, posting: Posting, ends: float) -> Answer:
        left_s = ends - time.monotonic()
        if left_s <= 0:
            return Unsent(SendFault.AWAY, "no time was left: the receiver was slow with the messages before")
        try:
            headers = self._headers(posting)
        except (ConfigError, UnicodeDecodeError) as error:
            text = "a body that is signed is UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            return Unsent(SendFault.MESSAGE, text)
        connect_s = min(left_s, post.CONNECT_S)
        answer = await sender.post(
            self._url, posting.body, headers, connect_s=connect_s, total_s=left_s, content_type=posting.content_type
        )
        return self._meaning(answer)

    def _headers(self, posting: Posting) -> dict[str, str]:
        """Raises ConfigError, UnicodeDecodeError: HTTP cannot carry it."""
        kind = posting.content_type
        if not 0 < len(kind) <= CONTENT_TYPE_MAX or any(not " " <= letter <= "~" for letter in kind):
            raise ConfigError("the content type has more than printable ASCII")
        headers = check_headers(posting.headers) | self._login | {"workq-id": posting.id}
        if self._secret is not None:
            headers |= signed([self._secret], message_id=posting.id, body=posting.body, at=datetime.now(UTC))
        return headers

    def _meaning(self, answer: post.Answer) -> Answer:
        kind = answer.error_class
        if kind is None:
            return Confirmed(f"{answer.status}")
        text = f"{kind}: {answer.error}"
        if self._password is not None and len(self._password) >= 4:
            text = text.replace(self._password, "***")
        asked_s = retry_after_s(answer.retry_after, now=datetime.now(UTC))
        if answer.status is None or kind is post.ErrorClass.REDIRECT:
            return Unsent(_OF_CLASS.get(kind, SendFault.LATE), text)
        if asked_s is not None and answer.status == 503:
            return Unsent(SendFault.ASKED, text, asked_s)
        fault = _OF_STATUS.get(answer.status, SendFault.LATE)
        return Unsent(fault, text, asked_s if fault is SendFault.ASKED else None)

    def _target(self) -> Target:
        try:
            return checked(self._url, self._policy)
        except ConfigError as error:
            raise ReachFailed(Unsent(SendFault.REFUSED, str(error))) from None
