"""When something ticks, and as what task: cron text in a time zone, an interval, or one instant. Pure: no clock, no
store.

Cron text is cronsim's: five fields (six with seconds first), names, steps, `L` and `#`, or cron's `@daily` and its like
(`NICKNAMES`). Where both days are given, either is enough, as in Debian's cron. When the clocks go forward, a tick that
falls into the gap comes when the gap is over; when they go back, a fixed time ticks once, and a step such as `*/30`
goes on in real time.

Ticks are instants in UTC. What was missed is decided by a policy: nothing of it, once for all, or each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from workq.errors import ConfigError
from workq.values.task import Limit, TaskOptions

EVERY_MIN_S: Final = 1.0
EVERY_MAX_S: Final = 366 * 86400.0
CRON_MAX: Final = 150
"""Characters of cron text."""
NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""What cron takes in the place of five fields. What is stored are the fields."""


class MissedTicks(StrEnum):
    """What becomes of ticks that nobody was there for."""

    SKIP = "skip"
    """Nothing."""
    ONCE = "once"
    """One task for all of them: that of the last."""
    ALL = "all"
    """A task for each."""


class Rule(StrEnum):
    """What kind of timetable."""

    CRON = "cron"
    EVERY = "every"
    AT = "at"


@dataclass(frozen=True, slots=True)
class Timetable:
    """When a schedule ticks. `text` is cron text, seconds, or an instant in RFC 3339.

    One that stands in a ledger may be of another host, which knows more time zones, or of another version: what asks
    when it ticks raises ConfigError where this host cannot tell.
    """

    rule: Rule
    text: str
    zone: str = "UTC"

    @staticmethod
    def cron(text: object, zone: object = "UTC") -> Timetable:
        """By cron text in a time zone.

        Raises:
            ConfigError: it is no cron text, never comes, or nobody knows the zone.
        """
        if not isinstance(zone, str) or not zone or zone.startswith("/"):
            raise ConfigError(f"tz: need the name of a time zone, such as Europe/Berlin, got {zone!r}")
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ConfigError(
                f"tz: nobody here knows a time zone {zone!r}; a name such as Europe/Berlin, with the package tzdata "
                "where the system has none"
            ) from error
        if not isinstance(text, str) or not text.strip() or len(text) > CRON_MAX:
            raise ConfigError(f"cron: need cron text such as '0 3 * * *', got {text!r}")
        made = Timetable(Rule.CRON, NICKNAMES.get(text.strip().lower(), " ".join(text.split())), zone)
        try:
            CronSim(made.text, datetime.now(UTC))
        except CronSimError as error:
            raise ConfigError(
                f"cron: {text!r}: {error}; five fields, such as '0 3 * * *', or one of {', '.join(NICKNAMES)}"
            ) from error
        if made.after(datetime.now(UTC)) is None:
            raise ConfigError(f"cron: {text!r} never comes")
        return made

    @staticmethod
    def every(seconds: object) -> Timetable:
        """Each so many seconds, from when it is first known.

        Raises:
            ConfigError: no number from 1 to a year.
        """
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not EVERY_MIN_S <= seconds <= EVERY_MAX_S
        ):
            raise ConfigError(f"every_s: need seconds from {EVERY_MIN_S:g} to {EVERY_MAX_S:.0f}, got {seconds!r}")
        return Timetable(Rule.EVERY, repr(float(seconds)))

    @staticmethod
    def at(at: object) -> Timetable:
        """Once, at an aware instant.

        Raises:
            ConfigError: it is not one.
        """
        if not isinstance(at, datetime) or at.tzinfo is None or at.utcoffset() is None:
            raise ConfigError(f"at: need an aware datetime, such as datetime(2026, 12, 1, 9, tzinfo=UTC), got {at!r}")
        return Timetable(Rule.AT, at.astimezone(UTC).isoformat(timespec="milliseconds"))

    def first(self, now: datetime) -> datetime | None:
        """The first tick of a schedule that becomes known now; an instant that is past ticks all the same."""
        with self._reading():
            return datetime.fromisoformat(self.text) if self.rule is Rule.AT else self.after(now)

    def after(self, tick: datetime) -> datetime | None:
        """The next tick after one; None when there is none."""
        with self._reading():
            match self.rule:
                case Rule.AT:
                    at = datetime.fromisoformat(self.text)
                    return at if at > tick else None
                case Rule.EVERY:
                    return tick + timedelta(seconds=float(self.text))
                case Rule.CRON:
                    return next(self._cron_after(tick), None)

    def _cron_after(self, tick: datetime) -> Iterator[datetime]:
        for local in CronSim(self.text, tick.astimezone(ZoneInfo(self.zone))):
            yield local.astimezone(UTC)

    def newest(self, tick: datetime, until: datetime) -> datetime:
        """The last tick that is not after `until`, of those from `tick` on, which is one itself and not after it."""
        with self._reading():
            match self.rule:
                case Rule.AT:
                    return tick
                case Rule.EVERY:
                    every = timedelta(seconds=float(self.text))
                    return tick + (until - tick) // every * every
                case Rule.CRON:
                    beyond = (until + timedelta(seconds=1)).replace(microsecond=0).astimezone(ZoneInfo(self.zone))
                    for local in islice(CronSim(self.text, beyond, reverse=True), 3):
                        found = local.astimezone(UTC)
                        if found <= until:
                            return max(found, tick)
                    return tick

    def local(self, at: datetime) -> str:
        """A tick, as the clock on the wall shows it there."""
        with self._reading():
            return at.astimezone(ZoneInfo(self.zone)).isoformat(timespec="seconds")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (ZoneInfoNotFoundError, CronSimError, ValueError, OSError) as error:
            raise ConfigError(
                f"this host cannot read the timetable {self.text!r} ({self.zone}): {error}; install the package tzdata "
                "where it is the time zone that nobody knows, or declare the schedule anew"
            ) from error

    def shown(self) -> str:
        """For people."""
        match self.rule:
            case Rule.CRON:
                return f"{self.text} ({self.zone})"
            case Rule.EVERY:
                return f"every {self.text.removesuffix('.0')} s"
            case Rule.AT:
                return f"once, at {self.text}"


