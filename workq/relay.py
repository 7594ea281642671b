"""Relay: from the ledger to the broker, confirmed, then marked in bulk.

`enqueue()` returns when the ledger has committed; a thread behind it publishes the hints and marks them. Nothing
here is needed for safety: a hint that was not confirmed, or that there was no room to remember, leaves its row
unpublished, and the sweep relays it. A crash between publishing and marking means a second hint, which is harmless.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from workq.broker import PAGE, Hint
from workq.errors import Unavailable
from workq.failpoints import reach
from workq.ledger import Unpublished
from workq.stores import Stores

log = logging.getLogger("workq.relay")

BEHIND_MAX = 20_000
"""Rows that may wait in memory for the broker. What does not fit is left to the sweep."""
BATCH = 2_000


def hints_of(rows: Iterable[Unpublished]) -> list[tuple[Hint, list[Unpublished]]]:
    """Pages of ids: rows of one queue that are due at once share hints; a delayed row has one of its own."""
    pages: list[tuple[Hint, list[Unpublished]]] = []
    by_queue: dict[str, list[Unpublished]] = {}
    for row in rows:
        if row.delay_s > 0.0:
            pages.append((Hint(row.queue, (row.task_id,), row.delay_s), [row]))
        else:
            by_queue.setdefault(row.queue, []).append(row)
    for queue, due in by_queue.items():
        for start in range(0, len(due), PAGE):
            page = due[start : start + PAGE]
            pages.append((Hint(queue, tuple(row.task_id for row in page)), page))
    return pages


def publish(stores: Stores, rows: Sequence[Unpublished], *, deadline_s: float) -> int:
    """Publish hints for rows and mark those that the broker confirmed. Answers how many tasks that were.

    Rows due beyond the broker's horizon are left: the sweep promotes them when they come near.
    """
    near = [row for row in rows if row.delay_s <= stores.broker.horizon_s]
    pages = hints_of(near)
    if not pages:
        return 0
    reach("relay.before_publish")
    confirmed = stores.broker.publish([hint for hint, _ in pages], deadline_s=deadline_s)
    reach("relay.before_mark")
    sent = [row for (_, page), ok in zip(pages, confirmed, strict=True) if ok for row in page]
    stores.ledger.mark_published(sent)
    return len(sent)


class Relay:
    """Publishes behind `enqueue()`, in a thread that the first offer starts. Thread-safe.

    Without a thread (`has_thread=False`), whoever made it calls `relay_once`.
    """

    def __init__(self, stores: Stores, *, confirm_s: float, has_thread: bool = True) -> None:
        self._stores = stores
        self._confirm_s = confirm_s
        self._has_thread = has_thread
        self._changed = threading.Condition()
        self._waiting: deque[Unpublished] = deque()
        self._is_busy = False
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def offer(self, rows: Iterable[Unpublished]) -> None:
        """Publish these soon. Never blocks and never fails: what cannot be taken is left to the sweep."""
        with self._changed:
            if self._is_closing:
                return
            for row in rows:
                if len(self._waiting) >= BEHIND_MAX:
                    break
                self._waiting.append(row)
            if self._thread is None and self._has_thread:
                self._thread = threading.Thread(target=self._run, name="workq-relay", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until everything offered so far was tried; False when the time is up before."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, timeout_s)

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
        """One try to publish what waits, at most `BATCH` rows. What fails is left to the sweep; nothing is raised."""
        with self._changed:
            self._is_busy = True
            rows = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            sent = publish(self._stores, rows, deadline_s=self._confirm_s)
            if sent < len(rows):
                log.info("relay.unconfirmed", extra={"tasks": len(rows) - sent})
        except Unavailable as error:
            log.warning("relay.failed: %s", error)
        except Exception:  # the thread must live: without it every hint would wait for the sweep
            log.exception("relay.failed")
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if self._is_closing:
                    return
            self.relay_once()
