"""The port of the ledger: what decides when a task may start (schedules, order, limits, bands of priority).

What holds for all of it is said in `workq/ledger/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from typing import Protocol

from workq.ledger.answers import HintRows, LimitRow, NewSchedule, ScheduleRow, SequenceRow, Unpublished
from workq.values.task import Claim, NewTask


class Flow(Protocol):
    """This part of what every ledger promises."""

    # -- schedules (see tick.py)

    def schedule(self, given: NewSchedule) -> bool:
        """Let something tick, or change what stands under that name; False when it stands so already.

        Whose timetable stays keeps its next tick. Repeatable.
        """
        ...

    def unschedule(self, name: str, *, who: str) -> bool:
        """Let it tick no more; False when there is none of that name. What has become a task stays one."""
        ...

    def pause_schedule(self, name: str, *, who: str, why: str) -> None:
        """Let it not tick until `resume_schedule`. NotFound when there is none."""
        ...

    def resume_schedule(self, name: str, *, who: str, why: str) -> bool:
        """Let it tick again, from now on; False when it was not paused. NotFound when there is none."""
        ...

    def schedules(self) -> list[ScheduleRow]:
        """All of them, by name."""
        ...

    def schedules_due(self, *, ahead_s: float, limit: int) -> list[ScheduleRow]:
        """Those whose next tick comes within `ahead_s`, the earliest first. None that is paused."""
        ...

    def tick(
        self,
        row: ScheduleRow,
        ticks: Sequence[tuple[datetime, NewTask]],
        *,
        next_at: datetime | None,
        hints: HintRows | None = None,
    ) -> bool:
        """Record a task for each of these ticks, and let the next one be at `next_at`, in one transaction.

        False, and nothing is recorded, when the schedule does not stand any more where `row` saw it. Repeatable.
        """
        ...

    def ticks(self, schedule: str, *, limit: int) -> list[tuple[datetime, str]]:
        """When it has ticked, and which task that became, the newest first."""
        ...

    # -- order

    def advance(self, keys: Iterable[str]) -> list[Unpublished]:
        """Let the lines of these order keys move up, where their first has ended; answers whose turn has come.

        Those are ready, or waiting for their own time, and need a hint. Repeatable.
        """
        ...

    def ended_heads(self, *, limit: int) -> list[str]:
        """The order keys whose first has ended, and whose line has not moved up."""
        ...

    def sequences(self, *, key: str | None = None, blocked_only: bool = False, limit: int = 100) -> list[SequenceRow]:
        """The order keys with open tasks, by name; or one; or those that are blocked by a dead task."""
        ...

    # -- limits (see permits.py)

    def admit(self, keys: Iterable[str], *, dry_run: bool = False) -> list[Unpublished]:
        """Give what has come free of these limits to the first that are parked; answers whose turn has come.

        Those are ready, or waiting for their slot, and need a hint. Repeatable.
        """
        ...

    def admit_and_claim(
        self, keys: Iterable[str], *, by: str, room: int, queues: Container[str]
    ) -> tuple[list[Claim], list[Unpublished]]:
        """As `admit`, and those whose turn is now are claimed for `by`, of these queues as many as there is room for.

        Answers the claims, and those that need a hint. Subtasks of jobs are never claimed here.

        Raises:
            As `claim` does.
        """
        ...

    def limits_to_look_at(self, *, limit: int) -> list[str]:
        """The limits whose permits may have come free without anybody's noticing; longest ago looked at first."""
        ...

    def limits(self, *, key: str | None = None, limit: int = 100) -> list[LimitRow]:
        """The limits that are in use, by name; or one."""
        ...

    # -- bands

    def bands(self) -> frozenset[str]:
        """The bands of priority that are in use, by the names that their tasks have as `queue`; no normal one is named.

        `record` and `tick` see to it that a band is here before its first task can be seen.
        """
        ...

    def bands_used(self, queues: Iterable[str]) -> None:
        """Those of these queues that are bands are in use, from now on. Repeatable."""
        ...
