"""From a claim to an outcome: whatever a handler does, it becomes an outcome, and text that every ledger can store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import workq
from tests.contract.given import NoPartition
from workq import Cancel, Retry, Snooze, SoftTimeLimit, WorkQueue
from workq.errors import ConfigError, NotInTask
from workq.handlers.handler import Handler
from workq.handlers.retry import Exponential
from workq.handlers.said import RESULT_MAX_BYTES, TRACEBACK_MAX, describe
from workq.jobs.values import Full
from workq.jobs.verdict import WrongVerdict
from workq.values.task import Cancelled, Claim, Dead, Done, Failed, Snoozed, Unhandled
from workq.worker.attempt import prepare, raised, returned, run_async, run_sync

RNG = Random(3)
NOTHING: dict[str, Any] = {"a": (), "k": {}}


class Nobody(NoPartition):
    """A desk for handlers that ask nothing of it."""

    def is_cancelled(self, claim: Claim) -> bool:
        return False

    def transaction(self, claim: Claim, *, succeeds: Any) -> Any:
        raise AssertionError("no handler here writes")


@pytest.fixture
def wq() -> WorkQueue:
    return WorkQueue(ledger="sqlite:///never-opened.db")


@pytest.fixture
def handler(wq: WorkQueue) -> Handler[..., Any]:
    return registered(wq, lambda number, *, note="": number)


def registered(wq: WorkQueue, function: Callable[..., Any], **options: Any) -> Handler[..., Any]:
    register: Any = wq.task(name="unit.task", retry=Exponential(4.0, 4.0), **options)
    found: Handler[..., Any] = register(function)
    return found


def claim(payload: str = '{"a":[],"k":{}}', *, failures: int = 0, failures_max: int = 3) -> Claim:
    return Claim("0" * 36, "unit.task", "default", payload, failures + 1, "t", failures, 0, failures_max, 3, None)


def storable(text: str) -> bool:
    text.encode("utf-8")
    return "\x00" not in text


# What the payload says.


def test_a_recorded_payload_becomes_the_arguments(handler: Handler[..., Any]) -> None:
    assert prepare(claim('{"a":[7],"k":{"note":"x"}}'), handler, rng=RNG, no_handler_wait_s=60.0) == (
        {"a": (7,), "k": {"note": "x"}},
        None,
    )


@pytest.mark.parametrize(
    "payload",
    ["", "nonsense", "[]", "5", "null", '"x"', "{}", '{"a":[]}', '{"a":5,"k":{}}', '{"a":[],"k":5}', '{"a":[],"k":[1]}',
     "\ufeff{}", '{"a":[1', '{"a":' + "[" * 100_000 + "]" * 100_000 + ',"k":{}}'],
)  # fmt: skip
def test_a_payload_that_is_not_ours_is_dead_at_once(payload: str, handler: Handler[..., Any]) -> None:
    _, ended = prepare(claim(payload), handler, rng=RNG, no_handler_wait_s=60.0)

    assert isinstance(ended, Dead)
    assert ended.reason in ("bad_payload", "bad_arguments")
    assert storable(ended.error)
    assert len(ended.error) < 2000


@given(st.text())
def test_no_payload_at_all_raises(payload: str) -> None:
    with WorkQueue(ledger="sqlite:///never-opened.db") as wq:
        _, ended = prepare(claim(payload), registered(wq, lambda number: number), rng=RNG, no_handler_wait_s=60.0)

    assert isinstance(ended, Dead)


@pytest.mark.parametrize(
    "payload", ['{"a":[],"k":{}}', '{"a":[1,2],"k":{}}', '{"a":[1],"k":{"nope":1}}', '{"a":[1],"k":{"\\ud800":1}}']
)
def test_wrong_arguments_are_dead_at_once(payload: str, handler: Handler[..., Any]) -> None:
    _, ended = prepare(claim(payload), handler, rng=RNG, no_handler_wait_s=60.0)

    assert isinstance(ended, Dead)
    assert ended.reason in ("bad_arguments", "bad_payload")
    assert storable(ended.error)


def test_a_name_without_a_handler_is_looked_at_again_and_no_look_is_a_failure() -> None:
    _, first = prepare(claim(failures=1, failures_max=2), None, rng=RNG, no_handler_wait_s=60.0)

    assert isinstance(first, Unhandled)
    assert 15.0 <= first.delay_s <= 30.0
    assert first.wait_s == 60.0
    assert "no handler is registered under the name" in first.error


# What a handler returns.


def test_a_result_is_kept_as_json() -> None:
    assert returned({"n": [1, "x", None]}) == Done('{"n":[1,"x",null]}')
    assert returned(None) == Done()


class Hostile:
    """Every question about it ends in an error, and not in an Exception."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt

    __str__ = __repr__
    __hash__ = object.__hash__


