"""How long outcomes wait for each other before they are written."""

from __future__ import annotations

import pytest

from workq.worker.settle import LINGER_MAX_S, LINGER_S, MANY, linger_s


@pytest.mark.parametrize(
    ("took_s", "expected_s"),
    [(0.0, LINGER_S), (LINGER_S / 2, LINGER_S), (0.011, 0.011), (LINGER_MAX_S, LINGER_MAX_S), (30.0, LINGER_MAX_S)],
)
def test_many_wait_as_long_as_the_batch_before_took_within_bounds(took_s: float, expected_s: float) -> None:
    assert linger_s(MANY, took_s, are_awaited=False) == expected_s <= 0.02


def test_few_wait_no_longer_whatever_the_batch_before_took() -> None:
    assert linger_s(MANY - 1, 30.0, are_awaited=False) == LINGER_S


def test_whom_others_wait_for_do_not_wait_longer() -> None:
    assert linger_s(MANY, 30.0, are_awaited=True) == LINGER_S
