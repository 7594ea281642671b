"""The port of the ledger: what people do to tasks and queues.

What holds for all of it is said in `workq/ledger/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from workq.ledger.answers import CancelAnswer, DeadGroup, Pause, Unpublished, Which, WhichOpen
from workq.values.task import State


class People(Protocol):
    """This part of what every ledger promises."""

    def pause(self, queue: str, *, who: str, why: str, for_s: float | None = None) -> Pause:
        """Let nothing of a queue, or of one band of it, be claimed from now on, for `for_s` seconds or until `resume`.

        What is claimed goes on, also by a statement that is under way. A queue that is paused already is paused anew.
        Needs no queue of that name. Atomic: all of its bands are paused, or none.
        """
        ...

    def resume(self, queue: str, *, who: str, why: str) -> bool:
        """Let it be claimed again, a queue with all of its bands; False when none of it was paused. Repeatable."""
        ...

    def pauses(self) -> dict[str, Pause]:
        """What is paused now, band by band: by the names that tasks have as `queue`."""
        ...

    def cancel(self, task_id: str, *, reason: str, kills: bool = False) -> CancelAnswer:
        """Cancel at once what does not run; ask it of what runs. NotFound when there is no such task.

        `kills`: the process of an attempt that runs is to be killed (see `kills`). Repeatable.
        """
        ...

    def kills(self, workers: Sequence[str]) -> dict[str, int]:
        """The attempts of these incarnations that a person wants ended by force, by task, until they have ended."""
        ...

    def open_count(self, which: WhichOpen) -> Mapping[State, int]:
        """How many they are, in each state in which there are any."""
        ...

    def open_ids(self, which: WhichOpen, *, limit: int) -> list[str]:
        """Some of those of whom no cancel was asked yet, in no order; none, when there are no more."""
        ...

    def cancel_all(
        self, task_ids: Sequence[str], *, states: Collection[State], reason: str
    ) -> tuple[list[str], list[str]]:
        """As `cancel`, of many that are in one of these states, in one transaction.

        Answers who was cancelled, and who was asked. What has left these states since is in neither. Repeatable.
        """
        ...

    def reschedule(self, task_id: str, *, delay_s: float, why: str, at: datetime | None = None) -> Unpublished:
        """Let a task that does not run be due in `delay_s` seconds, whatever it waited for. Answers its new hint.

        `at`: the instant to which these seconds lead, where a person has named one: it is due exactly then.

        The hint that it had is worth nothing when it comes: too early, the claim refuses it; too late, it is done. A
        task that expires before is refused. Raises NotFound or Refused.
        """
        ...

    def revive(self, task_id: str, *, why: str) -> Unpublished:
        """Send a dead or cancelled task back to ready with fresh budgets; it does not expire any more.

        Raises NotFound or Refused.
        """
        ...

    def dead_groups(self, which: Which, *, limit: int) -> list[DeadGroup]:
        """The dead by what they died of, the largest group first."""
        ...

    def dead_count(self, which: Which) -> int:
        """How many they are."""
        ...

    def revivable_count(self, which: Which) -> int:
        """How many of them `revive_dead` would send back now: not those of jobs, nor those whose key is not free."""
        ...

    def dead_ids(self, which: Which, *, after: str | None, limit: int) -> list[str]:
        """A page of them, by id from the oldest: `after` is the last id of the page before."""
        ...

    def revive_dead(self, task_ids: Sequence[str], *, why: str) -> tuple[list[Unpublished], dict[str, str]]:
        """As `revive`, of many that are dead, in one transaction; answers the hints, and by id why another is not.

        What is not dead any more is in neither: somebody was faster. Repeatable.
        """
        ...

    def discard_dead(self, task_ids: Sequence[str], *, why: str) -> list[str]:
        """Dead tasks that nobody wants back: cancelled, as `discarded`. Answers which were. Repeatable."""
        ...

    def note(
        self, kind: str, *, detail: Mapping[str, Any], task_id: str | None = None, worker: str | None = None
    ) -> None:
        """Append an event."""
        ...
