"""Split: a job's source is read page by page, and each page becomes a subtask. Itself a task, the job's first.

A few pages are recorded in one transaction with the cursor behind them, so that the splitter may be killed anywhere and
goes on there. No more than the job's window is outstanding: then it gives its thread back, and is woken when half of
that is done. It also gives it back each second, so that where there is one thread, the first subtasks start.

What goes wrong: the source raises after it has yielded something new: that was progress, and it is read on a little
later. It raises at once: the splitter has failed, and is tried again as any task; dead, it takes its job with it. It
raises `BadSource`: no other try would end otherwise; what was read is recorded, and the splitter is dead at once. An
item that JSON cannot carry, or that alone is larger than a payload may be, has failed for good, and the others go on.
An earlier attempt, thought dead, was not, and has recorded the page first: it is read again behind that.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from workq.enqueue.producer import Producer, hints_beside
from workq.errors import BadSource, PayloadError, Snooze
from workq.handlers.forks import handlers_code
from workq.handlers.said import is_a, kind_of, tell
from workq.jobs.ledger.sql import JobLedger
from workq.jobs.sources import Page, Source
from workq.jobs.values import JOB_ENDED, JOB_PAUSES, JOB_UNWANTED, Begun, Full, JobRow, NewJob
from workq.ledger import HintRows, Unpublished
from workq.stores import Stores
from workq.values import codec
from workq.values.failpoints import reach
from workq.values.fingerprint import fingerprint
from workq.values.task import FailedItem, NewSubtask

if TYPE_CHECKING:
    from workq.jobs.ledger.sql import JobLedger
    from workq.ledger.sql import Ledger

log = logging.getLogger("workq.jobs")

PAGES: Final = 20
"""Pages that are recorded in one transaction, at most."""
SLICE_S: Final = 1.0
"""After so long the splitter gives its thread back."""
FULL_S: Final = 5.0
"""When the splitter looks again by itself whether there is room; it is woken before."""
AGAIN_S: Final = 2.0
"""After a source has raised, and had yielded something before."""


def begin_job(new: NewJob, producer: Producer, jobs: JobLedger) -> Begun:
    """Record a job, and see to the hint of its splitter.

    Raises:
        Refused: the other of its name and key has not ended, and this one was to be refused then; or this is inside of
            a handler's transaction.
    """
    producer.check_outside("begin the job before it")

    def write(hints: HintRows | None) -> tuple[Begun, list[Unpublished]]:
        begun = jobs.jobs.begin_job(new, hints=hints)
        return begun, list(begun.hints)

    return producer.record_by(write)


class FailedItems:
    """A source: the items of another job that have failed for good. The cursor is the number of the last."""

    def __init__(self, ledger: Ledger, job_id: str) -> None:
        self._ledger = ledger
        self._job_id = job_id

    def count(self) -> int | None:
        """See `Source`: whoever has begun the job has counted them."""
        return None

    def pages(self, cursor: Any, size: int) -> Iterator[Page]:
        """See `Source`."""
        after = cursor or 0
        while found := self._ledger.part(JobLedger).questions.failed_items(
            self._job_id, after=after, limit=size, of_subtasks=True
        ):
            after = found[-1][0]
            begins = found[0][1].cursor if len(found) == 1 else None
            yield Page([codec.decode(item.item) for _, item in found], after, begins)


class Splitting:
    """One attempt to split one job further."""

    def __init__(
        self,
        job: JobRow,
        source: Source,
        stores: Stores,
        producer: Producer,
        *,
        payload_max_bytes: int,
        stops: Callable[[], bool],
        waits: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stops`: whether to leave off at the next page. `waits`: how to wait, when its window is full, for the room
        that it answers; by default it leaves off, and so it does each second.
        """
        self._job = job
        self._source = source
        self._stores = stores
        self._producer = producer
        self._payload_max_bytes = payload_max_bytes
        self._stops = stops
        self._waits = waits
        self._clock = clock
        self._params: Mapping[str, Any] = codec.decode(job.params)["k"]
        self._made = job.read_subtasks
        self._room = max(0, job.options.window - job.open_subtasks)
        self._subtasks: list[NewSubtask] = []
        self._failed: list[FailedItem] = []
        self._cursor = job.cursor
        self._has_progressed = False

    def run(self) -> None:
        """Split until its source ends, its window is full, or its time is over.

        Raises:
            Snooze: it is not at its end, and goes on later.
            BadSource: its source yields what no other try would mend.
        """
        if self._job.is_split or self._job.state in JOB_UNWANTED | JOB_ENDED:
            return
        if self._job.state in JOB_PAUSES:
            self._pause()
        self._make_room()
        until = self._clock() + SLICE_S if self._waits is None else math.inf
        pages = iter(self._source.pages(self._cursor, self._job.options.chunk))
        total = self._source.count() if self._job.total is None and self._made == 0 else self._job.total
        if self._job.options.spread_s is not None and total is None:
            raise BadSource("spread_s: its source does not know how many items it has (Keyset: give total=)")
        while (page := self._next(pages)) is not None:
            self._add(page)
            is_first = self._made == 0
            if is_first or len(self._subtasks) >= min(PAGES, self._room) or self._clock() > until:
                if not self._record(total=total, is_last=False):
                    return
                self._make_room()
                if self._clock() > until or self._stops():
                    raise Snooze(0.0, "others have their turn")
        self._record(total=None, is_last=True)

    def _make_room(self) -> None:
        if self._room == 0 and self._waits is not None:
            self._room = self._waits()
        if self._room == 0:
            raise Full(FULL_S, "as many subtasks are open as its window has")

    def _pause(self) -> None:
        """It goes on when its job does: where it is parked at its next claim, or here, where it cannot leave off."""
        if self._waits is None:
            raise Snooze(0.0, "its job is paused")
        self._waits()

    def _next(self, pages: Any) -> Page | None:
        try:
            with handlers_code:
                found: Page | None = next(pages, None)
        except Exception as error:
            if self._subtasks and not self._record(total=None, is_last=False):
                return None
            if self._has_progressed and self._waits is None and not is_a(error, BadSource):
                tell(log, "job.source_raised", error, job=self._job.id, items=self._made)
                raise Snooze(AGAIN_S, f"its source raised: {kind_of(error)}") from error
            raise
        return found

    def _add(self, page: Page) -> None:
        """A page becomes a subtask; or several, where it is larger than a payload may be."""
        self._cursor = page.cursor
        for one in self._subtasks_of(page):
            if isinstance(one, Unfit):
                self._failed.append(_unfit(self._job.name, one.item, one.error))
            else:
                self._subtasks.append(one)

    def _subtasks_of(self, page: Page) -> Iterator[NewSubtask | Unfit]:
        most = self._payload_max_bytes
        if not self._job.options.is_partitioned:
            return chunks(page.items, self._params, payload_max_bytes=most)
        return (partition(one, page.begins, self._params, payload_max_bytes=most) for one in page.items)

    def _record(self, *, total: int | None, is_last: bool) -> bool:
        """Record what was read, and its cursor; False: this job is not ours to split any more."""
        hints = hints_beside(self._stores.broker)
        reach("split.before_record")
        split = self._stores.ledger.part(JobLedger).jobs.split_job(
            self._job.id,
            self._subtasks,
            failed=self._failed,
            after=self._made,
            cursor=self._cursor,
            total=total,
            is_last=is_last,
            hints=hints,
        )
        if split.is_paused:
            self._pause()
            return self._record(total=total, is_last=is_last)
        if split.is_elsewhere and self._waits is None:
            raise Snooze(0.0, "an earlier attempt has recorded this page")
        if split.room is None:
            return False
        reach("split.after_record")
        fresh = [] if hints is not None else self._unpublished()
        if hints is not None:
            self._stores.broker.wake()
        self._producer.relay.offer([*fresh, *split.hints])
        self._made += len(self._subtasks)
        self._has_progressed = self._has_progressed or bool(self._subtasks or self._failed)
        self._subtasks, self._failed = [], []
        self._room = split.room
        return True

    def _unpublished(self) -> list[Unpublished]:
        return [Unpublished(one.task_id, self._job.options.queue, 0, 0.0) for one in self._subtasks]


