"""Registering handlers and calling them: what is refused, before any I/O, and with which words."""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import FrameType
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

import workq
from workq import ConfigError, LedgerUnavailable, PayloadError, Times, UnknownTask, WorkqError, WorkQueue
from workq.handlers.handler import Handler
from workq.ledger.engine.sqlite_writer import WAIT_FOR_TURN_S
from workq.values.names import DELAY_MAX_S


@pytest.fixture
def wq() -> WorkQueue:
    """A ledger that cannot be reached: whatever is refused must be refused before it is asked."""
    return WorkQueue(ledger="postgresql://nobody@127.0.0.1:1/none")


@pytest.fixture
def reindex(wq: WorkQueue) -> Handler[..., Any]:
    @wq.task(name="shop.reindex", queue="reindex", failures_max=5, time_limit_s=60)
    def reindex(product_id: int, *, deep: bool = False) -> tuple[int, bool]:
        return product_id, deep

    return reindex


def test_a_handler_is_still_an_ordinary_function_when_called(reindex: Handler[..., Any]) -> None:
    assert reindex(42) == (42, False)
    assert reindex.function.__name__ == "reindex"


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"depp": True}), ((), {"deep": True})])
def test_wrong_arguments_fail_at_the_call(
    reindex: Handler[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        reindex.enqueue(*args, **kwargs)


def test_the_same_call_by_position_and_by_keyword_has_the_same_payload(reindex: Handler[..., Any]) -> None:
    by_position = reindex.new_task(reindex.defaults, (42,), {})
    by_keyword = reindex.new_task(reindex.defaults, (), {"product_id": 42})

    assert by_position.payload == by_keyword.payload
    assert by_position.id != by_keyword.id


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"bytes", math.nan, math.inf, "\ud800", {1: 2}, lambda: None, datetime.now(UTC)]
)
def test_arguments_that_json_cannot_carry_are_refused_by_their_name(reindex: Handler[..., Any], value: object) -> None:
    with pytest.raises(PayloadError, match=r"^args\.product_id"):
        reindex.enqueue(value)


def test_a_circular_argument_is_refused(reindex: Handler[..., Any]) -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(PayloadError, match="nested"):
        reindex.enqueue(circle)


def test_a_payload_above_the_cap_is_refused_with_advice(reindex: Handler[..., Any]) -> None:
    with pytest.raises(PayloadError, match="pass a reference"):
        reindex.enqueue("x" * (256 * 1024))


def test_a_payload_is_encoded_at_the_call(reindex: Handler[..., Any]) -> None:
    mutable = [1]
    task = reindex.new_task(reindex.defaults, (mutable,), {})
    mutable.append(2)
    assert "[[1]]" in task.payload


@pytest.mark.parametrize("delay_s", [-1, -0.001, math.nan, math.inf, "5", True, DELAY_MAX_S + 1, timedelta(1)])
def test_delays_out_of_range_are_refused(reindex: Handler[..., Any], delay_s: Any) -> None:
    with pytest.raises(ConfigError, match="delay_s"):
        reindex.options(delay_s=delay_s)


def test_a_delay_of_minus_zero_is_none(reindex: Handler[..., Any]) -> None:
    reindex.options(delay_s=-0.0)


@pytest.mark.parametrize(
    "at",
    [datetime(2030, 1, 1), "2030-01-01", 5, datetime.max.replace(tzinfo=UTC), None.__class__],  # noqa: DTZ001
)
def test_instants_must_be_aware_and_near(reindex: Handler[..., Any], at: Any) -> None:
    with pytest.raises(ConfigError):
        reindex.options(at=at)


def test_instants_of_any_zone_mean_the_same_moment(reindex: Handler[..., Any]) -> None:
    utc = datetime.now(UTC) + timedelta(hours=3)
    odd = utc.astimezone(timezone(timedelta(hours=5, minutes=45)))
    delays = [reindex.options(at=at)._options.delay_s for at in (utc, odd, utc.astimezone(ZoneInfo("Europe/Berlin")))]
    assert max(delays) - min(delays) < 5.0
    assert 3 * 3600 - 60 < delays[0] <= 3 * 3600


def test_an_instant_in_the_past_means_now(reindex: Handler[..., Any]) -> None:
    at = datetime(2000, 1, 1, tzinfo=UTC)
    options = reindex.options(at=at)._options
    assert (options.delay_s, options.at) == (0.0, at), "the ledger decides, by its own clock"


