"""Vault: what nobody else may read, as it is stored: the secrets and headers of an endpoint, the URL of a destination.

With WORKQ_SECRET_KEY it is encrypted (Fernet of the `cryptography` package: AES-128 in CBC, HMAC-SHA256), with the
first of its keys, and read with any of them: a new key goes in front, and `workq webhook endpoint seal` and `workq
message destination seal` write all anew. Without a key it is JSON, and whoever reads a backup of the ledger can sign in
your name, and has the passwords of your brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workq.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

PREFIX: Final = "fernet:"
SECRETS_MAX: Final = 6
"""One, and those before it that still count."""
_OPENED_MAX: Final = 10_000


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """One secret, `whsec_...`. `until`: it was replaced, and signs until then; None: it is the newest."""

    text: str
    until: datetime | None = None

    def __repr__(self) -> str:
        return f"Secret(whsec_..., until={self.until})"


@dataclass(frozen=True, slots=True)
class Content:
    """What is sealed of an endpoint. The newest secret is the first."""

    secrets: tuple[Secret, ...]
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def signing(self, now: datetime) -> list[str]:
        """The secrets that a request is signed with now: the newest, and those whose grace has not ended."""
        return [one.text for one in self.secrets if one.until is None or one.until > now]


class Vault:
    """Seals, and opens what was sealed. Thread-safe."""

    def __init__(self, keys: str | None = None) -> None:
        """`keys`: those of WORKQ_SECRET_KEY, the newest first, with commas between.

        Raises:
            ConfigError: one is no key; the message does not show it. MissingExtra: `cryptography` is not installed.
        """
        self._fernet = None if keys is None else fernet_of(keys)
        self._opened = lru_cache(_OPENED_MAX)(self._open)
        self._opened_urls = lru_cache(_OPENED_MAX)(self._open_url)

    @property
    def has_key(self) -> bool:
        """Whether what is sealed from now on is encrypted."""
        return self._fernet is not None

    def seal(self, content: Content) -> str:
        """As it is stored, of an endpoint."""
        return self._sealed(msgspec.json.encode({"secrets": content.secrets, "headers": content.headers}))

    def seal_url(self, url: str) -> str:
        """As it is stored, of a destination."""
        return self._sealed(msgspec.json.encode({"url": url}))

    def _sealed(self, told: bytes) -> str:
        return told.decode() if self._fernet is None else PREFIX + self._fernet.encrypt(told).decode()

    def open(self, sealed: str) -> Content:
        """What was sealed of an endpoint.

        Raises:
            ConfigError: it is encrypted with a key that is not here, or is not ours.
        """
        return self._opened(sealed)

    def open_url(self, sealed: str) -> str:
        """What was sealed of a destination.

        Raises:
            ConfigError: it is encrypted with a key that is not here, or is not ours.
        """
        return self._opened_urls(sealed)

    def has_same_url(self, one: str | None, other: str | None) -> bool:
        """Whether both were sealed of the same URL. What cannot be opened here is not the same."""
        if one is None or other is None:
            return one == other
        try:
            return self.open_url(one) == self.open_url(other)
        except ConfigError:
            return False

    def _open(self, sealed: str) -> Content:
        try:
            found = _decoder.decode(self._unsealed(sealed, "the secrets of webhooks"))
        except msgspec.MsgspecError:
            raise ConfigError("what is stored as the secrets of an endpoint is not workq's") from None
        return Content(found.secrets, found.headers)

    def _open_url(self, sealed: str) -> str:
        try:
            return _url_decoder.decode(self._unsealed(sealed, "the URLs of destinations")).url
        except msgspec.MsgspecError:
            raise ConfigError("what is stored as the URL of a destination is not workq's") from None

    def _unsealed(self, sealed: str, what: str) -> bytes:
        if not sealed.startswith(PREFIX):
            return sealed.encode()
        if self._fernet is None:
            raise ConfigError(f"{what} are encrypted: set WORKQ_SECRET_KEY, here too")
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet.decrypt(sealed.removeprefix(PREFIX))
        except InvalidToken:
            raise ConfigError(
                f"{what} are encrypted with another key: add it to WORKQ_SECRET_KEY, at its end"
            ) from None


def fernet_of(keys: str) -> MultiFernet:
    """What encrypts with the first of some keys, and decrypts with any.

    Raises:
        ConfigError: one is no key; the message does not show it. MissingExtra: `cryptography` is not installed.
    """
    try:
        from cryptography.fernet import Fernet, MultiFernet
    except ImportError:
        raise MissingExtra("WORKQ_SECRET_KEY needs cryptography: install the extra [webhooks]") from None
    found: list[Any] = []
    for number, key in enumerate((part.strip() for part in keys.split(",") if part.strip()), start=1):
        try:
            found.append(Fernet(key))
        except ValueError:
            raise ConfigError(
                f"WORKQ_SECRET_KEY: its key {number} is none; make one with: "
                "python -c 'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())'"
            ) from None
    if not found:
        raise ConfigError("WORKQ_SECRET_KEY: there is no key in it")
    return MultiFernet(found)


class _Stored(msgspec.Struct):
    secrets: tuple[Secret, ...]
    headers: dict[str, str] = {}


class _StoredUrl(msgspec.Struct):
    url: str


_decoder: Final = msgspec.json.Decoder(_Stored)
_url_decoder: Final = msgspec.json.Decoder(_StoredUrl)
