"""Bodies: what a message says, its headers and its key, checked before anything is recorded. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from workq.errors import ConfigError, PayloadError
from workq.messages.values import BODY_MAX_BYTES
from workq.values import codec

TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"
JSON: Final = "application/json"
KEY_MAX: Final = 1024
HEADERS_MAX: Final = 50
HEADER_VALUE_MAX: Final = 4096
OWN: Final = "workq-"
"""How the headers begin that workq adds itself."""

_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")


def stored_body(body: Any) -> tuple[str, bool, str]:
    """A body as it is recorded, whether that is base64, and its content type: text, bytes, or anything that is JSON.

    Raises:
        PayloadError: it has more than 256 KiB, or is neither text nor bytes nor JSON.
    """
    if isinstance(body, bytes | bytearray | memoryview):
        raw = bytes(body)
        _check_size(len(raw))
        return b64encode(raw).decode(), True, BYTES
    if isinstance(body, str):
        try:
            raw = body.encode()
        except UnicodeEncodeError as error:
            raise PayloadError("body: text with a lone surrogate is not valid Unicode") from error
        _check_size(len(raw))
        if "\x00" in body:  # which PostgreSQL cannot store as text
            return b64encode(raw).decode(), True, TEXT
        return body, False, TEXT
    text = codec.encode(body, path="body", max_bytes=BODY_MAX_BYTES)
    return text, False, JSON


def _check_size(size: int) -> None:
    if size > BODY_MAX_BYTES:
        raise PayloadError(
            f"body: {size} bytes, more than the limit of {BODY_MAX_BYTES}; store the data elsewhere, pass a reference"
        )


def check_message_key(key: object) -> str:
    """The key that a destination may sort messages by, such as Kafka's, unchanged.

    Raises:
        ConfigError: it is no text of up to 1,024 characters without control characters.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_MAX or _CONTROL.search(key) or not _is_unicode(key):
        raise ConfigError(f"key: need text of 1 to {KEY_MAX} characters without control characters, got {key!r:.100}")
    return key


def check_message_headers(headers: object) -> dict[str, str]:
    """Headers, unchanged.

    Raises:
        ConfigError: too many, a name or a value that brokers do not carry, or one that workq adds itself.
        PayloadError: together they have more than 256 KiB as JSON, which is how they are recorded.
    """
    if not isinstance(headers, Mapping) or len(headers) > HEADERS_MAX:
        raise ConfigError(f"headers: need a mapping of at most {HEADERS_MAX} names to text")
    found: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise ConfigError(f"header {name!r:.100}: a name has up to 100 letters, digits and -")
        if name.lower().startswith(OWN):
            raise ConfigError(f"header {name!r}: those that begin with {OWN} are workq's own")
        if not isinstance(value, str) or len(value) > HEADER_VALUE_MAX or _CONTROL.search(value):
            raise ConfigError(
                f"header {name!r}: need text of at most {HEADER_VALUE_MAX} characters, no control characters"
            )
        if not _is_unicode(value):
            raise ConfigError(f"header {name!r}: text with a lone surrogate is not valid Unicode")
        found[name] = value
    codec.encode(found, path="headers")
    return found


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
