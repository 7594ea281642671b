"""Levels: for those who want few delays, each is rounded up to the next of some. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import ceil
from typing import Final

from workq.errors import ConfigError
from workq.values.names import DELAY_MAX_S, check_delay_s, seconds_of

LEVELS_MAX: Final = 32


def check_levels(levels: object) -> tuple[float, ...]:
    """Levels in seconds, of text such as `5s,10s,30s,1m`.

    Raises:
        ConfigError: none, too many, or one that is no duration or not above the one before.
    """
    written = levels.split(",") if isinstance(levels, str) else []
    if not 1 <= len(written) <= LEVELS_MAX:
        raise ConfigError(f"levels: need 1 to {LEVELS_MAX} durations, such as 5s,10s,30s,1m")
    found: list[float] = []
    for one in written:
        seconds = seconds_of(one.strip())
        if not seconds or (found and seconds <= found[-1]):
            raise ConfigError(f"levels: need durations that ascend, such as 5s,10s,30s,1m, got {one[:60]!r}")
        found.append(check_delay_s(seconds, "levels"))
    return tuple(found)


def rounded_up(delay_s: float, levels_s: tuple[float, ...]) -> float:
    """A delay, rounded up to the next level; above the highest, to a multiple of it. Never shorter than it was.

    What is due at once stays so.
    """
    if not levels_s or delay_s <= 0.0:
        return delay_s
    for level_s in levels_s:
        if delay_s <= level_s:
            return level_s
    return ceil(delay_s / levels_s[-1]) * levels_s[-1]


def on_levels(delay_s: float, at: datetime | None, levels_s: tuple[float, ...]) -> tuple[float, datetime | None]:
    """When a message is due, rounded up: in so many seconds, and at which instant exactly, if one is named."""
    later_s = min(DELAY_MAX_S, rounded_up(delay_s, levels_s))
    return later_s, None if at is None else whole_ms(at + timedelta(seconds=later_s - delay_s))


def begun_ms(at: datetime) -> datetime:
    """The millisecond that has begun: a level that counts from there ends on a whole one."""
    return at - timedelta(microseconds=at.microsecond % 1000)


def whole_ms(at: datetime) -> datetime:
    """The next whole millisecond: SQLite keeps no more, and nothing is sent before its time."""
    return at + timedelta(microseconds=-at.microsecond % 1000)
