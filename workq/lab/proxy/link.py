"""One connection through the proxy, and the rules that are in force for it: a client's socket, ours to the server, and
the bytes of both ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Any, Final, assert_never

PIECE: Final = 65_536
HELD_MAX: Final = 16
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: close() sends RST."""


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"
    BOTH = "both"


@dataclass(frozen=True)
class WayRule:
    """What bytes meet in one direction, on every connection."""

    is_blocked: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    rng: Random = field(default_factory=Random)
    slice_bytes: int | None = None
    pause_s: float = 0.0


class Rules:
    """What holds now, in each direction.

    Only the proxy's thread changes them. The faults of `FaultProxy` are values here; a link asks for each piece.
    """

    def __init__(self) -> None:
        self._ways = {Direction.TO_SERVER: WayRule(), Direction.TO_CLIENT: WayRule()}
        self._budgets: dict[Direction, int] = {}
        self._passed = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}
        self.spent = threading.Event()
        """Set when a budget has cut a connection."""
        self._changed = asyncio.Event()

    def passed(self, direction: Direction = Direction.BOTH) -> int:
        """How many bytes went on in this direction so far."""
        return sum(self._passed[way] for way in _ways_of(direction))

    def change(self, direction: Direction, **facts: Any) -> None:
        """Let these facts of a `WayRule` hold from now on."""
        for way in _ways_of(direction):
            self._ways[way] = replace(self._ways[way], **facts)
        self._changed.set()
        self._changed = asyncio.Event()

    def arm(self, count: int, direction: Direction) -> None:
        """Let `count` more bytes pass this way, and cut the connection that brings the next one."""
        self.spent.clear()
        self._budgets[direction] = count

    def end(self) -> None:
        """End all faults."""
        self._budgets.clear()
        self.change(Direction.BOTH, is_blocked=False, delay_s=0.0, jitter_s=0.0, slice_bytes=None, pause_s=0.0)

    def arrival(self, way: Direction, now: float) -> float:
        """When a piece that came in at `now` may go on."""
        rule = self._ways[way]
        return now + rule.delay_s + (rule.rng.uniform(0.0, rule.jitter_s) if rule.jitter_s else 0.0)

    def rule(self, way: Direction) -> WayRule:
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
            self.spent.set()
        self._passed[way] += granted
        return granted

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the rules change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


def _ways_of(direction: Direction) -> tuple[Direction, ...]:
    match direction:
        case Direction.TO_SERVER | Direction.TO_CLIENT:
            return (direction,)
        case Direction.BOTH:
            return (Direction.TO_SERVER, Direction.TO_CLIENT)
        case _:
            assert_never(direction)


class ProxyLink:
    """One client's connection, and ours to the server for it."""

    def __init__(self, target: tuple[str, int], client: socket.socket, rules: Rules) -> None:
        self.target = target
        self.client = client
        self.rules = rules
        self.server: socket.socket | None = None
        self.has_hole = False
        self.is_reset = False

    def close(self) -> None:
        for one in (self.client, self.server):
            if one is not None:
                close_socket(one, is_reset=self.is_reset)

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
        host, port = self.target
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
            await held.put((self.rules.arrival(way, loop.time()), piece))

    async def _write(
        self, way: Direction, held: asyncio.Queue[tuple[float, bytes | None]], sink: socket.socket
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, piece = await held.get()
            while (left_s := due - loop.time()) > 0 and self.rules.rule(way).delay_s > 0:
                await self.rules.pause(left_s)
            if self.rules.rule(way).is_blocked:
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
            rule = self.rules.rule(way)
            if rule.is_blocked:
                self.has_hole = True
                return
            part = piece[: rule.slice_bytes]
            piece = piece[len(part) :]
            granted = self.rules.grant(way, len(part))
            await loop.sock_sendall(sink, part[:granted])
            if granted < len(part):
                raise _CutError
            if rule.slice_bytes is not None and rule.pause_s:
                await self.rules.pause(rule.pause_s)


class _CutError(Exception):
    """The budget of `cut_after` is used up."""


def close_socket(one: socket.socket, *, is_reset: bool) -> None:
    """In the orderly way (FIN), or by a reset (RST)."""
    with contextlib.suppress(OSError):
        if is_reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            one.shutdown(socket.SHUT_RDWR)
    one.close()
