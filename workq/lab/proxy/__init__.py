"""A network that breaks on command: a TCP proxy in front of one server, for the fault tests and for `workq certify`.

    with FaultProxy.before("redis://127.0.0.1:6379/0") as proxy:
        client = connect(proxy.url("redis://127.0.0.1:6379/0"))
        proxy.blackhole()       # half-open: everything arrives here, nothing goes on, and nobody is told
        proxy.heal()

It listens on a free loopback port from `start()` until `stop()`, and one thread moves all bytes. Every switch is in
force when its call returns, for connections that exist and for new ones, and they add up: `delay()` after `refuse()`
keeps refusing. `heal()` ends them all. Calls may come from any thread.

What a client and a server can see of it:

- Nobody listens behind the proxy: the connection is made, and reset at once.
- `blackhole()` reads and forgets, so a sender never blocks, and an end of one side is not told to the other. What was
  forgotten cannot come back: `heal()` resets each connection that has such a hole, and lets the others live on.
- One side is slow to read: at most `HELD_MAX` pieces of `PIECE` bytes (see link.py) wait here in each direction of a
  connection, then the other side is not read any more, as on a real network.

TLS passes through unread, but the certificate must then be good for 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from enum import Enum
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar, assert_never
from urllib.parse import urlsplit, urlunsplit

from workq.lab.proxy.link import Direction, ProxyLink, Rules, close_socket

_PORTS: Final = {
    "amqp": 5672,
    "amqps": 5671,
    "redis": 6379,
    "rediss": 6379,
    "valkey": 6379,
    "valkeys": 6379,
    "postgres": 5432,
    "postgresql": 5432,
    "mysql": 3306,
    "mariadb": 3306,
}
_CALL_LIMIT_S: Final = 10.0
"""The proxy's thread never waits for a peer before it obeys: a call that takes longer is a defect of ours."""

T = TypeVar("T")


class _Door(Enum):
    """What a new connection meets."""

    OPEN = "open"
    REFUSES = "refuses"
    SILENT = "silent"


