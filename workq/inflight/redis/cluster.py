"""Which node of a Redis Cluster serves one namespace, learnt from what the nodes answer.

All keys of a namespace have one hash tag, so they are in one slot, and one node serves it at a time. Any node knows
which: it answers MOVED with the address. So nobody needs a map of the slots, and a node that serves other namespaces
may be down without harm to this one.

Who decides: the nodes. What happens on each answer but a good one:

    MOVED        nothing was done; the same is asked where it says, and that node is asked first from now on
    ASK          nothing was done; the slot is moving there, and the same is asked there, this once
    TRYAGAIN     nothing was done; the slot is moving, some keys are here and some there: asked again for `patience_s`
    CLUSTERDOWN  nothing was done, and nobody serves the slot now: NodeFailed
    none         nobody knows what was done: NodeFailed. The next call asks any node first who serves the slot now

So a question is repeated only when a node said that it did nothing. A script that finds a key of a moving slot gone in
the middle of its work ends with an error of Redis; each call of the store may be made again after that.

redis-py's RedisCluster would do more than that, and wait for it: it contacts nodes when it is made, loads a script
that one node has forgotten into all of them, dead ones too, and after a timeout it reads the map of all slots again
before the error comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import redis
from redis.exceptions import AskError, MovedError, ResponseError, TryAgainError

from workq.inflight.redis.nodes import NO_ANSWER, Address, NodeClients, NodeFailed

T = TypeVar("T")

REDIRECTS_MAX: Final = 8
"""Nodes that send a question around do not agree yet."""
TRY_AGAIN_S: Final = 0.01


class Cluster:
    """The way to the node that serves one key. Thread-safe; contacts nothing by itself."""

    def __init__(
        self, addresses: Sequence[Address], connect: Callable[[Address], redis.Redis], *, key: str, patience_s: float
    ) -> None:
        """Prepare.

        Args:
            addresses: of the nodes to begin with. More are learnt from what they answer.
            connect: makes the client of an address, which connects when it is used.
            key: any key of the slot; it need not exist.
            patience_s: how long a moving slot, and a search for the node, may take before the caller is told.
        """
        self._clients = NodeClients(addresses, connect)
        self._key = key
        self._patience_s = patience_s
        self._owner: Address | None = None
        self._failed_at: dict[Address, float] = {}

    def ask(self, question: Callable[[redis.Redis], T]) -> T:
        """Put a question to the node that serves the key; it must be about keys of that slot.

        Raises:
            NodeFailed: with the error of redis-py. Where that says that nothing answered, nothing is known.
        """
        deadline = time.monotonic() + self._patience_s
        at = self._owner or self._find(deadline)
        is_asking = False
        redirects = 0
        while True:
            try:
                return self._put(question, at, is_asking=is_asking)
            except AskError as error:  # MOVED is a kind of it
                redirects += 1
                if redirects > REDIRECTS_MAX:
                    raise NodeFailed(error, self.client(at)) from None
                is_asking = not isinstance(error, MovedError)
                at = _target(error, at)
                if not is_asking:
                    self._owner = at
            except TryAgainError as error:
                if time.monotonic() > deadline:
                    raise NodeFailed(error, self.client(at)) from None
                time.sleep(TRY_AGAIN_S)
            except NO_ANSWER as error:
                self._give_up(at)
                raise NodeFailed(error, self.client(at)) from None
            except redis.RedisError as error:
                raise NodeFailed(error, self.client(at)) from None

    def nodes(self) -> list[Address] | None:
        """Every node of the cluster as the node that serves the key lists them; None if this user may not know.

        Raises:
            NodeFailed: it did not answer.
        """

        def listed(client: redis.Redis) -> Any:
            try:
                return client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            except ResponseError:
                return None

        ranges = self.ask(listed)
        if ranges is None:
            return None
        here = self._owner or self._clients.addresses[0]
        nodes = [(node[0], int(node[1])) for one in ranges for node in one[2:]]
        found = {(_host(host, here), port): None for host, port in nodes}
        return list(found)

    def client(self, address: Address) -> redis.Redis:
        """The client of one node, whether it serves the key or not."""
        return self._clients.of(address)

    def part_of(self, client: redis.Redis) -> str:  # noqa: ARG002 - all of them are alike
        """See the port."""
        return "a node of the cluster"

    def close(self) -> None:
        """Close connections; a later question connects again."""
        self._clients.close()

    def _put(self, question: Callable[[redis.Redis], T], at: Address, *, is_asking: bool) -> T:
        client = self.client(at)
        if not is_asking:
            return question(client)
        # ASKING is for the next command of the same connection
        with redis.Redis(connection_pool=client.connection_pool, single_connection_client=True) as one:
            one.execute_command("ASKING")
            return question(one)

    def _find(self, deadline: float) -> Address:
        """The node that serves the key. Reads only, so any number of nodes may be asked."""
        for at in sorted(self._clients.addresses, key=lambda one: self._failed_at.get(one, 0.0)):
            try:
                self.client(at).exists(self._key)
            except MovedError as error:
                found = _target(error, at)
            except AskError:
                found = at  # the slot is moving away, and is still its own
            except (redis.RedisError, OSError) as error:
                self._give_up(at)
                failure = NodeFailed(error, self.client(at))
                if time.monotonic() > deadline:
                    break
                continue
            else:
                found = at
            self._owner = found
            return found
        raise failure

    def _give_up(self, at: Address) -> None:
        """Nobody is known to serve the key; next time this node is asked last."""
        self._owner = None
        self._failed_at[at] = time.monotonic()


def _target(error: AskError, at: Address) -> Address:
    """Where a redirection leads."""
    return _host(error.host, at), error.port


def _host(told: str | None, at: Address) -> str:
    """A node that does not know a host means that of the node that answers."""
    return at[0] if told in (None, "", "?") else str(told)
