"""Connections to Redis: from a URL to a pool that connects later, from a pool to words for messages; whether the server
behind it is fit for holds; and what its failures mean, and whether waiting may mend them.

No message repeats a URL: it may hold a password.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import redis
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from workq.config.server_commands import redis_cluster_check
from workq.errors import NAME_PATIENCE_S, ConfigError
from workq.inflight.redis.nodes import Address

CONNECTIONS_MAX: Final = 32
_FORM: Final = (
    "use redis://[user:password@]host:6379/0, or rediss:// for TLS, or redis+cluster://[...@]host:6379,host:6379, "
    "or redis+sentinel://[...@]host:26379,host:26379/service/0"
)
_OPTION: Final = re.compile(
    "db|protocol|username|password|client_name|socket_keepalive|health_check_interval|max_connections|ssl_[a-z_]+"
)
"""What the URL's query may say. Timeouts are a setting; retries are refused: redis-py would repeat what timed out."""
VERSION_MIN: Final = (6, 2)
_REASON_MAX: Final = 500
_NO_LOGIN: Final = ("WRONGPASS", "NOAUTH", "invalid password")
_NO_RIGHT: Final = ("NOPERM", "user executing the script", "ACL failure in script")
"""Of a command, and of one within a script: of Redis 7.0, and of all since, Valkey too."""
_NO_DATABASE: Final = ("DB index", "invalid DB", "Invalid Database")
_LASTING: Final = (redis.exceptions.AuthenticationError, redis.exceptions.InvalidResponse)


def pool_of(url: str, socket_s: float) -> redis.BlockingConnectionPool:
    """A pool that connects later. Raises ConfigError, which never repeats the URL: it may hold a password."""
    problem = _problem(url)
    if not problem:
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                socket_timeout=socket_s,
                socket_connect_timeout=socket_s,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=15,
                timeout=socket_s,
                max_connections=CONNECTIONS_MAX,
                decode_responses=True,
                encoding_errors="replace",  # what a stranger wrote may be no text, and must not hide the rest
            )
            pool.connection_class(**pool.connection_kwargs)  # does not connect, but knows its options
            return pool
        except (TypeError, ValueError, redis.RedisError) as error:
            found = re.search(r"'([a-z_]+)'", str(error))
            problem = f"its option {found[1]}" if found and found[1] in url else "an option of its query"
            problem += " has a value that redis-py refuses"
    raise ConfigError(f"in-flight: not a Redis URL: {problem}; {_FORM}")


