"""Guard: a webhook reaches no address that it may not. Decided where the socket is made.

A name is looked up anew for each connection, and every address that it has then is judged: one that may not be reached
refuses them all, because whoever answers so means no good. What was judged is what is connected to; nothing looks the
name up again in between. The socket itself is the last to ask, also where a URL has an address in the place of a name.

With a proxy it is the proxy that is connected to, and so the proxy's address is judged here, whatever its port.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

from workq.config.addresses import Allowed

LOOKUPS: Final = 64
"""Names that are looked up at once: a server of names that does not answer holds one thread for each."""
Lookup = Callable[..., list[Any]]


class Blocked(OSError):
    """An address that webhooks may not go to. The message names the setting that would permit it."""


class Trace:
    """What is known of one connection while it is made."""

    __slots__ = ("address", "addresses", "host")

    def __init__(self, host: str) -> None:
        self.host = host
        self.addresses: tuple[str, ...] = ()
        """Those that its name had."""
        self.address: str | None = None
        """That for which a socket was made last."""


tracing: ContextVar[Trace | None] = ContextVar("tracing", default=None)
"""The request whose connection is made."""


class Guard(AbstractResolver):
    """Looks names up, and makes sockets, for what may be reached."""

    def __init__(self, allowed: Allowed, *, lookup: Lookup = socket.getaddrinfo) -> None:
        self._allowed = allowed
        self._lookup = lookup
        self._pool = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="workq-names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            Blocked: one of them may not be reached. OSError: it has none.
        """
        look = partial(self._lookup, host, port, family=family, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._pool, look)
        trace = tracing.get()
        if trace is not None:
            trace.addresses = tuple(dict.fromkeys(str(where[0]) for *_, where in found))
        for *_, where in found:
            self._check(where[0], host)
        return [
            ResolveResult(
                hostname=host,
                host=where[0],
                port=where[1],
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, where in found
        ]

    def make_socket(self, info: Any) -> socket.socket:
        """A socket for an address.

        Raises:
            Blocked: it may not be reached.
        """
        family, kind, protocol, _, where = info
        trace = tracing.get()
        self._check(where[0], "" if trace is None else trace.host)
        if trace is not None:
            trace.address = where[0]
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    def _check(self, address: str, host: str) -> None:
        found = ip_address(address)
        if not self._allowed.permits(found) and not self._allowed.permits_host(host):
            raise Blocked(self._allowed.refusal(found))

    async def close(self) -> None:
        """Wait for no lookup."""
        self._pool.shutdown(wait=False, cancel_futures=True)
