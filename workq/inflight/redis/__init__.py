"""The in-flight store in Redis (6.2 or later, or Valkey): one script for each change, so hash and indexes agree.

What is stored, and what each script does, is written in the `.lua` files beside this one; `entry.lua` comes before
each. All keys begin with the hash tag `{namespace}`, which keeps them in one slot of a cluster and apart from others.

Who decides: the ledger. Whoever can write here can delay work, never settle it. On failure:

- Redis does not answer within `socket_s`, or refuses: InFlightUnavailable. A call is sent once and never repeated
  behind the caller's back, but one that timed out may have been carried out; each may simply be called again.
- Redis was restarted: the next call connects again and loads its script again.
- Redis was wiped: `epoch_age_s` is young; each worker's next beat grants its lease anew and writes its holds again.
- Redis is full (`maxmemory`): `hold` is refused and nothing of it is written; beats and releases go on.
- A cluster (redis+cluster://): see cluster.py. Only the node that serves the namespace matters.
- Another hand has made a key of ours one of another type: it is moved aside by a rename, never deleted, and the call is
  made again. What it held is written again by the next beats, as after a wipe. Logged; `workq doctor` names it.
- The clock of Redis is set back: the lease of a worker that dies before its next beat lasts that much longer here; a
  sweep does not believe it (see recovery/deaths.py).

The rights that workq's user of Redis needs are in `RIGHTS` (`+info` only shows the settings to `check`). On the nodes
of a cluster also `+asking`, to follow a slot that moves, and `+cluster|slots`, to check all nodes.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from workq.config import CLUSTER_SCHEMES, node_urls
from workq.errors import NAME_PATIENCE_S, ConfigError, InFlightUnavailable, LeaseLost, MissingExtra
from workq.inflight import Beat, Entry, Hold, Lease

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ModuleNotFoundError as error:
    raise MissingExtra("in-flight: redis:// needs a client library; install the extra [redis]") from error

from workq.inflight.redis.cluster import Address, Cluster, NodeFailed

CONNECTIONS_MAX: Final = 32
VERSION_MIN: Final = (6, 2)
RIGHTS: Final = "~{{{namespace}}}:* +@read +@write +@scripting +@connection +time -@dangerous +info"
"""What `ACL SETUSER` gives the user of a namespace."""
_FORM: Final = (
    "use redis://[user:password@]host:6379/0, or rediss:// for TLS, or redis+cluster://[...@]host:6379,host:6379"
)
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_FOLDER: Final = Path(__file__).parent
_OPTION: Final = re.compile(
    "db|protocol|username|password|client_name|socket_keepalive|health_check_interval|max_connections|ssl_[a-z_]+"
)
"""What the URL's query may say. Timeouts are a setting; retries are refused: redis-py would repeat what timed out."""
_SCRIPTS: Final = ("aside", "beat", "extend", "hold", "holds", "leases", "leave", "release", "rights")
_REASON_MAX: Final = 500
_NO_LOGIN: Final = ("WRONGPASS", "NOAUTH", "invalid password")
_NO_DATABASE: Final = ("DB index", "invalid DB", "Invalid Database")
_LASTING: Final = (redis.exceptions.AuthenticationError, redis.exceptions.InvalidResponse)
_NAMING_QUEUES: Final = ("beat", "hold", "release")
_encoder: Final = msgspec.json.Encoder()
T = TypeVar("T")
log = logging.getLogger("workq.inflight")


