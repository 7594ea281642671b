"""Scan floor: from where on a consumer of rows looks for what is due.

A row that was taken stays in its index as a dead version until no transaction is old enough to see it. One that idles,
a long dump or a replica that lags holds that up, and a look from the beginning reads all of them again each time: the
collapse that queues on SKIP LOCKED are known for. So a look begins a little before the oldest row that was seen last. A
look from the beginning follows every second, or more rarely where it takes long.

What becomes visible below the floor waits for that look: a row whose writer took longer than `SLACK` to commit, or
that a consumer had taken and gave back. The times compared are the database's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

SLACK: Final = timedelta(seconds=2.0)
WHOLE_EVERY_S: Final = 1.0
WHOLE_PART: Final = 0.02
"""Of the time, at most so much is spent on looks from the beginning."""
BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)

Rows = Sequence[tuple[Any, ...]]


class ScanFloor:
    """Of one consumer. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, datetime] = {}
        self._whole_at: dict[str, float] = {}
        """When to look from the beginning again."""

    def look(self, queue: str, ask: Callable[[datetime], Rows]) -> Rows:
        """Rows of a queue. `ask` answers those from an instant on, oldest first; each begins with when it is due."""
        began = self._clock()
        since = self._since.get(queue, BEGINNING)
        is_whole = began >= self._whole_at.get(queue, began)
        rows = ask(BEGINNING if is_whole else since)
        if is_whole:
            took_s = self._clock() - began
            self._whole_at[queue] = began + max(WHOLE_EVERY_S, took_s / WHOLE_PART)
        if rows:
            oldest: datetime = rows[0][0] - SLACK
            self._since[queue] = oldest if is_whole else max(since, oldest)
        return rows
