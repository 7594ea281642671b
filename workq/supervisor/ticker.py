"""How often: the ticker of the sweep. The only module that imports APScheduler.

A tick that was missed (a suspended machine) is made up for once, never in a burst, and never runs beside itself.
APScheduler goes by the host's wall clock; a clock that is set back does not keep the sweep waiting for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

logging.getLogger("apscheduler").setLevel(logging.ERROR)

LOOK_EVERY_S: Final = 0.1


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]  # it has no types
    """Whose ticks do not wait until a clock that was set back has caught up."""

    def _process_jobs(self) -> Any:
        now = datetime.now(UTC)
        for job in self.get_jobs():
            if job.next_run_time > now + 2 * job.trigger.interval:
                job.modify(next_run_time=now)
        return super()._process_jobs()


class Ticker:
    """Calls a function every so many seconds, in a thread of its own."""

    def __init__(
        self, tick: Callable[[], None], *, every_s: float, jitter_s: float = 0.0, at_once: bool = False
    ) -> None:
        """`at_once`: the first tick comes with the start, not an interval later."""
        self._scheduler = _Scheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone="UTC",
        )
        first = {"next_run_time": datetime.now(UTC)} if at_once else {}
        self._scheduler.add_job(
            tick, IntervalTrigger(seconds=every_s, jitter=jitter_s or None, timezone="UTC"), **first
        )

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def close(self) -> None:
        """End after the running tick. Repeatable."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)


def run_every(tick: Callable[[], None], *, every_s: float, is_over: Callable[[], bool]) -> None:
    """Tick at once and then every so many seconds, until it is over. For the main thread.

    It looks, and does not wait: a signal that comes to another thread wakes nobody who waits for a lock.
    """
    tick()
    ticker = Ticker(tick, every_s=every_s)
    ticker.start()
    try:
        while not is_over():
            time.sleep(LOOK_EVERY_S)
    finally:
        ticker.close()