def test_delay_and_instant_exclude_each_other(reindex: Handler[..., Any]) -> None:
    with pytest.raises(ConfigError, match="one of them"):
        reindex.options(delay_s=1, at=datetime.now(UTC))


@pytest.mark.parametrize("expires_s", [-1, 0, math.nan, "5", True, DELAY_MAX_S + 1, timedelta(1)])
def test_expiries_out_of_range_are_refused(reindex: Handler[..., Any], expires_s: Any) -> None:
    with pytest.raises(ConfigError, match="expires_s"):
        reindex.options(expires_s=expires_s)


def test_what_would_expire_before_it_is_due_is_refused(reindex: Handler[..., Any]) -> None:
    for options in ({"delay_s": 10.0}, {"at": datetime.now(UTC) + timedelta(seconds=20)}):
        with pytest.raises(ConfigError, match="it would never start"):
            reindex.options(expires_s=10.0, **options)
    assert reindex.options(delay_s=10.0, expires_s=11.0)._options.expires_s == 11.0


@pytest.mark.parametrize("failures_max", [0, -1, 10**9, True, 1.5, "3", None])
def test_budgets_are_whole_numbers_in_range(wq: WorkQueue, failures_max: Any) -> None:
    with pytest.raises(ConfigError, match="failures_max"):
        wq.task(name="a", failures_max=failures_max)


@pytest.mark.parametrize("limit", [0, -1, math.nan, math.inf, True, "1", 10**9])
def test_time_limits_are_seconds_in_range(wq: WorkQueue, limit: Any) -> None:
    with pytest.raises(ConfigError, match="time_limit_s"):
        wq.task(name="a", time_limit_s=limit)


@pytest.mark.parametrize(
    "name", ["", "a" * 300, "a\nb", "__import__('os')", "../../x", "tаsk", "1a", "a b", "a;drop", None.__class__, 5]
)
def test_names_are_plain_words(wq: WorkQueue, name: Any) -> None:
    with pytest.raises(ConfigError, match="task"):
        wq.task(name=name)


def test_a_name_is_looked_up_and_never_imported(wq: WorkQueue) -> None:
    with pytest.raises(UnknownTask, match="registered: none"):
        wq.handler("os.system")


@pytest.mark.parametrize("queue", ["", "../x", "a b", "q" * 300, "amq.x", "ü", "*", None])
def test_queues_are_plain_words(wq: WorkQueue, queue: Any) -> None:
    with pytest.raises(ConfigError, match="queue"):
        wq.task(name="a", queue=queue)


