"""A receiver of webhooks in a thread of the test: keeps what it got, and answers what the test says."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

BOUND_S = 30.0


@dataclass(frozen=True)
class Letter:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def is_signed_with(self, secret: str) -> bool:
        """As the library of the specification says."""
        try:
            Webhook(secret).verify(self.body, self.headers)
        except WebhookVerificationError:
            return False
        return True


Answer = Callable[[Letter], Awaitable[int]]


class Inbox:
    """Listens on a free port of this machine."""

    def __init__(self, answer: Answer) -> None:
        """`answer`: the status for each letter, in the event loop of the inbox."""
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="inbox", daemon=True)
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.letters: list[Letter] = []
        """In the order in which they came."""

    def __enter__(self) -> Inbox:
        self._thread.start()
        self._port = self._in_loop(self._start())
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            self._in_loop(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(BOUND_S)
        self._loop.close()

    def url(self, path: str = "hooks") -> str:
        return f"http://127.0.0.1:{self._port}/{path}"

    def counts(self) -> Counter[str]:
        """How often each webhook came."""
        return Counter(letter.id for letter in list(self.letters))

    def call(self, what: Callable[[], object]) -> None:
        """In the event loop of the inbox."""
        self._loop.call_soon_threadsafe(what)

    def _in_loop(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(BOUND_S)

    async def _start(self) -> int:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        letter = Letter(request.path.lstrip("/"), headers, await request.read())
        self.letters.append(letter)
        return web.Response(status=await self._answer(letter))
