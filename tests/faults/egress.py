"""A small egress proxy: it makes tunnels, forwards requests in absolute form, and wants a login if it is told so.

Whatever name it is asked for, it leads to one port of this machine: it is the one who looks names up.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from tests.faults.receivers import head_of, serving, status

TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"
WANTS_LOGIN = b'HTTP/1.1 407 X\r\nProxy-Authenticate: Basic realm="out"\r\nContent-Length: 0\r\n\r\n'
BOUND_S = 30.0


@dataclass
class EgressProxy:
    """Leads to the port `ahead`, or answers each request with `refusal`. `login`: the header that it wants.

    It keeps the first line and the headers of what it was asked, and how many connections it had.
    """

    ahead: int = 0
    login: str | None = None
    refusal: bytes | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        while True:
            line, headers = await head_of(reader)
            self.asked.append((line, headers))
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            is_stranger = self.login is not None and headers.get("proxy-authorization") != self.login
            refusal = WANTS_LOGIN if is_stranger else self.refusal
            if refusal is not None:
                writer.write(refusal)
                return await writer.drain()
            if line.startswith("CONNECT "):
                return await self._tunnel(reader, writer)
            writer.write(await self._forwarded(line, headers, body))

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.ahead)
        writer.write(TUNNEL)
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    async def _forwarded(self, line: str, headers: dict[str, str], body: bytes) -> bytes:
        """The receiver's whole answer to a request, which goes there without what is for the proxy."""
        method, url, version = line.split(" ")
        path = "/" + url.partition("://")[2].partition("/")[2]
        passed = {name: value for name, value in headers.items() if not name.startswith("proxy-")}
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.ahead)
        try:
            head = [f"{method} {path} {version}", *(f"{name}: {value}" for name, value in passed.items()), "", ""]
            far_writer.write("\r\n".join(head).encode() + body)
            answer = await far_reader.readuntil(b"\r\n\r\n")
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            return answer + await far_reader.readexactly(int(length.partition(b":")[2]))
        finally:
            far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while some := await reader.read(65_536):
            writer.write(some)
            await writer.drain()
    writer.close()


def refusing(code: int) -> EgressProxy:
    """One that answers each request with this status."""
    return EgressProxy(refusal=status(code))


@contextlib.contextmanager
def running(proxy: EgressProxy) -> Iterator[int]:
    """The same in a thread of its own, for other processes; answers its port."""
    ready: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        ended = asyncio.Event()
        async with serving(proxy.serve) as port:
            ready.set_result((port, asyncio.get_running_loop(), ended))
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="egress")
    thread.start()
    port, loop, ended = ready.result(BOUND_S)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(BOUND_S)
