"""Relay: from the ledger to the broker, confirmed, then marked in bulk.

`enqueue()` returns when the ledger has committed; a thread behind it publishes the hints and marks them. Nothing
here is needed for safety: a hint that was not confirmed, or that there was no room to remember, leaves its row
unpublished, and the sweep relays it. A crash between publishing and marking means a second hint, which is harmless.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from workq.broker import PAGE, Broker, Hint, arrives_in_s
from workq.broker.each_queue import publish_each
from workq.errors import ConfigError, Unavailable
from workq.ledger import Unpublished
from workq.logs.seldom import Seldom
from workq.stores import Stores
from workq.values.failpoints import reach
from workq.values.time_limit import whole

log = logging.getLogger("workq.relay")

T = TypeVar("T")

BEHIND_MAX = 20_000
"""Rows that may wait in memory for the broker. What does not fit is left to the sweep."""
BATCH = 2_000
SENT_MAX = 10_000
"""Rows that are sent together, at most. The more there are, the more of those that are delayed share a hint."""
LINGER_S = 0.003
"""How long the first of a batch may wait for others, while rows come faster than they are published."""
QUEUES_TOLD_MAX = 5
"""The names of queues in one line of the log, at most."""
MARK_AFTER_S = 0.5
"""How long a confirmed hint may be unmarked. A crash meanwhile costs a second hint."""
MARK_AFTER_PART = 0.25
"""The same as a part of the sweep's grace, where that is less: the sweep would hint again what was only unmarked."""
MARK_WITH_PART = 0.5
"""What was confirmed for this part of that time is marked along with what is due."""


_seldom = Seldom(log, every_s=60.0)


def refused(queue: str, error: ConfigError) -> None:
    """The broker refuses a queue: the hints of others go on, and its own stay unpublished for the sweep."""
    _seldom.warning("relay.refused", reason=str(error), queue=queue)


def hints_of(rows: Iterable[Unpublished], *, unit_s: float) -> list[tuple[Hint, list[Unpublished]]]:
    """Pages of ids: rows of one queue that are due at once share hints, and delayed ones that are due in the same unit.

    Without a unit, a delayed row has a hint of its own.
    """
    pages: list[tuple[Hint, list[Unpublished]]] = []
    due: dict[str, list[Unpublished]] = {}
    delayed: dict[tuple[str, int], list[Unpublished]] = {}
    for row in rows:
        if row.delay_s == 0.0:
            due.setdefault(row.queue, []).append(row)
        elif unit_s:
            delayed.setdefault((row.queue, int(row.delay_s / unit_s + 1e-9)), []).append(row)
        else:
            pages.append((Hint(row.queue, (row.task_id,), row.delay_s), [row]))
    for queue, alike in due.items():
        for page in _pages(alike):
            pages.append((Hint(queue, tuple(row.task_id for row in page)), page))
    for (queue, units), alike in delayed.items():
        for page in _pages(alike):
            delay_s = units * unit_s
            waits_s = tuple(max(0.0, row.delay_s - delay_s) for row in page)
            pages.append((Hint(queue, tuple(row.task_id for row in page), delay_s, waits_s=waits_s), page))
    return pages


def pages_of(broker: Broker, rows: Iterable[Unpublished]) -> list[tuple[Hint, list[Unpublished]]]:
    """Hints of the rows that are due within the broker's horizon, each with its rows as they are marked afterwards.

    Where the broker is late, rows that it would keep equally long share pages, and are marked with when these come.
    """
    near = [row for row in rows if row.delay_s <= broker.horizon_s]
    if broker.is_late:
        near = [_kept(row, broker) if row.delay_s else row for row in near]
    return hints_of(near, unit_s=broker.unit_s)


def _kept(row: Unpublished, broker: Broker) -> Unpublished:
    """A delayed row, for as long as the broker keeps its hint."""
    return replace(row, delay_s=broker.waits_s(row.delay_s), arrives_in_s=arrives_in_s(broker, row.delay_s))


def _pages(rows: list[Unpublished]) -> Iterator[list[Unpublished]]:
    for start in range(0, len(rows), PAGE):
        yield rows[start : start + PAGE]


def publish(stores: Stores, rows: Sequence[Unpublished], *, deadline_s: float) -> int:
    """Publish hints for rows and mark those that the broker confirmed. Answers how many tasks that were.

    Rows due beyond the broker's horizon are left: the sweep promotes them when they come near.
    """
    sent = send(stores, rows, deadline_s=deadline_s)
    stores.ledger.hints.mark_published(sent)
    return len(sent)


def send(stores: Stores, rows: Sequence[Unpublished], *, deadline_s: float) -> list[Unpublished]:
    """Publish hints for rows; answers those that the broker confirmed, which are to be marked.

    A queue that the broker refuses is told in the log, and keeps no other waiting; so is what was not confirmed.
    """
    pages = pages_of(stores.broker, rows)
    if not pages:
        return []
    reach("relay.before_publish")
    told: set[str] = set()

    def tell(queue: str, error: ConfigError) -> None:
        told.add(queue)
        refused(queue, error)

    confirmed = publish_each(stores.broker, [hint for hint, _ in pages], deadline_s=deadline_s, refused=tell)
    reach("relay.before_mark")
    if not all(confirmed):
        left = [page for (hint, page), ok in zip(pages, confirmed, strict=True) if not ok and hint.queue not in told]
        _tell_unconfirmed([row for page in left for row in page])
    return [row for (_, page), ok in zip(pages, confirmed, strict=True) if ok for row in page]


