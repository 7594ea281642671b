"""When the next attempt is due: full jitter under an exponential bound, which is capped."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workq.errors import ConfigError
from workq.retry import Exponential

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
    with pytest.raises(ConfigError, match="retry: need 0 <= base_s <= cap_s <= 10 years"):
        Exponential(base_s, cap_s)
