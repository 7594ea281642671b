"""Sentinels: whether each answers, names the same primary, and could make a replica the primary with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from workq.config import masked
from workq.config.sentinel import SentinelUrl
from workq.diagnose.doctor.check import Check, Level

SENTINELS_MIN: Final = 3
"""With fewer, the host that dies with the primary may leave no majority."""


def look(url: SentinelUrl, socket_s: float) -> Iterator[Check]:
    """A line for each Sentinel, and one where they name different primaries."""
    named: dict[str, None] = {}
    for one in url.sentinels:
        facts = _asked(one, url.service, socket_s)
        where = f"Sentinel {masked(one)}"
        if isinstance(facts, str):
            yield Check("inflight", Level.WARNING, f"{where}: {facts}")
            continue
        place = f"{facts['ip']}:{facts['port']}"
        named[place] = None
        others, replicas = int(facts["num-other-sentinels"]), int(facts["num-slaves"])
        told = (
            f"{where}: the primary of {url.service} is {place}, with {replicas} replicas and {others} other Sentinels"
        )
        yield Check("inflight", *_judged(facts, told))
    if len(named) > 1:
        yield Check(
            "inflight",
            Level.WARNING,
            f"the Sentinels name different primaries ({', '.join(named)}): they are choosing a new one, or are cut off "
            "from each other; ask again in some seconds",
        )


def _asked(url: str, service: str, socket_s: float) -> Mapping[str, Any] | str:
    """What one of them knows of the service, or why it does not tell."""
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
        facts: Any = client.sentinel_master(service)
        return facts  # type: ignore[no-any-return]
    except redis.exceptions.AuthenticationError:
        return "it refuses the login: give sentinel_password, and sentinel_username, in the query of the in-flight URL"
    except redis.exceptions.NoPermissionError:
        return "this user may not ask for more than the primary: allow it +sentinel|master, to see more here"
    except redis.exceptions.ResponseError as error:
        if "No such master" not in str(error):
            return f"it cannot be asked ({type(error).__name__})"
        return f"it watches no service of the name {service}; the name is in its file, behind `sentinel monitor`"
    except (redis.RedisError, OSError) as error:
        return f"it does not answer ({type(error).__name__}); the others decide without it, if they are enough"
    finally:
        client.close()


def _judged(facts: Mapping[str, Any], told: str) -> tuple[Level, str]:
    others, quorum = int(facts["num-other-sentinels"]), int(facts["quorum"])
    if facts["is_sdown"] or facts["is_odown"]:
        return Level.WARNING, f"{told}; it misses that primary, and nothing can be held until another one is chosen"
    if not int(facts["num-slaves"]):
        return Level.WARNING, f"{told}: nothing can take over when it dies; add a replica"
    if others + 1 < max(SENTINELS_MIN, quorum):
        return (
            Level.WARNING,
            f"{told}: too few to agree when a host dies; run {SENTINELS_MIN} or more, on as many hosts",
        )
    return Level.OK, told
