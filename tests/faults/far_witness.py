"""The application of workers on far hosts: a lease that lasts so long that no test waits for its end."""

from __future__ import annotations

import time

from tests.system.witness import write
from workq import Times, WorkQueue

wq = WorkQueue(times=Times(lease_s=300.0, absence_s=8.0))


@wq.task(name="witness.note", queue="witness")
def note(number: int, seconds: float = 0.0) -> None:
    write("start", number)
    time.sleep(seconds)
    write("end", number)
