"""Work that was only created is not done, whatever the handler is made of; and each call has a context of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast

import pytest

import workq
from tests.unit.room import LONG_S, THREADS, Room, claim
from workq.errors import ConfigError
from workq.values.task import Dead, Done, Failed, Outcome, Worked
from workq.webhooks.ledger.sql import WebhookLedger
from workq.webhooks.notices import Herald, Notice


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    gc.collect(1)  # a coroutine that was never awaited would say so here: warnings are errors
    room.end()
    assert not room.died.is_set()


# -- what a handler may be made of, when a coroutine function is in it

ran: list[Any] = []


async def body(items: Any = None) -> None:
    await asyncio.sleep(0)
    ran.append(items)


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that does not say what it wraps."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def running(function: Callable[..., Any]) -> Callable[..., Any]:
    """It awaits by itself, so that it is a plain function."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


class Called:
    async def __call__(self, *args: Any) -> None:
        await body(*args)


async def forgetful(*args: Any) -> Any:
    """It has forgotten to await."""
    return body(*args)


MADE: dict[str, Callable[..., Any]] = {
    "async def": body,
    "a decorator without wraps": bare(body),
    "a decorator with wraps": wrapping(body),
    "a wrapper that calls asyncio.run": running(body),
    "an instance with async __call__": Called(),
    "a partial of such an instance": functools.partial(Called()),
    "a bound method of it": Called().__call__,
    "a lambda": lambda *args: body(*args),
    "a coroutine in a coroutine": forgetful,
    "a decorated one in a coroutine": bare(forgetful),
}


@pytest.fixture(params=list(MADE))
def made(request: pytest.FixtureRequest) -> Callable[..., Any]:
    ran.clear()
    return MADE[request.param]


def test_a_task_has_succeeded_only_when_its_coroutine_has_run(room: Room, made: Callable[..., Any]) -> None:
    assert room.run(made, 7) == Done()
    assert ran == [7]


def test_a_batch_has_succeeded_only_when_its_coroutine_has_run(room: Room, made: Callable[..., Any]) -> None:
    assert room.run_together(made, 1, 2) == [Done(), Done()]
    assert ran == [[1, 2]]


def test_a_chunk_of_a_job_is_done_only_when_its_coroutine_has_run(room: Room, made: Callable[..., Any]) -> None:
    outcome = room.run_job(made, 1, 2)

    assert isinstance(outcome, Worked)
    assert (outcome.succeeded, ran) == (2, [[1, 2]])


def test_a_partition_is_done_only_when_its_coroutine_has_run(room: Room) -> None:
    for function in (bare(body), running(body), forgetful, Called()):
        ran.clear()
        assert room.run_job(lambda part, _, call=function: call(part), "p", partitioned=True) == Done()
        assert ran == ["p"]


def test_a_notice_is_told_only_when_the_coroutine_of_its_function_has_run(room: Room) -> None:
    class Empty:
        def endpoint(self, _: str) -> None: ...

        def all(self, **_: Any) -> list[Any]:
            return []

    def told_by(hook: Callable[[Notice], object]) -> Outcome:
        ran.clear()
        herald = Herald(
            lambda: cast(WebhookLedger, SimpleNamespace(endpoints=Empty())), hook=hook, forward=lambda _: None
        )
        return room.run(herald.tell, "endpoint.failing", "ep_1", {})

    for hook in (bare(body), wrapping(body), running(body)):
        assert told_by(hook) == Done()
        assert len(ran) == 1
    assert isinstance(told_by(lambda _: (one for one in [1])), Failed)


@pytest.mark.parametrize("hook", [body, Called(), functools.partial(Called())])
def test_a_function_of_notices_that_is_async_is_refused_at_once(hook: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="no async def"):
        Herald(lambda: cast(WebhookLedger, None), hook=hook, forward=lambda _: None)


