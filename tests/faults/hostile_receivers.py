"""Receivers that never end their answers, each in its own way. As a program: one of each; it prints their ports.

They are in a process of their own: what it costs to send all this is not what it costs to receive it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from tests.faults.receivers import Handler, request_of, serving

_CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
MANY: Final = 2_000
SHAPES: Final[dict[str, tuple[bytes, bytes]]] = {
    "answers before the answer": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * MANY),
    "empty lines before the answer": (b"", b"\r\n" * MANY),
    "a status line": (b"HTTP/1.1 200 ", b"a" * MANY),
    "header lines": (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * MANY),
    "a header line, byte by byte": (b"HTTP/1.1 200 OK\r\na: ", b"b"),
    "a chunk's size": (_CHUNKED + b"0", b"0" * MANY),
    "a chunk's extensions": (_CHUNKED + b"1", b";a=b" * MANY),
    "chunks of one byte": (_CHUNKED, b"1\r\nx\r\n" * MANY),
    "chunks of one byte, one by one": (_CHUNKED, b"1\r\nx\r\n"),
    "trailers": (_CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n" * MANY),
    "answers after the answer": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n" * MANY),
}
"""By what does not end: how the answer begins, and what is then sent again and again."""


def endless(begin: bytes, rest: bytes) -> Handler:
    """As fast as it is taken."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(begin)
        while True:
            writer.write(rest)
            await writer.drain()
            await asyncio.sleep(0)

    return handler


async def main() -> None:
    async with contextlib.AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serving(endless(*shape))) for shape in SHAPES.values()]
        print(*ports, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
