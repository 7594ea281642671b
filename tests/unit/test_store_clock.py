"""The clock of a store beside ours: what counts as a jump."""

from __future__ import annotations

import pytest

from workq.recovery.store_clock import StoreClock


@pytest.mark.parametrize(
    ("passes_s", "takes_s", "grows_s", "has_jumped"),
    [
        (1.0, 0.0, 1.0, False),
        (1.0, 0.0, 1.4, False),
        (1.0, 0.0, 1.6, True),
        (1.0, 3.0, 3.9, False),  # it was asked at any moment of a slow call
        (1.0, 3.0, 4.6, True),
        (1.0, 0.0, -50.0, False),  # a store that was emptied, or set back: its leases look younger
        (60.0, 0.0, 60.0, False),
    ],
)
def test_a_clock_has_jumped_when_it_grows_by_more_than_the_time_that_passed(
    passes_s: float, takes_s: float, grows_s: float, has_jumped: bool
) -> None:
    now, age_s = 100.0, 500.0
    clock = StoreClock(lambda: now)
    assert clock.look(lambda: age_s) == (500.0, False)

    def slow() -> float:
        nonlocal now
        now += takes_s
        return age_s

    now += passes_s
    age_s += grows_s
    assert clock.look(slow) == (age_s, has_jumped)
