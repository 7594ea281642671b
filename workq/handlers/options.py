"""Options: how a task is recorded and run, checked where they are given. Those that are stored: values/options.py."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final

from workq.errors import ConfigError
from workq.values.lane import physical
from workq.values.limit_rule import LimitRule
from workq.values.names import check_delay_s
from workq.values.options import TASK_OPTIONS
from workq.values.task import AfterDeath, NewTask, Priority, TaskOptions

TIME_LIMIT_MAX_S: Final = 7 * 86400.0
BATCH_MAX: Final = 1000
LINGER_MAX_S: Final = 60.0


def check_time_limit_s(value: object) -> float:
    """Seconds above 0, up to a week."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= TIME_LIMIT_MAX_S:
        raise ConfigError(f"time_limit_s: need seconds above 0, up to {TIME_LIMIT_MAX_S:.0f}, got {value!r}")
    return float(value)


def seconds_until(at: object) -> float:
    """Seconds from now until an aware instant; 0 when it is past."""
    if not isinstance(at, datetime) or at.tzinfo is None or at.utcoffset() is None:
        raise ConfigError(f"at: need an aware datetime, such as datetime.now(UTC) + timedelta(hours=1), got {at!r}")
    try:
        ahead = at.astimezone(UTC) - datetime.now(UTC)
    except OverflowError as error:
        raise ConfigError(f"at: {at!r} is outside of the years 1 to 9999 in UTC") from error
    return check_delay_s(max(timedelta(0), ahead).total_seconds())


@dataclass(frozen=True, slots=True)
class Batch:
    """How many single tasks a worker gathers for one call, and for how long the first of them waits for others."""

    size: int
    linger_s: float


def check_batch(size: object, linger_s: object) -> Batch:
    """A whole number of tasks, and seconds from 0 to a minute: what waits has been claimed already."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= BATCH_MAX:
        raise ConfigError(f"batch: need a whole number from 1 to {BATCH_MAX}, got {size!r}")
    if isinstance(linger_s, bool) or not isinstance(linger_s, int | float) or not 0.0 <= linger_s <= LINGER_MAX_S:
        raise ConfigError(f"linger_s: need seconds from 0 to {LINGER_MAX_S:.0f}, got {linger_s!r}")
    return Batch(size, float(linger_s))


class Options(TaskOptions, frozen=True, kw_only=True, dict=True):
    """How one call is recorded. `connection` is the caller's own SQLAlchemy connection or session."""

    queue: str
    delay_s: float = 0.0
    at: datetime | None = None
    """The instant that was named; `delay_s` leads to it by the clock of this host, the ledger decides by its own."""
    key: str | None = None
    expires_s: float | None = None
    priority: Priority = Priority.NORMAL
    key_for_s: float | None = None
    order_key: str | None = None
    after_death: AfterDeath = AfterDeath.BLOCK
    limit: LimitRule | None = None
    connection: Any = None

    @cached_property
    def blank(self) -> NewTask:
        """A task with these options, to be copied for each call, far cheaper than made. Its limit is that of a call."""
        return NewTask(
            id="",
            name="",
            queue=physical(self.queue, self.priority),
            payload="",
            delay_s=self.delay_s,
            key=self.key,
            key_for_s=self.key_for_s,
            at=self.at,
            **{one.name: getattr(self, one.name) for one in TASK_OPTIONS},
        )