def _tell_unconfirmed(rows: Sequence[Unpublished]) -> None:
    if rows:
        queues = sorted({row.queue for row in rows})
        _seldom.warning(
            "relay.unconfirmed",
            reason="the broker has not confirmed their hints in time; a sweep sends them again. See: workq doctor",
            count=len(rows),
            queues=", ".join(queues[:QUEUES_TOLD_MAX]) + (", ..." if len(queues) > QUEUES_TOLD_MAX else ""),
        )


def _later(row: Unpublished, waited_s: float) -> Unpublished:
    """A delayed row that has waited here for some of its delay."""
    return replace(row, delay_s=max(0.0, row.delay_s - waited_s))


class Relay:
    """Publishes behind `enqueue()`, in a thread that the first offer starts. Thread-safe.

    The marks of confirmed hints are gathered for longer than the hints: what a worker has claimed meanwhile needs none,
    and a mark writes the whole row anew.

    `grace_s` is the sweep's, which hints again what is unmarked for longer. Without a thread (`has_thread=False`),
    whoever made it calls `relay_once`.
    """

    def __init__(
        self,
        stores: Stores,
        *,
        confirm_s: float,
        grace_s: float = math.inf,
        has_thread: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._stores = stores
        self._confirm_s = confirm_s
        self._mark_after_s = min(MARK_AFTER_S, MARK_AFTER_PART * grace_s)
        self._has_thread = has_thread
        self._changed = threading.Condition()
        self._waiting: deque[tuple[float, Unpublished]] = deque()
        """What is to be published, and since when it waits: a delay goes on meanwhile."""
        self._unmarked: deque[tuple[float, list[Unpublished]]] = deque()
        """When the broker confirmed what. They belong to whoever relays."""
        self._is_busy = False
        self._is_steady = False
        """More than one row waited at the last look."""
        self._is_urgent = False
        """Somebody waits until all is marked."""
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def offer(self, rows: Iterable[Unpublished], *, since: float | None = None) -> None:
        """Publish these soon. Never blocks and never fails: what cannot be taken is left to the sweep.

        `since`: when their delays began, at the earliest, by our `clock`; now, by default.
        """
        with whole(), self._changed:
            if self._is_closing:
                return
            was_waiting = bool(self._waiting)
            since = self.clock() if since is None else since
            for row in rows:
                if len(self._waiting) >= BEHIND_MAX:
                    break
                self._waiting.append((since, row))
            if self._thread is None and self._has_thread:
                self._begin()
            if not was_waiting:  # else it is awake
                self._changed.notify_all()

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name="workq-relay", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads here, or the interpreter ends: what waits, a sweep relays
            log.warning("relay.failed: %s", error)
        else:
            self._thread = thread

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until everything offered so far was tried and marked; False when the time is up before."""
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not (self._waiting or self._is_busy or (self._unmarked and self._has_thread)), timeout_s
            )

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Flush within a bound, then end. Repeatable."""
        if self._thread is not None and self._thread.is_alive():
            self.flush(timeout_s=timeout_s)
        with self._changed:
            self._is_closing = True
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def behind(self) -> int:
        """How many rows wait to be published."""
        return len(self._waiting)

    def relay_once(self) -> None:
        """One try to publish what waits, at most `SENT_MAX` rows, and to mark it. What fails is left to the sweep."""
        self._send_once()
        while self._unmarked:
            self._mark_once(confirmed_before=math.inf)

    def _send_once(self) -> None:
        with self._changed:
            self._is_busy = True
            self._is_steady = len(self._waiting) > 1
            offered = [self._waiting.popleft() for _ in range(min(SENT_MAX, len(self._waiting)))]
        now = self.clock()
        rows = [row if row.delay_s == 0.0 else _later(row, now - at) for at, row in offered]
        sent = self._tried(lambda: send(self._stores, rows, deadline_s=self._confirm_s)) or []
        with self._changed:
            confirmed_at = time.monotonic()
            for start in range(0, len(sent), BATCH):
                self._unmarked.append((confirmed_at, sent[start : start + BATCH]))
            self._is_busy = False
            self._changed.notify_all()

    def _mark_once(self, *, confirmed_before: float) -> None:
        """Mark the first of what was confirmed before that time, about `BATCH` rows."""
        sent: list[Unpublished] = []
        with self._changed:
            while self._unmarked:
                at, rows = self._unmarked[0]
                if at > confirmed_before or len(sent) + len(rows) > BATCH:
                    break
                sent += rows
                self._unmarked.popleft()
            self._is_busy = True
        if sent:
            self._tried(lambda: self._stores.ledger.hints.mark_published(sent))
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def _tried(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except Unavailable as error:
            log.warning("relay.failed: %s", error)
        except Exception:  # the thread must live: without it every hint would wait for the sweep
            log.exception("relay.failed")
        return None

    def _mark_in_s(self) -> float | None:
        """In how many seconds it is time to mark; None when there is nothing to mark."""
        if not self._unmarked:
            return None
        if self._is_urgent or self._is_closing:
            return 0.0
        return max(0.0, self._unmarked[0][0] + self._mark_after_s - time.monotonic())

    def _run(self) -> None:
        while True:
            with self._changed:
                in_s = self._mark_in_s()
                if in_s is None:
                    self._is_urgent = False
                self._changed.wait_for(
                    lambda: self._waiting or self._is_closing or (self._unmarked and self._is_urgent), in_s
                )
                has_more = bool(self._waiting)
            if has_more:
                if self._is_steady and len(self._waiting) < BATCH:
                    time.sleep(LINGER_S)
                self._send_once()
            if self._mark_in_s() == 0.0:
                is_hasty = self._is_urgent or self._is_closing
                with_s = MARK_WITH_PART * self._mark_after_s
                self._mark_once(confirmed_before=math.inf if is_hasty else time.monotonic() - with_s)
            if self._is_closing and not self._unmarked:
                return
