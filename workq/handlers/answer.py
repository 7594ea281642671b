"""Answer: what a call of the application has answered. Work that was only created is not done.

Judged is the function that is called, not one that it may call: a coroutine function is awaited in the event loop, any
other function is called in a thread. What it answers there may be awaitable all the same (of a decorator around a
coroutine function, of a lambda): it is awaited, while the thread waits. What would run only if somebody went on with it
(a generator, a function that was not called, a coroutine in a list) is a failure, `NotRun`.

Each call has a context of its own: the ContextVars that it sets are gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from types import AsyncGeneratorType, BuiltinFunctionType, CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

from workq.handlers.forks import handlers_code
from workq.handlers.said import has, is_a, kind_of

AWAITED_MAX: Final = 10
"""So often in a row an answer may be awaitable."""
LOOKED_MAX: Final = 10_000
"""In so many parts of an answer work is looked for that was only created."""

Wait = Callable[[Awaitable[Any]], Any]
"""Await this in the event loop, and wait for it in this thread."""


class Work:
    """What runs only when it is enqueued: a task, a task with options, a job."""


_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
_LISTS: Final = frozenset({list, tuple, set, frozenset})
_DATA: Final = _PLAIN | _LISTS | {dict}
_NOT_RUN: Final[tuple[type, ...]] = (
    GeneratorType,
    AsyncGeneratorType,
    contextlib._GeneratorContextManager,
    contextlib._AsyncGeneratorContextManager,
    map,
    filter,
    itertools.starmap,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    partial,
    Work,
)


class NotRun(Exception):
    """The answer has work in it that nobody has run."""


def called(function: Any) -> Any:
    """The function whose code runs first when this is called."""
    while True:
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isroutine(function) or inspect.isclass(function) or inspect.iscoroutinefunction(function):
            return function
        elif inspect.isfunction(method := inspect.getattr_static(type(function), "__call__", None)):
            function = method
        else:
            return function


def is_coroutine_function(function: Any) -> bool:
    """Whether a call answers a coroutine, as far as can be known without calling it."""
    return inspect.iscoroutinefunction(called(function))


def is_generator_function(function: Any) -> bool:
    """Whether a call answers a generator, as far as can be known without calling it."""
    code = called(function)
    return inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code)


def call(function: Callable[..., Any], wait: Wait, *args: Any, **kwargs: Any) -> Any:
    """Call a plain function in this thread, in a context of its own; what it answers may be awaitable."""
    return contextvars.copy_context().run(_call, function, wait, args, kwargs)


def _call(function: Callable[..., Any], wait: Wait, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with handlers_code:
        value = function(*args, **kwargs)
    return finished(value, wait)


def finished(value: Any, wait: Wait) -> Any:
    """What the answer of a plain function comes to."""
    return wait(value) if is_awaitable(value) else value


async def call_async(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await one of several calls of a coroutine function, in a context of its own."""
    value, error = await asyncio.get_running_loop().create_task(outcome(partial(function, *args, **kwargs)))
    if error is not None:
        raise error
    return value


async def outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What comes of a call, or what it raises: a task of asyncio's that raised a SystemExit would end its loop."""
    try:
        with handlers_code:
            return await finished_async(function()), None
    except BaseException as error:
        return None, error


async def finished_async(value: Any) -> Any:
    """What an answer comes to, be it awaitable or not."""
    for _ in range(AWAITED_MAX):
        if not is_awaitable(value):
            return value
        value = await value
    check(value)
    return value


def is_awaitable(value: object) -> bool:
    """Whether it can be awaited."""
    if type(value) in _DATA:
        return False
    if type(value) is GeneratorType:
        return bool(value.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return has(value, "__await__")


def check(value: object) -> None:
    """Look through an answer that is not plain JSON.

    Raises:
        NotRun: it has work in it that was only created.
    """
    if type(value) in _PLAIN or not (found := _not_run(value)):
        return
    names = ", ".join(sorted({kind_of(one) for one in found}))
    for one in found:
        discard(one)
    raise NotRun(
        f"it answered with work that nobody has run ({names}): call it, await it or go through it in the handler, "
        "and answer what came of it"
    )


def _not_run(value: object) -> list[object]:
    """Work in an answer that was only created."""
    found: list[object] = []
    parts, seen = [value], set[int]()
    while parts and len(seen) < LOOKED_MAX:
        part = parts.pop()
        if type(part) in _PLAIN or id(part) in seen:
            continue
        seen.add(id(part))
        if type(part) in _LISTS:
            parts += list(part)  # type: ignore[call-overload]
        elif type(part) is dict:
            parts += part.values()
        elif is_awaitable(part) or any(is_a(part, kind) for kind in _NOT_RUN):
            found.append(part)
    return found


def discard(work: object) -> None:
    """Nobody will run this. Else a coroutine that never began would say so on standard error, at any time."""
    if type(work) is CoroutineType or type(work) is GeneratorType:
        with contextlib.suppress(BaseException):
            work.close()
