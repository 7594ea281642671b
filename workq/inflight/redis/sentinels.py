"""Which Redis is the primary of a service now: the Sentinels that watch it are asked, one after the other.

Who decides: the Sentinels. When enough of them miss the primary they make a replica the primary, and each names that
one from then on. What happens on each answer but a good one:

    READONLY     nothing was done: this one is a replica by now. The Sentinels are asked, and the same is asked once
                 more where they say
    none         nobody knows what was done: NodeFailed. The next call asks the Sentinels first who is the primary
    of a Sentinel, that does not answer, does not know the service, or names one that is a replica: the next is asked

While they choose, which takes as long as their `down-after-milliseconds` and some seconds more, calls fail as if Redis
were away. The replica may lack the newest writes, as copies are made behind the answer: it is as if these had been
wiped. Workers write what they hold again with their next beat, and drop what they do not hold any more.

redis-py's SentinelConnectionPool would do more than that, and less: it asks Sentinels for every connection that it
makes, fails when its connections are used up instead of waiting for one, waits for a Sentinel that hangs as long as for
a Redis, and does not look whether the Redis that is named is a primary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import redis
from redis.exceptions import AuthenticationError, ReadOnlyError, ResponseError
from redis.sentinel import MasterNotFoundError

from workq.inflight.redis.nodes import NO_ANSWER, Address, NodeClients, NodeFailed

T = TypeVar("T")

SENTINEL_MIN_S: Final = 0.5
"""A Sentinel is given at least so long to connect and to answer, however many of them share the time of a call."""
ASK_AGAIN_S: Final = 5.0
"""After so many seconds the primary is looked for again, although it answers."""
_TOLD: Final = (MasterNotFoundError, AuthenticationError, ResponseError)
"""What a Sentinel has answered says more than that another one did not answer."""
_READ_ONLY: Final = "READONLY"


class Sentinels:
    """The way to the primary of a service. Thread-safe; contacts nothing by itself."""

    def __init__(
        self, sentinels: Sequence[redis.Redis], connect: Callable[[Address], redis.Redis], *, service: str
    ) -> None:
        """Prepare.

        Args:
            sentinels: a client of each.
            connect: makes the client of a Redis, which connects when it is used.
            service: the name that the Sentinels know it by.
        """
        self.all = tuple(sentinels)
        self.service = service
        self._clients = NodeClients((), connect)
        self._primary: Address | None = None
        self._asked_at = 0.0
        self._failed_at: dict[redis.Redis, float] = {}

    def ask(self, question: Callable[[redis.Redis], T]) -> T:
        """See the port."""
        try:
            return self._put(question, self._current())
        except NodeFailed as failed:
            if not _is_read_only(failed.error):
                raise
        return self._put(question, self._find())

    def primary(self) -> Address:
        """Where it is, as the Sentinels say now.

        Raises:
            NodeFailed: as `ask` does.
        """
        return self._find()

    def part_of(self, client: redis.Redis) -> str:
        """See the port."""
        return "a Sentinel" if client in self.all else f"which its Sentinels call the primary of {self.service}"

    def close(self) -> None:
        """See the port."""
        self._clients.close()
        for one in self.all:
            one.connection_pool.disconnect()

    def _current(self) -> Address:
        """The primary, as far as it is known. From time to time a Sentinel is asked whether it still is.

        One that was cut off from the Sentinels, or a replica that is cut off from its primary, would answer on and on.
        """
        at = self._primary
        if at is None:
            return self._find()
        if time.monotonic() - self._asked_at < ASK_AGAIN_S:
            return at
        self._asked_at = time.monotonic()  # other threads go on meanwhile
        sentinel = self._in_order()[0]
        try:
            is_named = _address_told(sentinel, self.service) == at
        except (redis.RedisError, OSError):
            self._failed_at[sentinel] = time.monotonic()
            return at
        return at if is_named else self._find()

    def _in_order(self) -> list[redis.Redis]:
        """The Sentinels: those that failed last are asked last."""
        return sorted(self.all, key=lambda one: self._failed_at.get(one, 0.0))

    def _put(self, question: Callable[[redis.Redis], T], at: Address) -> T:
        client = self._clients.of(at)
        try:
            return question(client)
        except (*NO_ANSWER, redis.RedisError) as error:
            if isinstance(error, NO_ANSWER) or _is_read_only(error):
                self._primary = None  # the next question is for the Sentinels
            raise NodeFailed(error, client) from None

    def _find(self) -> Address:
        """The primary, from the first Sentinel that names one which is. A Redis that several name is asked once."""
        unknown: list[NodeFailed] = []
        named: dict[Address, NodeFailed] = {}
        for sentinel in self._in_order():
            try:
                found = _address_told(sentinel, self.service)
            except (redis.RedisError, OSError) as error:
                self._failed_at[sentinel] = time.monotonic()
                unknown.append(NodeFailed(error, sentinel))
                continue
            if found in named:
                continue
            client = self._clients.of(found)
            try:
                if _is_primary(client):
                    self._primary, self._asked_at = found, time.monotonic()
                    return found
                named[found] = NodeFailed(ReadOnlyError(f"{_READ_ONLY} it is a replica"), client)
            except (redis.RedisError, OSError) as error:
                named[found] = NodeFailed(error, client)
        raise next(iter(named.values()), None) or min(unknown, key=lambda one: not isinstance(one.error, _TOLD))


def _address_told(sentinel: redis.Redis, service: str) -> Address:
    """Where one Sentinel says that the primary is."""
    told: Any = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)  # type: ignore[no-untyped-call]
    if told is None:
        raise MasterNotFoundError(f"it watches no service of the name {service}")
    return str(told[0]), int(told[1])


def _is_primary(client: redis.Redis) -> bool:
    """Whether it says so itself. Where this user may not know, its first write tells."""
    try:
        facts: Any = client.info("replication")
    except ResponseError:
        return True
    return str(facts.get("role", "master")) == "master"


def _is_read_only(error: Exception) -> bool:
    """Also of a command within a script, as Redis before 7 tells it."""
    return isinstance(error, ReadOnlyError) or (isinstance(error, ResponseError) and _READ_ONLY in str(error))
