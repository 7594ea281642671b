"""How hints wait in RabbitMQ until they are due, as people write it: `binary`, or `levels:5s,10s,30s,1m`."""

from __future__ import annotations

import math
from typing import Final

from workq.config.values import kind_of
from workq.errors import ConfigError
from workq.values.names import seconds_of

BINARY: Final = "binary"
LEVELS_MAX: Final = 32
LEVEL_MIN_MS: Final = 100
LEVEL_MAX_MS: Final = 86_400_000
_PREFIX: Final = "levels:"
_FORMS: Final = f"use {BINARY}, or for one queue a level: {_PREFIX}5s,10s,30s,1m"
_SHOWN_CHARACTERS: Final = 40


def levels_ms(ladder: object) -> tuple[int, ...]:
    """The levels that a ladder names, in milliseconds, ascending; none for `binary`.

    Raises:
        ConfigError: it is not of the right form, or a level is out of bounds or not above the one before.
    """
    if not isinstance(ladder, str):
        raise ConfigError(f"must be text, not {kind_of(ladder)}; {_FORMS}")
    if ladder == BINARY:
        return ()
    if not ladder.startswith(_PREFIX):
        raise ConfigError(f"{_shown(ladder)} is no ladder of delays; {_FORMS}")
    written = ladder.removeprefix(_PREFIX).split(",")
    if len(written) > LEVELS_MAX:
        raise ConfigError(f"{len(written)} levels are too many: each is a queue; use {LEVELS_MAX} at most")
    levels: list[int] = []
    for one in written:
        level = _milliseconds(one)
        if levels and level <= levels[-1]:
            raise ConfigError(f"level {_shown(one)} is not above the one before it; write them in ascending order")
        levels.append(level)
    return tuple(levels)


def _milliseconds(written: str) -> int:
    seconds = seconds_of(written)
    if seconds is None:
        raise ConfigError(
            f"level {_shown(written)} is no duration; write 500ms, 5s, 1m or 2h, and commas between levels"
        )
    milliseconds = round(seconds * 1000)
    if not math.isclose(milliseconds, seconds * 1000):
        raise ConfigError(f"level {_shown(written)} is no whole number of milliseconds; write for example 1500ms")
    if not LEVEL_MIN_MS <= milliseconds <= LEVEL_MAX_MS:
        raise ConfigError(f"level {_shown(written)} is out of bounds; a level takes from 100ms to 24h")
    return milliseconds


def _shown(text: str) -> str:
    """One line, ASCII, and short."""
    return ascii(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")
