"""Progress: how far a job is, how fast, and how long it will take, in words. Pure; the ledger has the counts.

The rate is smoothed over a minute of running: while a job is paused its clock stands still. How long the rest takes is
said only where it is known how much there is, and something has been done lately.
"""

from __future__ import annotations

import math
from typing import Final

from workq.values.plural import counted

HALF_LIFE_S: Final = 60.0 * math.log(2)
"""A time constant of one minute."""
SAMPLE_S: Final = 1.0
"""The rate is measured at most so often."""


def smoothed(rate: float | None, done: int, seconds: float) -> float:
    """The rate after `done` more items in so many seconds of running; None: nothing was measured before."""
    newest = done / seconds
    if rate is None:
        return newest
    weight: float = 0.5 ** (seconds / HALF_LIFE_S)
    return weight * rate + (1.0 - weight) * newest


def left_s(*, total: int | None, done: int, rate: float | None) -> float | None:
    """Seconds until all is done, at this rate; None: nobody knows."""
    if total is None or rate is None or rate <= 0.0:
        return None
    return max(0, total - done) / rate


def told(*, done: int, total: int | None, is_split: bool) -> str:
    """How far it is: `12,345 of 50,000 items (24 %)`."""
    if total is None:
        return counted(done, "item") if is_split else f"{counted(done, 'item')}, and more to come"
    if total == 0:
        return "0 of 0 items"
    if done > total:
        return f"{counted(done, 'item')}, more than the {total:,} that were expected"
    return f"{done:,} of {counted(total, 'item')} ({100 * done // total} %)"


def told_s(seconds: float) -> str:
    """A span as people say it: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = math.ceil(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = math.ceil(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
