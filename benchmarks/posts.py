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
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
from aiohttp import web
from standardwebhooks import Webhook

from workq import WorkQueue
from workq.webhooks import Webhooks

APP: Final = "benchmarks.posts:wq"
AT_ONCE: Final = 100
SECRET: Final = "whsec_" + "c2VjcmV0" * 5 + "c2U="
DATA: Final = {"order": 1017, "total": "129.00", "currency": "EUR", "lines": [{"sku": "A-17", "count": 3}] * 5}
"""What each webhook says: some 300 bytes."""

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


async def receive() -> None:
    """Until the other end of our standard input is closed."""
    arrived: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        sent = datetime.fromisoformat(json.loads(body)["timestamp"])
        late_s = (datetime.now(UTC) - sent).total_seconds()
        arrived[request.match_info["name"]].append((request.headers["webhook-id"], late_s))
        return web.Response(text="ok")

    async def take_slowly(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(float(request.match_info["seconds"]))
        return web.Response(text="ok")

    async def seen(_: web.Request) -> web.Response:
        found = dict(arrived)
        arrived.clear()
        return web.json_response(found)

    app = web.Application()
    app.router.add_post("/to/{name}", take)
    app.router.add_post("/slow/{seconds}/{name}", take_slowly)
    app.router.add_get("/seen", seen)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


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
