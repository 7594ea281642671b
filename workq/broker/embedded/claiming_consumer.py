"""A consumer of embedded hints that claims their tasks in the transaction that takes the hints.

Where hints and ledger are one database, nothing needs to be held between them: a page leaves the queue when its tasks
are claimed, or not at all. What the first page has beyond the room stays in its row, for whoever is next. Hints that
were not granted are judged in the same transaction (see worker/fetch/refused.py): dropped, or written again for later.

Markers and foreign messages are made this consumer's, as any delivery of the embedded broker; what becomes of them is
the caller's business. Should the commit be lost, the ledger finds by its token whether it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Delete, Update, bindparam, delete, update

from workq.broker import Delivery, Hint
from workq.broker.embedded.consumer import EmbeddedConsumer, delivery_of
from workq.broker.fair_turns import QueueTurns
from workq.ledger import Look
from workq.ledger.engine.id_lists import IDS, among
from workq.ledger.hint_rows import as_bytes, body_of
from workq.values.codec import Envelope, decode_hint, encode_hint
from workq.values.failpoints import reach
from workq.values.task import Claim

if TYPE_CHECKING:
    from workq.broker.embedded import EmbeddedBroker
    from workq.ledger.sql import Ledger


_ROWS_SPARE = 2
"""So many rows more than are thought to be needed are looked at: they are shorter than those before, or not hints."""
_WEIGHT = 0.2
"""Of the newest rows, in the smoothed number of ids of one."""


Judge = Callable[[Iterable[tuple[str, str, int]], Mapping[str, Look]], Sequence[Hint]]
"""Of (task id, queue of the hint, looks before) and where the ledger has them: what to hint again."""


@dataclass(slots=True)
class Taken:
    """What one transaction took. `hinted`: the queue that each id's hint named; `others`: what is no hint of a task.

    `asked_at`: when it began, by the broker's clock.
    """

    claims: list[Claim] = field(default_factory=list)
    hinted: dict[str, str] = field(default_factory=dict)
    others: list[Delivery] = field(default_factory=list)
    asked_at: float = 0.0


@dataclass(slots=True)
class _Step:
    """What one transaction is about to take. It is made anew when the transaction is repeated."""

    judge: Judge
    room: int
    taken: Taken = field(default_factory=Taken)
    looks: dict[str, int] = field(default_factory=dict)
    """How often an id was looked up before."""
    rows: list[int] = field(default_factory=list)
    """Whose hints are taken whole."""
    sizes: list[int] = field(default_factory=list)
    rests: dict[int, Envelope] = field(default_factory=dict)
    """What stays in a row that is longer than the room."""
    others: list[int] = field(default_factory=list)
    is_full: bool = False
    """There is no room for the row that comes next."""


class DirectConsumer(EmbeddedConsumer):
    """A consumer that claims; the rest of the port serves what is no hint of a task. Used by one thread."""

    def __init__(self, broker: EmbeddedBroker, ledger: Ledger, queues: Sequence[str], *, name: str) -> None:
        super().__init__(broker, broker.database, queues, name=name, prefetch=1)
        self._ledger = ledger
        self._ids_each = 1.0
        """How many ids a row has, smoothed."""
        self._step = _Step(_nothing_again, 0)
        self._is_busy = False
        """There were hints when it looked last: it need not ask whether there are some."""

    def claim(self, judge: Judge, *, ids_max: int, wait_s: float) -> Taken | None:
        """Claim up to `ids_max` tasks under this consumer's name, waiting up to `wait_s` for the first; None: nothing.

        Who is woken goes on with nothing taken.

        Raises:
            Unavailable: the ledger did not answer. Nothing was claimed; or it is handed back, by the next claim or by
                whoever looks for claims that their worker does not know (see worker/holds.py).
        """
        if self._is_busy and not self._is_closed and (taken := self._claim(judge, ids_max)) is not None:
            return taken

        def look() -> tuple[Taken | None, float]:
            return (Taken(), 0.0) if self._was_woken() else self._look(lambda: self._claim(judge, ids_max))

        return self._watch.until(look, wait_s)

    def _claim(self, judge: Judge, ids_max: int) -> Taken | None:
        self._step = _Step(judge, ids_max)
        claims = self._ledger.claims.claim_hinted(self, by=self._name)
        step = self._step
        step.taken.claims = _as_chosen(claims, step.taken.hinted) if self._turns.has_bands else claims
        if step.sizes:
            self._ids_each += _WEIGHT * (sum(step.sizes) / len(step.sizes) - self._ids_each)
        is_any = bool(step.taken.hinted or step.taken.others)
        self._is_busy = is_any
        self._turn(is_any)
        return step.taken if is_any else None

    # What the ledger calls, in its transaction

    def choose(self, tx: Connection) -> Collection[str]:
        """Take rows, those due first; see `workq.ledger.Hinted`."""
        step = self._step = _Step(self._step.judge, self._step.room)
        step.taken.asked_at = self._broker.clock()
        for line in self._turns.lines:
            if step.is_full:
                break
            self._choose_of(line, step, tx)
        return step.taken.hinted

    def conclude(
        self, tx: Connection, granted: Collection[str], looks: Mapping[str, Look]
    ) -> Iterable[tuple[Sequence[str], float]]:
        """Remove what was taken; see `workq.ledger.Hinted`."""
        step = self._step
        hinted = step.taken.hinted
        missed = [(task_id, queue, step.looks[task_id]) for task_id, queue in hinted.items() if task_id not in granted]
        again = step.judge(missed, looks) if missed else ()
        self._broker.insert(again, tx)
        if step.rows:
            self._database.kept("take hints", self._take_statement).write(tx, {IDS: sorted(step.rows)})
        for row_id, rest in step.rests.items():
            cut = {"b_row": row_id, "b_body": encode_hint(rest).decode("ascii"), "b_size": len(rest.task_ids)}
            self._database.kept("cut a hint", self._cut_statement).write(tx, cut)
        if step.others:
            self._make_ours(step.others, tx)
        reach("worker.before_commit")
        return [(one.task_ids, one.delay_s) for one in again]

    def _choose_of(self, line: QueueTurns, step: _Step, tx: Connection) -> None:
        room = step.room - len(step.taken.hinted)
        rows_max = math.ceil(room / self._ids_each) + _ROWS_SPARE
        statement = self._database.kept("hints due", self._due_rows)
        hinted, looks = step.taken.hinted, step.looks
        for queue, (_, row_id, body, deliveries) in self._in_turns(line, statement, tx, limit=rows_max):
            content = as_bytes(body)
            hint = decode_hint(content)
            if isinstance(hint, str) or hint.marker is not None:
                step.taken.others.append(delivery_of(hint, queue, row_id, content, deliveries + 1))
                step.others.append(row_id)
                line.took(queue, 1)
                continue
            ids = hint.task_ids
            if len(ids) > room and hinted:
                step.is_full = True  # the next page is for the next time: to cut it costs as much as to take it
                return
            line.took(queue, min(len(ids), room))
            step.sizes.append(len(ids))
            for task_id in ids[:room]:
                hinted[task_id] = queue
                looks[task_id] = hint.looks
            if len(ids) > room:  # what comes after it keeps its place, too
                step.rests[row_id] = Envelope(queue, ids[room:], hint.looks)
            else:
                step.rows.append(row_id)
            room -= len(ids)
            if room <= 0:
                step.is_full = True
                return

    def _due_rows(self) -> Any:
        hint = self._database.tables.hint
        return self._due(hint.c.id, body_of(self._database).label("body"), hint.c.deliveries)

    def _cut_statement(self) -> Update:
        hint = self._database.tables.hint
        cut = update(hint).where(hint.c.id == bindparam("b_row"))
        return cut.values(body=bindparam("b_body"), size=bindparam("b_size"))

    def _take_statement(self) -> Delete:
        hint = self._database.tables.hint
        return delete(hint).where(among(hint.c.id, self._database.dialect, item="BIGINT"))


def _as_chosen(claims: Sequence[Claim], hinted: Iterable[str]) -> list[Claim]:
    """The ledger grants them in the order of their ids, and they run in that of their priorities."""
    granted = {claim.task_id: claim for claim in claims}
    return [granted[task_id] for task_id in hinted if task_id in granted]


def _nothing_again(_missed: Iterable[tuple[str, str, int]], _looks: Mapping[str, Look]) -> Sequence[Hint]:
    return ()
