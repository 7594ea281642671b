"""What `benchmarks.webhooks` runs in processes of its own: a receiver, a plain loop of requests, and an application.

    python -m benchmarks.posts receive          a receiver; prints its port; says what it has seen at GET /seen
    python -m benchmarks.posts loop URL N       sends N signed webhooks, a hundred at a time; prints the seconds
    workq worker --app benchmarks.posts:wq      delivers

The paths of the receiver: `/to/NAME` answers 200 at once; `/slow/S/NAME` after so many seconds. The moments of arrival
are those of this machine's clock; a webhook's body says when it was sent.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import aiohttp
from standardwebhooks import Webhook

from workq import WorkQueue
from workq.webhooks import Webhooks

APP: Final = "benchmarks.posts:wq"
AT_ONCE: Final = 100
SECRET: Final = "whsec_" + "c2VjcmV0" * 5 + "c2U="
DATA: Final = {"order": 1017, "total": "129.00", "currency": "EUR", "lines": [{"sku": "A-17", "count": 3}] * 5}
"""What each webhook says: some 300 bytes."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ID: Final = re.compile(rb"\r\nwebhook-id: *([^\r]+)", re.IGNORECASE)
_SENT: Final = re.compile(rb'"timestamp": ?"([^"]+)"')

wq = WorkQueue()
webhooks = Webhooks(wq)


def main() -> int:
    """Be what the arguments say."""
    match sys.argv[1:]:
        case ["receive"]:
            asyncio.run(receive())
        case ["loop", url, count]:
            print(asyncio.run(loop(url, int(count))))
        case _:
            print("usage: python -m benchmarks.posts receive | loop URL N", file=sys.stderr)
            return 2
    return 0


class Connection(asyncio.Protocol):
    """One connection to the receiver. Of HTTP it knows as much as the requests here need.

    It shares the processors with those who send: what it costs is taken from both, but more from who needs both cores.
    """

    arrived: ClassVar[defaultdict[str, list[tuple[str, float]]]] = defaultdict(list)

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio has it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """As asyncio has it."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            length = _LENGTH.search(head)
            whole = end + 4 + (0 if length is None else int(length[1]))
            if len(self._buffer) < whole:
                return
            body, self._buffer = self._buffer[end + 4 : whole], self._buffer[whole:]
            self._take(head, body)

    def _take(self, head: bytes, body: bytes) -> None:
        kind, *rest = head.split(b" ", 2)[1].decode().strip("/").split("/")
        if kind == "to":
            sent, message_id = _SENT.search(body), _ID.search(head)
            assert sent is not None
            assert message_id is not None
            late_s = (datetime.now(UTC) - datetime.fromisoformat(sent[1].decode())).total_seconds()
            self.arrived[rest[0]].append((message_id[1].decode(), late_s))
            self._answer(b"ok")
        elif kind == "slow":
            asyncio.get_running_loop().call_later(float(rest[0]), self._answer, b"ok")
        else:
            self._answer(json.dumps(self.arrived).encode())
            self.arrived.clear()

    def _answer(self, body: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def receive() -> None:
    """Until the other end of our standard input is closed."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


async def loop(url: str, count: int) -> float:
    """The same requests as workq's, by nothing but aiohttp; how many seconds that took."""
    numbers = iter(range(count))
    signer = Webhook(SECRET)

    async def send(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            now = datetime.now(UTC)
            body = json.dumps({"type": "order.paid", "timestamp": now.isoformat(), "data": DATA})
            headers = _headers(signer, f"msg_{number:032x}", now, body)
            async with session.post(url, data=body.encode(), headers=headers) as answer:
                await answer.read()
                answer.raise_for_status()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        await asyncio.gather(*(send(session) for _ in range(AT_ONCE)))
        return time.perf_counter() - began


def _headers(signer: Any, message_id: str, now: datetime, body: str) -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signer.sign(message_id, now, body),
        "content-type": "application/json",
        "user-agent": "loop",
    }


if __name__ == "__main__":
    sys.exit(main())
