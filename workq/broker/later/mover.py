"""Mover: delayed hints leave the ledger when they are due. Take, publish, delete, again and again.

    take      rows that are due within `AHEAD_S` are reserved; what is left of a delay, the hint tells its consumer
    publish   hints of one queue share pages, and are confirmed
    delete    only what was confirmed; the rest is given back

Each supervisor has one mover for all queues of its namespace, whatever queues its processes serve and whatever its own
ladder is. So rows that were written before the setting changed, or by a producer with another setting, are moved too.
Movers share the rows.

Who decides: the ledger; a row is only a wake-up. What happens on each failure:

- a crash between take and publish: the rows are free again after `RESERVED_S`;
- a crash between confirm and delete: the hints are published once more, which is harmless;
- the broker does not confirm hints of a queue: their rows are given back, and the queue rests (resting.py). The others
  go on: of each batch, each queue that has something due has a share, and one that failed has a single row, which is
  published behind those of the others, and waited for only shortly where that queue took nothing before;
- the ledger does not answer: the mover rests; what is reserved becomes free by itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from workq.broker import PAGE, Broker, Hint
from workq.broker.each_queue import publish_each
from workq.broker.later.due_rows import RESERVED_S, DueRow, DueRows
from workq.broker.later.resting import BRIEF_S, REST_S, Resting
from workq.errors import ConfigError, Unavailable
from workq.ledger.engine.database import Database
from workq.logs.seldom import Seldom
from workq.values.codec import decode_hint
from workq.values.failpoints import reach

log = logging.getLogger("workq.mover")

AHEAD_S: Final = 0.09
"""So long before its time a hint is published. Its consumer waits for the rest."""
BATCH: Final = 1000
"""Rows that are taken at once, at most."""
PAUSE_MIN_S: Final = 0.02
"""Between two looks while nothing is due: rows that come close together are moved together."""
CLOSE_S: Final = 2.0
TOLD_EVERY_S: Final = 60.0
"""How often the log says the same of a mover that waits."""
LOOK_S: Final = 0.1
"""How often to look for rows that others have written. A delay is never shorter than that where it is a row."""
LOOK_RARELY_S: Final = 1.0
"""The same where rows are not expected: another ladder is set here."""
_CONFIRM_MAX_S: Final = 0.8 * RESERVED_S
_TAKES_NOTHING: Final = (
    "takes nothing, though others do. See whether a policy bounds it (max-length with reject-publish), who empties it, "
    "and whether it has its majority"
)


class _Page:
    """Ids of one queue that share a hint, and the rows that they come from."""

    def __init__(self, row: DueRow, looks: int) -> None:
        self.queue, self.looks = row.queue, looks
        self.task_ids: list[str] = []
        self.waits_s: list[float] = []
        self.rows: list[int] = []

    def has_room(self, ids: Sequence[str]) -> bool:
        return len(self.task_ids) + len(ids) <= PAGE

    def add(self, row: DueRow, ids: Sequence[str]) -> None:
        self.rows.append(row.id)
        self.task_ids += ids
        self.waits_s += [max(0.0, row.due_in_s)] * len(ids)

    def hint(self) -> Hint:
        waits_s = tuple(self.waits_s) if any(self.waits_s) else ()
        return Hint(self.queue, tuple(self.task_ids), looks=self.looks, waits_s=waits_s)


class Mover:
    """Publishes delayed hints of one namespace when they are due. `clock` is monotonic."""

    def __init__(
        self,
        database: Database,
        broker: Broker,
        *,
        look_s: float,
        confirm_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`broker`: where due hints go. It tells its consumers what is left of a delay."""
        self._broker = broker
        self._rows = DueRows(database, clock=clock)
        self._look_s = look_s
        self._confirm_s = min(confirm_s, _CONFIRM_MAX_S)
        self._clock = clock
        self._resting = Resting(clock)
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._seldom = Seldom(log, every_s=TOLD_EVERY_S)

    def step(self) -> float:
        """Move what is due, one batch at most; answers in how many seconds to look again.

        Raises:
            Unavailable: the ledger did not answer.
        """
        first = self._rows.first(within_s=AHEAD_S + self._look_s)
        first = {queue: in_s for queue, in_s in first.items() if queue not in self._resting}
        due = [queue for _, queue in sorted((in_s, queue) for queue, in_s in first.items() if in_s <= AHEAD_S)]
        if not due:
            return min(self._look_s, max(PAUSE_MIN_S, min(first.values(), default=math.inf) - AHEAD_S))
        rows = self._rows.take(due, ahead_s=AHEAD_S, limit=BATCH, one_of=self._resting.failed)
        reach("move.before_publish")
        self._move(rows)
        most = max(Counter(row.queue for row in rows if row.queue not in self._resting).values(), default=0)
        return 0.0 if most >= max(1, BATCH // len(due)) else PAUSE_MIN_S

    def start(self) -> None:
        """Move in a thread of its own, until `close`."""
        self._thread = threading.Thread(target=self._run, name="workq-mover", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """A row was written in this process: look at once."""
        self._wanted.set()

    def close(self) -> None:
        """End after the batch that is under way, within a bound. Repeatable."""
        self._closing.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                pause_s = self.step()
            except (Unavailable, OSError) as error:
                self._seldom.warning("mover.waits", reason=str(error))
                pause_s = REST_S
            except Exception as error:  # a mover that ended would make every delayed task late
                self._seldom.note(("mover.failed", repr(error)), partial(_tell_failed, error))
                pause_s = REST_S
            if pause_s >= REST_S > self._look_s:
                self._closing.wait(pause_s)
            else:
                self._wanted.wait(pause_s)
                self._wanted.clear()

    def _move(self, rows: Sequence[DueRow]) -> None:
        """Publish these rows, delete what was confirmed, give the rest back."""
        pages, useless = self._pages(rows)
        sent = self._sent(pages)
        reach("move.before_delete")
        self._rows.drop([*useless, *(row for page in sent for row in page.rows)])
        reach("move.after_delete")
        self._rows.give_back([row for page in pages if page not in sent for row in page.rows])

    def _sent(self, pages: Sequence[_Page]) -> list[_Page]:
        """Those of these pages that the broker has confirmed. A queue that did not take all rests."""
        refused: dict[str, ConfigError] = {}
        sent: list[_Page] = []
        brief = [page for page in pages if self._resting.is_brief(page.queue)]
        for some, wait_s in (([page for page in pages if page not in brief], self._confirm_s), (brief, BRIEF_S)):
            if not some:
                continue
            answers = publish_each(
                self._broker,
                [page.hint() for page in some],
                deadline_s=min(wait_s, self._confirm_s),
                refused=refused.__setitem__,
                clock=self._clock,
            )
            sent += [page for page, is_confirmed in zip(some, answers, strict=True) if is_confirmed]
        took, kept = {page.queue for page in sent}, {page.queue for page in pages if page not in sent}
        sick = self._resting.note(sent=took, kept=kept, refused=refused)
        for queue in sorted(sick):
            reason = str(refused[queue]) if queue in refused else f"broker: queue {queue} {_TAKES_NOTHING}"
            self._seldom.warning("mover.refused", reason=reason, queue=queue)
        if unclear := kept - sick - took:
            self._seldom.warning("mover.waits", reason="broker: it confirms nothing", queues=", ".join(sorted(unclear)))
        return sent

    def _pages(self, rows: Sequence[DueRow]) -> tuple[list[_Page], list[int]]:
        """The hints of these rows, and the rows that are no hints."""
        pages: list[_Page] = []
        newest: dict[tuple[str, int], _Page] = {}
        useless: list[int] = []
        for row in rows:
            found = decode_hint(row.body)
            if isinstance(found, str):
                self._rows.quarantine(row, reason=found)
                useless.append(row.id)
                continue
            if found.marker is not None:  # it was sent through this table, and proves nothing of another queue
                useless.append(row.id)
                continue
            page = newest.get((row.queue, found.looks))
            if page is None or not page.has_room(found.task_ids):
                page = newest[row.queue, found.looks] = _Page(row, found.looks)
                pages.append(page)
            page.add(row, found.task_ids)
        return pages, useless


def _tell_failed(error: Exception, count: int) -> None:
    log.error("mover.failed", exc_info=error, extra={"count": count})
