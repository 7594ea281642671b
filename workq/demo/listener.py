"""Listener: the server of HTTP that stands for all receivers of a demo, in a thread of the demo's own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, TypeVar

from aiohttp import web

_BOUND_S: Final = 10.0
"""Nothing that the thread is asked for takes longer."""
T = TypeVar("T")
Take = Callable[[str, web.Request], Awaitable[web.Response]]
"""What a receiver does with a request: its name, which is the path, and the request."""


class Listener:
    """Listens on a free port of this machine."""

    def __init__(self, take: Take) -> None:
        """`take` is called in the thread of the server."""
        self._take = take
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="workq-demo-receivers", daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Listener:
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
        """Where the receiver of this name is."""
        return f"http://127.0.0.1:{self.port}/{name}"

    def _in_loop(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(_BOUND_S)

    async def _start(self) -> int:
        app = web.Application()
        app.router.add_post("/{name}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _answer(self, request: web.Request) -> web.Response:
        return await self._take(request.match_info["name"], request)