def test_what_is_called_in_a_thread_cannot_be_async(room: Room) -> None:
    with pytest.raises(ConfigError, match="no async def"):
        room.app.task(name="a", retry=cast(Any, Called()))
    job = room.app.job(name="b")(lambda items: None)
    for source in (body, Called(), async_generator):
        with pytest.raises(ConfigError, match="no async def"):
            job.source(source)
        with pytest.raises(ConfigError, match="no async def"):
            job.taken(source)


def test_what_is_awaited_for_a_thread_knows_its_task_and_obeys_its_time_limit(room: Room) -> None:
    room.start()

    async def name() -> str:
        return workq.current().name

    async def late(to: list[str]) -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            to.append("cancelled")
            raise

    said: list[str] = []
    limited = room.run(bare(lambda: late(said)), time_limit_s=0.2, failures_max=1)

    assert room.run(bare(name)) == Done('"unit.task"')
    assert isinstance(limited, Failed)
    assert "SoftTimeLimit" in limited.error.partition("\n")[0]
    assert said == ["cancelled"]


def test_as_many_threads_as_there_are_may_wait_for_coroutines_at_once(room: Room) -> None:
    gate = asyncio.Event()
    arrived: list[int] = []

    async def meet(number: int) -> None:
        arrived.append(number)
        if len(arrived) == THREADS:
            gate.set()
        await asyncio.wait_for(gate.wait(), LONG_S)

    handler = room.app.task(name="unit.meet")(bare(meet))
    for number in range(THREADS):
        room.take(claim((number,)), handler, {"a": (number,), "k": {}}, None)

    assert [room.next() for _ in range(THREADS)] == [Done()] * THREADS


# -- what only would run


def generator(*_: Any) -> Iterator[int]:
    yield 1


async def async_generator(*_: Any) -> AsyncIterator[int]:
    yield 1


NOT_RUN: dict[str, Callable[..., Any]] = {
    "a generator": bare(generator),
    "a generator of a wrapper": wrapping(generator),
    "an async generator": bare(async_generator),
    "a generator expression": lambda *_: (one for one in [1]),
    "a map": lambda *_: map(print, [1]),
    "a context manager": contextlib.contextmanager(generator),
    "an async context manager": contextlib.asynccontextmanager(async_generator),
    "a function": lambda *_: body,
    "a method": lambda *_: [].clear,
    "a partial": lambda *_: functools.partial(body),
    "coroutines in a list": lambda *_: [body(), body()],
    "a task": lambda *_: workq.WorkQueue(ledger="sqlite:///never.db").task(name="other")(body),
    "a task with options": lambda *_: (
        workq.WorkQueue(ledger="sqlite:///never.db").task(name="other")(body).options(queue="q")
    ),
    "a job": lambda *_: workq.WorkQueue(ledger="sqlite:///never.db").job(name="other")(lambda items: None),
    "a generator in a mapping": lambda *_: {"rows": [generator()]},
}


@pytest.mark.parametrize("kind", list(NOT_RUN))
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_an_answer_that_nobody_has_run_is_a_failure_that_says_so(room: Room, kind: str, is_async: bool) -> None:
    function = NOT_RUN[kind]

    async def async_function(*args: Any) -> Any:
        return function(*args)

    outcome = room.run(async_function if is_async else function, 1)

    assert isinstance(outcome, Failed)
    assert "work that nobody has run" in outcome.error.partition("\n")[0]


@pytest.mark.parametrize("kind", list(NOT_RUN))
def test_a_list_or_a_partition_is_not_done_by_an_answer_that_nobody_has_run(room: Room, kind: str) -> None:
    function = NOT_RUN[kind]
    [together] = room.run_together(function, 1)
    chunk = room.run_job(function, 1)

    assert isinstance(together, Dead)
    assert together.reason == "not retried: WrongVerdict"
    assert isinstance(chunk, Worked)
    assert (chunk.succeeded, len(chunk.failed)) == (0, 1)
    assert isinstance(room.run_job(function, 1, partitioned=True), Failed)