def circular() -> list[Any]:
    one: list[Any] = []
    one.append(one)
    return one


def deep() -> list[Any]:
    one: list[Any] = []
    for _ in range(100_000):
        one = [one]
    return one


@pytest.mark.parametrize(
    "result",
    [{1, 2}, float("nan"), float("inf"), "x" * (RESULT_MAX_BYTES + 1), ValueError("x"), object(), b"x", {1: 2},
     circular(), deep(), "\ud800", {"\ud800": 1}, 10**5000, Hostile(), {Hostile(): 1}, [Hostile()], iter([1]),
     type("N" * 100_000, (), {})()],
    ids=lambda value: type(value).__name__.encode("ascii", "replace").decode().replace("\x00", "?"),
)  # fmt: skip
def test_a_result_that_json_cannot_carry_is_a_success_with_a_note(result: Any) -> None:
    outcome = returned(result)

    assert isinstance(outcome, Done)
    assert outcome.result is None
    assert outcome.note is not None
    assert outcome.note.startswith("result_error: ")
    assert storable(outcome.note)


# What a handler raises.


class BadText(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), MemoryError(), RecursionError(), SystemExit(3), SystemExit(0), KeyboardInterrupt(),
     asyncio.CancelledError(), GeneratorExit(), StopIteration(1), ExceptionGroup("g", [ValueError(1)]), TimeoutError()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_whatever_is_raised_is_a_failure_with_its_name(error: BaseException, handler: Handler[..., Any]) -> None:
    again = raised(claim(failures=0), handler, error, rng=RNG)
    last = raised(claim(failures=2), handler, error, rng=RNG)

    assert isinstance(again, Failed)
    assert 0.0 <= again.delay_s <= 4.0
    assert type(error).__name__ in again.error
    assert isinstance(last, Dead)
    assert last.failed
    assert last.reason == f"failures_max reached: {type(error).__name__}"


def test_a_cancel_is_neither_a_failure_nor_a_retry(handler: Handler[..., Any]) -> None:
    assert raised(claim(), handler, Cancel("enough"), rng=RNG) == Cancelled("enough")


@pytest.mark.parametrize("reason", [5, None, "\ud800\x00", Hostile()], ids=["number", "None", "surrogate", "hostile"])
def test_the_reason_of_a_cancel_may_be_anything(reason: Any, handler: Handler[..., Any]) -> None:
    outcome = raised(claim(), handler, Cancel(reason), rng=RNG)

    assert isinstance(outcome, Cancelled)
    assert storable(outcome.reason)


def test_a_snooze_is_neither_a_failure_nor_a_cancel(handler: Handler[..., Any]) -> None:
    assert raised(claim(failures=2), handler, Snooze(90), rng=RNG) == Snoozed(90.0)
    assert raised(claim(), handler, Snooze(0.5, "too early"), rng=RNG) == Snoozed(0.5, "too early")
    assert raised(claim(), handler, Full(5.0, "full"), rng=RNG) == Snoozed(5.0, "full", awaits_room=True)
    assert raised(claim(), handler, Snooze(1.0, Hostile()), rng=RNG) == Snoozed(1.0)  # type: ignore[arg-type]  # as handlers do


