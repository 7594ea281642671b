"""One connection through the proxy: a client's socket, ours to the server, and the bytes of both ways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

from workq.lab.proxy.rules import Direction, Rules

PIECE: Final = 65_536
HELD_MAX: Final = 16
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: close() sends RST."""


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
