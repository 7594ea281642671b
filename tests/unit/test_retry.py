"""When the next attempt is due: full jitter under an exponential bound, which is capped."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workq.errors import ConfigError
from workq.handlers.retry import Exponential, Fixed, Schedule, retries, timeline

TEN_YEARS_S = 10 * 365 * 86400.0
bounds = st.tuples(st.floats(0.0, TEN_YEARS_S), st.floats(0.0, TEN_YEARS_S)).map(sorted)


class Extreme(Random):
    """Draws the ends of every interval: the first or the last."""

    def __init__(self, at: float) -> None:
        super().__init__(0)
        self.at = at

    def random(self) -> float:
        return self.at


@given(bounds, st.integers(1, 1_000_000), st.integers())
def test_a_delay_lies_between_nothing_and_the_bound(bound: list[float], failures: int, seed: int) -> None:
    base_s, cap_s = bound

    delay_s = Exponential(base_s, cap_s).delay_s(failures, rng=Random(seed))

    assert 0.0 <= delay_s <= cap_s
    assert delay_s <= base_s * 2.0 ** min(failures - 1, 1000)
    assert math.isfinite(delay_s)


@given(st.integers(1, 40))
def test_the_bound_doubles_with_every_failure_until_the_cap(failures: int) -> None:
    retry = Exponential(1.5, 3600.0)

    longest_s = retry.delay_s(failures, rng=Extreme(1.0))

    assert longest_s == pytest.approx(min(3600.0, 1.5 * 2 ** (failures - 1)))
    assert retry.delay_s(failures, rng=Extreme(0.0)) == 0.0


def test_the_jitter_is_full_not_a_little_noise_around_the_bound() -> None:
    rng = Random(4)
    retry = Exponential(8.0, 8.0)

    delays = [retry.delay_s(1, rng=rng) for _ in range(2000)]

    assert min(delays) < 0.5
    assert max(delays) > 7.5
    assert sum(delays) / len(delays) == pytest.approx(4.0, abs=0.3)


def test_the_same_seed_gives_the_same_delays() -> None:
    first, second = Random(7), Random(7)
    retry = Exponential()

    assert [retry.delay_s(n, rng=first) for n in range(1, 20)] == [retry.delay_s(n, rng=second) for n in range(1, 20)]


def test_no_base_means_no_delay() -> None:
    assert Exponential(0.0, 60.0).delay_s(1000, rng=Random(1)) == 0.0


@pytest.mark.parametrize(
    ("base_s", "cap_s"),
    [(-1.0, 1.0), (2.0, 1.0), (0.0, -1.0), (math.nan, 1.0), (0.0, math.nan), (0.0, math.inf), (1.0, TEN_YEARS_S * 2)],
)
def test_bounds_that_contradict_each_other_are_refused(base_s: float, cap_s: float) -> None:
    with pytest.raises(ConfigError, match="retry: "):
        Exponential(base_s, cap_s)


@given(st.floats(0.0, TEN_YEARS_S), st.floats(0.0, 1.0), st.integers(1, 1000), st.integers())
def test_a_fixed_wait_is_the_same_for_each_failure_around_its_jitter(
    wait_s: float, jitter: float, failures: int, seed: int
) -> None:
    policy = Fixed(wait_s, jitter)

    delay_s = policy.delay_s(failures, rng=Random(seed))

    assert policy.bounds_s(failures) == policy.bounds_s(1)
    assert wait_s * (1.0 - jitter) <= delay_s <= wait_s * (1.0 + jitter)
    assert Fixed(wait_s).delay_s(failures, rng=Random(seed)) == wait_s


def test_a_schedule_is_followed_and_its_last_wait_serves_for_the_rest() -> None:
    given = [5.0, 300.0, 1800.0]
    policy = Schedule(given)
    given.clear()

    assert [policy.delay_s(failures, rng=Random(1)) for failures in range(1, 6)] == [5.0, 300.0, 1800.0, 1800.0, 1800.0]
    assert 270.0 <= Schedule([5.0, 300.0], jitter=0.1).delay_s(2, rng=Random(1)) <= 330.0


@pytest.mark.parametrize("given", [(-1.0,), (math.nan,), (True,), ("5",), (1.0, 1.5), (1.0, -0.1), (1.0, True)])
def test_a_fixed_wait_that_makes_no_sense_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="retry"):
        Fixed(*given)


@pytest.mark.parametrize("given", [([],), ("55",), (5.0,), ([5.0, -1.0],), ([1.0], math.inf), ([None],)])
def test_a_schedule_that_makes_no_sense_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="retry"):
        Schedule(*given)


def test_the_timeline_adds_the_waits_up() -> None:
    assert timeline(Schedule([5.0, 300.0, 1800.0]), failures_max=4) == [(5.0, 5.0), (305.0, 305.0), (2105.0, 2105.0)]
    assert timeline(Exponential(2.0, 5.0), failures_max=4) == [(0.0, 2.0), (0.0, 6.0), (0.0, 11.0)]
    assert timeline(Fixed(10.0, jitter=0.5), failures_max=3) == [(5.0, 15.0), (10.0, 30.0)]
    assert timeline(Fixed(10.0), failures_max=1) == []


def test_only_some_errors_are_tried_again() -> None:
    only = retries(None, (OSError, ValueError), None)
    never = retries(None, None, UnicodeError)
    both = retries(None, ValueError, [UnicodeError])

    assert [only.gives_up(one) for one in (ConnectionError(), ValueError(), KeyError())] == [False, False, True]
    assert [never.gives_up(one) for one in (ValueError(), _utf8(), KeyError())] == [False, True, False]
    assert [both.gives_up(one) for one in (ValueError(), _utf8(), KeyError())] == [False, True, True]


def _utf8() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"x", 0, 1, "no")


@pytest.mark.parametrize(
    "given",
    [{"retry": 5}, {"retry": Exponential}, {"retry": "fixed"}, {"retry_on": ValueError()}, {"retry_on": "ValueError"},
     {"retry_on": (ValueError, 5)}, {"give_up_on": int}, {"give_up_on": [[ValueError]]}],
    ids=str,
)  # fmt: skip
def test_what_is_no_policy_and_no_error_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        retries(*({"retry": None, "retry_on": None, "give_up_on": None} | given).values())


def test_a_function_decides_by_the_failures_and_the_error() -> None:
    policy = retries(lambda failures, error: failures * len(str(error)), None, None)

    assert policy.delay_s(3, ValueError("four"), rng=Random(1)) == 12.0
    for wrong in (-1, math.inf, "5", None):
        with pytest.raises(ConfigError, match="answered no delay"):
            retries(lambda _failures, _error, wrong=wrong: wrong, None, None).delay_s(1, ValueError(), rng=Random(1))
