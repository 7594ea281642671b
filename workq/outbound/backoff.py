"""Backoff: when a webhook that has failed is sent again. Pure: the random source and the clock are arguments.

The steps are those of Standard Webhooks 1.0, over 75 hours. A step is a floor: the jitter only adds to it, and a
receiver that asks for more time gets it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import Final

from workq.errors import ConfigError

STEPS_S: Final = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""The waits behind the first attempt, the second, and so on."""
JITTER: Final = 0.2
"""Of a step, at most so much is added to it."""
RETRY_AFTER_MAX_S: Final = 86_400.0
THROTTLED_MIN_S: Final = 60.0
"""After 429 and after a timeout, at least."""
STEPS_MAX: Final = 100
STEP_MAX_S: Final = 7 * 86_400.0


def check_steps(steps_s: Sequence[object]) -> tuple[float, ...]:
    """A schedule of one's own, in seconds.

    Raises:
        ConfigError: it has none, too many, or one that is no time to wait.
    """
    if not 1 <= len(steps_s) <= STEPS_MAX:
        raise ConfigError(f"retry_schedule: need 1 to {STEPS_MAX} waits in seconds, got {len(steps_s)}")
    steps: list[float] = []
    for one in steps_s:
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0.0 <= one <= STEP_MAX_S:
            raise ConfigError(f"retry_schedule: a wait is 0 to {STEP_MAX_S:.0f} seconds, got {one!r}")
        steps.append(float(one))
    return tuple(steps)


def growing(first_s: float, most_s: float, retries: int, *, factor: float = 2.0) -> tuple[float, ...]:
    """A schedule by a formula: each wait is `factor` times the one before, none longer than `most_s`.

    Raises:
        ConfigError: it makes no schedule.
    """
    is_number = all(type(one) in (int, float) for one in (first_s, most_s, factor))
    if not is_number or not 0.0 < first_s <= most_s or not factor >= 1.0:
        raise ConfigError("retry_schedule: grows from more than 0 s up to at least that, by a factor of 1 or more")
    if type(retries) is not int or not 1 <= retries <= STEPS_MAX:
        raise ConfigError(f"retry_schedule: need 1 to {STEPS_MAX} waits, got {retries!r:.100}")
    steps, step = [], float(first_s)
    for _ in range(retries):
        steps.append(step)
        step = min(step * factor, float(most_s))
    return check_steps(steps)


def wait_s(
    failures: int,
    *,
    steps_s: Sequence[float] = STEPS_S,
    retry_after_s: float | None = None,
    is_throttled: bool = False,
    throttled_min_s: float = THROTTLED_MIN_S,
    rng: Random,
) -> float | None:
    """Seconds until the next attempt, after so many that have failed; None: that was the last.

    `is_throttled`: the receiver has said that it is too much, or did not answer in time; then `throttled_min_s` at
    least.
    """
    if failures > len(steps_s):
        return None
    step = steps_s[failures - 1]
    if is_throttled:
        step = max(step, throttled_min_s)
    return max(step * (1.0 + rng.uniform(0.0, JITTER)), retry_after_s or 0.0)


def retry_after_s(value: str | None, *, now: datetime) -> float | None:
    """What a `Retry-After` asks for: seconds, whole or not, or a date (RFC 9110); at most a day. None: nothing.

    `now`: aware. A date that has passed asks for nothing.
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
        if date.tzinfo is None:  # "-0000", or the old forms: they mean UTC
            date = date.replace(tzinfo=UTC)
        seconds = (date - now).total_seconds()
    if not math.isfinite(seconds) or "_" in text or seconds <= 0.0:
        return None
    return min(seconds, RETRY_AFTER_MAX_S)
