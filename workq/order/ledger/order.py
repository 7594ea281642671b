"""Order: when the first task of an order key has ended, the next one's turn comes.

Ended is what is settled for good: what failed and waits for its retry, or was handed back, keeps its position, so
nobody overtakes it. A dead task blocks its key until a person revives or discards it, or lets the next one go on, as
the task itself said (`after_death`).

Who moves a line up: whoever has settled its first, at once; and the sweep, for whoever died in between, and for what
was cancelled, has expired, or was reaped. Each decision is made under the lock of the line's row.

A slice may keep a task back though it is its turn (`Slices.at_its_turn`), as a delivery that is held: those behind it
wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, and_, case, delete, func, literal, or_, select, update

from workq.ledger import Unpublished, waiting
from workq.ledger.engine.instants import Instant
from workq.ledger.engine.states import guarded
from workq.order.ledger.tables import order_tables
from workq.values.task import SETTLED, AfterDeath, State

if TYPE_CHECKING:
    from workq.ledger.sql import Ledger


class SequenceRow(msgspec.Struct, frozen=True):
    """One order key with open tasks: who stands first, in which state, and how many behind it.

    `blocked_since`: when the first one died, if the others wait for a person.
    """

    key: str
    head: str
    state: State | None
    behind: int
    blocked_since: datetime | None

    @property
    def moves_on(self) -> bool:
        """Whether the first one has ended and blocks nothing: the next sweep lets the next one go on."""
        return self.blocked_since is None and (self.state is None or self.state in SETTLED)


class Order:
    """Moves the line of an order key up, in one ledger: `ledger.part(Order)`."""

    def __init__(self, ledger: Ledger) -> None:
        self.database = ledger.database
        self._at_its_turn = ledger.slices.at_its_turn
        self._reserved = timedelta(seconds=ledger.reserved_s)

    def advance(self, keys: Iterable[str]) -> list[Unpublished]:
        """Let the lines of these order keys move up, where their first has ended; answers whose turn has come.

        Those are ready, or waiting for their own time, and need a hint. Repeatable.
        """
        wanted = sorted(set(keys))
        if not wanted:
            return []
        s = order_tables(self.database).sequence
        lines = select(s).where(s.c.id.in_(wanted)).order_by(s.c.id).with_for_update()

        def move_up(tx: Connection) -> list[Unpublished]:
            return [hint for line in tx.execute(lines).all() for hint in self._move_up(tx, line)]

        return self.database.run(move_up)

    def ended_heads(self, *, limit: int) -> list[str]:
        """The order keys whose first has ended, and whose line has not moved up."""
        tables = order_tables(self.database)
        s, p, t = tables.sequence, tables.position, self.database.tables.task
        goes_on = or_(
            t.c.id.is_(None),
            t.c.state.in_([State.SUCCEEDED, State.CANCELLED]),
            and_(t.c.state == State.DEAD, p.c.after_death != AfterDeath.BLOCK.value),
        )
        query = (
            select(s.c.id)
            .outerjoin(t, t.c.id == s.c.head_task)
            .outerjoin(p, and_(p.c.order_key == s.c.id, p.c.position == s.c.head_position))
            .where(goes_on)
            .order_by(s.c.id)
            .limit(limit)
        )
        return self.database.ask(lambda tx: list(tx.execute(query).scalars()))

    def sequences(self, *, key: str | None = None, blocked_only: bool = False, limit: int = 100) -> list[SequenceRow]:
        """The order keys with open tasks, by name; or one; or those that are blocked by a dead task."""
        tables = order_tables(self.database)
        s, p, t = tables.sequence, tables.position, self.database.tables.task
        others = p.alias()
        behind = (
            select(func.count())
            .select_from(others)
            .where(others.c.order_key == s.c.id, others.c.position > s.c.head_position)
            .correlate(s)
            .scalar_subquery()
        )
        query = (
            select(s.c.id, s.c.head_task, t.c.state, t.c.settled_at, p.c.after_death, behind.label("behind"))
            .outerjoin(t, t.c.id == s.c.head_task)
            .outerjoin(p, and_(p.c.order_key == s.c.id, p.c.position == s.c.head_position))
            .order_by(s.c.id)
            .limit(limit)
        )
        if key is not None:
            query = query.where(s.c.id == key)
        if blocked_only:
            query = query.where(t.c.state == State.DEAD, p.c.after_death == AfterDeath.BLOCK.value)
        return [
            SequenceRow(
                row.id,
                row.head_task,
                None if row.state is None else State(row.state),
                row.behind,
                row.settled_at if row.state == State.DEAD and row.after_death == AfterDeath.BLOCK else None,
            )
            for row in self.database.ask(lambda tx: tx.execute(query).all())
        ]

    def _move_up(self, tx: Connection, line: Any) -> list[Unpublished]:
        tables = order_tables(self.database)
        s, p, t = tables.sequence, tables.position, self.database.tables.task
        in_line = p.c.order_key == line.id
        blocks = and_(t.c.state == State.DEAD, p.c.after_death == AfterDeath.BLOCK.value)
        stays = (  # thousands in a row may have been cancelled
            select(p.c.position, p.c.task_id, p.c.due_at, self.database.now().label("now"))
            .join(t, t.c.id == p.c.task_id)
            .where(or_(t.c.state.not_in([one.value for one in SETTLED]), blocks))
            .order_by(p.c.position)
            .limit(1)
        )
        position, head = line.head_position, line.head_task
        hints: list[Unpublished] = []
        while True:
            state = tx.execute(select(t.c.state).where(t.c.id == head)).scalar()
            if state is not None and State(state) not in SETTLED:
                break
            policy = tx.execute(select(p.c.after_death).where(in_line, p.c.position == position)).scalar()
            if state == State.DEAD and policy == AfterDeath.BLOCK:
                break
            following = tx.execute(stays.where(in_line, p.c.position > position)).first()
            if following is None:
                tx.execute(delete(p).where(in_line))
                tx.execute(delete(s).where(s.c.id == line.id))
                return hints
            tx.execute(delete(p).where(in_line, p.c.position < following.position))
            position, head = following.position, following.task_id
            hints += self._come(tx, following)
        if position != line.head_position:
            tx.execute(update(s).where(s.c.id == line.id).values(head_position=position, head_task=head))
        return hints

    def _come(self, tx: Connection, following: Any) -> list[Unpublished]:
        """It is the turn of a task, unless it was cancelled or has expired meanwhile."""
        t, now = self.database.tables.task, self.database.now
        wanted, until = literal(following.due_at, Instant()), following.now + self._reserved
        is_late = wanted > now()
        moved = tx.execute(
            update(t)
            .where(t.c.id == following.task_id, guarded(t.c.state, State.WAITING))
            .values(
                state=case((is_late, State.WAITING), else_=State.READY),
                due_at=case((is_late, wanted), else_=now()),
                waits_for=None,
                queued_at=now(),
                published_at=None,
                relay_until=until,
            )
        ).rowcount
        if not moved:
            return []
        row = tx.execute(
            select(t.c.name, t.c.queue, t.c.attempt, t.c.due_at, now().label("now")).where(t.c.id == following.task_id)
        ).one()
        found = (stays(tx, self.database, following.task_id, row.name) for stays in self._at_its_turn)
        if (waits_for := next((one for one in found if one is not None), None)) is not None:
            still = waiting.parked(self.database, waits_for)
            tx.execute(update(t).where(t.c.id == following.task_id).values(**still))
            return []
        delay_s = max(0.0, (row.due_at - row.now).total_seconds())
        return [Unpublished(following.task_id, row.queue, row.attempt, delay_s, reserved_until=until)]
