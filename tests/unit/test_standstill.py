"""What a report of a failure says of the machine."""

from __future__ import annotations

import threading
import time

from tests.standstill import Pulse


def test_the_slowest_write_since_then_is_told() -> None:
    slow, twice = threading.Event(), threading.Event()

    def write() -> None:
        if slow.is_set():
            twice.set()
            threading.Event().wait()
        slow.set()
        time.sleep(0.3)

    pulse = Pulse(write, every_s=0.01)
    pulse.start()
    assert twice.wait(30)

    [(began, late_s, write_s)] = pulse.beats
    assert write_s >= 0.3
    assert f"{write_s:.1f} s to write" in pulse.told()
    assert "0.0 s to write" in pulse.told(since=began + late_s + write_s + 10.0)
