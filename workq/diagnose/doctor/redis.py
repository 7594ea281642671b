"""Redis: what makes it forget what workers hold, or refuse to take more.

Version and eviction are judged where it is opened: inflight/redis/pool.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from workq.config import Settings, masked, node_urls
from workq.config.sentinel import SentinelUrl, is_sentinel
from workq.config.server_commands import redis_command
from workq.diagnose.doctor import sentinels
from workq.diagnose.doctor.check import Check, Level
from workq.diagnose.doctor.host import require, skew

if TYPE_CHECKING:
    from workq.inflight.redis import RedisInFlight

SHOWN_MAX: Final = 3
"""Of keys that have one fault."""
FULL_AT: Final = 0.9
"""More than this part of `maxmemory` in use is a finding."""


def look(settings: Settings) -> Iterator[Check]:
    """Everything about the in-flight store.

    Raises:
        InFlightUnavailable, ConfigError: it cannot be looked at, or it evicts.
    """
    url = settings.inflight
    if url is None:
        yield Check("inflight", Level.OK, "embedded: the ledger keeps holds and leases")
        return
    require("redis", url)
    from workq.inflight.redis import RedisInFlight

    nodes = node_urls(url)
    is_cluster = nodes != [url]
    if is_sentinel(url):  # first: they say most when the primary is gone
        yield from sentinels.look(SentinelUrl.parse(url), settings.times.redis_socket_s)
    inflight = RedisInFlight(url, namespace=settings.namespace, socket_s=settings.times.redis_socket_s)
    try:
        yield Check("inflight", Level.OK, f"{masked(url)}: {inflight.check()}")
        is_usable = True
        primary = inflight.primary_url()
        for node in [primary] if primary else nodes:
            for check in _settings(node, settings.times.redis_socket_s, is_cluster=is_cluster):
                is_usable = is_usable and (is_cluster or check.level is not Level.ERROR)
                told = f"node {masked(node)}: {check.message}" if is_cluster else check.message
                yield Check(check.area, check.level, told)
        if is_usable:
            yield from _keys(inflight, primary or nodes[0], is_cluster=is_cluster)
    finally:
        inflight.close()


def _keys(inflight: RedisInFlight, url: str, *, is_cluster: bool) -> Iterator[Check]:
    missing = inflight.missing_rights()
    if missing is not None:
        yield Check("inflight", Level.ERROR, missing)
    else:
        yield from _of_another_type(*inflight.of_another_type(), url=url, is_cluster=is_cluster)


def _of_another_type(wrong: list[str], aside: list[str], *, url: str, is_cluster: bool) -> Iterator[Check]:
    if wrong:
        yield Check(
            "inflight",
            Level.ERROR,
            f"{_some(wrong)}: of another type than workq gives it, by another's hand; a worker's next call moves it "
            "aside. Keep other programs from this namespace's keys",
        )
    if aside:
        flags = ["-c"] if is_cluster else []  # to whichever node has them
        yield Check(
            "inflight",
            Level.WARNING,
            f"{_some(aside)}: moved aside, because another hand had changed its type; workers write again what they "
            "hold. Find out who did it, then delete it: " + redis_command(url, *flags, "DEL", *aside[:SHOWN_MAX]),
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def _settings(url: str, socket_s: float, *, is_cluster: bool) -> Iterator[Check]:
    """What `check` does not ask. The connection was fine a moment ago: what fails now is a right that is missing.

    But a node of a cluster, which may serve other namespaces, may as well be down.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = redis.Redis.from_url(
        url,
        socket_timeout=socket_s,
        socket_connect_timeout=socket_s,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
    try:
        asked = datetime.now(UTC)
        seconds, micros = client.time()
        told = datetime.now(UTC)
        yield skew("Redis", datetime.fromtimestamp(int(seconds) + int(micros) / 1e6, UTC), asked, told)
        facts: Any = client.info()
        yield from _facts(facts, is_cluster=is_cluster)
        yield from _persistence(facts, _saves(client))
        if is_cluster:
            yield from _coverage(client)
    except redis.RedisError as error:
        if is_cluster and isinstance(error, redis.ConnectionError | redis.TimeoutError):
            yield Check("inflight", Level.WARNING, "it does not answer; the namespaces that it serves wait")
        else:
            yield Check(
                "inflight",
                Level.UNCHECKED,
                f"its settings cannot be read ({type(error).__name__}): allow this user INFO, or look yourself: "
                + redis_command(url, "INFO", "persistence"),
            )
    finally:
        client.close()


def _saves(client: Any) -> bool | None:
    """Whether it writes snapshots by itself; None when this user may not know."""
    import redis

    try:
        return bool(client.config_get("save").get("save"))
    except redis.exceptions.ResponseError:
        return None


def _coverage(client: Any) -> Iterator[Check]:
    """Whether one node that is down stops all of them; nothing when this user may not know."""
    import redis

    try:
        asked = client.config_get("cluster-require-full-coverage")
    except redis.exceptions.ResponseError:
        return
    if asked.get("cluster-require-full-coverage") == "yes":
        yield Check(
            "inflight",
            Level.WARNING,
            "cluster-require-full-coverage is on: one node that is down without a replica stops every namespace, not "
            "only its own; set it to no",
        )


def _facts(facts: Mapping[str, Any], *, is_cluster: bool) -> Iterator[Check]:
    if not is_cluster and str(facts.get("role", "master")) != "master":
        yield Check(
            "inflight",
            Level.ERROR,
            "this Redis is a read-only replica: nothing can be held; the URL must name the primary",
        )
    if not is_cluster and int(facts.get("cluster_enabled", 0)):
        yield Check(
            "inflight",
            Level.ERROR,
            "this Redis is a node of a cluster, and refuses the keys of namespaces that another node serves; name some "
            "nodes: redis+cluster://host:6379,host:6379",
        )
    limit, used = int(facts.get("maxmemory", 0)), int(facts.get("used_memory", 0))
    if limit and used > FULL_AT * limit:
        yield Check(
            "inflight",
            Level.WARNING,
            f"{used * 100 // limit} % of maxmemory ({limit >> 20} MiB) are in use: when it is full nothing can be "
            "held, and nothing new starts; give it more memory, or remove what is not workq's",
        )


def _persistence(facts: Mapping[str, Any], saves: bool | None) -> Iterator[Check]:
    after = "its workers write it again, and nobody is reaped for three beats"
    if not int(facts.get("aof_enabled", 0)):
        if saves:
            lost = "a restart of Redis goes back to its last snapshot, which knows nothing of what was held since"
        else:
            lost = "it saves nothing, so that a restart of Redis is a wipe: what workers hold is forgotten"
        yield Check("inflight", Level.WARNING, f"appendonly is off: {lost}; {after}. Set appendonly yes")
    for key, what in (
        ("aof_last_write_status", "appending to its file"),
        ("aof_last_bgrewrite_status", "rewriting its file"),
        ("rdb_last_bgsave_status", "writing a snapshot"),
    ):
        if str(facts.get(key, "ok")) != "ok":
            yield Check(
                "inflight", Level.WARNING, f"Redis failed at {what} ({key}: {facts[key]}): see its log and its disk"
            )
