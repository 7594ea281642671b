"""The URLs of the three stores and of the proxy: their right forms, and how they are shown without their password.

Nothing is contacted. A broken URL may have its password anywhere: no part of it goes into a message by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from workq.config.kafka import KAFKA_FORM, KAFKA_SCHEMES, KafkaUrl, is_kafka
from workq.config.sentinel import SENTINEL_FORM, SENTINEL_SCHEMES, SentinelUrl, is_sentinel
from workq.config.values import kind_of, one_line
from workq.errors import ConfigError

LEDGER_SCHEMES: Final = (
    "sqlite",
    "postgresql",
    "postgres",
    "postgresql+psycopg",
    "mysql",
    "mysql+pymysql",
    "mariadb",
    "mariadb+pymysql",
)
_LEDGER_FORMS: Final = (
    "sqlite:///workq.db, postgresql://user:password@host:5432/database or mysql://user:password@host:3306/database"
)
_AMQP_SCHEMES: Final = ("amqp", "amqps")
_MULTIHOST: Final = ("postgresql", "postgres", "postgresql+psycopg", *_AMQP_SCHEMES)
"""A URL of theirs may name several hosts: one after the other is tried."""
_BROKER_FORMS: Final = (
    "amqp://user:password@host:5672/vhost or amqps://..., for a cluster amqp://user:password@one:5672,two:5672/vhost; "
    f"or {KAFKA_FORM}"
)
BROKER_HOSTS_MAX: Final = 9
"""They share the time for a connection: with more of them each would have too little."""
_INFLIGHT_FORMS: Final = (
    "redis://:password@host:6379/0, rediss://..., unix:///path/to/redis.sock?db=0, "
    "or for a cluster redis+cluster://:password@host:6379,host:6379, "
    f"or {SENTINEL_FORM}"
)
CLUSTER_SCHEMES: Final = ("redis+cluster", "rediss+cluster")
_SEVERAL_HOSTS: Final = (*CLUSTER_SCHEMES, *SENTINEL_SCHEMES, *_MULTIHOST, *KAFKA_SCHEMES)
_PROXY_FORMS: Final = "http://host:port or http://user:password@host:port"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True, slots=True)
class _Url:
    """The parts that are checked. None goes into a message by itself: a broken URL may have its password anywhere."""

    scheme: str
    hosts: Sequence[str]
    """At least one, which is "" where the URL names none."""
    path: str
    query: Mapping[str, str]

    @property
    def host(self) -> str:
        return self.hosts[0]


def check_ledger_url(url: object) -> str:
    """The URL of a ledger, unchanged. Nothing is contacted.

    Raises:
        ConfigError: it is not one of the right form; the message shows that form, and no password.
    """
    if isinstance(url, str) and url.startswith("sqlite:"):
        return _check_sqlite(url)
    parts = _parsed(url, LEDGER_SCHEMES, _LEDGER_FORMS)
    is_mysql = parts.scheme.startswith(("mysql", "mariadb"))
    socket = "unix_socket" if is_mysql else "host"
    if not parts.host and socket not in parts.query and (is_mysql or "service" not in parts.query):
        raise ConfigError(f"no host in {masked(str(url))}; use {_LEDGER_FORMS} (a Unix socket: ?{socket}=/path)")
    if len(parts.hosts) > 1 and {"host", "port"}.intersection(parts.query):
        raise ConfigError(
            f"hosts before the path and in the query of {masked(str(url))}; keep one; use {_LEDGER_FORMS}"
        )
    database = unquote(parts.path[1:])
    if not database and (is_mysql or not {"service", "dbname"}.intersection(parts.query)):
        raise ConfigError(f"no database name in {masked(str(url))}; use {_LEDGER_FORMS}")
    return str(url)


def check_broker_url(url: object) -> str:
    """The URL of RabbitMQ or Kafka, unchanged. Nothing is contacted.

    Raises:
        ConfigError: it is not one of the right form; the message shows that form, and no password.
    """
    if isinstance(url, str) and is_kafka(url):
        KafkaUrl.parse(url)
        return url
    parts = _parsed(url, (*_AMQP_SCHEMES, *KAFKA_SCHEMES), _BROKER_FORMS)
    if not parts.host:
        raise ConfigError(f"no host in {masked(str(url))}; use {_BROKER_FORMS}")
    if len(parts.hosts) > BROKER_HOSTS_MAX:
        most = f"name at most {BROKER_HOSTS_MAX} of the cluster's"
        raise ConfigError(f"{len(parts.hosts)} hosts in {masked(str(url))}; {most}; use {_BROKER_FORMS}")
    if "/" in parts.path[1:]:
        raise ConfigError(f"write a slash in the vhost as %2F in {masked(str(url))}; use {_BROKER_FORMS}")
    return str(url)


def check_inflight_url(url: object) -> str:
    """The URL of Redis, unchanged. Nothing is contacted.

    Raises:
        ConfigError: it is not one of the right form; the message shows that form, and no password.
    """
    if isinstance(url, str) and url.partition("://")[0] in CLUSTER_SCHEMES:
        return _check_cluster(url)
    if isinstance(url, str) and is_sentinel(url):
        SentinelUrl.parse(url)
        return url
    parts = _parsed(url, ("redis", "rediss", "unix"), _INFLIGHT_FORMS)
    if parts.scheme == "unix":
        if parts.host or parts.path in ("", "/"):
            raise ConfigError(f"no path of a socket in {masked(str(url))}; use {_INFLIGHT_FORMS}")
        number = parts.query.get("db", "0")
    else:
        if not parts.host:
            raise ConfigError(f"no host in {masked(str(url))}; use {_INFLIGHT_FORMS}")
        number = parts.path[1:] or parts.query.get("db", "0")
    if not re.fullmatch(r"[0-9]{1,5}", number):
        raise ConfigError(f"the database of Redis is a number in {masked(str(url))}; use {_INFLIGHT_FORMS}")
    return str(url)


def check_proxy_url(url: object) -> str:
    """The URL of a proxy that webhooks go through, unchanged. Nothing is contacted.

    Raises:
        ConfigError: it is not one of the right form; the message shows that form, and no password.
    """
    parts = _parsed(url, ("http",), _PROXY_FORMS)
    place, tail = _place_and_tail(str(url).partition("://")[2])
    login, at, where = place.rpartition("@")
    if at and not re.fullmatch(r"[^:]+:.+", login):
        raise ConfigError(f"a login is a user and a password, in {masked(str(url))}; use {_PROXY_FORMS}")
    if not parts.host:
        raise ConfigError(f"no host in {masked(str(url))}; use {_PROXY_FORMS}")
    if "%" in parts.host:
        raise ConfigError(f"an address with a zone is of one machine only, in {masked(str(url))}; use {_PROXY_FORMS}")
    if not re.search(r":[0-9]+$", where):
        raise ConfigError(f"no port in {masked(str(url))}; use {_PROXY_FORMS}")
    if tail not in ("", "/"):
        raise ConfigError(f"nothing follows the port in {masked(str(url))}; use {_PROXY_FORMS}")
    return str(url)


def node_urls(url: str) -> list[str]:
    """The URL of each Redis that an in-flight URL names: of the nodes of a cluster, or itself."""
    scheme, _, rest = url.partition("+cluster://")
    if f"{scheme}+cluster" not in CLUSTER_SCHEMES:
        return [url]
    place, tail = _place_and_tail(rest)
    login, at, hosts = place.rpartition("@")
    return [f"{scheme}://{login}{at}{host}{tail}" for host in hosts.split(",")]


def _check_cluster(url: str) -> str:
    """Each node's URL is checked as that of a server; what is said of it is said in terms of the whole."""
    rest = url.partition("://")[2]
    if "@" in _place_and_tail(rest)[1] or rest.count("@") > 1 or rest.endswith("#"):
        raise ConfigError(
            f"in {masked(url)} write @ as %40, / as %2F, # as %23 and ? as %3F, except where they separate; "
            f"use {_INFLIGHT_FORMS}"
        )
    for node in node_urls(url):
        try:
            parts = _parsed(node, ("redis", "rediss"), _INFLIGHT_FORMS)
        except ConfigError as error:  # a part of a password that has a comma must not pass for a host
            raise ConfigError(str(error).replace(masked(node), masked(url))) from None
        if not parts.host:
            raise ConfigError(f"a node without a host in {masked(url)}; use {_INFLIGHT_FORMS}")
        number = parts.path[1:] or parts.query.get("db", "0")
        if number != "0":
            raise ConfigError(f"a cluster of Redis has only database 0, in {masked(url)}; use {_INFLIGHT_FORMS}")
    return url