@pytest.mark.parametrize("in_s", [-1.0, float("nan"), "5", None, True, Hostile()], ids=lambda one: type(one).__name__)
def test_a_snooze_for_no_time_is_a_failure_that_says_so(in_s: Any, handler: Handler[..., Any]) -> None:
    again = raised(claim(), handler, Snooze(in_s), rng=RNG)

    assert isinstance(again, Failed)
    assert isinstance(in_s, Hostile) or "Snooze: need seconds from 0" in again.error
    assert storable(again.error)


def test_a_handler_may_say_when_it_runs_again(handler: Handler[..., Any]) -> None:
    again = raised(claim(), handler, Retry("rate limited", in_s=77.0), rng=RNG)
    by_policy = raised(claim(), handler, Retry("rate limited"), rng=RNG)
    last = raised(claim(failures=2), handler, Retry(in_s=77.0), rng=RNG)

    assert isinstance(again, Failed)
    assert again.delay_s == 77.0
    assert "rate limited" in again.error
    assert isinstance(by_policy, Failed)
    assert 0.0 <= by_policy.delay_s <= 4.0
    assert isinstance(last, Dead)
    assert last.reason == "failures_max reached: Retry"


@pytest.mark.parametrize("in_s", [-1.0, float("inf"), "5", True, Hostile()], ids=lambda one: type(one).__name__)
def test_a_retry_at_no_time_takes_the_default_delay_and_says_so(in_s: Any, handler: Handler[..., Any]) -> None:
    again = raised(claim(), handler, Retry(in_s=in_s), rng=RNG)

    assert isinstance(again, Failed)
    assert 0.0 <= again.delay_s <= 2.0
    assert "(the default delay was taken: " in again.error
    assert storable(again.error)


def test_an_error_that_is_not_tried_again_is_the_end(wq: WorkQueue) -> None:
    handler = registered(wq, lambda: None, retry_on=OSError, give_up_on=PermissionError)

    outcomes = [raised(claim(), handler, one, rng=RNG) for one in (OSError("x"), PermissionError("x"), ValueError("x"))]

    assert [type(one) for one in outcomes] == [Failed, Dead, Dead]
    reasons = [one.reason for one in outcomes if isinstance(one, Dead)]
    assert reasons == ["not retried: PermissionError", "not retried: ValueError"]
    assert isinstance(raised(claim(), handler, Retry(in_s=1.0), rng=RNG), Failed), "it was asked for"
    assert raised(claim(), handler, Cancel("enough"), rng=RNG) == Cancelled("enough")
    assert raised(claim(), handler, Snooze(1.0), rng=RNG) == Snoozed(1.0)


@pytest.mark.parametrize("wrong", [ValueError("no"), KeyboardInterrupt(), SystemExit(1), BadText()])
def test_a_retry_function_that_raises_costs_nothing_but_the_default_delay(wq: WorkQueue, wrong: BaseException) -> None:
    def broken(_failures: int, _error: BaseException) -> float:
        raise wrong

    register: Any = wq.task(name="unit.broken", retry=broken)

    again = raised(claim(), register(lambda: None), OSError("disk"), rng=RNG)

    assert isinstance(again, Failed)
    assert 0.0 <= again.delay_s <= 2.0
    assert "disk" in again.error
    assert "(the default delay was taken: " in again.error


def test_a_soft_limit_says_which(wq: WorkQueue) -> None:
    handler = registered(wq, lambda: None, time_limit_s=1.5)

    again = raised(claim(), handler, SoftTimeLimit(), rng=RNG)
    last = raised(claim(failures=2), handler, SoftTimeLimit(), rng=RNG)

    assert isinstance(again, Failed)
    assert again.error.startswith("SoftTimeLimit: ran longer than time_limit_s=1.5")
    assert isinstance(last, Dead)
    assert last.reason == "failures_max reached: time_limit"


class BadNotes(Exception):
    __notes__ = 5  # type: ignore[assignment]  # what a careless library might do


def chained(depth: int) -> BaseException:
    error = ValueError("x" * 50)
    for _ in range(depth):
        following = ValueError("x" * 50)
        following.__cause__ = error
        error = following
    return error


