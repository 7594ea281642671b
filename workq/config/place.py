"""UrlPlace: where a destination is, as its URL says. No I/O, and no message shows a URL that was not understood."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from workq.config.addresses import is_host, is_number_like, literal
from workq.errors import ConfigError

URL_MAX: Final = 2048
HOSTS_MAX: Final = 20
_URL: Final = re.compile(r"([a-z]+)://(?:([^@/?#]*)@)?([^@/?#]+)(/[^@?#]*)?")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")
SECRET_MIN: Final = 4
"""Shorter passwords are not looked for in texts: they would be found everywhere."""
TEXT_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class UrlPlace:
    """The parts of a URL. `path`: decoded, without its first slash. `is_tls`: its scheme says so."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    user: str | None
    password: str | None = field(repr=False)
    path: str
    is_tls: bool

    def __str__(self) -> str:
        """Without its password."""
        login = "" if self.user is None else quote(self.user, safe="")
        login += ":***" if self.password is not None else ""
        hosts = ",".join(shown(*one) for one in self.hosts)
        path = f"/{quote(self.path, safe='')}" if self.path else ""
        return f"{self.scheme}://{login}{'@' if login else ''}{hosts}{path}"

    def login(self, usual: str) -> tuple[str, str]:
        """User and password; which of them the URL leaves out is the usual one. An empty password is one."""
        return self.user or usual, usual if self.password is None else self.password

    def clean(self, text: str) -> str:
        """A text for people: one line, not endless, without the password."""
        text = " ".join(text.split())
        if self.password is not None and len(self.password) >= SECRET_MIN:
            for secret in (self.password, quote(self.password, safe="")):
                text = text.replace(secret, "***")
        return text[:TEXT_MAX]


def shown(host: str, port: int) -> str:
    """As a URL has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def place_of(url: object, ports: Mapping[str, int], *, form: str, tls: str, hosts_max: int = 1) -> UrlPlace:
    """The place that a URL names.

    `ports`: the schemes that it may have, each with its usual port. `tls`: the scheme that means TLS. `form`: how it
    should look, for messages.

    Raises:
        ConfigError: it is none. The message shows the right form, and nothing of the URL but its scheme.
    """
    need = f"url: need {form}"
    if not isinstance(url, str) or len(url) > URL_MAX:
        raise ConfigError(f"{need}, of at most {URL_MAX} characters")
    if any(not "!" <= letter <= "~" for letter in url):
        raise ConfigError(f"{need}; only ASCII without blanks: write the rest as %XX")
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(f"{need}; in a user or a password write @ as %40, / as %2F, ? as %3F and # as %23")
    scheme, login, hosts, path = match.groups()
    if scheme not in ports:
        raise ConfigError(f"{need}; the scheme {scheme[:20]!r} is another kind's")
    user, colon, password = (login or "").partition(":")
    found = tuple(_host(one, ports[scheme], need) for one in hosts.split(","))
    if len(found) > hosts_max:
        raise ConfigError(f"{need}; {len(found)} hosts, at most {hosts_max} are allowed")
    return UrlPlace(
        scheme=scheme,
        hosts=found,
        user=unquote(user) if login is not None and user else None,
        password=unquote(password) if colon else None,
        path=unquote((path or "")[1:]),
        is_tls=scheme == tls,
    )


def _host(text: str, usual_port: int, need: str) -> tuple[str, int]:
    """Host and port. What it is made of is not shown: it may be a part of a password."""
    match = _HOST.fullmatch(text)
    host = (match[1] or match[2]) if match else ""
    port = int(match[3] or usual_port) if match else 0
    if match is None or not 1 <= port <= 65535:
        raise ConfigError(f"{need}; a host has a port from 1 to 65535, and an IPv6 address stands in brackets")
    address = literal(host)
    if (address is None and (match[1] or is_number_like(host) or not is_host(host))) or "%" in host:
        raise ConfigError(f"{need}; its host is no name and no address")
    return host.lower(), port