def _place_and_tail(rest: str) -> tuple[str, str]:
    """What follows `scheme://`, up to the first /, ? or #; and from there."""
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    return place, rest[len(place) :]


def _check_sqlite(url: str) -> str:
    forms = "sqlite:///workq.db for a file in the working folder, or sqlite:////srv/workq.db for an absolute path"
    if not url.isprintable():  # a path may have spaces, and nothing in it is decoded
        raise ConfigError(f"a control character in {masked(url)}; use {forms}")
    if not url.startswith("sqlite:///"):
        raise ConfigError(f"three slashes come before the path in {masked(url)}; use {forms}")
    path, _, query = url.removeprefix("sqlite:///").partition("?")
    if path in ("", "/", ":memory:") or "mode=memory" in query:
        raise ConfigError(f"SQLite needs a file here, because workers are processes; use {forms}")
    return url


def _parsed(url: object, schemes: tuple[str, ...], forms: str) -> _Url:
    if not isinstance(url, str):
        raise ConfigError(f"must be text, not {kind_of(url)}; use {forms}")
    if not url:
        raise ConfigError(f"is empty; use {forms}, or leave it out")
    _check_characters(url, forms)
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise ConfigError(f"not a URL (no scheme://); use {forms}")  # unquoted: it may be a bare password
    if scheme not in schemes:
        raise ConfigError(f"the scheme of {masked(url)} is not {_either(schemes)}; use {forms}")
    if rest.count("@") > 1 or ("@" in rest and "@" not in re.split("[/?#]", rest, maxsplit=1)[0]):
        raise ConfigError(
            f"in {masked(url)} write @ as %40, / as %2F, # as %23 and ? as %3F, except where they separate; use {forms}"
        )
    place, tail = _place_and_tail(rest)
    login, at, host = place.rpartition("@")
    hosts = host.split(",") if scheme in _MULTIHOST else [host]
    names = [_check_host(one, url, forms) for one in hosts]
    if len(names) > 1 and not all(names):
        raise ConfigError(f"a comma without a host beside it in {masked(url)}; use {forms}")
    try:
        parts = urlsplit(f"{scheme}://{login}{at}{hosts[0]}{tail}")
    except ValueError:  # its text may quote a password; which brackets it minds depends on the version of Python
        raise ConfigError(f"not a valid host in {masked(url)}; use {forms}; IPv6: [::1]") from None
    if parts.fragment or url.endswith("#"):
        raise ConfigError(f"write # as %23 in {masked(url)}; use {forms}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    return _Url(scheme, names, parts.path, options)


def _check_host(host: str, url: str, forms: str) -> str:
    """The name or address in `host[:port]`, both checked; "" if there is none."""
    bracketed = re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", host)
    if bracketed:
        name, port = bracketed[1], bracketed[2]
        is_valid = re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?", name) is not None
    else:
        if host.count(":") > 1 or "[" in host or "]" in host:
            raise ConfigError(f"an IPv6 address needs brackets in {masked(url)}: [::1] or [::1]:5432; use {forms}")
        name, colon, number = host.partition(":")
        port = number if colon else None
        is_valid = not name or _HOST.fullmatch(name) is not None
    if not is_valid:
        raise ConfigError(f"not a valid host in {masked(url)}; use {forms}; IPv6: [::1]")
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise ConfigError(f"the port in {masked(url)} must be a number from 1 to 65535; use {forms}")
    return name


def _check_characters(url: str, forms: str) -> None:
    if any(not character.isprintable() or character.isspace() for character in url):
        raise ConfigError(f"a space or control character in {masked(url)}; write it as %20 or %0A; use {forms}")


def _either(schemes: tuple[str, ...]) -> str:
    return " or ".join(f"{one}://" for one in schemes if "+" not in one)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_AND_PORT = re.compile(r"([^:/?#\[\]]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{0,5})?([/?#].*)?")
_HOSTS_AND_PORTS = re.compile(r"[^:/?#\[\],]+:[0-9]{1,5}(,[^:/?#\[\],]+:[0-9]{1,5})+([/?#].*)?")
"""Several hosts, each with its port: what has none may be a part of a password."""
_PATH = re.compile(r"/[^?]+", re.DOTALL)
_QUERY = re.compile(r"\?.+", re.DOTALL)
_QUERY_OF_A_PART = re.compile(r"\?.*=.*", re.DOTALL)
"""Without a scheme a question mark may be all that is left of a character that could not be shown."""
_SECRET_OPTION = re.compile(r"[?&;][^=&;]*(?:pass|pwd|secret|token)[^=&;]*=", re.IGNORECASE)


def masked(url: str) -> str:
    """The URL in one line, without its password and its query, for messages; of an HTTP one without its path, too.

    Such a path may be all that a receiver asks for. Made for broken URLs too, so it hides too much rather than too
    little: everything from the first colon after the scheme to the last @, what stands in the place of a port and is
    none, and all that follows a question mark: drivers take passwords, keys and tokens there, by names of their own.
    """
    found = _SCHEME.match(url)
    scheme = found[0] if found else ""
    rest = url[len(scheme) :]
    if scheme.lower() not in ("sqlite://", "unix://") or "@" in rest.partition("/")[0]:
        rest = _without_password(scheme.lower(), rest)
    if scheme.lower() in ("http://", "https://"):
        rest = _PATH.sub("/***", rest)
    return one_line(scheme + (_QUERY if scheme else _QUERY_OF_A_PART).sub("?***", rest))


def has_password(url: str) -> bool:
    """Whether there is a password in it, as far as one can be told by its place or its name."""
    place = url.partition("?")[0]
    return masked(place) != place or _SECRET_OPTION.search(url) is not None


def _without_password(scheme: str, rest: str) -> str:
    userinfo, at, place = rest.rpartition("@")
    if not at:
        if ":" not in rest or _HOST_AND_PORT.fullmatch(rest):
            return rest
        if scheme.removesuffix("://") in _SEVERAL_HOSTS and _HOSTS_AND_PORTS.fullmatch(rest):
            return rest
        return f"{rest.partition(':')[0]}:***"
    user, colon, _ = userinfo.partition(":")
    if colon:
        return f"{user}:***@{place}"
    return f"***@{place}" if scheme.startswith(("redis", "http")) else rest