class RedisInFlight:
    """Holds and leases in Redis. Thread-safe; connects at the first call, and again after a fork.

    The URL's query may set what redis-py calls `protocol` (2 or 3), `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`,
    `client_name`, `max_connections` and the like; see `_OPTION`.
    """

    def __init__(self, url: str, *, namespace: str = "workq", socket_s: float = 2.0) -> None:
        """Prepare; contact nothing.

        Args:
            url: redis://, rediss:// (certificates are verified) or unix://; redis+cluster:// or rediss+cluster:// with
                some nodes of a cluster.
            namespace: what the hash tag of every key says.
            socket_s: seconds to wait for a connection, for each answer, and for a free connection of the pool.

        Raises:
            ConfigError: the URL or the namespace is not valid.
        """
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(f"in-flight: namespace {namespace!r} is not valid; use letters, digits, '_', '.' and '-'")
        self._socket_s = socket_s
        urls = node_urls(url)
        pools = [_pool(one, socket_s) for one in urls]
        self._client = redis.Redis(connection_pool=pools[0])
        self._where, self._secrets = _describe(pools[0])
        self._prefix = f"{{{namespace}}}:"
        self._grant = f"ACL SETUSER {pools[0].connection_kwargs.get('username') or 'default'} "
        self._grant += RIGHTS.format(namespace=namespace)
        self._keys = [self._prefix + name for name in ("epoch", "leases", "lost")]
        self._cluster: Cluster | None = None
        if url.partition("://")[0] in CLUSTER_SCHEMES:
            _check_nodes(urls, pools)

            def connect(address: Address) -> redis.Redis:
                return redis.Redis(connection_pool=_pool(_at(urls[0], address), socket_s))

            addresses = [_address(pool) for pool in pools]
            self._cluster = Cluster(addresses, connect, key=self._keys[0], patience_s=socket_s)
            self._where = _node(self._client)
        entry = _read("entry")
        self._scripts = {name: self._client.register_script(entry + _read(name)) for name in _SCRIPTS}

    def join(self, worker: str, *, lease_s: float) -> None:
        """See the port. An incarnation that was reaped never comes back: LeaseLost."""
        self.beat(worker, lease_s=lease_s, entries=())

    def hold(self, entries: Sequence[Entry], *, by: str) -> set[str]:
        """See the port. One script, however many entries."""
        kept = self._call("hold", by, _grouped(entries))
        if kept is None:
            raise LeaseLost(f"{by} has no live lease at {self._where}; beat first, and stop if that says the same")
        return {entry.task_id for entry in entries}.difference(kept)

    def beat(self, worker: str, *, lease_s: float, entries: Sequence[Entry]) -> Beat:
        """See the port. One script, however many entries."""
        restored = self._call("beat", worker, _grouped(entries), _in_ms(lease_s))
        if restored is None:
            raise LeaseLost(f"{worker} was reaped; stop claiming and let running handlers end, as late results")
        return Beat(restored)

    def extend(self, worker: str, *, lease_s: float) -> bool:
        """See the port."""
        return bool(self._call("extend", worker, "", _in_ms(lease_s)))

    def release(self, task_ids: Sequence[tuple[str, str]], *, by: str) -> int:
        """See the port. One script, however many ids."""
        queues: dict[str, dict[str, None]] = {}
        for task_id, queue in task_ids:
            queues.setdefault(queue, {})[task_id] = None
        dropped: int = self._call("release", by, _encoder.encode([(queue, list(ids)) for queue, ids in queues.items()]))
        return dropped

    def leave(self, worker: str) -> None:
        """See the port."""
        self._call("leave", worker)

    def leases(self) -> Mapping[str, Lease]:
        """See the port."""
        now, _, *found = self._call("leases", "")
        return {
            worker: Lease(worker, (float(deadline) - float(now)) / 1000)
            for worker, deadline in zip(found[::2], found[1::2], strict=True)
        }

    def held_by(self, worker: str) -> list[Hold]:
        """See the port."""
        return list(_holds(self._call("holds", worker, "worker")))

    def holds(self, queue: str, *, claimed: bool = True) -> list[Hold]:  # noqa: ARG002 - all of them are read in one go
        """See the port."""
        return list(_holds(self._call("holds", queue, "queue")))

    def forget(self, worker: str) -> int:
        """See the port. Remembered for seven days, or until 10,000 others were forgotten, or until a wipe."""
        dropped: int = self._call("leave", worker, "forget")
        return dropped

    def epoch_age_s(self) -> float:
        """See the port."""
        now, began, *_ = self._call("leases", "")
        return max(0.0, (float(now) - float(began)) / 1000)

    def check(self) -> str:
        """See the port. Without the right to INFO the settings stay unseen; the answer says so.

        Raises:
            ConfigError: also when Redis is older than 6.2.
        """
        facts, client = self._ask(lambda client: (_facts(client), client))
        if self._cluster is None:
            return _judged(facts, self._where)
        return f"{_judged(facts, _node(client))}, {self._look_at_nodes(self._cluster, facts)}"

    def missing_rights(self) -> str | None:
        """What this user may not do here and workers have to, and what to grant; None: nothing is missing.

        Nothing is changed: what is tried is tried on a key of its own, in one script, which removes it.
        """
        try:
            refused = self._call("rights", secrets.token_hex(8))
        except InFlightUnavailable as error:  # it may not run a script, or not touch our keys
            return str(error)
        if not refused:
            return None
        return f"this user may not use {', '.join(refused)}, so workers can hold nothing. Grant it: {self._grant}"

    def close(self) -> None:
        """See the port. A later call connects again."""
        if self._cluster is not None:
            self._cluster.close()
        self._client.connection_pool.disconnect()

    def _look_at_nodes(self, cluster: Cluster, facts: Mapping[str, str]) -> str:
        """What `check` does on every node of a cluster that answers: the slot may move to each of them."""
        if facts.get("cluster_enabled") == "0":
            raise ConfigError(
                f"Redis at {self._where.partition(',')[0]} is no cluster, and its data is not shared with the other "
                "hosts of the in-flight URL; use redis:// with one host"
            )
        addresses = self._translated(cluster.nodes)
        if addresses is None:
            return "a cluster (its nodes are hidden from this user)"
        silent = 0
        for address in addresses:
            client = cluster.client(address)
            try:
                found = _facts(client)
            except (redis.RedisError, OSError):
                silent += 1
                continue
            _judged(found, _node(client))
        return f"a cluster of {len(addresses)} nodes" + (f", {silent} of which did not answer" if silent else "")

    def _call(self, script: str, about: str, *args: str | bytes) -> Any:
        arguments = [self._prefix, about, *args]

        def run(client: redis.Redis) -> Any:
            return self._scripts[script](keys=self._keys, args=arguments, client=client)

        def question(client: redis.Redis) -> Any:
            try:
                return run(client)
            except redis.exceptions.ResponseError as error:
                if not _says(str(error), "WRONGTYPE"):
                    raise
            queues = [group[0] for group in msgspec.json.decode(args[0])] if script in _NAMING_QUEUES else []
            if moved := self._aside(client, about, queues, "move"):
                log.warning("inflight.moved_aside", extra={"keys": moved})
            return run(client)

        return self._ask(question)

    def _aside(self, client: redis.Redis, about: str, queues: Sequence[str], how: str) -> list[str]:
        found = self._scripts["aside"](
            keys=self._keys, args=[self._prefix, about, _encoder.encode(queues), how], client=client
        )
        return [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in found]

    def of_another_type(self) -> tuple[list[str], list[str]]:
        """Keys of ours that another hand has made ones of another type: those that still are, and those moved aside.

        Changes nothing. Those moved aside are named for as long as they are there.
        """

        def question(client: redis.Redis) -> tuple[list[str], list[str]]:
            wrong = self._aside(client, "", [], "look")
            names: Any = [] if self._prefix + "aside" in wrong else client.zrange(self._prefix + "aside", 0, -1)
            kept = [name if isinstance(name, str) else name.decode("utf-8", "replace") for name in names]
            return wrong, [name for name in kept if client.exists(name)]

        return self._ask(question)  # type: ignore[no-any-return]

    def _ask(self, question: Callable[[redis.Redis], Any]) -> Any:
        """One question to Redis; of a cluster, to the node that serves the namespace."""
        cluster = self._cluster
        return self._translated(lambda: question(self._client) if cluster is None else cluster.ask(question))

    def _translated(self, call: Callable[[], T]) -> T:
        """A failure in our words. Raised outside of `except`: no secret rides in the chain."""
        where = self._where
        try:
            return call()
        except NodeFailed as failed:
            failure: Exception = failed.error
            where = _node(failed.client)
        except (redis.RedisError, OSError, UnicodeError) as error:
            failure = error
        reason = self._reason(failure, where)
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        unavailable = InFlightUnavailable(reason)
        unavailable.patience_s = _patience_s(failure)
        if any(secret in f"{link} {link!r}" for link in _chain(failure) for secret in self._secrets):
            raise unavailable
        raise unavailable from failure

    def _reason(self, error: Exception, where: str) -> str:
        """One line: what, why, and what to do next."""
        links = list(_chain(error))
        text = " ".join(str(error).split())[:_REASON_MAX] or type(error).__name__
        at = f"Redis at {where}"

        def caused_by(*kinds: type[BaseException]) -> bool:
            return any(isinstance(link, kinds) for link in links)

        if caused_by(socket.gaierror):
            return f"cannot find the host of {at} ({text}); check the name in the in-flight URL"
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
                f"{at} did not answer within {self._socket_s:g} s; it may be stopped, overloaded or cut off.{tls} "
                "Try: workq doctor"
            )
        if caused_by(redis.exceptions.NoPermissionError) or _says(text, "NOPERM", "user executing the script"):
            return f"{at} does not allow this user what workq needs ({text}). Grant it: {self._grant}"
        if caused_by(redis.exceptions.AuthenticationError) or _says(text, *_NO_LOGIN):
            return f"{at} refused the user name or password; check the in-flight URL"
        if _says(text, *_NO_DATABASE):
            return f"{at} has no database of that number ({text}); check the number at the end of the in-flight URL"
        if caused_by(redis.exceptions.OutOfMemoryError) or _says(text, "OOM "):
            return (
                f"{at} is full (maxmemory) and takes no more holds; give it more memory, or remove what is not workq's"
            )
        if caused_by(redis.exceptions.BusyLoadingError):
            return f"{at} is still loading its data; it answers when that is done"
        if caused_by(redis.exceptions.ReadOnlyError):
            return f"{at} is a read-only replica; the in-flight URL must name the primary"
        if caused_by(redis.exceptions.ClusterDownError):
            return f"{at} says that nobody serves this namespace now ({text}); a node is down, or has just come back"
        if caused_by(redis.exceptions.TryAgainError):
            return f"{at} is still moving the slot of this namespace elsewhere; it answers when that is done"
        if caused_by(redis.exceptions.AskError):
            if self._cluster is None:
                return f"{at} is a node of a cluster; write redis+cluster://host:6379,host:6379 in the in-flight URL"
            return (
                f"{at} and other nodes do not agree who serves this namespace ({text}). Try: redis-cli --cluster check"
            )
        return f"cannot use {at} ({text}). Is it a healthy Redis? Try: workq doctor"


