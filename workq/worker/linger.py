"""Linger: claimed tasks of one handler wait here for each other, to be run by one call (`batch=`, see batch.py).

They go on together when they are as many as their handler takes, when the first of them has waited for `linger_s`, or
when this process is crowded with such tasks; dispatch.py asks in each of its rounds who that is. A task that has a slot
in a rate has to start in time: at most half of what is left of it is waited here.

What waits here is claimed and has not started. It takes no thread and has no line on the board: when the process dies
it is charged with nothing, and when it leaves it goes back at no cost. Used by one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workq.handlers.handler import Batch, Handler
from workq.values.task import Claim


@dataclass(frozen=True, slots=True)
class Member:
    """One task of a group: its claim, the argument that it was enqueued with, and until when it has to start."""

    claim: Claim
    item: Any
    start_by: float | None


@dataclass(slots=True)
class FillingBatch:
    """Tasks of one handler, to be run together at `due_at` at the latest."""

    handler: Handler[..., Any]
    members: list[Member]
    due_at: float


class Linger:
    """What lingers in one process."""

    def __init__(self, *, most: int, clock: Callable[[], float]) -> None:
        """`most`: when so many linger in all, nobody waits any longer."""
        self.count = 0
        self.more = 0
        """How many claims more would find company here, if they are as those that came last."""
        self.is_used = False
        self._most = most
        self._clock = clock
        self._open: dict[str, FillingBatch] = {}
        self._full: list[FillingBatch] = []
        self._joined = self._in_a_row = 0
        """How many have come since the last `came`; and until then, without any other task among them."""

    def add(self, batch: Batch, handler: Handler[..., Any], member: Member) -> None:
        """One more task of a handler that takes so many."""
        now = self._clock()
        group = self._open.get(handler.name)
        if group is None:
            group = self._open[handler.name] = FillingBatch(handler, [], now + batch.linger_s)
        group.members.append(member)
        if member.start_by is not None:
            group.due_at = min(group.due_at, (now + member.start_by) / 2)
        if len(group.members) >= batch.size:
            self._full.append(self._open.pop(handler.name))
        self.count += 1
        self._joined += 1
        self.is_used = True

    def came(self, claims: int) -> None:
        """So many tasks were claimed at once, with those that joined here.

        A claim costs much the same for one task as for many. While nothing comes but company for those who wait here,
        more is claimed each time: as many as have come so far.
        """
        self._in_a_row = self._in_a_row + self._joined if self._joined == claims else 0
        self._joined = 0

    def ready(self, *, is_all: bool = False) -> list[FillingBatch]:
        """Those who wait no longer, in the order in which they are due; `is_all`: nobody does."""
        is_all = is_all or self.count >= self._most
        now = self._clock()
        due = [name for name, group in self._open.items() if is_all or group.due_at <= now]
        groups = [*self._full, *(self._open.pop(name) for name in due)]
        self._full.clear()
        self.count -= sum(len(group.members) for group in groups)
        places = sum(
            group.handler.batch.size - len(group.members) for group in self._open.values() if group.handler.batch
        )
        self.more = min(self._in_a_row, places)
        return sorted(groups, key=lambda group: group.due_at)

    def wait_s(self) -> float:
        """In how many seconds somebody is due; only while anybody is here."""
        return max(0.0, min((group.due_at for group in self._open.values()), default=0.0) - self._clock())

    def take_all(self) -> list[Claim]:
        """Everybody leaves."""
        return [member.claim for group in self.ready(is_all=True) for member in group.members]
