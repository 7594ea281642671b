"""How long a worker that starts waits for its servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from workq.errors import LedgerUnavailable, SchemaMismatch, Unavailable
from workq.worker.readiness import PAUSE_MAX_S, wait_until_ready


def away(patience_s: float) -> Unavailable:
    error = LedgerUnavailable("away")
    error.patience_s = patience_s
    return error


class Clock:
    """Time passes only while somebody pauses."""

    def __init__(self, *, stops_at_s: float = math.inf) -> None:
        self.now_s = 0.0
        self._stops_at_s = stops_at_s

    def pause(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.now_s >= self._stops_at_s

    def wait(self, answers: Iterator[Exception | None], *, limit_s: float = math.inf) -> bool:
        def ask() -> None:
            error = next(answers)
            if error is not None:
                raise error

        return wait_until_ready(ask, pause=self.pause, limit_s=limit_s, clock=lambda: self.now_s)


def forever(error: Exception) -> Iterator[Exception]:
    while True:
        yield error


def test_a_server_that_is_down_for_an_hour_is_waited_for() -> None:
    clock = Clock()

    def answers() -> Iterator[Exception | None]:
        while clock.now_s < 3600.0:
            yield away(math.inf)
        yield None

    assert clock.wait(answers())
    assert clock.now_s <= 3600.0 + PAUSE_MAX_S


@pytest.mark.parametrize("make", [lambda: away(0.0), lambda: SchemaMismatch("older")], ids=["password", "schema"])
def test_what_waiting_does_not_mend_ends_it_at_once(make: Callable[[], Exception]) -> None:
    clock = Clock()

    with pytest.raises((Unavailable, SchemaMismatch)):
        clock.wait(forever(make()))
    assert clock.now_s == 0.0


def test_a_name_that_cannot_be_resolved_ends_it_after_a_minute_without_other_answers() -> None:
    clock = Clock()

    def answers() -> Iterator[Exception | None]:
        for patience_s, until_s in ((60.0, 40.0), (math.inf, 50.0), (60.0, math.inf)):
            while clock.now_s < until_s:
                yield away(patience_s)

    with pytest.raises(LedgerUnavailable):
        clock.wait(answers())
    assert 110.0 <= clock.now_s <= 110.0 + 2 * PAUSE_MAX_S


def test_a_limit_ends_it_with_the_last_answer() -> None:
    clock = Clock()

    with pytest.raises(LedgerUnavailable):
        clock.wait(forever(away(math.inf)), limit_s=60.0)
    assert clock.now_s == pytest.approx(60.0)


def test_a_signal_ends_it_in_order() -> None:
    assert not Clock(stops_at_s=10.0).wait(forever(away(math.inf)))