@dataclass(frozen=True, slots=True)
class Due:
    """Ticks that are due, and when the next one is."""

    ticks: tuple[datetime, ...]
    next_at: datetime | None


def due(
    timetable: Timetable,
    missed: MissedTicks,
    next_at: datetime,
    *,
    now: datetime,
    ahead_s: float,
    late_s: float,
    limit: int,
) -> Due:
    """The ticks from `next_at` on that are to become tasks now: those until `ahead_s` from now, at most `limit`.

    Ticks that are late by more than `late_s` were missed.
    """
    horizon = now + timedelta(seconds=ahead_s)
    tick: datetime | None = next_at
    if missed is not MissedTicks.ALL and next_at < (in_time := now - timedelta(seconds=late_s)):
        newest = timetable.newest(next_at, in_time)
        after = timetable.after(newest)
        # a later one that is in time stands for those that were missed
        tick = newest if missed is MissedTicks.ONCE and (after is None or after > now) else after
    ticks: list[datetime] = []
    while tick is not None and tick <= horizon and len(ticks) < limit:
        ticks.append(tick)
        tick = timetable.after(tick)
    return Due(tuple(ticks), tick)


class NewSchedule(TaskOptions, frozen=True):
    """What is to tick, and which task each tick becomes, with which options."""

    name: str
    timetable: Timetable
    missed: MissedTicks
    task_name: str
    queue: str
    payload: str
    expires_s: float | None = None
    """Counted from the tick."""
    limit: Limit | None = None


class ScheduleRow(TaskOptions, frozen=True, kw_only=True):
    """One schedule as the ledger knows it, with the options of its tasks. `now` is the ledger's clock at the look.

    `next_at` None: it does not tick any more. `last_at`: its last tick that became a task.
    """

    name: str
    timetable: Timetable
    missed: MissedTicks
    task_name: str
    queue: str
    payload: str
    expires_s: float | None
    limit: Limit | None
    changed_at: datetime
    next_at: datetime | None
    last_at: datetime | None
    paused_at: datetime | None
    who: str | None
    why: str | None
    now: datetime
