"""A private Redis with a replica, and Sentinels that watch both and make the replica the primary when the other dies.

    with start_redis_sentinels() as service:
        store = RedisInFlight(service.url, namespace=...)
        service.primary.kill()        # the Sentinels notice after `down_after_ms`, and choose the replica

`primary` is the one that was so at first; who it is now, the Sentinels tell: `primary_port()`. Each is a private server
like any other. Sentinels that do not find each other, or the replica, in time: ServerFailed; nothing is left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from workq.lab.servers.redis import Redis, start_redis
from workq.lab.servers.server import Server, ServerFailed

SERVICE: Final = "shop"
DOWN_AFTER_MS: Final = 1000
FAILOVER_TIMEOUT_MS: Final = 3000
"""A Sentinel waits twice as long after one failover before it begins another one."""
HASTE: Final = {"INFO-PERIOD": 200, "PUBLISH-PERIOD": 200, "ASK-PERIOD": 100}
"""In ms: how often a Sentinel asks and tells, which is every 1 to 10 s by default. For tests; from Redis 7 on.

PING-PERIOD stays 1000: what a replica said more than five of them ago does not count, and while the primary is away a
replica is asked every second.
"""
_TOGETHER_S: Final = 60.0


class RedisSentinel(Redis):
    """One Sentinel. What it learns it writes into its configuration, and so knows it after `kill()` and `start()`."""

    def __init__(self, folder: Path | None, *, watches: int, quorum: int, down_after_ms: int) -> None:
        self._watches = watches
        self._quorum = quorum
        self.down_after_ms = down_after_ms
        super().__init__(folder, ())

    @property
    def _conf(self) -> Path:
        return self.folder / "sentinel.conf"

    def _prepare(self) -> None:
        super()._prepare()
        if self._conf.exists() and f"port {self.port}\n" in self._conf.read_text():
            return
        lines = (
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self._data}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._watches} {self._quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {self.down_after_ms}",
            f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}",
        )
        self._conf.write_text("".join(f"{line}\n" for line in lines))

    def _command(self) -> list[str]:
        return [self._server, str(self._conf), "--sentinel"]

    def _is_loaded(self, facts: Mapping[str, str]) -> bool:
        return "sentinel" in (facts.get("redis_mode"), facts.get("server_mode"))  # the second is Valkey's, from 9 on

    def hasten(self) -> None:
        """Let it notice things in tenths of a second."""
        self.tell("SENTINEL", "DEBUG", *(word for pair in HASTE.items() for word in pair))

    def facts(self) -> dict[str, str]:
        """What it says of the service."""
        words = self.tell("SENTINEL", "MASTER", SERVICE).splitlines()
        return dict(zip(words[::2], words[1::2], strict=False))


class RedisService:
    """A primary, its replica and their Sentinels. As a context manager it stops at the block's end."""

    def __init__(self, primary: Redis, replica: Redis, sentinels: Sequence[RedisSentinel]) -> None:
        """Use `start_redis_sentinels()`."""
        self.primary = primary
        self.replica = replica
        self.sentinels = tuple(sentinels)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """What a client is given: every Sentinel, and the name of the service."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def primary_port(self) -> int:
        """Of the Redis that a Sentinel which runs names now."""
        one = next(one for one in self.sentinels if one.is_running)
        return int(one.tell("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE).splitlines()[1])

    def primary_and_replica(self) -> tuple[Redis, Redis]:
        """The two as they are now."""
        both = (self.primary, self.replica)
        return both if self.primary_port() == self.primary.port else both[::-1]

    def hasten(self) -> None:
        """Let all Sentinels notice things in tenths of a second; what is started again has forgotten it."""
        for one in self.sentinels:
            one.hasten()

    def wait_whole(self) -> None:
        """Return when every Sentinel knows the others and a replica that could take over.

        Raises:
            ServerFailed: they do not in time.
        """
        wanted = {"flags": "master", "num-slaves": "1", "num-other-sentinels": str(len(self.sentinels) - 1)}
        self._wait_for(
            lambda: self._follows() and all(wanted.items() <= one.facts().items() for one in self.sentinels),
            "is not whole",
        )

    def stop(self) -> None:
        """End all servers and remove their folders. Repeatable."""
        for server in (*self.sentinels, self.replica, self.primary):
            server.stop()

    def _follows(self) -> bool:
        """Whether one of the two has all that the other has."""
        told = [one.replication() for one in (self.primary, self.replica)]
        return any("role:slave" in one and "master_link_status:up" in one for one in told)

    def _wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _TOGETHER_S
        while not is_so():
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"Redis with Sentinels {what} within {_TOGETHER_S:.0f} s: {self.sentinels[0].facts()}"
                )
            time.sleep(0.05)


def start_redis_sentinels(
    sentinels: int = 3, folder: Path | None = None, *, down_after_ms: int = DOWN_AFTER_MS, hastened: bool = True
) -> RedisService:
    """Start a private Redis with a replica, and so many Sentinels, more than half of which must agree.

    Raises:
        ServerMissing: Redis is not installed.
        ServerFailed: it could not be started.
    """
    started: list[Server] = []
    try:
        at_once = ("--repl-diskless-sync-delay", "0")  # else a replica that comes is let wait for others
        primary = start_redis(folder, options=at_once)
        started.append(primary)
        replica = start_redis(folder, options=(*at_once, "--replicaof", f"127.0.0.1 {primary.port}"))
        started.append(replica)
        made = [
            RedisSentinel(folder, watches=primary.port, quorum=sentinels // 2 + 1, down_after_ms=down_after_ms)
            for _ in range(sentinels)
        ]
        started += made
        with ThreadPoolExecutor(sentinels) as pool:
            list(pool.map(RedisSentinel.first_start, made))
        service = RedisService(primary, replica, made)
        if hastened:
            service.hasten()
        service.wait_whole()
    except BaseException:  # an interrupt too: no server is left behind
        for server in started:
            server.stop()
        raise
    return service
