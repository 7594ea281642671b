"""Several Redis servers, of which one has the keys of a namespace: a client of each, and failures that name a server.

Which one it is, cluster.py and sentinels.py find out, each in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias, TypeVar

import redis
from redis.exceptions import ClusterDownError

Address: TypeAlias = tuple[str, int]
T = TypeVar("T")

NO_ANSWER: Final = (redis.ConnectionError, redis.TimeoutError, OSError, ClusterDownError)
"""Nobody knows what was done."""


class NodeFailed(Exception):
    """One server did not do what it was asked: `error` is what its `client` said."""

    def __init__(self, error: Exception, client: redis.Redis) -> None:
        super().__init__(str(error))
        self.error = error
        self.client = client


class WayToKeys(Protocol):
    """How one comes to the server that has the keys of a namespace. Thread-safe; contacts nothing by itself."""

    def ask(self, question: Callable[[redis.Redis], T]) -> T:
        """Put a question to that server; it must be about keys of that namespace.

        Raises:
            NodeFailed: with the error of redis-py. Where that says that nothing answered, nothing is known.
        """
        ...

    def part_of(self, client: redis.Redis) -> str:
        """What the server of a client is in the whole, for messages."""
        ...

    def close(self) -> None:
        """Close connections; a later question connects again."""
        ...


class NodeClients:
    """The client of each server, made when it is first needed, and kept."""

    def __init__(self, addresses: Iterable[Address], connect: Callable[[Address], redis.Redis]) -> None:
        self._connect = connect
        self._clients = {address: connect(address) for address in addresses}

    @property
    def addresses(self) -> list[Address]:
        """Of all servers that are known so far."""
        return list(self._clients)

    def of(self, address: Address) -> redis.Redis:
        """The client of one server."""
        known = self._clients.get(address)
        return known if known is not None else self._clients.setdefault(address, self._connect(address))

    def close(self) -> None:
        """Close connections; they are made again when they are needed."""
        for client in list(self._clients.values()):
            client.connection_pool.disconnect()
