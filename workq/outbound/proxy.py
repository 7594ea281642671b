"""Proxy: the one way out, where a network has only one (WORKQ_WEBHOOK_PROXY).

Everything goes through it then, or does not go: http in the absolute form of a request, https through a tunnel, so that
TLS is between us and the receiver. The proxy looks the receivers' names up, and so it decides which addresses they may
have; what we judge is an address that stands in a URL, and the proxy's own, as that of any receiver (guard.py).

A proxy that is not reached, or that wants another login, is a fault of ours: nothing was sent, and no receiver has
failed. One that refuses a receiver makes a failed attempt, as does one that says nothing: who is silent behind it,
nobody can tell.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where it is, and who we are to it. `url` is without the login; `headers` are for the proxy alone."""

    url: str
    host: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(url: str) -> Proxy:
        """The same, of a setting that was checked."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        headers = {}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["proxy-authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        return Proxy(f"http://{f'[{host}]' if ':' in host else host}:{parts.port}", host, headers)
