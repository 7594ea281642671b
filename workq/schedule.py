"""How often: the ticker of the sweep. The only module that imports APScheduler.

A tick that was missed (a suspended machine) is made up for once, never in a burst, and never runs beside itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

logging.getLogger("apscheduler").setLevel(logging.ERROR)


class Ticker:
    """Calls a function every so many seconds, in a thread of its own."""

    def __init__(self, tick: Callable[[], None], *, every_s: float, jitter_s: float = 0.0) -> None:
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone="UTC",
        )
        self._scheduler.add_job(tick, IntervalTrigger(seconds=every_s, jitter=jitter_s or None, timezone="UTC"))

    def start(self) -> None:
        """Begin; the first tick comes after one interval."""
        self._scheduler.start()

    def close(self) -> None:
        """End after the running tick. Repeatable."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)


def run_every(tick: Callable[[], None], *, every_s: float, until: threading.Event) -> None:
    """Tick at once and then every so many seconds, until the event is set."""
    tick()
    ticker = Ticker(tick, every_s=every_s)
    ticker.start()
    try:
        until.wait()
    finally:
        ticker.close()
