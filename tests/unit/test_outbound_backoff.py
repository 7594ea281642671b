"""When a webhook is sent again: never before its step, never before what the receiver asks for, and not for ever."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workq.errors import ConfigError
from workq.outbound.backoff import (
    JITTER,
    RETRY_AFTER_MAX_S,
    STEPS_S,
    THROTTLED_MIN_S,
    check_steps,
    growing,
    retry_after_s,
    wait_s,
)

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)


@given(st.integers(1, len(STEPS_S)), st.integers())
def test_each_wait_is_its_step_and_up_to_a_fifth_more(failures: int, seed: int) -> None:
    step = STEPS_S[failures - 1]

    found = wait_s(failures, rng=Random(seed))

    assert found is not None
    assert step <= found <= step * (1.0 + JITTER)


def test_behind_the_last_step_there_is_no_attempt() -> None:
    assert sum(STEPS_S) == pytest.approx(75.5 * 3600, rel=0.01)
    assert wait_s(len(STEPS_S) + 1, rng=Random(0)) is None
    assert wait_s(2, steps_s=(1.0,), rng=Random(0)) is None


def test_who_says_that_it_is_too_much_is_left_alone_for_a_minute() -> None:
    found = wait_s(1, is_throttled=True, rng=Random(0))

    assert found is not None
    assert THROTTLED_MIN_S <= found <= THROTTLED_MIN_S * (1.0 + JITTER)


@given(st.integers(1, len(STEPS_S)), st.floats(0.0, RETRY_AFTER_MAX_S), st.integers())
def test_it_is_never_earlier_than_the_receiver_asks_for(failures: int, asked: float, seed: int) -> None:
    found = wait_s(failures, retry_after_s=asked, rng=Random(seed))

    assert found is not None
    assert found >= max(asked, STEPS_S[failures - 1])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("0", None),
        ("-3", None),
        ("999999999", RETRY_AFTER_MAX_S),
        ("Mon, 23 Nov 2026 12:02:00 GMT", 120.0),
        ("Mon, 23 Nov 2026 13:02:00 +0100", 120.0),
        ("Monday, 23-Nov-26 12:02:00 GMT", 120.0),
        ("Mon, 23 Nov 2026 11:00:00 GMT", None),
        ("Mon, 23 Nov 2099 12:00:00 GMT", RETRY_AFTER_MAX_S),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("1_000", None),
        ("Mon, 99 Nov 2026 12:02:00 GMT", None),
        ("120, 240", None),
    ],
)
def test_what_a_receiver_asks_for_is_read_in_all_its_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, now=NOW) == seconds


@given(st.text())
def test_nonsense_asks_for_nothing_and_raises_nothing(value: str) -> None:
    found = retry_after_s(value, now=NOW)

    assert found is None or 0.0 < found <= RETRY_AFTER_MAX_S


@pytest.mark.parametrize("steps", [(), (1.0,) * 101, (-1.0,), (float("nan"),), (8 * 86_400.0,), (True,), ("5",)])
def test_what_is_no_schedule_is_refused(steps: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="retry_schedule"):
        check_steps(steps)


def test_a_schedule_may_grow_by_a_formula() -> None:
    assert growing(5.0, 60.0, 6) == (5.0, 10.0, 20.0, 40.0, 60.0, 60.0)
    assert growing(1, 1, 3, factor=1) == (1.0, 1.0, 1.0)
    assert growing(1.0, 100.0, 3, factor=10.0) == (1.0, 10.0, 100.0)


@pytest.mark.parametrize(
    ("first_s", "most_s", "retries", "factor"),
    [
        (0.0, 60.0, 6, 2.0),
        (61.0, 60.0, 6, 2.0),
        (5.0, 60.0, 0, 2.0),
        (5.0, 60.0, 101, 2.0),
        (5.0, 60.0, 2.5, 2.0),
        (5.0, 60.0, 6, 0.5),
        (5.0, 60.0, 6, math.nan),
        (5.0, 8 * 86_400.0, 30, 2.0),
        ("5s", 60.0, 6, 2.0),
        (True, 60.0, 6, 2.0),
    ],
)
def test_what_is_no_formula_is_refused(first_s: Any, most_s: Any, retries: Any, factor: Any) -> None:
    with pytest.raises(ConfigError, match="retry_schedule"):
        growing(first_s, most_s, retries, factor=factor)


def test_a_schedule_of_ones_own_is_kept() -> None:
    assert check_steps([0, 5.5, 60]) == (0.0, 5.5, 60.0)
