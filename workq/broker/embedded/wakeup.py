"""Wakeup: when a consumer looks again into a database that tells nobody about new rows.

After what this process has published itself, at once. On SQLite, after any commit of anybody: the file's version is
compared every few milliseconds, which costs some microseconds and takes no lock. Else by asking: the longer it has been
quiet, the more rarely, and in time for the next row that is known to become due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from workq.ledger.engine.database import Database

T = TypeVar("T")

LOOK_MIN_S: Final = 0.002
LOOK_MAX_S: Final = 0.2
LOOK_PART: Final = 0.1
"""After so much of the time for which it has been quiet, look again."""
COMPARE_MAX_S: Final = 0.02
COMPARE_PART: Final = 0.02
"""The same for a comparison of the version."""


class Wakeup:
    """Of one consumer. `wait` waits for so many seconds, or until this process publishes, and then says so."""

    def __init__(
        self, database: Database, wait: Callable[[float], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wait = wait
        self._clock = clock
        self._version = _Version(database) if database.dialect == "sqlite" else None
        self._quiet_since = clock()
        self._is_closed = False

    def until(self, look: Callable[[], tuple[T | None, float]], wait_s: float) -> T | None:
        """Look until something is found, or for about `wait_s`. `look` also tells in how many seconds to look again."""
        deadline = self._clock() + wait_s
        while True:
            seen = self._version.now() if self._version is not None else 0
            found, again_s = look()
            now = self._clock()
            if found is not None:
                self._quiet_since = now
            if found is not None or self._is_closed or now >= deadline:
                return found
            self._pause(seen, now, min(deadline, now + again_s))

    def close(self) -> None:
        """Wait no more, and give back what is used for it. Repeatable."""
        self._is_closed = True
        if self._version is not None:
            self._version.close()

    def _pause(self, seen: int, now: float, until: float) -> None:
        quiet_s = now - self._quiet_since
        until = min(max(until, now + LOOK_MIN_S), now + _between(LOOK_MIN_S, quiet_s * LOOK_PART, LOOK_MAX_S))
        if self._version is None:
            self._wait(until - now)
            return
        step_s = _between(LOOK_MIN_S, quiet_s * COMPARE_PART, COMPARE_MAX_S)
        while (left_s := until - self._clock()) > 0.0:
            if self._wait(min(step_s, left_s)) or self._version.now() != seen:
                return


class _Version:
    """The version of an SQLite file, which every commit changes, on a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._connection: Any = database.engine.raw_connection()

    def now(self) -> int:
        """Another number than before: somebody else has committed. Never raises: then it is always another one."""
        try:
            (version,) = self._connection.driver_connection.execute("PRAGMA data_version").fetchone()
        except Exception:  # whatever it is, looking will tell
            return time.monotonic_ns()
        return int(version)

    def close(self) -> None:
        self._connection.close()


def _between(least: float, value: float, most: float) -> float:
    return max(least, min(value, most))