def _patience_s(error: Exception) -> float:
    """For how long waiting may mend it."""
    links, text = list(_chain(error)), str(error)
    if any(isinstance(link, (socket.gaierror, ssl.SSLEOFError, ssl.SSLZeroReturnError)) for link in links):
        return NAME_PATIENCE_S
    if any(isinstance(link, (*_LASTING, ssl.SSLError)) for link in links) or _says(text, *_NO_LOGIN, *_NO_DATABASE):
        return 0.0
    return math.inf


def _facts(client: redis.Redis) -> dict[str, str]:
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


def _judged(facts: Mapping[str, str], where: str) -> str:
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


def _check_nodes(urls: Sequence[str], pools: Sequence[redis.BlockingConnectionPool]) -> None:
    """Refuse what would be fine for one server, and is not for the nodes of a cluster: ConfigError."""
    if not all(urlsplit(url).hostname for url in urls):
        raise ConfigError(f"in-flight: a node of the cluster has no host; {_FORM}")
    if any(pool.connection_kwargs.get("db") for pool in pools):
        raise ConfigError(f"in-flight: a cluster of Redis has only database 0; {_FORM}")


def _at(url: str, address: Address) -> str:
    """The URL of another node: the same login and options."""
    host, port = address
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}{at}{f'[{host}]' if ':' in host else host}:{port}").geturl()


