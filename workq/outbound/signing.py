"""Signing: what tells a receiver that a webhook is ours, and unchanged (Standard Webhooks 1.0, `v1`).

The signature is an HMAC-SHA256 over `id.timestamp.body`; the `standardwebhooks` package computes it, behind this one
wrapper, because it must be given UTC and text (its `sign` takes others and signs something else).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets as random
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Protocol

from workq.errors import ConfigError, MissingExtra, VerificationFailed

PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32
SECRET_MIN_BYTES: Final = 24
SECRET_MAX_BYTES: Final = 64
TOLERANCE_S: Final = 300.0
SIGNERS_MAX: Final = 1_000
"""So many secrets are kept decoded."""


class _HeaderItems(Protocol):
    """Headers as most frameworks have them."""

    def items(self) -> Iterable[tuple[Any, Any]]: ...


Headers = _HeaderItems | Iterable[tuple[Any, Any]]
"""A mapping, or pairs; of text, or of bytes as ASGI has them. How they are written does not matter."""


def new_secret() -> str:
    """A secret of 32 random bytes, as receivers are given it: `whsec_` and base64."""
    return PREFIX + base64.b64encode(random.token_bytes(SECRET_BYTES)).decode()


def check_secret(secret: object) -> str:
    """A secret, unchanged.

    Raises:
        ConfigError: it is none; the message does not show it.
    """
    text = secret if isinstance(secret, str) else ""
    try:
        size = len(base64.b64decode(text.removeprefix(PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if not text.startswith(PREFIX) or not SECRET_MIN_BYTES <= size <= SECRET_MAX_BYTES:
        raise ConfigError(f"secret: need {PREFIX} and {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} bytes in base64")
    return text


def signed(
    secrets: Sequence[str], *, message_id: str, body: bytes, at: datetime, alias: str | None = None
) -> dict[str, str]:
    """The three headers of one attempt: signed with each of these secrets, the first one's signature first.

    `at`: the instant of this attempt, aware. `alias`: they are there under this name, too, for receivers that verify
    what another system used to send.
    """
    at, text = at.astimezone(UTC), body.decode()
    signature = " ".join([_signature(secret, message_id, at, text) for secret in secrets])
    stamp = str(int(at.timestamp()))
    found = {"webhook-id": message_id, "webhook-timestamp": stamp, "webhook-signature": signature}
    if alias is not None:
        found = {name.replace("webhook", alias, 1): said for name, said in found.items()} | found
    return found


def verify(
    headers: Headers,
    body: bytes | str,
    secret: str | Sequence[str],
    *,
    tolerance_s: float = TOLERANCE_S,
    now: float | None = None,
) -> str:
    """Whether a request is a webhook of somebody who has the secret; answers its id, which a repetition has, too.

    `body` is what came, byte for byte, before anything has parsed it. `secret`: several while one replaces another.
    `tolerance_s`: how old, or how far ahead of our clock, it may be. `now`: in seconds since 1970, for tests.

    Raises:
        VerificationFailed: it is not; answer it with 400 or 401. Nothing else is raised for anything in the request.
        ConfigError: the secret is none.
    """
    given: list[Any] = [secret] if isinstance(secret, str) or not isinstance(secret, Iterable) else list(secret)
    known = [check_secret(one) for one in given or [None]]
    try:
        return _verified(headers, body, known, tolerance_s, time.time() if now is None else now)
    except (VerificationFailed, MissingExtra):
        raise
    except Exception as error:  # whatever somebody has sent
        raise VerificationFailed(f"the request cannot be read: {type(error).__name__}") from error


def _verified(
    headers: Headers,
    body: bytes | str,
    secrets: Sequence[str],
    tolerance_s: float,
    now: float,
) -> str:
    pairs: Any = headers.items() if hasattr(headers, "items") else headers
    found = {_text(name).lower(): _text(value) for name, value in pairs}
    missing = [name for name in ("webhook-id", "webhook-timestamp", "webhook-signature") if not found.get(name)]
    if missing:
        raise VerificationFailed(f"header {missing[0]} is missing")
    stamp = found["webhook-timestamp"]
    if not stamp.isascii() or not stamp.isdigit() or len(stamp) > 12:
        raise VerificationFailed("webhook-timestamp is no number of seconds")
    age_s = now - int(stamp)
    if abs(age_s) > tolerance_s:
        when = "old" if age_s > 0 else "ahead of this machine's clock"
        raise VerificationFailed(f"webhook-timestamp is {abs(age_s):.0f} s {when}; allowed are {tolerance_s:.0f} s")
    text = body if isinstance(body, str) else body.decode()
    at = datetime.fromtimestamp(int(stamp), UTC)
    expected = [_signature(secret, found["webhook-id"], at, text).encode() for secret in secrets]
    given = [one.encode() for one in found["webhook-signature"].split()]
    if not any(hmac.compare_digest(one, other) for one in given for other in expected):
        raise VerificationFailed("no signature fits the body and the secret")
    return found["webhook-id"]


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _signature(secret: str, message_id: str, at: datetime, body: str) -> str:
    signature: str = _signer(secret).sign(message_id, at, body)
    return signature


@lru_cache(SIGNERS_MAX)
def _signer(secret: str) -> Any:
    try:
        from standardwebhooks import Webhook
    except ImportError:
        raise MissingExtra("webhooks need standardwebhooks: install the extra [webhooks]") from None
    return Webhook(secret)