def _problem(url: str) -> str:
    """What is wrong with a URL, as far as can be seen; empty when nothing is."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or port cannot be read; write special characters of a password as %XX"
    if parts.scheme not in ("redis", "rediss", "unix"):
        return "its scheme is not redis, rediss or unix"
    if port == 0:
        return "port 0 is no port"
    if parts.fragment or "@" in parts.query:
        return "it has a '#', or an '@' after a '?'; write special characters of a password as %XX"
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        return "what follows the host must be the number of a database"
    unknown = [name for name in parse_qs(parts.query, keep_blank_values=True) if not _OPTION.fullmatch(name)]
    return f"option {unknown[0]!r} of its query is not allowed" if unknown else ""


def check_nodes(urls: Sequence[str], pools: Sequence[redis.BlockingConnectionPool]) -> None:
    """Refuse what would be fine for one server, and is not for the nodes of a cluster: ConfigError."""
    if not all(urlsplit(url).hostname for url in urls):
        raise ConfigError(f"in-flight: a node of the cluster has no host; {_FORM}")
    if any(pool.connection_kwargs.get("db") for pool in pools):
        raise ConfigError(f"in-flight: a cluster of Redis has only database 0; {_FORM}")


def url_at(url: str, address: Address) -> str:
    """The URL of another node: the same login and options."""
    host, port = address
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}{at}{f'[{host}]' if ':' in host else host}:{port}").geturl()


def address_of(pool: redis.BlockingConnectionPool) -> Address:
    """Host and port."""
    return str(pool.connection_kwargs.get("host", "localhost")), int(pool.connection_kwargs.get("port", 6379))


def described(pool: redis.ConnectionPool) -> tuple[str, frozenset[str]]:
    """Where the server is, for messages; and the texts that no message may contain."""
    options = pool.connection_kwargs
    password = str(options.get("password") or "")
    login = f"{options.get('username') or ''}:***@" if password else ""
    if issubclass(pool.connection_class, redis.UnixDomainSocketConnection):
        where = f"unix://{login}{options.get('path', '')}?db={options.get('db', 0)}"
    else:
        scheme = "rediss" if issubclass(pool.connection_class, redis.SSLConnection) else "redis"
        host = str(options.get("host", "localhost"))
        where = f"{scheme}://{login}{f'[{host}]' if ':' in host else host}"
        where += f":{options.get('port', 6379)}/{options.get('db', 0)}"
    secrets = (password, quote(password, safe=""), str(options.get("ssl_password") or ""))
    return where, frozenset(filter(None, secrets))


def name_of(client: redis.Redis, part: str) -> str:
    """Where one of several servers is, for messages, and which part of the whole it is."""
    return f"{described(client.connection_pool)[0]}, {part}"


def facts_of(client: redis.Redis) -> dict[str, str]:
    """What INFO tells; where it is forbidden, the greeting and CONFIG, as far as they are allowed."""
    client.ping()
    with suppress(redis.exceptions.ResponseError):
        return {name: str(value) for name, value in client.info().items()}
    facts: dict[str, str] = {}
    with suppress(redis.exceptions.ResponseError):
        greeting: Any = client.execute_command("HELLO")  # type: ignore[no-untyped-call]
        told = greeting if isinstance(greeting, dict) else dict(zip(greeting[::2], greeting[1::2], strict=True))
        facts["valkey_version" if told["server"] == "valkey" else "redis_version"] = str(told["version"])
    with suppress(redis.exceptions.ResponseError):
        facts["maxmemory_policy"] = str(client.config_get("maxmemory-policy")["maxmemory-policy"])
    return facts


def judged(facts: Mapping[str, str], where: str) -> str:
    """Name and version of a server, unless it is too old or may drop holds: ConfigError."""
    name = "Valkey" if "valkey_version" in facts else "Redis"
    version = str(facts.get("valkey_version") or facts.get("redis_version") or "of unknown version")
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if number and number < VERSION_MIN:
        raise ConfigError(f"{name} {version} at {where} is too old; workq needs 6.2 or later")
    policy = str(facts.get("maxmemory_policy", ""))
    if not policy:
        return f"{name} {version} (its maxmemory-policy is hidden from this user)"
    if policy != "noeviction":
        raise ConfigError(
            f"{name} at {where} may drop what workers hold: maxmemory-policy is {policy}; "
            "set it to noeviction, or give workq a Redis of its own"
        )
    return f"{name} {version}"


def reason_of(
    error: Exception, where: str, *, socket_s: float, grant: str, is_cluster: bool, is_watched: bool = False
) -> str:
    """One line: what, why, and what to do next.

    Args:
        socket_s: for how long an answer was waited for.
        grant: what gives this user its rights.
        is_cluster: it is a node of one, by the in-flight URL.
        is_watched: Sentinels named it, and name another one when it is gone.
    """
    links = list(chain(error))
    text = " ".join(str(error).split())[:_REASON_MAX] or type(error).__name__
    at = f"Redis at {where}"

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(link, kinds) for link in links)

    if caused_by(socket.gaierror):
        return f"cannot find the host of {at} ({text}); check the name in the in-flight URL"
    if is_watched and caused_by(ConnectionRefusedError):
        return f"nothing listens at {where}; they choose another one when enough of them miss it. Try: workq doctor"
    if caused_by(ConnectionRefusedError):
        return f"nothing listens at {where}; is Redis running? Check host and port of the in-flight URL"
    if caused_by(ssl.SSLCertVerificationError):
        return (
            f"{at} has a certificate that is not trusted ({text}); "
            "name its authority with ?ssl_ca_certs=/path/to/ca.pem in the in-flight URL"
        )
    if caused_by(ssl.SSLError):
        return f"{at} does not speak TLS as expected ({text}); is this its TLS port? Without TLS use redis://"
    if caused_by(redis.exceptions.TimeoutError, TimeoutError):
        tls = " If this is not its TLS port, use redis://." if where.startswith("rediss:") else ""
        return (
            f"{at} did not answer within {socket_s:g} s; it may be stopped, overloaded or cut off.{tls} "
            "Try: workq doctor"
        )
    if caused_by(redis.exceptions.NoPermissionError) or says(text, *_NO_RIGHT):
        return f"{at} does not allow this user what workq needs ({text}). Grant it: {grant}"
    if caused_by(redis.exceptions.AuthenticationError) or says(text, *_NO_LOGIN):
        return f"{at} refused the user name or password; check the in-flight URL"
    if says(text, *_NO_DATABASE):
        return f"{at} has no database of that number ({text}); check the number at the end of the in-flight URL"
    if caused_by(redis.exceptions.OutOfMemoryError) or says(text, "OOM "):
        return f"{at} is full (maxmemory) and takes no more holds; give it more memory, or remove what is not workq's"
    if caused_by(redis.exceptions.BusyLoadingError):
        return f"{at} is still loading its data; it answers when that is done"
    if caused_by(redis.sentinel.MasterNotFoundError):
        return f"{at} does not lead to a Redis ({text}); check the name of the service in the in-flight URL"
    if is_watched and (caused_by(redis.exceptions.ReadOnlyError) or says(text, "READONLY")):
        return f"{at}, is a replica by now; it goes on when the Sentinels name another primary"
    if caused_by(redis.exceptions.ReadOnlyError):
        return f"{at} is a read-only replica; the in-flight URL must name the primary"
    if caused_by(redis.exceptions.ClusterDownError):
        return f"{at} says that nobody serves this namespace now ({text}); a node is down, or has just come back"
    if caused_by(redis.exceptions.TryAgainError):
        return f"{at} is still moving the slot of this namespace elsewhere; it answers when that is done"
    if caused_by(redis.exceptions.AskError):
        if not is_cluster:
            return f"{at} is a node of a cluster; write redis+cluster://host:6379,host:6379 in the in-flight URL"
        login, _, server = where.partition(", ")[0].partition("://")[2].rpartition("@")
        see = redis_cluster_check(
            server.partition("/")[0], user=login.rpartition(":")[0] or None, has_password=bool(login)
        )
        return f"{at} and other nodes do not agree who serves this namespace ({text}). Try: {see}"
    return f"cannot use {at} ({text}). Is it a healthy Redis? Try: workq doctor"


def patience_of(error: Exception) -> float:
    """For how long waiting may mend it."""
    links, text = list(chain(error)), str(error)
    if any(isinstance(link, (socket.gaierror, ssl.SSLEOFError, ssl.SSLZeroReturnError)) for link in links):
        return NAME_PATIENCE_S
    if any(isinstance(link, (*_LASTING, ssl.SSLError)) for link in links) or says(text, *_NO_LOGIN, *_NO_DATABASE):
        return 0.0
    return math.inf


def says(text: str, *marks: str) -> bool:
    """Whether a text has one of these marks."""
    return any(mark.lower() in text.lower() for mark in marks)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
