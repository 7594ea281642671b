"""Produce: record tasks, then let their hints follow.

Where the broker's hints are rows of the same database, they are written in the recording transaction and nothing is
left to do. So are those of delayed tasks, where delays are rows of the ledger (the ladder `ledger`). Otherwise the
relay thread publishes after the commit. In the caller's own transaction nothing is published before it commits: the
relay asks the ledger whether the rows are visible yet.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from msgspec.structs import replace
from sqlalchemy import Connection, event

from workq.broker import Broker
from workq.enqueue.group_commit import Gather
from workq.enqueue.relay import BEHIND_MAX, Relay, hints_of
from workq.errors import Refused, Unavailable
from workq.ledger import HintRows, Unpublished
from workq.stores import Stores
from workq.values.failpoints import reach
from workq.values.hint import HintRow
from workq.values.plural import counted
from workq.values.task import Enqueued, NewTask
from workq.values.time_limit import whole

T = TypeVar("T")

log = logging.getLogger("workq.relay")

CHUNK = 500
_VISIBLE_AFTER_S = (0.0, 0.02, 0.1, 0.5)
"""When to look whether a caller's commit is visible. After that the sweep relays."""


def hint_rows(broker: Broker, tasks: Sequence[NewTask]) -> list[HintRow]:
    """The hints of new tasks, where they are rows beside them."""
    rows = (Unpublished(task.id, task.queue, 0, task.delay_s) for task in tasks)
    pages = hints_of(rows, unit_s=broker.unit_s)
    return broker.rows([hint for hint, _ in pages])


def hints_beside(broker: Broker, delays_s: Iterable[float] = ()) -> HintRows | None:
    """How hints are made that stand beside the tasks, in the transaction that records these; None: they follow it.

    `delays_s`: of all tasks that are recorded together, where that is known before.
    """
    is_beside = broker.is_transactional or min(delays_s, default=0.0) >= broker.rows_from_s
    return partial(hint_rows, broker) if is_beside else None


