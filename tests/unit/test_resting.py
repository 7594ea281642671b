"""For how long the mover waits for a queue that takes nothing."""

from __future__ import annotations

from workq.broker.later.resting import FULL_EVERY, Resting


def test_a_queue_that_takes_nothing_though_others_do_is_waited_for_shortly_but_for_one_try_of_some() -> None:
    now = 0.0
    resting = Resting(lambda: now)
    waits = []
    for _ in range(2 * FULL_EVERY + 1):
        waits.append(resting.is_brief("sick"))
        now += 100.0
        resting.note(sent=["well"], kept=["sick"], refused=[])

    assert waits == [False, False, *[True] * (FULL_EVERY - 1), False, *[True] * (FULL_EVERY - 1)]
    resting.note(sent=["sick"], kept=[], refused=[])
    assert not resting.is_brief("sick")


def test_while_no_queue_takes_anything_each_is_waited_for_as_long_as_ever() -> None:
    now = 0.0
    resting = Resting(lambda: now)
    for _ in range(3):
        now += 100.0
        resting.note(sent=[], kept=["one", "two"], refused=[])

    assert not resting.is_brief("one")