def test_two_handlers_with_one_name_are_refused_with_both_places(wq: WorkQueue, reindex: Handler[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"registered twice: by test_handler.py:\d+ and test_handler.py:\d+"):
        wq.task(name="shop.reindex")(lambda: None)


def test_registering_after_the_worker_started_is_refused(wq: WorkQueue) -> None:
    wq.registry.freeze()
    with pytest.raises(ConfigError, match="after the worker started"):
        wq.task(name="late")(lambda: None)


def generator() -> Iterator[int]:
    yield 1


def of_items(items: list[int]) -> None:
    """A plain function, for a job."""


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Callables:
    """A class is no handler."""


@pytest.mark.parametrize("function", [generator, async_generator, Callables, functools.partial(generator)])
def test_what_cannot_be_a_handler_is_refused(wq: WorkQueue, function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError):
        wq.task(name="a")(function)


def plain(number: int, other: int = 0) -> int:
    return number + other


async def coroutine(number: int) -> int:
    return number


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_functions_lambdas_partials_and_decorated_functions_are_handlers(wq: WorkQueue) -> None:
    assert wq.task()(plain).name == "tests.unit.test_handler.plain"
    assert wq.task(name="l")(lambda number: number)(3) == 3
    partial = wq.task(name="p")(functools.partial(plain, other=5))
    assert partial(1) == 6
    assert wq.task(name="d")(decorated(plain))(2) == 2
    assert wq.task(name="c")(coroutine).is_async
    assert wq.task(name="pc")(functools.partial(coroutine, 1)).is_async


@pytest.mark.parametrize("function", [plain, coroutine])
def test_a_decorator_without_parentheses_registers_with_all_defaults(
    wq: WorkQueue, function: Callable[..., Any]
) -> None:
    task = wq.task(function)

    assert wq.handler(f"{__name__}.{function.__name__}") is task
    assert task.defaults == wq.task(name="other")(function).defaults
    assert wq.job(of_items).name in wq.registry.jobs
    with pytest.raises(ConfigError, match="a task is a function, not str"):
        wq.task(cast(Any, "shop.reindex"))


def test_of_names_that_end_alike_the_most_alike_come_first(wq: WorkQueue) -> None:
    for name in ("a.hello", "pkg.jobs.hello", "jobs.other", "x.jobs.hello", "hello_jobs", "b.c.hello"):
        wq.task(name=name)(plain)

    assert wq.registry.alike("jobs.hello") == ["pkg.jobs.hello", "x.jobs.hello", "a.hello"]
    assert wq.registry.alike("deep.pkg.jobs.hello")[0] == "pkg.jobs.hello"
    assert wq.registry.alike("ello") == []


@pytest.mark.parametrize("function", [lambda: None, functools.partial(plain, 1)])
def test_a_function_without_a_lasting_name_needs_one(wq: WorkQueue, function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="give one"):
        wq.task()(function)


@pytest.mark.parametrize("key", ["", "k" * 201, "a\nb", "a\x00", "\ud800", 5])
def test_keys_are_short_plain_text(reindex: Handler[..., Any], key: Any) -> None:
    with pytest.raises(ConfigError, match="key"):
        reindex.options(key=key)


def test_one_key_cannot_belong_to_many(reindex: Handler[..., Any]) -> None:
    with pytest.raises(ConfigError, match="one by one"):
        reindex.options(key="a").enqueue_many([{"product_id": 1}])


def test_a_bad_item_of_many_says_which_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    wq = WorkQueue(ledger=f"sqlite:///{tmp_path / 'q.db'}")
    handler = wq.task(name="plain")(plain)
    bad: list[Any] = [*({"number": number} for number in range(700)), "nonsense"]

    with pytest.raises(PayloadError, match="item 700") as caught:
        handler.enqueue_many(bad)

    assert caught.value.__notes__ == ["500 tasks were recorded before this error"]
    assert sum(wq.stores.ledger.questions.counts().states.values()) == 500
    assert handler.enqueue_many([]) == 0
    assert handler.enqueue_many([(1,), (2, 3)]) == 2
    wq.close()


def test_a_connection_to_something_else_is_refused(tmp_path: Path) -> None:
    from sqlalchemy import create_engine

    wq = WorkQueue(ledger=f"sqlite:///{tmp_path / 'q.db'}")
    handler = wq.task(name="plain")(plain)
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with other.connect() as connection, pytest.raises(ConfigError, match="own ledger"):
        handler.options(connection=connection).enqueue(1)
    with pytest.raises(ConfigError, match="AsyncSession"):
        handler.options(connection=object()).enqueue(1)
    with (
        closing(sqlite3.connect(tmp_path / "q.db")) as driver,
        pytest.raises(ConfigError, match=r"got sqlite3\.Connection;"),
    ):
        handler.options(connection=driver).enqueue(1)
    other.dispose()
    wq.close()


def test_an_enqueue_in_a_signal_handler_is_recorded_or_says_that_it_is_not(tmp_path: Path) -> None:
    """B42. It may interrupt an enqueue of the same thread: it must not wait for itself.

    A thread sends the signals: how a timer of processor time counts differs from kernel to kernel.
    """
    wq = WorkQueue(ledger=f"sqlite:///{tmp_path / 'q.db'}", times=Times().divided_by(20.0))
    handler = wq.task(name="plain")(plain)
    handler.enqueue(0)
    answers: list[str] = []
    recorded: list[str] = []
    is_over = threading.Event()
    main = threading.get_ident()

    def interrupted(_number: int, _frame: object) -> None:
        try:
            answers.append(handler.enqueue(1).id)
        except LedgerUnavailable:
            answers.append("refused")

    def send() -> None:
        sent = 0
        while not is_over.wait(0.005):
            if sent == len(answers):
                sent += 1
                signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupted)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        while len(recorded) < 200 or len(answers) < 10:
            recorded.append(handler.enqueue(2).id)
    finally:
        is_over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)

    kept = [*recorded, *(answer for answer in answers if answer != "refused")]
    assert all(wq.get(task_id) is not None for task_id in kept)
    assert sum(wq.stores.ledger.questions.counts().states.values()) == 1 + len(kept)
    wq.close()


