"""A Redis behind Sentinels as its URL says: who they are, whom they watch, and how to log in. No I/O, no library."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, TypeGuard
from urllib.parse import parse_qsl, quote, urlencode

from workq.config.place import HOSTS_MAX, place_of, shown
from workq.errors import ConfigError

SENTINEL_FORM: Final = (
    "redis+sentinel://:password@host:26379,host:26379/service/0, or rediss+sentinel://... where all of them speak TLS"
)
SENTINEL_SCHEMES: Final = ("redis+sentinel", "rediss+sentinel")
_MARK: Final = "+sentinel"
_SERVICE: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
"""What Sentinel allows as the name of one."""


def is_sentinel(url: str | None) -> TypeGuard[str]:
    """Whether the URL of an in-flight store leads to Sentinels."""
    return url is not None and url.partition("://")[0] in SENTINEL_SCHEMES


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """`redis+sentinel://user:password@host:26379,host:26379/service/0?sentinel_password=...`.

    The login, the database and the options are those of the Redis that is found. The Sentinels get the options of TLS,
    and a login of their own.
    """

    service: str
    """The name that the Sentinels know the primary and its replicas by."""
    sentinels: tuple[str, ...] = field(repr=False)
    """The URL of each, of the scheme redis or rediss."""
    redis: str = field(repr=False)
    """The URL of the primary, with the place of the first Sentinel in the stead of its own."""

    @staticmethod
    def parse(url: str) -> SentinelUrl:
        """The parts of a URL.

        Raises:
            ConfigError: it is not such a URL. The message repeats nothing that may be a password.
        """
        address, question, query = url.partition("?")
        scheme, _, rest = address.partition("://")
        plain = scheme.removesuffix(_MARK)
        place = place_of(
            f"{plain}://{rest}",
            {"redis": 26379, "rediss": 26379},
            form=SENTINEL_FORM,
            tls="rediss",
            hosts_max=HOSTS_MAX,
        )
        service, _, number = place.path.partition("/")
        if not _SERVICE.fullmatch(service):
            raise ConfigError(f"the name of a service follows the Sentinels; use {SENTINEL_FORM}")
        if not re.fullmatch(r"[0-9]{0,5}", number):
            raise ConfigError(f"the number of a database follows the service; use {SENTINEL_FORM}")
        try:
            options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if question else {}
        except ValueError:
            raise ConfigError(
                f"what follows the question mark is NAME=VALUE, joined by &; use {SENTINEL_FORM}"
            ) from None
        if "db" in options:
            raise ConfigError(f"the number of a database follows the service, and is no option; use {SENTINEL_FORM}")
        user, password = options.pop("sentinel_username", None), options.pop("sentinel_password", None)
        shared = {name: value for name, value in options.items() if name.startswith("ssl_") or name == "protocol"}
        hosts = [shown(*one) for one in place.hosts]
        return SentinelUrl(
            service,
            tuple(f"{plain}://{_login(user, password)}{host}{_query(shared)}" for host in hosts),
            f"{plain}://{_login(place.user, place.password)}{hosts[0]}/{number or 0}{_query(options)}",
        )


def _login(user: str | None, password: str | None) -> str:
    if user is None and password is None:
        return ""
    return quote(user or "", safe="") + ("" if password is None else f":{quote(password, safe='')}") + "@"


def _query(options: dict[str, str]) -> str:
    return f"?{urlencode(options)}" if options else ""
