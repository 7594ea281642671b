"""Loop: the event loop in which coroutines run, in a process whose other threads write to the ledger.

Between two rounds, before it looks at what has come, it may be held up for a moment by `give_way` (see
ledger/engine/sqlite_writer.py): what has come is still there afterwards.

A thread may wait for something that is awaited here, as for what a plain handler has answered.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final
from weakref import WeakKeyDictionary

from workq.errors import SoftTimeLimit
from workq.handlers import answer, forks
from workq.values.time_limit import whole

LOOK_EVERY_S: Final = 0.1
"""How often a thread that waits looks whether its time is up."""
_wakers: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, os.stat_result]] = WeakKeyDictionary()
"""By loop: the number of the descriptor that wakes it, and what stands behind that."""


def new_event_loop(give_way: Callable[[], None]) -> asyncio.AbstractEventLoop:
    """A loop; one of another kind than asyncio's own, which an application has asked for, stays as it is."""
    loop = asyncio.new_event_loop()
    if type(loop) is asyncio.SelectorEventLoop:
        loop.close()
        loop = asyncio.SelectorEventLoop(_Giving(give_way))
        number = loop._csock.fileno()  # type: ignore[attr-defined]
        _wakers[loop] = number, os.fstat(number)
    loop.set_default_executor(_Threads(thread_name_prefix="asyncio"))
    forks.keep(loop)
    return loop


def is_whole(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the descriptor by which others wake it is still its own; of loops of another kind it is not known."""
    waker = _wakers.get(loop)
    if waker is None:
        return True
    number, its = waker
    try:
        return os.path.samestat(os.fstat(number), its)
    except OSError:
        return False


class _Giving(selectors.DefaultSelector):
    """Gives way before it looks; in a child that a handler has forked it ends."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        super().__init__()
        self._give_way = give_way

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        forks.end_loop_if_child()
        self._give_way()
        return super().select(timeout)


def wait_for(awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Await something in a loop that runs in another thread, in a copy of this thread's context; what comes of it.

    When the time limit of this thread comes meanwhile, what is awaited is cancelled, and this waits for its end.
    """
    begun: list[asyncio.Task[tuple[Any, BaseException | None]]] = []
    may_look = threading.Lock()
    may_look.acquire()

    def begin() -> None:
        task = loop.create_task(answer.outcome(lambda: awaitable))
        begun.append(task)
        task.add_done_callback(lambda _: may_look.release())

    def look_until_it_ends() -> None:
        while not (begun and begun[0].done()):
            may_look.acquire(timeout=LOOK_EVERY_S)

    with whole():
        loop.call_soon_threadsafe(begin)
    limit: SoftTimeLimit | None = None
    try:
        look_until_it_ends()
    except SoftTimeLimit as error:  # it comes once
        limit = error
        loop.call_soon_threadsafe(lambda: begun[0].cancel())
        look_until_it_ends()
    try:
        value, raised = begun[0].result()
    except asyncio.CancelledError as error:  # before it began
        answer.discard(awaitable)
        value, raised = None, error
    if raised is None:
        return value
    if limit is not None and type(raised) is asyncio.CancelledError:
        raise limit
    raise raised


class _Threads(ThreadPoolExecutor):
    """For `asyncio.to_thread` in handlers: a child that is forked there does not take up what waits for the thread."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(_called, function, args, kwargs)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with forks.handlers_code:
        return function(*args, **kwargs)
