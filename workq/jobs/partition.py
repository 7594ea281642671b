"""Partitions: work that cannot be listed in advance, step by step, each behind a cursor of its own.

A partition is a subtask whose handler is called again and again with the cursor that was committed last, until a call
has made no step, or a step has said that nothing is behind it. A step is one transaction (jobs/ledger/steps.py), so
whoever is killed, and whenever: the partition goes on behind its last step.

Between two calls it is looked whether to stop: cancelled, it ends; when its process leaves, its job is paused or has no
slot yet, or it has run for a while, its task is handed back at no cost, and goes on later.

What goes wrong: the handler raises in an attempt that has made a step: that was progress; it is no failure, and the
partition goes on after the delay of a first retry. It raises before any: it has failed, as any task. What its policy
gives up on is dead in either case. Dead, the partition is one failed item of its job, and who retries that goes on
behind its last step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final

from workq.errors import Cancel, ConfigError, Retry, Snooze
from workq.handlers import answer
from workq.handlers.context import Current, Desk
from workq.handlers.retry import Exponential, Retries
from workq.handlers.said import is_a, kind_of, tell
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.values import JOB_STARTS, JOB_UNWANTED, NewStep, Stepped
from workq.values import codec
from workq.values.names import check_delay_s
from workq.values.task import Claim

if TYPE_CHECKING:
    from sqlalchemy import Connection

log = logging.getLogger("workq.jobs")

SLICE_S: Final = 60.0
"""After so long an attempt gives its thread back, and others have their turn."""
WAIT_MAX_S: Final = 1.0
"""For a slot that comes so soon, it keeps its thread."""
ITEMS_MAX: Final = 1_000_000_000
"""Of one step."""


class Partition:
    """One attempt of one partition: where it stands, and whether it goes on."""

    def __init__(
        self,
        claim: Claim,
        desk: Desk,
        retries: Retries,
        *,
        slice_s: float = SLICE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._committed = desk.part(JobLedger).steps
        bookmark = self._committed.bookmark(claim)
        self.cursor: Any = bookmark.cursor
        self.has_ended = False
        """Nothing is behind its last step: its task has succeeded."""
        self._steps = bookmark.steps
        self._claim = claim
        self._desk = desk
        self._retries = retries
        self._until = clock() + slice_s
        self._clock = clock
        self._has_moved = self._has_progressed = False
        self._stepped = Stepped(None)

    @contextmanager
    def step(self, *, cursor: Any, items: int) -> Iterator[Connection]:
        """See `Current.step`."""
        if not is_count(items):
            raise ConfigError(f"step: items: need a whole number from 0 to {ITEMS_MAX}, got {items!r}")
        new = NewStep(self._steps, None if cursor is None else codec.encode(cursor, path="cursor"), items)
        with self._committed.step(self._claim, new, on_stood=self._stood) as connection:
            yield connection
        self.has_ended = new.cursor is None
        self.cursor = None if new.cursor is None else codec.decode(new.cursor)  # as whoever comes later would get it

    def _stood(self, stepped: Stepped) -> None:
        self._steps += 1
        self._stepped, self._has_moved, self._has_progressed = stepped, True, True

    def goes_on(self, here: Current) -> bool:
        """After a call: whether there is another; False: the partition is done.

        Raises:
            Cancel: nobody wants it any more. Snooze: it goes on later.
        """
        has_moved, self._has_moved = self._has_moved, False
        if not has_moved or here.has_succeeded:
            return False
        state = self._stepped.state
        if state in JOB_UNWANTED:
            raise Cancel(f"its job is {state}")
        if here.cancelled():
            raise Cancel("it was cancelled between two steps")
        if state is not None and state not in JOB_STARTS:
            raise Snooze(0.0, f"its job is {state}")
        if self._desk.is_leaving():
            raise Snooze(0.0, "its worker leaves")
        if self._stepped.wait_s > WAIT_MAX_S:
            raise Snooze(0.0, "its job has no slot yet")
        if self._clock() >= self._until:
            raise Snooze(0.0, "others have their turn")
        return True

    @property
    def wait_s(self) -> float:
        """How long to wait before the next call."""
        return self._stepped.wait_s

    def again(self, error: Exception) -> Snooze | None:
        """What becomes of an attempt whose handler has raised this, if it is no failure."""
        if not self._has_progressed or self.has_ended or self._gives_up(error):
            return None
        tell(log, "job.partition_raised", error, task=self._claim.task_id, steps=self._steps)
        return Snooze(self._delay_s(error), f"it raised after {self._steps} steps: {kind_of(error)}")

    def _gives_up(self, error: Exception) -> bool:
        return not is_a(error, Retry) and self._retries.gives_up(error)

    def _delay_s(self, error: Exception) -> float:
        rng = Random()
        try:
            if is_a(error, Retry) and error.in_s is not None:
                return check_delay_s(error.in_s, "Retry")
            return self._retries.delay_s(1, error, rng=rng)
        except BaseException:  # the user's function may raise anything
            return Exponential().delay_s(1, rng=rng)


def is_count(items: object) -> bool:
    """Whether a step can have so many items."""
    return isinstance(items, int) and not isinstance(items, bool) and 0 <= items <= ITEMS_MAX


def iterate(call: Callable[[Any], object], partition: Partition, here: Current) -> None:
    """Call the handler with one cursor after the other, in this thread.

    Raises:
        Exception: what the attempt ends with, unless its partition is done.
    """
    while True:
        try:
            answer.check(call(partition.cursor))
            if not partition.goes_on(here):
                return
            if partition.wait_s > 0.0:
                time.sleep(partition.wait_s)
        except (Cancel, Snooze):
            raise
        except Exception as error:
            if (snooze := partition.again(error)) is None:
                raise
            raise snooze from error


async def iterate_async(call: Callable[[Any], Awaitable[object]], partition: Partition, here: Current) -> None:
    """`iterate` in this event loop."""
    while True:
        try:
            answer.check(await call(partition.cursor))
            if not partition.goes_on(here):
                return
            if partition.wait_s > 0.0:
                await asyncio.sleep(partition.wait_s)
        except (Cancel, Snooze):
            raise
        except Exception as error:
            if (snooze := partition.again(error)) is None:
                raise
            raise snooze from error
