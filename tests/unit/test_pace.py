"""The pace of a bulk run: at most so many a second over the whole of it, however the pages fall."""

from __future__ import annotations

import pytest

from workq.operations.bulk import PAGE, RateCap


class Hands:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def paced(per_s: float | None) -> tuple[RateCap, Hands]:
    hands = Hands()
    return RateCap(per_s, clock=hands.clock, sleep=hands.sleep), hands


@pytest.mark.parametrize("per_s", [0.5, 3.0, 100.0, 10_000.0])
def test_no_more_than_the_rate_over_the_whole_run(per_s: float) -> None:
    pace, hands = paced(per_s)
    sent = 0
    for _ in range(20):
        pace.wait(pace.page)
        sent += pace.page
        assert sent <= pace.page + per_s * (hands.now - 100.0) + 1e-6

    assert hands.now - 100.0 == pytest.approx(19 * pace.page / per_s)


def test_time_that_was_spent_otherwise_is_not_made_up_for() -> None:
    pace, hands = paced(100.0)
    pace.wait(25)
    hands.now += 60.0

    pace.wait(25)
    pace.wait(25)

    assert hands.now == pytest.approx(160.25)


def test_without_a_rate_nobody_waits_and_pages_are_whole() -> None:
    pace, hands = paced(None)
    pace.wait(PAGE)
    pace.wait(PAGE)

    assert (pace.page, hands.now) == (PAGE, 100.0)