def _unfit(name: str, item: object, error: PayloadError) -> FailedItem:
    """An item that no subtask can carry."""
    shown = codec.encode(codec.storable(repr(item), characters_max=1000), path="item")
    text = f"PayloadError: {error}"
    return FailedItem(shown, 0, text, fingerprint(name, "", text))


class Unfit(Exception):
    """An item that no subtask can carry."""

    def __init__(self, item: Any, error: PayloadError) -> None:
        super().__init__(str(error))
        self.item = item
        self.error = error


def chunks(items: Sequence[Any], params: Mapping[str, Any], *, payload_max_bytes: int) -> Iterator[NewSubtask | Unfit]:
    """One subtask of all of these items, called with these parameters; or, where it would be too large, several.

    One that is larger than a payload may be is halved.
    """
    parts = [items]
    while parts:
        part = parts.pop()
        try:
            payload = codec.encode({"a": [part], "k": params}, path="items", max_bytes=payload_max_bytes)
        except PayloadError as error:
            if len(part) == 1:
                yield Unfit(part[0], error)
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            continue
        yield NewSubtask(codec.new_task_id(), payload, len(part))


def partition(
    item: Any, begins: str | None, params: Mapping[str, Any], *, payload_max_bytes: int
) -> NewSubtask | Unfit:
    """The subtask of a partition, which goes on at a cursor, as JSON; None: at its beginning.

    A partition is a subtask of its own. The cursor that its handler is called with stands beside it, in the ledger.
    """
    try:
        payload = codec.encode({"a": [item, None], "k": params}, path="partition", max_bytes=payload_max_bytes)
    except PayloadError as error:
        return Unfit(item, error)
    return NewSubtask(codec.new_task_id(), payload, 1, begins)