def test_an_enqueue_that_interrupts_another_at_any_line_of_ours_waits_for_nothing(tmp_path: Path) -> None:
    """B42, at every point at which a signal can arrive in our own code: a trace stands in for the signal."""
    wq = WorkQueue(ledger=f"sqlite:///{tmp_path / 'q.db'}")
    handler = wq.task(name="plain")(plain)
    handler.enqueue(0)
    ours = str(Path(workq.__file__).parent)
    kept, line, passed, slowest_s = 1, 0, 0, 0.0
    is_through = False

    def count(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal kept, is_through, passed, slowest_s
        if not frame.f_code.co_filename.startswith(ours):
            return None
        if event == "line":
            passed += 1
            if passed == line:
                sys.settrace(None)
                began = time.monotonic()
                with contextlib.suppress(LedgerUnavailable):
                    handler.enqueue(1)
                    kept += 1
                slowest_s = max(slowest_s, time.monotonic() - began)
                is_through = False
                return None
        return count

    while not is_through:
        line, passed, is_through = line + 1, 0, True
        before = sys.gettrace()
        sys.settrace(count)
        try:
            handler.enqueue(2)
        finally:
            sys.settrace(before)
        kept += 1

    assert line > 100
    assert slowest_s < WAIT_FOR_TURN_S / 2
    assert sum(wq.stores.ledger.questions.counts().states.values()) == kept
    wq.close()


def test_an_enqueue_in_a_closed_or_broken_transaction_is_an_error_and_records_nothing(tmp_path: Path) -> None:
    """B42."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    wq = WorkQueue(ledger=f"sqlite:///{tmp_path / 'q.db'}")
    handler = wq.task(name="plain")(plain)
    engine = create_engine(f"sqlite:///{tmp_path / 'q.db'}")
    wq.stores.ledger.questions.clock()
    closed = engine.connect()
    closed.close()
    with pytest.raises((SQLAlchemyError, WorkqError)):
        handler.options(connection=closed).enqueue(1)
    with engine.connect() as broken:
        broken.invalidate()
        broken.close()
        with pytest.raises((SQLAlchemyError, WorkqError)):
            handler.options(connection=broken).enqueue(1)
    assert sum(wq.stores.ledger.questions.counts().states.values()) == 0
    engine.dispose()
    wq.close()


@pytest.mark.parametrize(
    "priority", ["High", "LOW", "urgent", "", "1", 0, 5, 255, -1, True, False, 1.0, ["low"], b"low"]
)
def test_priorities_are_three_words_and_nothing_else(wq: WorkQueue, reindex: Handler[..., Any], priority: Any) -> None:
    with pytest.raises(ConfigError, match="priority: need one of high, normal, low"):
        reindex.options(priority=priority)
    with pytest.raises(ConfigError, match="priority: need one of high, normal, low"):
        wq.task(priority=priority)


def test_no_priority_is_the_handlers_own_for_a_call_and_an_error_for_a_handler(wq: WorkQueue) -> None:
    none: Any = None
    urgent = wq.task(name="urgent", queue="mail", priority="high")(lambda: None)

    own = urgent.options(priority=None).new_task((), {})
    other = urgent.options(priority="low", queue="index").new_task((), {})
    normal = urgent.options(priority="normal").new_task((), {})

    assert [one.queue for one in (own, other, normal)] == ["mail~high", "index~low", "mail"]
    with pytest.raises(ConfigError, match="priority: need one of"):
        wq.task(priority=none)


def test_a_priority_needs_a_queue_whose_name_leaves_room_for_it(wq: WorkQueue, reindex: Handler[..., Any]) -> None:
    with pytest.raises(ConfigError, match="too long a name"):
        wq.task(queue="q" * 100, priority="low")
    with pytest.raises(ConfigError, match="too long a name"):
        reindex.options(queue="q" * 96, priority="high")
    assert reindex.options(queue="q" * 100).new_task((1,), {}).queue == "q" * 100


@pytest.mark.parametrize("queue", ["mail~high", "mail~low", "mail~normal", "mail~"])
def test_no_task_can_be_given_a_band_for_its_queue(wq: WorkQueue, reindex: Handler[..., Any], queue: str) -> None:
    with pytest.raises(ConfigError, match="must match"):
        reindex.options(queue=queue)
    with pytest.raises(ConfigError, match="must match"):
        wq.task(queue=queue)


@pytest.mark.parametrize("name", ["mail~", "mail~urgent", "~low", "mail~LOW", 5, None])
def test_what_is_no_band_cannot_be_paused(wq: WorkQueue, name: Any) -> None:
    with pytest.raises(ConfigError):
        wq.pause_queue(name, why="?")
    with pytest.raises(ConfigError):
        wq.resume_queue(name)
