"""A network that breaks on command: a TCP proxy in front of one server, for the fault tests and for `workq certify`.

    with Proxy.before("redis://127.0.0.1:6379/0") as proxy:
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
- One side is slow to read: at most `HELD_MAX` pieces of `PIECE` bytes wait here in each direction of a connection, then
  the other side is not read any more, as on a real network.

TLS passes through unread, but the certificate must then be good for 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar, assert_never
from urllib.parse import urlsplit, urlunsplit

__all__ = ["Direction", "FaultProxy"]

PIECE: Final = 65_536
HELD_MAX: Final = 16

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
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: close() sends RST."""

T = TypeVar("T")


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"
    BOTH = "both"


class _Door(Enum):
    """What a new connection meets."""

    OPEN = "open"
    REFUSES = "refuses"
    SILENT = "silent"


@dataclass(frozen=True)
class _Way:
    """What bytes meet in one direction, on every connection."""

    is_blocked: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    rng: Random = field(default_factory=Random)
    slice_bytes: int | None = None
    pause_s: float = 0.0


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
        self._ways = {Direction.TO_SERVER: _Way(), Direction.TO_CLIENT: _Way()}
        self._budgets: dict[Direction, int] = {}
        self._passed = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}
        self._accepted = 0
        self._spent = threading.Event()
        self._links: dict[asyncio.Task[None], _Link] = {}
        self._changed = asyncio.Event()
        self._ending = asyncio.Event()

    @classmethod
    def before(cls, url: str) -> Self:
        """A proxy for the server that a redis, amqp, postgresql or mysql URL names.

        Raises:
            ValueError: the URL names no host: a file, a socket of the file system, or none at all.
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
        return sum(self._passed[way] for way in _ways_of(direction))

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
        return self._spent.wait(timeout_s)

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
                _close(client, is_reset=True)
            case _Door.OPEN | _Door.SILENT as door:
                link = _Link(self, client)
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

    async def _set_door(self, door: _Door) -> None:
        self._door = door

    async def _change(self, direction: Direction, **facts: Any) -> None:
        for way in _ways_of(direction):
            self._ways[way] = replace(self._ways[way], **facts)
        self._tell_waiting()

    async def _arm(self, count: int, direction: Direction) -> None:
        self._spent.clear()
        self._budgets[direction] = count

    async def _heal(self) -> None:
        self._door = _Door.OPEN
        self._budgets.clear()
        await self._change(Direction.BOTH, is_blocked=False, delay_s=0.0, jitter_s=0.0, slice_bytes=None, pause_s=0.0)
        await self._end_links(is_reset=True, only_holed=True)

    def _tell_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # What a link asks while it carries.

    def arrival(self, way: Direction, now: float) -> float:
        """When a piece that came in at `now` may go on."""
        rule = self._ways[way]
        return now + rule.delay_s + (rule.rng.uniform(0.0, rule.jitter_s) if rule.jitter_s else 0.0)

    def rule(self, way: Direction) -> _Way:
        """What bytes that go this way meet at this moment."""
        return self._ways[way]

    def grant(self, way: Direction, wanted: int) -> int:
        """How many of these bytes may pass; fewer than `wanted` means that the connection is cut now."""
        budget = self._budgets.get(way)
        if budget is None:
            granted = wanted
        elif wanted <= budget:
            self._budgets[way] = budget - wanted
            granted = wanted
        else:
            granted = self._budgets.pop(way)
            self._spent.set()
        self._passed[way] += granted
        return granted

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the rules change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


class _Link:
    """One client's connection, and ours to the server for it."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server: socket.socket | None = None
        self.has_hole = False
        self.is_reset = False

    def close(self) -> None:
        for one in (self.client, self.server):
            if one is not None:
                _close(one, is_reset=self.is_reset)

    async def ignore(self) -> None:
        """Until somebody ends it."""
        self.has_hole = True
        await asyncio.Event().wait()

    async def carry(self) -> None:
        """Both ways, until both have ended, one is cut, or somebody ends it."""
        try:
            self.server = await self._connect()
        except OSError:
            self.is_reset = True
            return
        to_server = self._flow(Direction.TO_SERVER, self.client, self.server)
        to_client = self._flow(Direction.TO_CLIENT, self.server, self.client)
        flows = [asyncio.ensure_future(one) for one in (to_server, to_client)]
        try:
            await asyncio.gather(*flows)
        except _CutError:
            return
        except OSError:  # one side was reset, or does not read any more: so is the other
            self.is_reset = True
        finally:
            for one in flows:
                one.cancel()
            await asyncio.gather(*flows, return_exceptions=True)

    async def _connect(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        host, port = self.proxy.target
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        trouble = OSError(f"no address for {host}")
        for family, kind, protocol, _, address in found:
            server = socket.socket(family, kind, protocol)
            server.setblocking(False)
            try:
                await loop.sock_connect(server, address)
            except OSError as error:
                server.close()
                trouble = error
            except BaseException:  # a cancelled task too: no socket is left open
                server.close()
                raise
            else:
                for one in (server, self.client):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return server
        raise trouble

    # A piece that is empty is the end of a stream, None its reset.

    async def _flow(self, way: Direction, source: socket.socket, sink: socket.socket) -> None:
        held: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(HELD_MAX)
        reading = asyncio.ensure_future(self._read(way, source, held))
        try:
            await self._write(way, held, sink)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, way: Direction, source: socket.socket, held: asyncio.Queue[tuple[float, bytes | None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        piece = b"first"
        while piece:
            try:
                piece = await loop.sock_recv(source, PIECE)
            except OSError:
                await held.put((loop.time(), None))
                return
            await held.put((self.proxy.arrival(way, loop.time()), piece))

    async def _write(
        self, way: Direction, held: asyncio.Queue[tuple[float, bytes | None]], sink: socket.socket
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, piece = await held.get()
            while (left_s := due - loop.time()) > 0 and self.proxy.rule(way).delay_s > 0:
                await self.proxy.pause(left_s)
            if self.proxy.rule(way).is_blocked:
                self.has_hole = True  # an end that nobody is told of, too
                if not piece:
                    await asyncio.Event().wait()
                continue
            if piece is None:
                raise ConnectionResetError
            if not piece:
                sink.shutdown(socket.SHUT_WR)
                return
            await self._pass(way, piece, sink)

    async def _pass(self, way: Direction, piece: bytes, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while piece:
            rule = self.proxy.rule(way)
            if rule.is_blocked:
                self.has_hole = True
                return
            part = piece[: rule.slice_bytes]
            piece = piece[len(part) :]
            granted = self.proxy.grant(way, len(part))
            await loop.sock_sendall(sink, part[:granted])
            if granted < len(part):
                raise _CutError
            if rule.slice_bytes is not None and rule.pause_s:
                await self.proxy.pause(rule.pause_s)


class _CutError(Exception):
    """The budget of `cut_after` is used up."""


def _ways_of(direction: Direction) -> tuple[Direction, ...]:
    match direction:
        case Direction.TO_SERVER | Direction.TO_CLIENT:
            return (direction,)
        case Direction.BOTH:
            return (Direction.TO_SERVER, Direction.TO_CLIENT)
        case _:
            assert_never(direction)


def _close(one: socket.socket, *, is_reset: bool) -> None:
    with contextlib.suppress(OSError):
        if is_reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            one.shutdown(socket.SHUT_RDWR)
    one.close()


def _host_and_port(url: str) -> tuple[str, int]:
    """Where a URL leads. The message shows only the scheme: the rest may hold a password."""
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"a {parts.scheme or 'missing'}:// URL without a host and port cannot go through a proxy")
    return (parts.hostname, parts.port or _PORTS[scheme])
