"""How far a job is, how fast, and how long it will take, in words."""

from __future__ import annotations

import pytest

from workq.jobs.progress import left_s, smoothed, told, told_s
from workq.jobs.values import JOB_ENDED, JOB_STARTS, JOB_TRANSITIONS, JOB_UNWANTED, JobState


def test_the_rate_follows_within_some_minutes_and_does_not_jump() -> None:
    rate: float | None = None
    for _ in range(60):
        rate = smoothed(rate, 100, 1.0)
    assert rate == pytest.approx(100.0)
    after_a_second = smoothed(rate, 1000, 1.0)
    for _ in range(300):
        rate = smoothed(rate, 1000, 1.0)

    assert 110.0 < after_a_second < 120.0
    assert rate == pytest.approx(1000.0, rel=0.01)


def test_many_short_looks_and_one_long_one_come_to_the_same() -> None:
    often: float | None = 50.0
    for _ in range(30):
        often = smoothed(often, 200, 1.0)

    assert often == pytest.approx(smoothed(50.0, 6000, 30.0))


@pytest.mark.parametrize(
    ("total", "done", "rate", "expected"),
    [(1000, 400, 60.0, 10.0), (None, 400, 60.0, None), (1000, 0, None, None), (1000, 5, 0.0, None), (10, 12, 1.0, 0.0)],
)
def test_how_long_the_rest_takes_is_said_where_it_can_be_known(
    total: int | None, done: int, rate: float | None, expected: float | None
) -> None:
    assert left_s(total=total, done=done, rate=rate) == expected


@pytest.mark.parametrize(
    ("done", "total", "is_split", "expected"),
    [
        (12_345, 50_000, False, "12,345 of 50,000 items (24 %)"),
        (49_999, 50_000, True, "49,999 of 50,000 items (99 %)"),
        (0, 0, True, "0 of 0 items"),
        (7, None, False, "7 items, and more to come"),
        (7, None, True, "7 items"),
        (1, None, True, "1 item"),
        (1, 1, True, "1 of 1 item (100 %)"),
        (12, 10, False, "12 items, more than the 10 that were expected"),
    ],
)
def test_how_far_it_is(done: int, total: int | None, is_split: bool, expected: str) -> None:
    assert told(done=done, total=total, is_split=is_split) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "1 s"),
        (119, "119 s"),
        (121, "3 min"),
        (3599, "1 h"),
        (12_000, "3 h 20 min"),
        (187_000, "2 d 3 h"),
        (172_800, "2 d"),
    ],
)
def test_a_span_as_people_say_it(seconds: float, expected: str) -> None:
    assert told_s(seconds) == expected


def test_every_state_is_reached_and_every_job_can_end() -> None:
    reached = {JobState.PLANNING}
    while (more := reached.union(*(JOB_TRANSITIONS[state] for state in reached))) != reached:
        reached = more

    assert reached == set(JobState)
    for state in JobState:
        assert state in JOB_ENDED or JOB_TRANSITIONS[state], f"{state} would stay for ever"
    assert not JOB_STARTS & (JOB_ENDED | JOB_UNWANTED)