class FaultProxy:
    """One proxy before one server. As a context manager it starts and stops with the block.

    Attributes:
        target: host and port of the server.
        address: where it listens, set by `start()`; always on 127.0.0.1.
    """

    def __init__(self, host: str, port: int) -> None:
        """Prepare; nothing listens before `start()`."""
        self.target = (host, port)
        self.address = ("127.0.0.1", 0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Below: only the proxy's thread writes.
        self._door = _Door.OPEN
        self._rules = Rules()
        self._accepted = 0
        self._links: dict[asyncio.Task[None], ProxyLink] = {}
        self._ending = asyncio.Event()

    @classmethod
    def before(cls, url: str) -> Self:
        """A proxy for the server that a redis, amqp, postgresql or mysql URL names.

        Raises:
            ValueError: the URL names no host (a file, a socket of the file system, or none at all), or several.
        """
        return cls(*_host_and_port(url))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Proxy 127.0.0.1:{self.port} -> {self.target[0]}:{self.target[1]}>"

    @property
    def port(self) -> int:
        """Where it listens; 0 before `start()`."""
        return self.address[1]

    @property
    def connections(self) -> int:
        """How many clients are connected now, the ignored ones included."""
        return len(self._links)

    @property
    def accepted(self) -> int:
        """How many connections were made to it so far, the refused ones included."""
        return self._accepted

    def passed(self, direction: Direction = Direction.BOTH) -> int:
        """How many bytes went on in this direction so far."""
        return self._rules.passed(direction)

    def url(self, original: str) -> str:
        """The same URL, credentials, database and options included, but through this proxy.

        Raises:
            ValueError: it names another server than the one behind this proxy, or none.
        """
        if _host_and_port(original) != self.target:
            raise ValueError(f"the URL does not lead to {self.target[0]}:{self.target[1]}, which is behind this proxy")
        parts = urlsplit(original)
        login = parts.netloc.rpartition("@")[0]
        netloc = f"{login}@127.0.0.1:{self.port}" if login else f"127.0.0.1:{self.port}"
        return urlunsplit(parts._replace(netloc=netloc))

    def start(self) -> Self:
        """Listen. Once only: a stopped proxy stays stopped."""
        if self._thread is not None:
            raise RuntimeError(f"{self!r} was started already")
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        listener.setblocking(False)
        self.address = ("127.0.0.1", listener.getsockname()[1])
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener, is_ready)), name=f"proxy-{self.port}", daemon=True
        )
        self._thread.start()
        is_ready.wait(_CALL_LIMIT_S)
        return self

    def stop(self) -> None:
        """Close every connection and the port, and end the thread. Repeatable."""
        if self._thread is None or self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # its loop is closed: it was stopped before
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(_CALL_LIMIT_S)
        assert not self._thread.is_alive(), f"{self!r} does not end"

    # What to do to new connections.

    def refuse(self) -> None:
        """Reset new connections at once. Existing ones go on."""
        self._do(self._set_door(_Door.REFUSES))

    def drop_new(self) -> None:
        """Accept new connections, and never read from them nor answer. Existing ones go on."""
        self._do(self._set_door(_Door.SILENT))

    # What to do to connections that exist.

    def cut(self) -> int:
        """Close all connections now, both sides, in the orderly way (FIN). Answers how many there were."""
        return self._do(self._end_links(is_reset=False))

    def reset(self) -> int:
        """Reset all connections now, both sides (RST). Answers how many there were."""
        return self._do(self._end_links(is_reset=True))

    # What to do to bytes.

    def blackhole(self, direction: Direction = Direction.BOTH) -> None:
        """Read and forget what goes this way, ends of connections too: half-open, or in one direction only."""
        self._do(self._change(direction, is_blocked=True))

    def delay(
        self, seconds: float, jitter_s: float = 0.0, rng: Random | None = None, direction: Direction = Direction.BOTH
    ) -> None:
        """Let each piece arrive `seconds` later, and up to `jitter_s` more; in order, and without less throughput.

        Raises:
            ValueError: jitter without a random source to draw it from.
        """
        if jitter_s and rng is None:
            raise ValueError("jitter needs a random source: pass rng")
        self._do(self._change(direction, delay_s=seconds, jitter_s=jitter_s, rng=rng or Random(0)))

    def slice(self, size: int, pause_s: float = 0.0, direction: Direction = Direction.BOTH) -> None:
        """Pass pieces of at most `size` bytes, with a pause after each."""
        if size < 1:
            raise ValueError(f"a slice has at least one byte, not {size}")
        self._do(self._change(direction, slice_bytes=size, pause_s=pause_s))

    def cut_after(self, count: int, direction: Direction) -> None:
        """Let `count` more bytes pass this way, then close the connection that brings the next one, once.

        The count runs over all connections. With 0 towards the client, a server carries a request out, and its answer
        is lost. `wait_cut()` tells when it happened.
        """
        if direction is Direction.BOTH:
            raise ValueError("cut_after counts in one direction: TO_SERVER or TO_CLIENT")
        self._do(self._arm(count, direction))

    def wait_cut(self, timeout_s: float) -> bool:
        """Whether the last `cut_after()` has cut, within this time."""
        return self._rules.spent.wait(timeout_s)

    def heal(self) -> None:
        """End all faults: pass everything, at once. A connection that lost bytes or was never answered is reset."""
        self._do(self._heal())

    # In the proxy's thread.

    def _do(self, order: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or self._loop.is_closed():
            order.close()
            raise RuntimeError(f"{self!r} is not running")
        return asyncio.run_coroutine_threadsafe(order, self._loop).result(_CALL_LIMIT_S)

    async def _serve(self, listener: socket.socket, is_ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener, self._accept, listener)
        is_ready.set()
        await self._ending.wait()
        self._loop.remove_reader(listener)
        listener.close()
        await self._end_links(is_reset=False)

    def _accept(self, listener: socket.socket) -> None:
        """Not a task that awaits: cancelled in the wrong moment, that would lose a connection it was just given."""
        try:
            client, _ = listener.accept()
        except OSError:  # gone again; or out of descriptors, and somebody may give one back
            return
        self._accepted += 1
        client.setblocking(False)
        match self._door:
            case _Door.REFUSES:
                close_socket(client, is_reset=True)
            case _Door.OPEN | _Door.SILENT as door:
                link = ProxyLink(self.target, client, self._rules)
                task = asyncio.create_task(link.ignore() if door is _Door.SILENT else link.carry())
                self._links[task] = link
                task.add_done_callback(self._forget)
            case _:
                assert_never(self._door)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).close()

    async def _end_links(self, *, is_reset: bool, only_holed: bool = False) -> int:
        ending = [(task, link) for task, link in self._links.items() if link.has_hole or not only_holed]
        for task, link in ending:
            link.is_reset = is_reset
            task.cancel()
        await asyncio.gather(*(task for task, _ in ending), return_exceptions=True)
        await asyncio.sleep(0)  # the callbacks close the sockets
        return len(ending)

    async def _change(self, direction: Direction, **facts: Any) -> None:
        self._rules.change(direction, **facts)

    async def _arm(self, count: int, direction: Direction) -> None:
        self._rules.arm(count, direction)

    async def _set_door(self, door: _Door) -> None:
        self._door = door

    async def _heal(self) -> None:
        self._door = _Door.OPEN
        self._rules.end()
        await self._end_links(is_reset=True, only_holed=True)


def _host_and_port(url: str) -> tuple[str, int]:
    """Where a URL leads. The message shows only the scheme: the rest may hold a password."""
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in _PORTS or not parts.hostname or "," in parts.netloc.rpartition("@")[2]:
        raise ValueError(f"a {parts.scheme or 'missing'}:// URL without one host and port cannot go through a proxy")
    return (parts.hostname, parts.port or _PORTS[scheme])
