"""The line of a destination: messages that wait for it while it is disabled, rests or is tried again by another one.

Who stands there waits at no cost: no hint, no claim and no event minds it (ledger/waiting.py). The start gate puts
them there (gate.py). They leave it in the order of their time, page by page: when a person has enabled the destination,
with each call that it has confirmed, and by the sweep, for whoever died in between.

A place of a task that was cancelled or moved meanwhile is forgotten with its page.

Locks: tasks in the order of their ids, then destinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import Connection, Select, delete, func, insert, or_, select, update

from workq.ledger import Unpublished, waiting
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.messages.ledger.tables import message_tables
from workq.messages.values import DestinationState
from workq.values.task import State

WAITS: Final = "destination"
"""What the task of a message waits for that stands in the line of its destination."""
COME_AT_ONCE: Final = 200
"""So many leave a line in one transaction."""
PROBE_S: Final = 15.0
"""For so long after its time a probe that was not heard of keeps others from trying."""
LINES_MAX: Final = 100
"""So many destinations a sweep looks at."""


class DestinationLine:
    """The lines of destinations, in one ledger."""

    def __init__(self, database: Database, *, reserved_s: float) -> None:
        self.database = database
        self._reserved = timedelta(seconds=reserved_s)

    def length(self, destination: str) -> int:
        """How many messages wait for a destination."""
        w, t = message_tables(self.database).waiting_message, self.database.tables.task
        query = (
            select(func.count())
            .select_from(w.join(t, t.c.id == w.c.task_id))
            .where(w.c.destination == destination, guarded(t.c.state, State.WAITING), waiting.waits(t, self.database))
        )
        return self.database.ask(lambda tx: int(tx.execute(query).scalar_one()))

    def come(self, destination: str, *, limit: int = COME_AT_ONCE) -> list[Unpublished]:
        """Let the first of a line be due, a page of them; answers their hints. Repeatable; none: nobody waits."""
        found: list[Unpublished] = []
        while not found:
            looked_at, found = self.database.run(lambda tx: self._come(tx, destination, limit))
            if looked_at < limit:
                break
        return found

    def next_probe(self, destination: str) -> list[Unpublished]:
        """Let the first of a line try the destination when its rest ends; answers its hint, if anybody waits."""
        d, t = message_tables(self.database).destination, self.database.tables.task

        def choose(tx: Connection) -> list[Unpublished]:
            _, came = self._come(tx, destination, 1)
            look = select(d.c.rests_until, self.database.now().label("now")).where(d.c.name == destination)
            row = tx.execute(look.with_for_update()).first()
            if not came or row is None or row.rests_until is None or row.rests_until <= row.now:
                return came
            [one] = came
            tx.execute(update(t).where(t.c.id == one.task_id).values(state=State.WAITING, due_at=row.rests_until))
            rest_s = (row.rests_until - row.now).total_seconds()
            tried = {"probe": one.task_id, "probe_until": self.database.now(rest_s + PROBE_S)}
            tx.execute(update(d).where(d.c.name == destination).values(tried))
            return [replace(one, delay_s=rest_s)]

        return self.database.run(choose)

    def tend(self, *, limit: int, dry_run: bool = False) -> list[Unpublished]:
        """Let those come whose destination takes messages, and one where it is to be tried; answers their hints.

        With `dry_run`, the hints of some that would come. Repeatable.
        """
        tables, now = message_tables(self.database), self.database.now
        d, w = tables.destination, tables.waiting_message
        is_waited_for = select(w.c.task_id).where(w.c.destination == d.c.name).correlate(d).exists()
        is_free = or_(d.c.probe.is_(None), d.c.probe_until.is_(None), d.c.probe_until <= now())
        query = (
            select(d.c.name, d.c.failures)
            .where(
                is_waited_for,
                d.c.state == DestinationState.ENABLED.value,
                or_(d.c.rests_until.is_(None), d.c.rests_until <= now()),
                or_(d.c.failures == 0, is_free),
            )
            .order_by(d.c.name)
            .limit(LINES_MAX)
        )
        found: list[Unpublished] = []
        for row in self.database.ask(lambda tx: tx.execute(query).all()):
            room = limit - len(found)
            if room <= 0:
                break
            if dry_run:
                found += self._would_come(row.name, limit=1 if row.failures else room)
            elif row.failures:
                found += self.come(row.name, limit=1)
            else:
                while room > 0 and (came := self.come(row.name, limit=min(room, COME_AT_ONCE))):
                    found += came
                    room -= len(came)
        return found

    def _would_come(self, destination: str, *, limit: int) -> list[Unpublished]:
        w, t = message_tables(self.database).waiting_message, self.database.tables.task
        query = (
            select(t.c.id, t.c.queue, t.c.attempt)
            .join_from(w, t, t.c.id == w.c.task_id)
            .where(w.c.destination == destination, guarded(t.c.state, State.WAITING), waiting.waits(t, self.database))
            .limit(limit)
        )
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [Unpublished(str(row.id), row.queue, row.attempt, 0.0) for row in rows]

    def _come(self, tx: Connection, destination: str, limit: int) -> tuple[int, list[Unpublished]]:
        """How many places were looked at, and the hints of those that are due now."""
        w, t = message_tables(self.database).waiting_message, self.database.tables.task
        page = (
            select(w.c.due_at, w.c.task_id)
            .where(w.c.destination == destination)
            .order_by(w.c.due_at, w.c.task_id)
            .limit(limit)
        )
        places = tx.execute(page).all()
        if not places:
            return 0, []
        ids = {"b_ids": in_order(str(one.task_id) for one in places)}
        tasks = {str(row.id): row for row in tx.execute(self._locked(), ids)}  # all: whoever is put there again waits
        coming = [one for place in places if (one := tasks.get(str(place.task_id))) is not None and one.is_in_line]
        hints: list[Unpublished] = []
        if coming:
            mine = update(t).where(among(t.c.id, self.database.dialect), guarded(t.c.state, *CLAIMABLE))
            until = coming[0].now + self._reserved
            values = waiting.let_go(self.database, until)
            tx.execute(mine.values(**values), {"b_ids": in_order(str(one.id) for one in coming)})
            hints = [Unpublished(str(one.id), one.queue, one.attempt, 0.0, reserved_until=until) for one in coming]
        gone = delete(w).where(
            w.c.destination == destination,
            w.c.due_at <= places[-1].due_at,
            among(w.c.task_id, self.database.dialect),
        )
        tx.execute(gone, ids)
        return len(places), hints

    def _locked(self) -> Select[Any]:
        t = self.database.tables.task
        is_waiting = guarded(t.c.state, State.WAITING) & waiting.waits(t, self.database)
        is_in_line = (is_waiting & (t.c.waits_for == WAITS)).label("is_in_line")
        columns = select(t.c.id, t.c.queue, t.c.attempt, is_in_line, self.database.now().label("now"))
        return columns.where(among(t.c.id, self.database.dialect)).order_by(t.c.id).with_for_update()


def stand_in_line(tx: Connection, database: Database, task_ids: Sequence[str]) -> None:
    """Let these tasks wait for the destination of their message. Their rows are locked."""
    tables, t = message_tables(database), database.tables.task
    m, w = tables.message, tables.waiting_message
    ids = {"b_ids": in_order(task_ids)}
    has_a_place = select(w.c.task_id).where(
        w.c.destination == m.c.destination, w.c.due_at == m.c.due_at, w.c.task_id == m.c.task_id
    )
    places = (
        select(m.c.destination, m.c.due_at, m.c.task_id)
        .where(among(m.c.task_id, database.dialect), ~has_a_place.correlate(m).exists())
        .distinct()
    )
    tx.execute(insert(w).from_select(["destination", "due_at", "task_id"], places), ids)
    mine = update(t).where(among(t.c.id, database.dialect), guarded(t.c.state, *CLAIMABLE))
    tx.execute(mine.values(**waiting.parked(database, WAITS)), ids)


def forget_line(tx: Connection, database: Database, destination: str) -> None:
    """A destination is forgotten, and nobody waits for it."""
    w = message_tables(database).waiting_message
    tx.execute(delete(w).where(w.c.destination == destination))


def probe_of(row: Any, task_ids: Sequence[str]) -> str | None:
    """Which of these tasks tries a destination that fails, whose row this is; None: another one does."""
    if row.probe is not None and str(row.probe) in task_ids:
        return str(row.probe)
    is_tried = row.probe is not None and row.probe_until is not None and row.probe_until > row.now
    return None if is_tried or not task_ids else task_ids[0]
