"""One call for several tasks: what becomes of each, whatever the handler answers or raises."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import workq
from tests.contract.given import awaited
from workq import WorkQueue
from workq.errors import Cancel, ConfigError, NotInTask, Retry, Snooze, SoftTimeLimit
from workq.handlers.context import current
from workq.handlers.handler import BatchHandler
from workq.handlers.retry import Fixed
from workq.values import codec
from workq.values.task import Cancelled, Claim, Dead, Done, Failed, Outcome, Snoozed
from workq.worker.batch import Together, call, call_async

Function = Callable[[list[Any]], Any]


def claim(number: int, item: Any, *, failures: int = 0, failures_max: int = 5) -> Claim:
    payload = codec.encode({"a": [item], "k": {}}, path="payload")
    return Claim(str(number), "index", "default", payload, 1, "t", failures, 0, failures_max, 3, None)


def registered(function: Function, **options: Any) -> BatchHandler[Any, Any]:
    app = WorkQueue(ledger="sqlite:///never-opened.db")
    given: dict[str, Any] = {"name": "index", "batch": 100, "retry": Fixed(7.0)} | options
    handler: BatchHandler[Any, Any] = app.task(**given)(function)  # type: ignore[no-untyped-call]
    return handler


def outcomes(
    items: list[Any],
    function: Function,
    *,
    failures: dict[int, int] | None = None,
    until: float = 1.0,
    clock: Callable[[], float] = lambda: 0.0,
    **options: Any,
) -> list[Outcome]:
    """What becomes of these; `failures` by place."""
    handler = registered(function, **options)
    claims = [claim(place, item, failures=(failures or {}).get(place, 0)) for place, item in enumerate(items)]
    together = Together(claims, [codec.decode(one.payload)["a"][0] for one in claims], handler)
    if handler.is_async:
        asyncio.run(ended(together, call_async(together, handler)))
    else:
        try:
            call(together, handler, until=until, clock=clock, wait=awaited)
        except BaseException as error:
            together.end(error)
    return together.outcomes(Random(1))


async def ended(together: Together, calling: Any) -> None:
    try:
        await calling
    except BaseException as error:
        together.end(error)


def allergic(*bad: Any, calls: list[list[Any]] | None = None) -> Function:
    """Raises when one of these is in its list."""

    def function(items: list[Any]) -> None:
        if calls is not None:
            calls.append(items)
        if found := set(bad).intersection(items):
            raise ValueError(f"cannot do {min(found)}")

    return function


def failed_of(found: list[Outcome]) -> set[int]:
    return {place for place, outcome in enumerate(found) if outcome != Done()}


def test_who_is_not_named_has_succeeded() -> None:
    assert outcomes([1, 2, 3], lambda _: None) == [Done(), Done(), Done()]
    assert outcomes([1, 2, 3], lambda _: {2: "no such product"}) == [Done(), Failed(7.0, "no such product"), Done()]


def test_what_was_skipped_has_succeeded_and_says_so() -> None:
    answer = workq.Verdict(failed={1: "no"}, skipped=[1, 2])

    assert outcomes([1, 2, 3], lambda _: answer) == [Failed(7.0, "no"), Done(None, "skipped"), Done()]


def test_a_result_of_an_item_is_the_result_of_its_task() -> None:
    answer = workq.Verdict(failed={1: "no"}, results={1: "never", 2: {"rows": 7}, 3: object()})

    failed, kept, not_kept, without = outcomes([1, 2, 3, 4], lambda _: answer)

    assert failed == Failed(7.0, "no")
    assert (kept, without) == (Done('{"rows":7}'), Done())
    assert isinstance(not_kept, Done)
    assert not_kept.result is None
    assert "result_error" in (not_kept.note or "")


def test_each_task_has_its_own_failures() -> None:
    found = outcomes([1, 2], lambda _: {1: "no", 2: "no"}, failures={1: 4})

    assert found == [Failed(7.0, "no"), Dead("failures_max reached: its handler's verdict", "no")]


def test_an_error_in_an_answer_is_what_it_would_be_if_it_were_raised() -> None:
    answer = {1: Snooze(60.0, "later"), 2: Cancel("gone"), 3: LookupError("never"), 4: Retry("busy", in_s=9.0)}

    snoozed, cancelled, dead, again = outcomes([1, 2, 3, 4], lambda _: answer, give_up_on=LookupError)

    assert (snoozed, cancelled) == (Snoozed(60.0, "later"), Cancelled("gone"))
    assert isinstance(dead, Dead)
    assert dead.reason == "not retried: LookupError"
    assert isinstance(again, Failed)
    assert again.delay_s == 9.0


def test_a_verdict_for_an_item_is_said_of_all_tasks_that_have_it() -> None:
    assert failed_of(outcomes([7, 8, 7], lambda _: {7: "no"})) == {0, 2}


@given(st.integers(1, 200), st.data())
def test_one_poison_task_is_found_and_all_others_succeed_in_few_calls(size: int, data: st.DataObject) -> None:
    bad, calls = data.draw(st.integers(0, size - 1)), list[list[Any]]()
    found = outcomes(list(range(size)), allergic(bad, calls=calls))

    assert failed_of(found) == {bad}
    assert isinstance(found[bad], Failed)
    assert len(calls) <= math.ceil(2 * math.log2(size) + 2)


def test_where_both_halves_raise_all_have_failed_each_by_itself() -> None:
    calls: list[list[Any]] = []
    found = outcomes(list(range(100)), allergic(*range(100), calls=calls), give_up_on=ValueError)

    assert all(isinstance(one, Failed) for one in found), "it may be the error of another: nobody is given up for it"
    assert len(calls) == 3


@given(st.integers(1, 64), st.sets(st.integers(0, 63), max_size=6), st.sets(st.integers(0, 63), max_size=6))
def test_nobody_dies_of_what_others_did(size: int, bad: set[int], last: set[int]) -> None:
    """Those at the end of their budget are halved until it is known whose fault it was."""
    found = outcomes(list(range(size)), allergic(*bad), failures=dict.fromkeys(last, 4))

    dead = {place for place, one in enumerate(found) if isinstance(one, Dead)}
    assert dead == {place for place in bad & last if place < size}
    assert failed_of(found) >= {place for place in bad if place < size}
    assert not [place for place in last if place < size and place not in bad and found[place] != Done()]


def test_in_an_outage_only_those_at_their_end_are_called_alone() -> None:
    calls: list[list[Any]] = []
    found = outcomes(list(range(64)), allergic(*range(64), calls=calls), failures={5: 4})

    assert [place for place, one in enumerate(found) if isinstance(one, Dead)] == [5]
    assert len(calls) == 1 + 2 * 6


@pytest.mark.parametrize("answer", [7, {9: "not given"}, workq.Verdict(skipped=[9])])
def test_a_wrong_answer_is_the_death_of_its_list_without_a_retry(answer: object) -> None:
    found = outcomes([1, 2], lambda _: answer)

    assert all(isinstance(one, Dead) and one.reason == "not retried: WrongVerdict" for one in found)


def test_a_wrong_answer_for_a_half_is_not_said_of_the_other() -> None:
    def function(items: list[int]) -> object:
        if len(items) == 4:
            raise ValueError("find out")
        return "all done" if 4 in items else None

    found = outcomes([1, 2, 3, 4], function)

    assert found[:2] == [Done(), Done()]
    assert all(isinstance(one, Dead) for one in found[2:])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Cancel("no need"), Cancelled("no need")),
        (Snooze(5.0, "too early"), Snoozed(5.0, "too early")),
    ],
)
def test_what_a_handler_raises_for_itself_is_said_of_all(error: Exception, expected: Outcome) -> None:
    def function(_: list[int]) -> None:
        raise error

    assert outcomes([1, 2, 3], function) == [expected] * 3


def test_a_retry_is_a_failure_of_all_with_its_wait() -> None:
    def function(_: list[int]) -> None:
        raise Retry("busy", in_s=3.0)

    found = outcomes([1, 2], function, failures={1: 4})

    assert isinstance(found[0], Failed)
    assert found[0].delay_s == 3.0
    assert isinstance(found[1], Dead)


def test_a_soft_time_limit_is_said_of_those_who_have_no_answer_yet() -> None:
    def function(items: list[int]) -> None:
        if len(items) == 4:
            raise ValueError("find out")
        if 3 in items:
            raise SoftTimeLimit

    found = outcomes([1, 2, 3, 4], function, time_limit_s=9.0)

    assert found[:2] == [Done(), Done()]
    assert all(isinstance(one, Failed) and one.error.startswith("SoftTimeLimit") for one in found[2:])


def test_when_the_time_is_up_no_further_call_begins() -> None:
    calls: list[list[Any]] = []
    found = outcomes([1, 2], allergic(1, calls=calls), until=-1.0, time_limit_s=9.0)

    assert calls == []
    assert all(isinstance(one, Failed) for one in found)


def test_an_exit_in_a_handler_is_a_failure_of_its_task_only() -> None:
    def function(items: list[int]) -> None:
        if 3 in items:
            raise SystemExit(1)

    assert failed_of(outcomes([1, 2, 3, 4], function)) == {2}


def test_a_coroutine_function_is_awaited_with_the_list_and_halved_alike() -> None:
    calls: list[list[int]] = []

    async def function(items: list[int]) -> dict[int, str]:
        calls.append(items)
        await asyncio.sleep(0)
        if 3 in items:
            raise ValueError("no 3")
        return {1: "no 1"} if 1 in items else {}

    found = outcomes([1, 2, 3, 4], function)

    assert failed_of(found) == {0, 2}
    assert calls[0] == [1, 2, 3, 4]


def test_a_coroutine_that_runs_too_long_has_exceeded_its_limit() -> None:
    async def function(items: list[int]) -> None:
        if len(items) == 4:
            raise ValueError("find out")
        if 3 in items:
            await asyncio.sleep(60)

    found = outcomes([1, 2, 3, 4], function, time_limit_s=0.05)

    assert found[:2] == [Done(), Done()]
    assert all(isinstance(one, Failed) and "ran longer than time_limit_s=0.05" in one.error for one in found[2:])


@pytest.mark.parametrize("is_async", [False, True])
def test_who_makes_another_error_of_the_limit_is_called_no_more(is_async: bool) -> None:
    calls: list[list[int]] = []
    now = [0.0]

    def function(items: list[int]) -> None:
        calls.append(items)
        now[0] = 10.0
        raise ValueError("too late")

    async def afunction(items: list[int]) -> None:
        calls.append(items)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            raise ValueError("too late") from error

    found = outcomes([1, 2], afunction if is_async else function, time_limit_s=0.05, clock=lambda: now[0])

    assert calls == [[1, 2]]
    assert all(isinstance(one, Failed) and "SoftTimeLimit" in one.error for one in found)


def test_none_of_them_is_the_current_task() -> None:
    def function(_: list[int]) -> None:
        current()

    first, _ = outcomes([1, 2], function)

    assert isinstance(first, Failed)
    assert NotInTask.__name__ in first.error
    assert "several tasks at once" in first.error
    with pytest.raises(NotInTask, match="inside a running handler only"):
        current()


@pytest.mark.parametrize("is_async", [False, True])
def test_each_call_gets_the_items_as_they_were_enqueued_whatever_the_one_before_has_changed(is_async: bool) -> None:
    done: dict[int, int] = {}

    def function(rows: list[dict[str, int]]) -> None:
        for row in rows:
            row["price"] *= 100
        if 2 in [row["id"] for row in rows]:
            raise ValueError("the shop is busy")
        done.update((row.pop("id"), row["price"]) for row in rows)
        rows.clear()

    async def afunction(rows: list[dict[str, int]]) -> None:
        function(rows)

    found = outcomes([{"id": number, "price": 5} for number in range(8)], afunction if is_async else function)

    assert failed_of(found) == {2}
    assert done == {number: 500 for number in range(8) if number != 2}


def test_an_answer_names_the_objects_of_its_own_call_though_they_were_changed() -> None:
    def function(rows: list[dict[str, int]]) -> workq.Verdict:
        for row in rows:
            row["n"] += 1
        if len(rows) == 4:
            raise ValueError("find out")
        rows.reverse()
        return workq.Verdict([(rows[0], "busy")], results=[(rows[1], rows[1])])

    found = outcomes([{"n": number} for number in range(4)], function)

    assert found == [Done('{"n":1}'), Failed(7.0, "busy"), Done('{"n":3}'), Failed(7.0, "busy")]


def test_answers_that_cannot_be_read_are_no_verdict() -> None:
    class Broken(dict[Any, Any]):
        def items(self) -> Any:
            raise RuntimeError("no items")

    assert all(isinstance(one, Dead) for one in outcomes([1, 2], lambda _: Broken()))


class TestRegistration:
    """What may be together with `batch=`."""

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({"batch": 0}, "batch"),
            ({"batch": 1001}, "batch"),
            ({"batch": True}, "batch"),
            ({"batch": 10, "linger_s": -1}, "linger_s"),
            ({"batch": 10, "linger_s": 61}, "linger_s"),
            ({"batch": None, "linger_s": 1.0}, "linger_s"),
            ({"batch": 10, "concurrency": 9}, "concurrency"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, options: dict[str, Any], what: str) -> None:
        with pytest.raises(ConfigError, match=what):
            registered(lambda _: None, **{"linger_s": 0.5} | options)

    def test_a_function_that_needs_more_than_its_list_is_refused(self) -> None:
        def function(items: list[int], index: str) -> None: ...

        with pytest.raises(ConfigError, match="takes a list"):
            registered(cast(Function, function))

    def test_a_task_has_one_positional_argument_and_the_handler_stays_the_function(self) -> None:
        handler = registered(len)

        task = handler.new_task(handler.defaults, (42,), {})

        assert task.payload == '{"a":[42],"k":{}}'
        assert handler([1, 2, 3]) == 3
        for args, kwargs in [((), {}), ((1, 2), {}), ((), {"item": 1})]:
            with pytest.raises(TypeError):
                handler.new_task(handler.defaults, args, kwargs)

    def test_a_limit_may_name_the_item(self) -> None:
        handler = registered(len, limit="shop:{item}", rate="5/s")

        task = handler.new_task(handler.defaults, ("eu",), {})

        assert task.limit is not None
        assert task.limit.key == "shop:eu"