def a_group() -> BaseException:
    error: Exception = ValueError("innermost")
    for level in range(30):
        error = ExceptionGroup(f"level {level}", [error] * 30)
    return error


def looped() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    return one


@pytest.mark.parametrize(
    "make",
    [BadText, BadNotes, looped, a_group,
     lambda: ValueError("\ud800 \x00" * 100_000), lambda: ValueError("x" * 10_000_000),
     lambda: ValueError("line\n" * 100_000),
     lambda: chained(500), lambda: type("N" * 100_000, (Exception,), {})(), lambda: ValueError(Hostile()),
     lambda: BaseExceptionGroup("g", [SystemExit(1), BadText()])],
    ids=["text", "notes", "loop", "group", "surrogates", "huge", "lines", "chain", "name", "args", "base_group"],
)  # fmt: skip
def test_the_description_of_a_hostile_exception_is_bounded_and_storable(
    make: Callable[[], BaseException], handler: Handler[..., Any]
) -> None:
    error = make()

    text = describe(error)

    assert text
    assert storable(text)
    assert len(text) <= 6 * (TRACEBACK_MAX + 1100)
    last = raised(claim(failures=2), handler, error, rng=RNG)
    assert isinstance(last, Dead)
    assert storable(last.reason)
    assert storable(last.error)


@given(st.text(alphabet=st.characters(), max_size=200))
def test_any_message_at_all_becomes_storable_text(message: str) -> None:
    assert storable(describe(ValueError(message)))


def noted() -> BaseException:
    error = ValueError("no luck")
    error.add_note("(see the wiki)")
    return error


def of_source() -> BaseException:
    try:
        compile("x = = 1", "shop.py", "exec")
    except SyntaxError as error:
        error.add_note("(see the wiki)")
        return error
    raise AssertionError("it was compiled")


