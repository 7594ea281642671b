"""Target: whether a webhook may go to a URL. Decided before anything is contacted, and by guard.py at the socket.

Refused is what could mean something else to another program: another scheme, a user or a password, an address that is
not written as one, letters outside ASCII, a port of another service. One way to write a URL is left, and so the one
that was checked is the one that is called. With a proxy the same is refused here, and names are judged by the proxy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import urlsplit

from workq.config.addresses import Allowed, Ports, is_host, is_number_like, literal
from workq.errors import ConfigError
from workq.outbound.proxy import Proxy

URL_MAX: Final = 2048
SCHEMES: Final = ("http", "https")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
HEADERS_MAX: Final = 50
HEADER_VALUE_MAX: Final = 4096
ALIAS_MAX: Final = 40
_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OURS: Final = frozenset(
    {
        *("host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection"),
        *("user-agent", "expect", "upgrade", "te", "trailer", "keep-alive", "proxy-authorization"),
    }
)
"""Headers that say how a request is to be read, or who sends it."""


@dataclass(frozen=True, slots=True)
class TargetPolicy:
    """Where webhooks may go: addresses, ports, schemes; and through which proxy, if there is one."""

    allowed: Allowed
    ports: Ports
    schemes: tuple[str, ...]
    proxy: Proxy | None = None

    @staticmethod
    def of(
        allow: str = "external", ports: str = "", schemes: str = "http,https", proxy: str | None = None
    ) -> TargetPolicy:
        """The same, of settings that were checked."""
        return TargetPolicy(
            Allowed.of(allow),
            Ports.of(ports),
            tuple(part.strip() for part in schemes.split(",")),
            None if proxy is None else Proxy.of(proxy),
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that was checked, and what it says."""

    url: str
    scheme: str
    host: str
    port: int


def checked(url: object, policy: TargetPolicy) -> Target:
    """The parts of a URL that a webhook may go to.

    Raises:
        ConfigError: it may not, and why; the message names the setting that would permit it, where one does.
    """
    if not isinstance(url, str):
        raise ConfigError(f"URL: need text, got {type(url).__name__}")
    if len(url) > URL_MAX:
        raise ConfigError(f"URL: has {len(url)} characters, at most {URL_MAX} are allowed")
    if any(not "!" <= letter <= "~" or letter in '\\"<>^`{|}' for letter in url):
        raise ConfigError("URL: only ASCII without blanks; write the rest as %XX, and names as xn--...")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"URL: {error}") from None
    if parts.scheme not in SCHEMES:
        raise ConfigError("URL: need http://host/path or https://host/path")
    if parts.scheme not in policy.schemes:
        raise ConfigError(
            f"URL: {parts.scheme} is not permitted here (WORKQ_WEBHOOK_SCHEMES={','.join(policy.schemes)})"
        )
    if "@" in parts.netloc:
        raise ConfigError("URL: has a user or a password in it; put what the receiver needs into a header")
    if parts.fragment or url.endswith("#"):
        raise ConfigError("URL: what stands behind # is never sent")
    if not parts.hostname:
        raise ConfigError("URL: has no host")
    host = parts.hostname
    _check_host(host, parts.netloc, policy)
    if port is None:
        port = _DEFAULT_PORTS[parts.scheme]
    if not policy.ports.permits(port):
        raise ConfigError(
            f"URL: blocked port {port} (set WORKQ_WEBHOOK_PORTS={_and(policy.ports.text, port)} to permit)"
        )
    return Target(url, parts.scheme, host, port)


def _check_host(host: str, netloc: str, policy: TargetPolicy) -> None:
    address = literal(host)
    if netloc.startswith("[") != isinstance(address, IPv6Address):
        raise ConfigError("URL: only an IPv6 address stands in brackets, and it has to")
    if address is None:
        if is_number_like(host):
            raise ConfigError(f"URL: {host!r} is a number to some programs and an address to others; write a.b.c.d")
        if not is_host(host):
            raise ConfigError("URL: its host is no name and no address")
        if policy.allowed.forbids_host(host):
            raise ConfigError(f"URL: {policy.allowed.refusal(host)}")
    elif "%" in host:
        raise ConfigError("URL: an address with a zone is of this machine only")
    elif not policy.allowed.permits(address):
        raise ConfigError(f"URL: {policy.allowed.refusal(address)}")


def _and(text: str, port: int) -> str:
    return f"{text},{port}" if text else f"80,443,{port}"


def check_header_alias(alias: object) -> str:
    """Another name for the headers of every webhook, in lower case: `svix` stands for `svix-id` and its like.

    Raises:
        ConfigError: none that HTTP can carry, or one that is ours to say already.
    """
    if not isinstance(alias, str) or not 0 < len(alias) <= ALIAS_MAX or not set(alias) <= _TOKEN or alias[-1] == "-":
        raise ConfigError(
            f"header_alias: need letters, digits and - such as 'svix', at most {ALIAS_MAX}, not {alias!r:.60}"
        )
    check_headers({f"{alias}-{part}": "" for part in ("id", "timestamp", "signature")})
    return alias.lower()


def check_headers(headers: Mapping[str, object]) -> dict[str, str]:
    """What a receiver wants beside the headers of every webhook, by their names in lower case.

    Raises:
        ConfigError: a name or a value that HTTP cannot carry, or one that is ours to say.
    """
    found: dict[str, str] = {}
    for name, value in headers.items():
        low = name.lower()
        if not name or not set(name) <= _TOKEN:
            raise ConfigError(f"header {name[:100]!r}: a name has letters, digits and -")
        if low.startswith("webhook-") or low in _OURS:
            raise ConfigError(f"header {name!r}: workq says that itself")
        if low in found:
            raise ConfigError(f"header {name!r}: is there twice")
        if not isinstance(value, str) or len(value) > HEADER_VALUE_MAX or value != value.strip():
            raise ConfigError(
                f"header {name!r}: need text of at most {HEADER_VALUE_MAX} characters, without blanks around"
            )
        if any(not " " <= letter <= "~" for letter in value):
            raise ConfigError(f"header {name!r}: its value has more than printable ASCII")
        found[low] = value
    if len(found) > HEADERS_MAX:
        raise ConfigError(f"headers: {len(found)}, at most {HEADERS_MAX} are allowed")
    return found
