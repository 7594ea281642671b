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
- Sentinels (redis+sentinel://): see sentinels.py. A replica that takes over may lack the newest writes: a small wipe.
- Another hand has made a key of ours one of another type: it is moved aside by a rename, never deleted, and the call is
  made again. What it held is written again by the next beats, as after a wipe. Logged; `workq doctor` names it.
- The clock of Redis is set back: the lease of a worker that dies before its next beat lasts that much longer here; a
  sweep does not believe it (see recovery/deaths.py).

The rights that workq's user of Redis needs are in `RIGHTS` (`+info` only shows the settings to `check`). On the nodes
of a cluster also `+asking`, to follow a slot that moves, and `+cluster|slots`, to check all nodes. A Sentinel that has
users of its own must let `sentinel_username` use `SENTINEL_RIGHTS`.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from workq.config import CLUSTER_SCHEMES, node_urls
from workq.config.sentinel import SentinelUrl, is_sentinel
from workq.errors import ConfigError, InFlightUnavailable, LeaseLost, MissingExtra
from workq.inflight import Beat, Entry, Hold, Lease

try:
    import redis
except ModuleNotFoundError as error:
    raise MissingExtra("in-flight: redis:// needs a client library; install the extra [redis]") from error

from workq.inflight.redis.cluster import Cluster
from workq.inflight.redis.nodes import Address, NodeFailed, WayToKeys
from workq.inflight.redis.pool import (
    address_of,
    chain,
    check_nodes,
    described,
    facts_of,
    judged,
    name_of,
    patience_of,
    pool_of,
    reason_of,
    says,
    url_at,
)
from workq.inflight.redis.sentinels import SENTINEL_MIN_S, Sentinels

RIGHTS: Final = "~{{{namespace}}}:* +@read +@write +@scripting +@connection +time -@dangerous +info"
"""What `ACL SETUSER` gives the user of a namespace."""
SENTINEL_RIGHTS: Final = "+@connection +sentinel|get-master-addr-by-name"
"""And at a Sentinel."""
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_FOLDER: Final = Path(__file__).parent
_SCRIPTS: Final = ("aside", "beat", "extend", "hold", "holds", "leases", "leave", "release", "rights")
_NAMING_QUEUES: Final = ("beat", "hold", "release")
_encoder: Final = msgspec.json.Encoder()
T = TypeVar("T")
log = logging.getLogger("workq.inflight")


class RedisInFlight:
    """Holds and leases in Redis. Thread-safe; connects at the first call, and again after a fork.

    The URL's query may set what redis-py calls `protocol` (2 or 3), `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`,
    `client_name`, `max_connections` and the like; see `_OPTION` in pool.py.
    """

    def __init__(self, url: str, *, namespace: str = "workq", socket_s: float = 2.0) -> None:
        """Prepare; contact nothing.

        Args:
            url: redis://, rediss:// (certificates are verified) or unix://; redis+cluster:// or rediss+cluster:// with
                some nodes of a cluster; redis+sentinel:// or rediss+sentinel:// with Sentinels and a service's name.
            namespace: what the hash tag of every key says.
            socket_s: seconds to wait for a connection, for each answer, and for a free connection of the pool.

        Raises:
            ConfigError: the URL or the namespace is not valid.
        """
        if not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(f"in-flight: namespace {namespace!r} is not valid; use letters, digits, '_', '.' and '-'")
        self._socket_s = socket_s
        sentinels = SentinelUrl.parse(url) if is_sentinel(url) else None
        urls = node_urls(url) if sentinels is None else [sentinels.redis]
        pools = [pool_of(one, socket_s) for one in urls]
        self._client = redis.Redis(connection_pool=pools[0])
        self._url = urls[0]
        self._where, self._secrets = described(pools[0])
        self._prefix = f"{{{namespace}}}:"
        self._grant = f"ACL SETUSER {pools[0].connection_kwargs.get('username') or 'default'} "
        self._grant += RIGHTS.format(namespace=namespace)
        self._keys = [self._prefix + name for name in ("epoch", "leases", "lost")]
        self._cluster: Cluster | None = None
        self._sentinels: Sentinels | None = None
        if sentinels is not None:
            self._sentinels = self._asking(sentinels)
            self._where = name_of(self._sentinels.all[0], f"one of the Sentinels of {sentinels.service}")
        elif url.partition("://")[0] in CLUSTER_SCHEMES:
            check_nodes(urls, pools)
            addresses = [address_of(pool) for pool in pools]
            self._cluster = Cluster(addresses, self._connect, key=self._keys[0], patience_s=socket_s)
            self._where = name_of(self._client, self._cluster.part_of(self._client))
        self._way: WayToKeys | None = self._cluster or self._sentinels
        entry = _read("entry")
        self._scripts = {name: self._client.register_script(entry + _read(name)) for name in _SCRIPTS}

    def _connect(self, address: Address) -> redis.Redis:
        return redis.Redis(connection_pool=pool_of(url_at(self._url, address), self._socket_s))

    def _asking(self, sentinels: SentinelUrl) -> Sentinels:
        """One that hangs takes its share of the time of a call, and not all of it."""
        share_s = min(self._socket_s, max(SENTINEL_MIN_S, self._socket_s / len(sentinels.sentinels)))
        pools = [pool_of(one, share_s) for one in sentinels.sentinels]
        self._secrets |= {secret for pool in pools for secret in described(pool)[1]}
        clients = [redis.Redis(connection_pool=pool) for pool in pools]
        return Sentinels(clients, self._connect, service=sentinels.service)

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
        now, began = self._call("leases", "", "age")
        return max(0.0, (float(now) - float(began)) / 1000)

    def check(self) -> str:
        """See the port. Without the right to INFO the settings stay unseen; the answer says so.

        Raises:
            ConfigError: also when Redis is older than 6.2.
        """
        facts, client = self._ask(lambda client: (facts_of(client), client))
        if self._way is None:
            return judged(facts, self._where)
        found = judged(facts, name_of(client, self._way.part_of(client)))
        if self._cluster is not None:
            return f"{found}, {self._look_at_nodes(self._cluster, facts)}"
        host, port = address_of(client.connection_pool)
        return f"{found}, the primary at {host}:{port}"

    def primary_url(self) -> str | None:
        """The URL of the primary that the Sentinels name now; None where the URL names no Sentinels."""
        sentinels = self._sentinels
        return None if sentinels is None else url_at(self._url, self._translated(sentinels.primary))

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
        if self._way is not None:
            self._way.close()
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
                found = facts_of(client)
            except (redis.RedisError, OSError):
                silent += 1
                continue
            judged(found, name_of(client, cluster.part_of(client)))
        return f"a cluster of {len(addresses)} nodes" + (f", {silent} of which did not answer" if silent else "")

    def _call(self, script: str, about: str, *args: str | bytes) -> Any:
        arguments = [self._prefix, about, *args]

        def run(client: redis.Redis) -> Any:
            return self._scripts[script](keys=self._keys, args=arguments, client=client)

        def question(client: redis.Redis) -> Any:
            try:
                return run(client)
            except redis.exceptions.ResponseError as error:
                if not says(str(error), "WRONGTYPE"):
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
        """One question to Redis: to the node or to the primary that has the namespace, where there are several."""
        way = self._way
        return self._translated(lambda: question(self._client) if way is None else way.ask(question))

    def _translated(self, call: Callable[[], T]) -> T:
        """A failure in our words. Raised outside of `except`: no secret rides in the chain."""
        where, grant, is_watched = self._where, self._grant, False
        try:
            return call()
        except NodeFailed as failed:
            failure: Exception = failed.error
            where = name_of(failed.client, self._way.part_of(failed.client)) if self._way is not None else where
            is_watched = self._sentinels is not None and failed.client not in self._sentinels.all
            if self._sentinels is not None and not is_watched:
                user = failed.client.connection_pool.connection_kwargs.get("username") or "default"
                grant = f"ACL SETUSER {user} {SENTINEL_RIGHTS}"
        except (redis.RedisError, OSError, UnicodeError) as error:
            failure = error
        reason = reason_of(
            failure,
            where,
            socket_s=self._socket_s,
            grant=grant,
            is_cluster=self._cluster is not None,
            is_watched=is_watched,
        )
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        unavailable = InFlightUnavailable(reason)
        unavailable.patience_s = patience_of(failure)
        if any(secret in f"{link} {link!r}" for link in chain(failure) for secret in self._secrets):
            raise unavailable
        raise unavailable from failure


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