def caused() -> BaseException:
    error = ValueError("no luck\n(see the wiki)")
    error.__cause__ = KeyError("the cause")
    return error


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ValueError("no luck\n(see the wiki)"), "ValueError: no luck"),
        (lambda: ValueError("the reason is:\nno luck"), "ValueError: the reason is:"),
        (lambda: ValueError("no luck\n\n" + "line\n" * 10_000 + "end"), "ValueError: no luck"),
        (lambda: ValueError("\r\n \nno luck\r\n(see the wiki)"), "ValueError: no luck"),
        (lambda: ValueError(""), "ValueError"),
        (noted, "ValueError: no luck"),
        (caused, "ValueError: no luck"),
        (of_source, "SyntaxError: invalid syntax"),
        (lambda: ExceptionGroup("two", [ValueError("one"), KeyError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
        (lambda: ExceptionGroup("all", [ValueError("one")] * 2_000), "ExceptionGroup: all (2000 sub-exceptions)"),
        (lambda: WrongVerdict("no luck\n(see the wiki)"), "workq.jobs.verdict.WrongVerdict: no luck"),
    ],
    ids=["lines", "colon", "long", "break", "empty", "note", "cause", "syntax", "group", "bushy", "of_jobs"],
)
def test_an_error_begins_with_its_class_and_the_first_line_of_its_own_text(
    make: Callable[[], BaseException], expected: str
) -> None:
    untraced = describe(make())
    try:
        raise make()
    except BaseException as error:
        traced = describe(error)

    assert untraced.partition("\n")[0] == expected
    assert traced.partition("\n\n")[0] == expected


def test_the_first_line_comes_first_and_then_the_end_of_the_traceback() -> None:
    try:
        raise ValueError("no luck")
    except ValueError as error:
        text = describe(error)

    first, _, rest = text.partition("\n\n")
    assert first == "ValueError: no luck"
    assert rest.startswith("Traceback")
    assert Path(__file__).name in rest


# Running.


def test_a_handler_knows_its_task_while_it_runs_and_only_then(wq: WorkQueue) -> None:
    handler = registered(wq, lambda: (workq.current().id, workq.current().attempt))

    assert run_sync(claim(), handler, NOTHING, Nobody()) == ("0" * 36, 1)
    with pytest.raises(NotInTask):
        workq.current()


def test_only_a_jobs_handler_can_add_to_its_job(wq: WorkQueue) -> None:
    handler = registered(wq, lambda: workq.current().add([1]))

    with pytest.raises(ConfigError, match=r"unit\.task is no job's handler"):
        run_sync(claim(), handler, NOTHING, Nobody())


def test_coroutines_that_share_a_thread_know_each_its_own_task(wq: WorkQueue) -> None:
    async def who() -> str:
        await asyncio.sleep(0.01)
        return workq.current().id

    handler = registered(wq, who)
    claims = [replace(claim(), task_id=str(number) * 36) for number in range(5)]

    async def together() -> list[Any]:
        return await asyncio.gather(*(run_async(one, handler, NOTHING, Nobody()) for one in claims))

    assert asyncio.run(together()) == [one.task_id for one in claims]


def test_a_coroutine_over_its_limit_is_ended_by_a_soft_limit(wq: WorkQueue) -> None:
    handler = registered(wq, lambda: asyncio.sleep(60), time_limit_s=0.02)

    with pytest.raises(SoftTimeLimit, match=r"time_limit_s=0\.02"):
        asyncio.run(run_async(claim(), handler, NOTHING, Nobody()))


def test_a_timeout_of_the_handlers_own_is_its_own_failure(wq: WorkQueue) -> None:
    async def own() -> None:
        raise TimeoutError("the shop did not answer")

    handler = registered(wq, own, time_limit_s=60)

    with pytest.raises(TimeoutError, match="the shop"):
        asyncio.run(run_async(claim(), handler, NOTHING, Nobody()))


# A handler's transaction.


class Writer(Nobody):
    """A desk whose transactions stand."""

    @contextmanager
    def transaction(self, claim: Claim, *, succeeds: Any) -> Iterator[Any]:
        yield claim


def succeed_and_raise() -> None:
    with workq.current().transaction():
        pass
    raise ValueError("too late")


def test_a_handler_that_raises_behind_its_transaction_has_succeeded(
    wq: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, BaseException]] = []
    # whether workq's loggers tell anybody is up to the process: other tests change that
    monkeypatch.setattr(
        "workq.worker.attempt.log.warning", lambda text, *, exc_info, **_: told.append((text, exc_info))
    )

    assert run_sync(claim(), registered(wq, succeed_and_raise), NOTHING, Writer()) is None

    [(text, error)] = told
    assert (text, str(error)) == ("task.raised_after_success", "too late")


def test_what_a_handler_raises_in_its_transaction_is_its_failure(wq: WorkQueue) -> None:
    def fail() -> None:
        with workq.current().transaction():
            raise ValueError("in time")

    with pytest.raises(ValueError, match="in time"):
        run_sync(claim(), registered(wq, fail), NOTHING, Writer())


def test_a_coroutine_cannot_stop_all_others_by_a_transaction(wq: WorkQueue) -> None:
    async def block() -> None:
        with workq.current().transaction():
            pass

    with pytest.raises(ConfigError, match=r"asyncio\.to_thread"):
        asyncio.run(run_async(claim(), registered(wq, block), NOTHING, Writer()))


def test_a_coroutine_has_its_transaction_in_a_thread(wq: WorkQueue) -> None:
    async def in_thread() -> None:
        await asyncio.to_thread(succeed_and_raise)

    assert asyncio.run(run_async(claim(), registered(wq, in_thread), NOTHING, Writer())) is None


def test_the_idempotency_key_is_the_same_in_every_attempt(wq: WorkQueue) -> None:
    handler = registered(wq, lambda: workq.current().idempotency_key)

    keys = {run_sync(replace(claim(), attempt=attempt), handler, NOTHING, Nobody()) for attempt in (1, 2, 3)}

    assert len(keys) == 1
    assert run_sync(replace(claim(), task_id="1" * 36), handler, NOTHING, Nobody()) not in keys