class Producer:
    """Records tasks into one set of stores. Thread-safe.

    `follow` sees to the hints of rows whose transaction is about to be committed by the caller; a thread, by default.
    """

    def __init__(
        self,
        stores: Stores,
        *,
        confirm_s: float,
        grace_s: float = math.inf,
        relay: Relay | None = None,
        follow: Callable[[list[Unpublished]], None] | None = None,
    ) -> None:
        self._stores = stores
        self.relay = relay if relay is not None else Relay(stores, confirm_s=confirm_s, grace_s=grace_s)
        self._follow = follow if follow is not None else self._follow_in_thread
        self._gather = Gather(self._record_now, writers=stores.ledger.tasks.writers)
        self._lock = threading.RLock()  # a signal handler may enqueue, too
        self._uncommitted: WeakKeyDictionary[Connection, list[Unpublished]] = WeakKeyDictionary()
        """What was recorded in the transactions of callers, by their connections; what is more is left to the sweep."""

    def record(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[Enqueued]:
        """Record tasks in one transaction, ours or the caller's, and see to their hints."""
        if connection is None:
            self.check_outside("enqueue in it, with .options(connection=connection), or after it")
        with whole():
            if connection is None and len(tasks) == 1 and tasks[0].key is None:
                return [self._gather.record(tasks[0])]
            return self._record_now(tasks, connection=connection)

    def check_outside(self, instead: str) -> None:
        """Refused inside of a handler's transaction, which may still be rolled back; `instead`: what to do."""
        if self._stores.ledger.transactions.is_entered:
            raise Refused(f"this handler is inside of its transaction(), which may still be rolled back: {instead}")

    def _record_now(self, tasks: Sequence[NewTask], *, connection: Any = None) -> list[Enqueued]:
        hints, began = self._beginning(task.delay_s for task in tasks)
        recorded = self._stores.ledger.tasks.record(tasks, connection=connection, hints=hints)
        fresh = [
            Unpublished(task.id, task.queue, 0, task.delay_s if one.due_in_s is None else one.due_in_s)
            for task, one in zip(tasks, recorded, strict=True)
            if hints is None and one.created and not one.is_behind
        ]
        self._see_to(fresh, hints, began, connection)
        return recorded

    def record_by(
        self,
        write: Callable[[HintRows | None], tuple[T, list[Unpublished]]],
        *,
        connection: Any = None,
        delays_s: Iterable[float] = (),
    ) -> T:
        """Record what becomes tasks, by a function of the ledger's, and see to their hints; answers what it answers.

        `write` is told how hints are made that stand beside the tasks, or None; it answers what is still to be hinted.
        `connection`: the caller's, in whose transaction it writes. `delays_s`: see `hints_beside`.
        """
        hints, began = self._beginning(delays_s)
        answer, fresh = write(hints)
        self._see_to(fresh, hints, began, connection)
        return answer

    def _beginning(self, delays_s: Iterable[float]) -> tuple[HintRows | None, float | None]:
        """How hints are made that stand beside the tasks; and since when the delays of others count, by the relay's
        clock. None: from their publishing.
        """
        broker = self._stores.broker
        hints = hints_beside(broker, delays_s)
        return hints, None if broker.is_late else self.relay.clock()  # a late hint must not come early

    def _see_to(self, fresh: list[Unpublished], hints: HintRows | None, began: float | None, connection: Any) -> None:
        """What was recorded, in a transaction of ours or the caller's, gets its hints."""
        if connection is None:
            reach("record.after_commit")
        if hints is not None:
            self._stores.broker.wake()  # before the caller's commit: who looks too early soon looks again
        if fresh and connection is None:
            self.relay.offer(fresh, since=began)
        elif fresh:
            self._offer_after_commit(connection, fresh)

    def record_many(self, tasks: Iterator[NewTask], *, connection: Any = None) -> int:
        """Record a stream in chunks. An error keeps what was recorded before and says how many that are."""
        count = 0
        try:
            while chunk := list(islice(tasks, CHUNK)):
                self.record(chunk, connection=connection)
                count += len(chunk)
        except Exception as error:
            error.add_note(f"{counted(count, 'task was', 'tasks were')} recorded before this error")
            raise
        return count

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Publish what is behind, within a bound."""
        self.relay.close(timeout_s=timeout_s)

    def _offer_after_commit(self, given: Any, rows: list[Unpublished]) -> None:
        connection = given.connection() if callable(getattr(given, "connection", None)) else given
        with whole(), self._lock:
            waiting = self._uncommitted.get(connection)
            if waiting is None:  # one pair of listeners, however often it is used
                waiting = self._uncommitted[connection] = []
                event.listen(connection, "commit", self._committing)
                event.listen(connection, "rollback", self._ended)
            waiting += rows[: max(0, BEHIND_MAX - len(waiting))]

    def _committing(self, connection: Connection) -> None:
        if rows := self._ended(connection):
            self._follow(rows)

    def _ended(self, connection: Connection) -> list[Unpublished]:
        """The transaction of a caller's connection ends; answers what was recorded in it."""
        with whole(), self._lock:
            waiting = self._uncommitted.get(connection)
            rows = list(waiting or ())
            if waiting:
                waiting.clear()
            return rows

    def offer_visible(self, rows: list[Unpublished]) -> list[Unpublished]:
        """One look, at the first of these: offer those that other transactions can see; answers the others."""
        left = {row.task_id: row for row in rows}
        seen = self._stores.ledger.claims.look(list(left)[:CHUNK])
        self.relay.offer(
            [replace(left.pop(task_id), delay_s=max(0.0, look.due_in_s)) for task_id, look in seen.items()]
        )
        return list(left.values())

    def _follow_in_thread(self, rows: list[Unpublished]) -> None:
        try:
            threading.Thread(target=self._offer_when_visible, args=(rows,), name="workq-commit", daemon=True).start()
        except RuntimeError as error:  # no more threads here: that must not keep the caller from its commit
            log.warning("relay.failed: %s", error)

    def _offer_when_visible(self, rows: list[Unpublished]) -> None:
        """The event comes just before the COMMIT itself: publish only what other transactions can see."""
        pause = threading.Event()
        try:
            for wait_s in _VISIBLE_AFTER_S:
                pause.wait(wait_s)
                while rows and len(left := self.offer_visible(rows)) < len(rows):
                    rows = left
                if not rows:
                    return
        except Unavailable as error:
            log.warning("relay.failed: %s", error)
