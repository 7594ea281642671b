"""What a Redis server says of itself, and whether it is fit for holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import redis

from workq.errors import ConfigError

VERSION_MIN: Final = (6, 2)


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
