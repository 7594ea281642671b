"""A server that is all five receivers, one path each, in a thread of the demo's process. It logs every request.

Each request is verified as a receiver would do it, by the library of the specification and the secret of its endpoint;
what is not signed as it should be is answered with 401. An event counts as taken when its 2xx is on its way.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from workq.demo.webhooks.proof import Request
from workq.demo.webhooks.roles import Role

_BOUND_S: Final = 10.0
"""Nothing that the thread is asked for takes longer."""
T = TypeVar("T")


class Receivers:
    """Listens on a free port of this machine."""

    def __init__(self, roles: Mapping[str, Role], secrets: Mapping[str, str]) -> None:
        """`secrets`: of their endpoints, by the same names."""
        self._roles = roles
        self._verifiers = {name: Webhook(secret) for name, secret in secrets.items()}
        self.log: dict[str, list[Request]] = {name: [] for name in roles}
        """By receiver, in the order of the answers."""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="workq-demo-receivers", daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Receivers:
        self._thread.start()
        self.port = self._in_loop(self._start())
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            self._in_loop(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_BOUND_S)
        self._loop.close()

    def url(self, name: str) -> str:
        """Where one of them takes webhooks."""
        return f"http://127.0.0.1:{self.port}/{name}"

    def note(self, name: str, request: Request) -> None:
        """Keep what came, in the thread of the server."""
        self.log[name].append(request)

    def _in_loop(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(_BOUND_S)

    async def _start(self) -> int:
        app = web.Application()
        app.router.add_post("/{name}", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _take(self, request: web.Request) -> web.Response:
        came_at, name = time.monotonic(), request.match_info["name"]
        if name not in self._roles:
            return web.Response(status=404)
        body = await request.read()
        webhook_id = request.headers.get("webhook-id", "")
        if not self._is_signed(name, request, body):
            self.note(name, Request(webhook_id, came_at, time.monotonic(), 401, is_signed=False))
            return web.Response(status=401)
        answer = self._roles[name].manner.answer(came_at)
        if answer.after_s:
            await asyncio.sleep(answer.after_s)
        self.note(name, Request(webhook_id, came_at, time.monotonic(), answer.status, answer.retry_after_s))
        headers = {} if answer.retry_after_s is None else {"Retry-After": f"{answer.retry_after_s:.0f}"}
        return web.Response(status=answer.status, headers=headers)

    def _is_signed(self, name: str, request: web.Request, body: bytes) -> bool:
        try:
            self._verifiers[name].verify(body, {key.lower(): value for key, value in request.headers.items()})
        except (WebhookVerificationError, ValueError):  # the latter: what it cannot even read
            return False
        return True
