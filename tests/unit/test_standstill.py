"""What a report of a failure says of the machine."""

from __future__ import annotations

import threading

from tests.standstill import Span, Standstill
from tests.system.fleet import wait_until


def test_the_worst_since_then_is_told() -> None:
    machine = Standstill(lambda: None, spans=[Span(10.0, 7.5, 0.1), Span(20.0, 0.2, 3.4), Span(30.0, 0.3, 0.5)])

    told = [machine.told(since) for since in (0.0, 15.0, 25.0, 35.0)]

    assert [one.split(", and now")[0] for one in told] == [
        "at most 7.5 s late to wake up, 3.4 s to write to the disk",
        "at most 0.3 s late to wake up, 3.4 s to write to the disk",
        "at most 0.3 s late to wake up, 0.5 s to write to the disk",
        "at most 0.0 s late to wake up, 0.0 s to write to the disk",
    ]


def test_a_write_that_does_not_end_is_told_too() -> None:
    hangs, ends = threading.Event(), threading.Event()

    def write() -> None:
        if machine.spans:
            hangs.set()
            ends.wait()

    machine = Standstill(write, every_s=0.01)
    machine.start()
    assert hangs.wait(30)

    wait_until(lambda: "and now it stands still for" in machine.told(), timeout_s=30, what="it is told")
    assert len(machine.spans) == 1
    ends.set()