def _node(client: redis.Redis) -> str:
    """Where a node of a cluster is, for messages."""
    return f"{_describe(client.connection_pool)[0]}, a node of the cluster"


def _address(pool: redis.BlockingConnectionPool) -> Address:
    return str(pool.connection_kwargs.get("host", "localhost")), int(pool.connection_kwargs.get("port", 6379))


def _pool(url: str, socket_s: float) -> redis.BlockingConnectionPool:
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


def _describe(pool: redis.ConnectionPool) -> tuple[str, frozenset[str]]:
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


def _read(script: str) -> str:
    return (_FOLDER / f"{script}.lua").read_text(encoding="utf-8")


def _grouped(entries: Iterable[Entry]) -> bytes:
    """The entries by queue, as `take` in entry.lua reads them; of an id that comes twice, the later one."""
    queues: dict[str, dict[str, int | None]] = {}
    for entry in entries:
        queues.setdefault(entry.queue, {})[entry.task_id] = entry.attempt
    return _encoder.encode(
        [
            (queue, list(ids), ["" if attempt is None else str(attempt) for attempt in ids.values()])
            for queue, ids in queues.items()
        ]
    )


def _in_ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _holds(answer: Sequence[str]) -> Iterator[Hold]:
    now_ms = float(answer[0])
    for queue, task_id, value in zip(answer[1::3], answer[2::3], answer[3::3], strict=True):
        match value.split("|", 2):
            case [attempt, since_ms, worker] if since_ms.isdecimal() and (attempt.isdecimal() or not attempt):
                since_s = max(0.0, (now_ms - int(since_ms)) / 1000)
                yield Hold(task_id, queue, worker, int(attempt) if attempt else None, since_s)
            case _:
                continue  # not ours: the next hold of this id overwrites it


def _says(text: str, *marks: str) -> bool:
    return any(mark.lower() in text.lower() for mark in marks)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
