"""Bulk: one decision about many tasks, page by page: paced, tried on a few first, interrupted and resumed.

Nothing is remembered between runs, and nothing needs to be: what was decided is not dead any more, or not open, so the
same command run again goes on where the last one ended. An interruption waits for the page that is being decided: the
tally is right however a run ends. Each run is kept in the ledger as an event `manual`: who, what, which, how many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from workq.enqueue.relay import publish
from workq.ledger import DeadGroup, Which, WhichOpen
from workq.stores import Stores
from workq.values.task import SETTLED, State

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


PAGE: Final = 500
GROUPS_MAX: Final = 1_000
FOUND_AT_ONCE: Final = 20_000
"""How many open tasks are looked for at once: where few match, each look passes by the others."""
_LOOK_EVERY_S: Final = 0.2
_PAGES_A_SECOND: Final = 4
"""With a rate, so that it is kept within a quarter of a second."""


@dataclass(slots=True)
class Tally:
    """What a run did. `stopped`: the groups whose canaries failed, and why."""

    done: int = 0
    asked: int = 0
    """Tasks that run, and were asked to stop."""
    unconfirmed: int = 0
    """Hints that the broker did not confirm in time: the sweep sends them."""
    refused: dict[str, str] = field(default_factory=dict)
    stopped: list[tuple[DeadGroup, str]] = field(default_factory=list)


class RateCap:
    """At most so many a second, over the whole run."""

    def __init__(
        self,
        per_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_s, self._clock, self._sleep = per_s, clock, sleep
        self._next_at = clock()

    @property
    def page(self) -> int:
        """How many at once."""
        return PAGE if self._per_s is None else max(1, min(PAGE, int(self._per_s / _PAGES_A_SECOND)))

    def wait(self, count: int) -> None:
        """Before so many more: until those before have had their time."""
        if self._per_s is None:
            return
        now = self._clock()
        if self._next_at > now:
            self._sleep(self._next_at - now)
        self._next_at = max(self._next_at, now) + count / self._per_s


class Bulk:
    """One run, over the stores of one ledger."""

    def __init__(
        self,
        stores: Stores,
        *,
        confirm_s: float,
        who: str,
        why: str,
        pace: RateCap,
        tally: Tally,
        held_back: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`held_back()`: while it lasts, nothing from outside interrupts this thread."""
        self._stores = stores
        self._ledger: Ledger = stores.ledger
        self._confirm_s = confirm_s
        self._who = who
        self._why = why
        self._pace = pace
        self._held_back = held_back
        self.tally = tally

    def retry(self, which: Which) -> None:
        """Send back all of these."""
        for page in self._pages(which):
            self._send_back(page)

    def retry_with_canaries(self, which: Which, *, canaries: int, wait_s: float) -> None:
        """Send back a few of each group, wait until they have run, and send the others of those groups that did well.

        A canary has failed when its first attempt has: nobody waits until its budget is used up. One that has not run
        in time says nothing good either.
        """
        for group in self._ledger.bulk.dead_groups(which, limit=GROUPS_MAX):
            of_group = replace(which, group=group.group, name=group.name)
            first = self._ledger.bulk.dead_ids(of_group, after=None, limit=canaries)
            self._pace.wait(len(first))
            sent = self._send_back(first)
            trouble = self._trouble(sent, wait_s) if sent else "none of its canaries could be sent back"
            if trouble is None:
                self.retry(of_group)
            else:
                self.tally.stopped.append((group, trouble))

    def discard(self, which: Which) -> None:
        """Cancel all of these as discarded."""
        for page in self._pages(which):
            with self._held_back():
                self.tally.done += len(self._ledger.bulk.discard_dead(page, who=self._who, why=self._why))

    def cancel(self, which: WhichOpen) -> None:
        """Cancel all of these that are enqueued now; ask those that run."""
        which = replace(which, before=self._ledger.questions.clock())
        while found := self._ledger.bulk.open_ids(which, limit=FOUND_AT_ONCE):
            for start in range(0, len(found), self._pace.page):
                page = found[start : start + self._pace.page]
                self._pace.wait(len(page))
                with self._held_back():
                    cancelled, asked = self._ledger.bulk.cancel_all(
                        page, states=which.states, who=self._who, why=self._why
                    )
                    self.tally.done += len(cancelled)
                    self.tally.asked += len(asked)

    def record(self, what: str, *, which: dict[str, Any]) -> None:
        """Note in the ledger what this run has done so far, if anything."""
        if self.tally.done or self.tally.asked:
            tasks = self.tally.done + self.tally.asked
            detail = {"who": self._who, "what": what, "why": self._why, "which": which, "tasks": tasks}
            self._ledger.history.note("manual", detail=detail)

    def _pages(self, which: Which) -> Iterator[Sequence[str]]:
        after: str | None = None
        while page := self._ledger.bulk.dead_ids(which, after=after, limit=self._pace.page):
            after = page[-1]
            self._pace.wait(len(page))
            yield page

    def _send_back(self, page: Sequence[str]) -> list[str]:
        """Answers those that were."""
        with self._held_back():
            hints, refused = self._ledger.bulk.revive_dead(page, who=self._who, why=self._why)
            self.tally.done += len(hints)
            self.tally.unconfirmed += len(hints)
            self.tally.refused |= refused
        if hints:
            self.tally.unconfirmed -= publish(self._stores, hints, deadline_s=self._confirm_s)
        return [hint.task_id for hint in hints]

    def _trouble(self, canaries: Sequence[str], wait_s: float) -> str | None:
        """What is wrong with these that were sent back; None when each succeeded, or was cancelled."""
        deadline = time.monotonic() + wait_s
        while True:
            tasks = [task for one in canaries if (task := self._ledger.questions.get(one)) is not None]
            failed = [task for task in tasks if task.state is State.DEAD or task.failures or task.crashes]
            if failed:
                error = (failed[0].error or failed[0].reason or "").strip().splitlines() or [""]
                return f"{len(failed)} of {len(canaries)} canaries failed again: {error[0][:200]}"
            left = [task for task in tasks if task.state not in SETTLED]
            if not left:
                return None
            if time.monotonic() >= deadline:
                return f"{len(left)} of {len(canaries)} canaries have not ended within {wait_s:g} s"
            time.sleep(_LOOK_EVERY_S)