def test_a_result_of_an_item_that_nobody_has_run_is_a_wrong_answer(room: Room) -> None:
    def answers(items: list[int]) -> workq.Verdict:
        return workq.Verdict(results={items[0]: body()})

    [together] = room.run_together(answers, 1)
    chunk = room.run_job(answers, 1)

    assert isinstance(together, Dead)
    assert "nobody has run" in together.error
    assert isinstance(chunk, Worked)
    assert "nobody has run" in chunk.failed[0].error


def test_a_wrapper_that_goes_through_its_generator_is_a_handler(room: Room) -> None:
    @functools.wraps(generator)
    def consumes() -> list[int]:
        return list(generator())

    assert room.run(consumes) == Done("[1]")


class Generates:
    def __call__(self) -> Iterator[int]:
        yield 1


def test_what_is_known_to_be_a_generator_is_refused_at_registration(room: Room) -> None:
    for function in (generator, async_generator, Generates(), functools.partial(Generates())):
        with pytest.raises(ConfigError, match="generator"):
            room.app.task(name="a")(function)
        with pytest.raises(ConfigError, match="generator"):
            room.app.job(name="a")(function)
        with pytest.raises(ConfigError, match="generator"):
            Herald(lambda: cast(WebhookLedger, None), hook=function, forward=lambda _: None)


# -- contexts

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def test_no_call_sees_what_another_has_set_in_its_context(room: Room) -> None:
    seen: list[str] = []

    def set_it(*_: Any) -> None:
        seen.append(tenant.get())
        tenant.set("somebody")

    async def aset_it(*_: Any) -> None:
        set_it()

    def halved(items: list[int]) -> None:
        set_it()
        if len(items) > 1:
            raise ValueError("one of them is bad")

    async def ahalved(items: list[int]) -> None:
        halved(items)

    for _ in range(2 * THREADS):
        for function in (set_it, aset_it, bare(aset_it)):
            room.run(function)
            room.run_together(function, 1)
            room.run_job(function, 1)
            room.run_job(function, 1, partitioned=True)
        for function in (halved, ahalved):
            room.run_together(function, 1, 2)
            room.run_job(function, 1, 2)

    assert len(seen) == 2 * THREADS * (3 * 4 + 2 * 2 * 3)
    assert set(seen) == {"nobody"}


def test_what_starts_when_another_ends_sees_nothing_of_its_context(room: Room) -> None:
    """More than may run at once: each that ends starts the next."""
    seen: list[str] = []

    async def aset_it(*_: Any) -> None:
        await asyncio.sleep(0)
        seen.append(tenant.get())
        tenant.set("somebody")

    def set_it(*_: Any) -> None:
        seen.append(tenant.get())
        tenant.set("somebody")

    handlers = [room.app.task(name=function.__name__)(function) for function in (aset_it, set_it)]
    for handler in handlers:
        for _ in range(4 * THREADS):
            room.take(claim(()), handler, {"a": (), "k": {}}, None)
        assert [room.next() for _ in range(4 * THREADS)] == [Done()] * 4 * THREADS

    assert seen == ["nobody"] * 8 * THREADS


def test_what_an_application_sets_for_its_errors_is_seen_by_no_task(room: Room) -> None:
    seen: list[str] = []

    class Sets(Exception):
        def __str__(self) -> str:
            tenant.set("by a text")
            return "text"

    def wait_s(*_: Any) -> float:
        tenant.set("by a retry function")
        return 1.0

    def fails(*_: Any) -> None:
        seen.append(tenant.get())
        raise Sets

    for _ in range(2 * THREADS):
        room.run(fails, retry=wait_s)
        room.run_together(fails, 1)
        room.run_job(fails, 1, retry=wait_s)

    assert set(seen) == {"nobody"}


def test_what_was_set_when_the_application_was_imported_is_seen_by_all() -> None:
    tenant_of_all: ContextVar[str] = ContextVar("tenant_of_all")
    token = tenant_of_all.set("acme")
    room = Room()
    tenant_of_all.reset(token)

    async def asees() -> str:
        return tenant_of_all.get()

    assert [room.run(lambda: tenant_of_all.get()), room.run(asees), room.run(bare(asees))] == [Done('"acme"')] * 3
    room.end()
