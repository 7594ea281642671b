"""The port of the ledger: questions, which change nothing.

What holds for all of it is said in `workq/ledger/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Protocol

from workq.ledger.answers import Company, Counts, Standing
from workq.values.task import Event, State, Task


class Questions(Protocol):
    """This part of what every ledger promises."""

    # -- questions

    def get(self, task_id: str) -> Task | None:
        """One task, or None."""
        ...

    def tasks(
        self,
        *,
        state: State | None = None,
        queue: str | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        """Tasks by id from the newest, a page at a time: `after` is the last id of the page before.

        `queue`: here and in `Which` and `WhichOpen`, all bands of a queue, or one of them.
        """
        ...

    def running(self, worker: str, *, limit: int = 1000) -> list[Task]:
        """What an incarnation has claimed and not settled, by id."""
        ...

    def history(self, task_id: str) -> list[Event]:
        """The events of one task, oldest first."""
        ...

    def counts(self) -> Counts:
        """How many tasks are where."""
        ...

    def has_due(self, queues: Sequence[str]) -> bool:
        """Whether any task of these queues could be claimed now, or waits for its limit. None of a paused one can."""
        ...

    # -- questions of operators (see diagnose/why.py and diagnose/meters.py)

    def standings(self, task_ids: Iterable[str]) -> dict[str, Standing]:
        """Where these tasks stand in every detail; an id that the ledger does not know is missing in the answer."""
        ...

    def older(self, than: Standing) -> int:
        """How many tasks of the same queue could be claimed and were due before this one; counted up to 100,000."""
        ...

    def company(self, of: Standing) -> Company:
        """Which other tasks the same worker has claimed and not settled."""
        ...

    def happened(self, kinds: Collection[str], *, within_s: float, limit: int) -> list[Event]:
        """The newest events of these kinds, at most `limit` and `within_s` seconds old; the oldest first."""
        ...

    def begun(self, *, within_s: float) -> int:
        """How many tasks have succeeded within these seconds, or run now: attempts of which no event tells."""
        ...

    def swept_for_s(self) -> float | None:
        """How long ago a sweep last finished a pass; None when it is not known."""
        ...

    def clock(self) -> datetime:
        """The database's clock. Also the cheapest proof that the ledger answers."""
        ...
