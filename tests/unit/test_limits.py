"""What may be a limit, and which key a call gets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workq import WorkQueue
from workq.errors import ConfigError, PayloadError
from workq.values.limit_rule import LimitRule, check_concurrency, check_rate, rate_of
from workq.values.task import Limit


@pytest.fixture
def wq() -> WorkQueue:
    return WorkQueue(ledger="sqlite:////nowhere/at/all.db")


@pytest.mark.parametrize(
    ("text", "count", "per_s"), [("100/s", 100, 1.0), ("5/m", 5, 60.0), ("1000/h", 1000, 3600.0), ("1/d", 1, 86400.0)]
)
def test_a_rate_is_so_many_in_a_time(text: str, count: int, per_s: float) -> None:
    rate = rate_of(text)
    assert (rate.count, rate.per_s) == (count, per_s)
    assert rate.counted_s == pytest.approx(1.1 * per_s)
    assert rate.spare_s == pytest.approx(0.1 * per_s)


@pytest.mark.parametrize("text", ["", "100", "0/s", "01/s", "1001/s", "1.5/s", "-1/s", "1/w", "1/S", " 1/s", "1/s\n"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rate: need a whole number from 1 to 1000 per s, m, h or d"):
        rate_of(text)


@pytest.mark.parametrize("value", [5, 1.5, True, b"1/s", ["1/s"], {"1/s": 1}, ("1/s",)])
def test_a_rate_is_text(value: object) -> None:
    with pytest.raises(ConfigError, match="rate: need text such as '100/s', got"):
        check_rate(value)


@pytest.mark.parametrize("value", [0, -1, 10_001, True, 1.0, "8", None])
def test_what_is_no_number_of_tasks_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="concurrency: need a whole number"):
        check_concurrency(value)


def test_a_handlers_limit_is_named_after_it_or_as_it_says_with_its_arguments(wq: WorkQueue) -> None:
    @wq.task(name="shop.rebuild", concurrency=1)
    def rebuild() -> None: ...

    @wq.task(name="shop.deliver", limit="endpoint:{host}:{port}", rate="100/s", concurrency=8)
    def deliver(host: str, port: int = 443) -> None: ...

    def limit_of(call: Any, *args: Any, **kwargs: Any) -> Limit | None:
        found: Limit | None = call.options().new_task(args, kwargs).limit
        return found

    assert limit_of(rebuild) == Limit("shop.rebuild", 1, None)
    assert limit_of(deliver, "example.org") == Limit("endpoint:example.org:443", 8, "100/s")
    assert limit_of(deliver, port=80, host="a") == Limit("endpoint:a:80", 8, "100/s")
    other = deliver.options(limit="all", rate="1/m").new_task(("a",), {}).limit
    assert other == Limit("all", None, "1/m")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"limit": "mail"}, "it needs a rate"),
        ({"limit": "", "rate": "1/s"}, "need a name"),
        ({"limit": 7, "rate": "1/s"}, "need a name"),
        ({"limit": "to:{nobody}", "rate": "1/s"}, "no parameter of the function; it has: host"),
        ({"limit": "{", "rate": "1/s"}, "limit: '{'"),
        ({"limit": "{host.name}", "rate": "1/s"}, "only the name of a parameter"),
        ({"limit": "{host!r}", "rate": "1/s"}, "only the name of a parameter"),
        ({"limit": "{host:>9}", "rate": "1/s"}, "only the name of a parameter"),
        ({"limit": "{}", "rate": "1/s"}, "only the name of a parameter"),
        ({"rate": "fast"}, "rate: need"),
        ({"rate": ["1/s"]}, "rate: need text"),
        ({"concurrency": 0}, "concurrency: need"),
    ],
)
def test_what_cannot_be_a_limit_is_refused_where_it_is_declared(
    wq: WorkQueue, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):

        @wq.task(name="shop.deliver", **given)
        def deliver(host: str) -> None: ...


def test_who_shares_a_limit_has_to_agree_on_its_numbers(wq: WorkQueue) -> None:
    @wq.task(name="shop.one", limit="mail", concurrency=2)
    def one() -> None: ...

    @wq.task(name="shop.two", limit="mail", concurrency=2)
    def two() -> None: ...

    with pytest.raises(ConfigError, match="give it other numbers"):

        @wq.task(name="shop.three", limit="mail", concurrency=3)
        def three() -> None: ...


@pytest.mark.parametrize("value", [None, True, 1.5, ["a"], {"a": 1}])
def test_an_argument_that_is_part_of_a_limits_name_is_text_or_a_whole_number(wq: WorkQueue, value: object) -> None:
    @wq.task(name="shop.deliver", limit="endpoint:{host}", concurrency=8)
    def deliver(host: Any) -> None: ...

    with pytest.raises(PayloadError, match="needs text or a whole number"):
        deliver.options().new_task((value,), {})


@given(st.text(max_size=300))
def test_whatever_the_argument_the_key_can_be_stored_or_is_refused(value: str) -> None:
    wq = WorkQueue(ledger="sqlite:////nowhere/at/all.db")

    @wq.task(name="shop.deliver", limit="to:{host}", concurrency=8)
    def deliver(host: str) -> None: ...

    try:
        limit = deliver.options().new_task((value,), {}).limit
    except (ConfigError, PayloadError):
        return
    assert limit is not None
    assert 1 <= len(limit.key) <= 200
    limit.key.encode()


def test_braces_are_doubled_to_be_themselves() -> None:
    rule = LimitRule.of("a{{b}}{c}", 1, None, parameters=("c",))
    assert rule.key({"c": 5}) == "a{b}5"
