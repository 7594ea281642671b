"""Delays kept in the ledger, for a broker that is a server of its own: a delayed hint is a row until it is due.

The ladder `ledger`. A hint with a delay is written into the table of hints, in the transaction that records its task
where all tasks of that transaction are delayed. A mover (mover.py) publishes the rows that are due, and deletes each
after the broker has confirmed it. So a delay costs the broker one message, and a purge of it loses no delayed hint.

    __init__.py   the port: delayed hints become rows, all others go to the broker behind it
    due_rows.py   the rows: which are due, who has reserved them, and their end
    mover.py      take, publish, delete, again and again; one thread in each supervisor
    resting.py    queues that took nothing of what was sent to them, and for how long they are left alone

Who decides: the ledger. What happens on each failure:

- the ledger does not answer: `publish` answers False for delayed hints; their tasks stay unpublished for the sweep;
- a process dies between the rows and the other hints of a call: none of its tasks is marked, and a sweep sends all
  hints, those that are rows once more;
- a mover dies: what it had reserved is free after `RESERVED_S`, and another mover publishes it, perhaps once more;
- no mover lives: the rows stay. While rows of a queue are overdue no marker is sent through it, so none of its hints is
  taken for lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from workq.broker import Broker, Browsed, Consumer, Depth, Hint, See
from workq.broker.later.due_rows import DueRows
from workq.errors import BrokerUnavailable, LedgerUnavailable
from workq.ledger.engine.database import Database
from workq.ledger.hint_rows import insert_hints
from workq.values.codec import Envelope, encode_hint
from workq.values.failpoints import reach
from workq.values.hint import HintRow

ROW_FROM_S: Final = 0.1
"""A shorter delay is left to the consumer: no mover would be in time for it."""


class LedgerDelays:
    """The port of the broker: delays are rows of the ledger, all else is done by the broker behind it."""

    is_transactional = False
    is_late = False
    unit_s = 0.001
    horizon_s = 3.2e8
    """As of the embedded broker: a little more than the longest delay, ten years."""
    rows_from_s = ROW_FROM_S

    def __init__(self, behind: Broker, database: Database, *, on_written: Callable[[], None] = lambda: None) -> None:
        """`behind` leaves delays below `ROW_FROM_S` to its consumers. `on_written` wakes a mover here."""
        self._behind = behind
        self._database = database
        self._rows = DueRows(database)
        self._on_written = on_written
        self.is_listable = behind.is_listable
        self.has_owners = behind.has_owners
        self.tells_position = behind.tells_position

    def waits_s(self, delay_s: float) -> float:
        _check(delay_s)
        return delay_s

    def publish(self, hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        """As the port promises; the rows of a call stand together, or none of them."""
        for one in hints:
            _check(one.delay_s)
        later = [one for one in hints if one.delay_s >= ROW_FROM_S]
        if not later:
            return self._behind.publish(hints, deadline_s=deadline_s)
        is_written = self._write(later, deadline_s)
        reach("later.before_publish")
        sent = iter(self._behind.publish([one for one in hints if one.delay_s < ROW_FROM_S], deadline_s=deadline_s))
        return [is_written if one.delay_s >= ROW_FROM_S else next(sent) for one in hints]

    def rows(self, hints: Sequence[Hint]) -> list[HintRow]:
        for one in hints:
            _check(one.delay_s)
        return [row for one in hints for row in _rows_of(one)]

    def wake(self) -> None:
        self._on_written()
        self._behind.wake()

    def consumer(self, queues: Sequence[str], *, name: str, prefetch: int) -> Consumer:
        return self._behind.consumer(queues, name=name, prefetch=prefetch)

    def forget_consumer(self, name: str) -> None:
        self._behind.forget_consumer(name)

    def depths(self, queues: Sequence[str], *, with_consumers: bool = False) -> Mapping[str, Depth]:
        """As the port promises. A row that is due counts as a hint in its queue: that is its next place.

        Rows are counted first: one that is moved meanwhile counts twice, and none is left out.
        """
        try:
            due = self._rows.count(queues)
        except LedgerUnavailable as error:
            raise BrokerUnavailable(f"broker: {error}") from error
        found = self._behind.depths(queues, with_consumers=with_consumers)
        return {
            queue: Depth(depth.ready + due.get(queue, 0), depth.unacked, depth.consumers)
            for queue, depth in found.items()
        }

    def position(self, queue: str) -> str | None:
        """Of what has been moved: while a row is overdue no marker is noted (see ledger/markers.py)."""
        return self._behind.position(queue)

    def has_passed(self, queue: str, position: str) -> bool:
        return self._behind.has_passed(queue, position)

    def browse(self, queue: str, see: See, *, deadline_s: float) -> Browsed:
        """As the port promises: rows that are due are shown first. One that is moved meanwhile is shown twice."""
        try:
            shown = self._rows.browse(queue, see)
        except LedgerUnavailable as error:
            raise BrokerUnavailable(f"broker: {error}") from error
        browsed = self._behind.browse(queue, see, deadline_s=deadline_s)
        return Browsed(browsed.hints + shown, browsed.foreign, browsed.is_whole)

    def check(self) -> str:
        return self._behind.check()

    def close(self) -> None:
        self._behind.close()

    def _write(self, hints: Sequence[Hint], deadline_s: float) -> bool:
        rows = self.rows(hints)
        try:
            self._database.run(lambda tx: insert_hints(tx, self._database, rows), deadline_s=deadline_s)
        except LedgerUnavailable:
            return False
        self._on_written()
        return True


def _check(delay_s: float) -> None:
    if not 0 <= delay_s <= LedgerDelays.horizon_s:
        raise ValueError(f"a hint can wait from 0 to {LedgerDelays.horizon_s:g} s, not {delay_s} s")


def _rows_of(hint: Hint) -> list[HintRow]:
    """One row for all ids that are due in the same millisecond."""
    by_ms: dict[int, list[str]] = {}
    for place, task_id in enumerate(hint.task_ids):
        wait_s = hint.waits_s[place] if hint.waits_s else 0.0
        by_ms.setdefault(math.ceil(round(wait_s * 1000, 3)), []).append(task_id)
    return [
        HintRow(
            hint.queue,
            encode_hint(Envelope(hint.queue, tuple(ids), hint.looks, hint.marker)).decode("ascii"),
            len(ids),
            hint.delay_s + ms / 1000,
        )
        for ms, ids in by_ms.items()
    ]
