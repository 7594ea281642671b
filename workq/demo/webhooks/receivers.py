"""The five receivers of webhooks, one path each, on the demo's listener. They log every request.

Each request is verified as a receiver would do it, by the library of the specification and the secret of its endpoint;
what is not signed as it should be is answered with 401. An event counts as taken when its 2xx is on its way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType

from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from workq.demo.listener import Listener
from workq.demo.webhooks.proof import Request
from workq.demo.webhooks.roles import Role


class Receivers:
    """Listens on a free port of this machine."""

    def __init__(self, roles: Mapping[str, Role], secrets: Mapping[str, str]) -> None:
        """`secrets`: of their endpoints, by the same names."""
        self._roles = roles
        self._verifiers = {name: Webhook(secret) for name, secret in secrets.items()}
        self._listener = Listener(self._take)
        self.log: dict[str, list[Request]] = {name: [] for name in roles}
        """By receiver, in the order of the answers."""

    def __enter__(self) -> Receivers:
        self._listener.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.__exit__(kind, error, trace)

    @property
    def port(self) -> int:
        """The port of all of them."""
        return self._listener.port

    def url(self, name: str) -> str:
        """Where one of them takes webhooks."""
        return self._listener.url(name)

    def note(self, name: str, request: Request) -> None:
        """Keep what came, in the thread of the server."""
        self.log[name].append(request)

    async def _take(self, name: str, request: web.Request) -> web.Response:
        came_at = time.monotonic()
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
