"""Receiver: a server on this machine that takes webhooks, verifies them, and misbehaves when it is told to.

For trying things, and for tests. Not for production: it keeps nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from aiohttp import web

from workq.errors import VerificationFailed
from workq.outbound.signing import verify
from workq.values import codec

BODY_MAX_BYTES: Final = 1024 * 1024
DRIP_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Manner:
    """How it answers. `flaky`: which share of the requests it answers with 503; `drip`: its answer never ends."""

    status: int = 200
    delay_s: float = 0.0
    drip: bool = False
    flaky: float = 0.0
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """One request. `problem` None: it is signed as it should be, or nobody has said with which secret."""

    number: int
    webhook_id: str | None
    event_type: str | None
    size: int
    problem: str | None
    status: int
    body: bytes


class Receiver:
    """Listens on one port of this machine."""

    def __init__(
        self,
        *,
        secret: str | None = None,
        manner: Manner | None = None,
        tell: Callable[[Received], None] = lambda _: None,
        rng: Random | None = None,
    ) -> None:
        """`tell`: is called with each request, before it is answered."""
        self._secret = secret
        self.manner = manner or Manner()
        self._tell = tell
        self._rng = rng or Random()
        self._count = 0
        self._runner: web.AppRunner | None = None

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> int:
        """Begin to listen; answers the port."""
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runner = runner
        await web.TCPSite(runner, host, port).start()
        bound: int = runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Close it, and what is open. Repeatable."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self._count += 1
        problem = self._problem(request, body)
        manner = self.manner
        status = manner.status
        if problem is not None:
            status = 401
        elif self._rng.random() < manner.flaky:
            status = 503
        webhook_id = request.headers.get("webhook-id")
        self._tell(Received(self._count, webhook_id, _type_of(body), len(body), problem, status, body))
        if manner.delay_s:
            await asyncio.sleep(manner.delay_s)
        headers = {} if manner.retry_after is None else {"Retry-After": manner.retry_after}
        if not manner.drip:
            return web.Response(status=status, headers=headers, text="" if problem is None else problem)
        answer = web.StreamResponse(status=status, headers=headers)
        await answer.prepare(request)
        while True:
            await answer.write(b".")
            await asyncio.sleep(DRIP_S)

    def _problem(self, request: web.Request, body: bytes) -> str | None:
        if self._secret is None:
            return None
        try:
            verify(request.headers, body, self._secret)
        except VerificationFailed as error:
            return str(error)
        return None


def _type_of(body: bytes) -> str | None:
    try:
        said = codec.decode(body.decode())
    except Exception:  # it takes whatever comes
        return None
    found = said.get("type") if isinstance(said, dict) else None
    return found if isinstance(found, str) else None
