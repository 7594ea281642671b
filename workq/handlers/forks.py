"""Forks: what a child may not do that a handler has forked off its worker process.

A forked child has a copy of the thread that forked, and of all memory. When the handler's code returns or raises there,
the copy of workq around it would go on as the worker: run what waits in the parent's memory a second time, and write to
the parent's sockets and board. So the child ends where it would come back from the handler's code, as a plain program
ends: with exit status 0, with that of a SystemExit, or with 1 and a traceback on standard error. No exit handler runs.

A child that a coroutine has forked has no event loop: it ends with 1 where it would wait for one. What becomes another
program (exec), and what multiprocessing runs and ends by itself, does not come back, and is let alone.

Signals are for the process that asked for them: a child gets the handlers back that were there before.

Only a worker process is armed. In any other process that forks, such as a web server, nothing of this applies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Coroutine, Generator
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

_FLUSH_MAX_S: Final = 10
_is_child = False
_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_before: dict[int, Any] = {}
"""By signal: what handled it before this process did."""
_forking = threading.local()
"""Of a thread that forks: the signals that it had blocked before."""


def arm(*in_child: Callable[[], None]) -> None:
    """From now on, what is forked off this process is a child of a handler. `in_child`: what else it does at once."""

    def become_child() -> None:
        global _is_child
        _is_child = True
        for number, former in _before.items():
            signal.signal(number, former)
        _leave_loops()
        for one in in_child:
            one()
        _unblock()

    os.register_at_fork(before=_before_fork, after_in_parent=_unblock, after_in_child=become_child)


def handle(number: int, handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle a signal in this process, and not in its children. A program that it starts has the default again."""
    former = signal.signal(number, handler)
    _before.setdefault(number, former)


def is_child() -> bool:
    """Whether a handler has forked this process off its worker."""
    return _is_child


def end_if_child(error: BaseException | None = None) -> None:
    """What follows is the worker's: a child ends here, by what the handler's code has raised in it."""
    if _is_child:
        _end(error)


class _Code:
    """The code of a handler: a child that it forks does not come out of it."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if _is_child:
            _end(error)


handlers_code: Final = _Code()
"""`with handlers_code:` around each call of what the user wrote."""


def keep(loop: asyncio.AbstractEventLoop) -> None:
    """This loop is the worker's: no child goes on in its copy."""
    _loops.add(loop)
    if not isinstance(loop, asyncio.BaseEventLoop):  # of another kind, whose rounds cannot be stopped from outside
        loop.set_task_factory(_step_by_step)


def _step_by_step(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    return asyncio.Task(_stepping(coroutine), loop=loop, **options)


async def _stepping(coroutine: Any) -> Any:
    return await _steps(coroutine)


@types.coroutine
def _steps(coroutine: Any) -> Generator[Any, None, Any]:
    """The same steps, none of which begins or ends in a child."""
    thrown: BaseException | None = None
    while True:
        _end_where_it_waits()
        try:
            awaited = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
        except StopIteration as end:
            return end.value
        _end_where_it_waits()
        thrown = None
        try:
            yield awaited
        except BaseException as error:
            thrown = error


def _leave_loops() -> None:
    """In the child: nothing more is called in the copies of the worker's loops. Loops of its own may run."""
    run = asyncio.Handle._run  # what a loop calls for each of its callbacks

    def run_elsewhere(self: Any) -> None:
        if self._loop in _loops:
            _end_where_it_waits()
        run(self)

    asyncio.Handle._run = run_elsewhere  # type: ignore[method-assign]


def _end_where_it_waits() -> None:
    if _is_child:
        _end(RuntimeError("a child that a coroutine has forked has no event loop: it ends where it waits for one"))


def end_loop_if_child() -> None:
    """A round of the worker's loop begins: not in a child."""
    _end_where_it_waits()


def _before_fork() -> None:
    with contextlib.suppress(Exception):  # closed, or not ours: the handler may have put anything there
        sys.stdout.flush()  # what is written already is written once
    # a signal that comes to the child before it has its own handlers waits for these
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _before)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _end(error: BaseException | None) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_FLUSH_MAX_S)  # a flush that waits for a thread which is not here ends, too
        status = _status(error)
        sys.stdout.flush()
    finally:
        os._exit(status)


def _status(error: BaseException | None) -> int:
    """As Python answers for a program that ends so; what it prints is written."""
    if error is None:
        return 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    said = str(error.code) + "\n" if isinstance(error, SystemExit) else "".join(traceback.format_exception(error))
    os.write(2, said.encode("utf-8", "backslashreplace"))
    return 1
