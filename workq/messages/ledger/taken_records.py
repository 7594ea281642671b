"""Taking in: records of a broker become messages, and the positions behind them move, in one transaction.

A partition is taken by one process at a time: taking it raises its epoch, and who has an older one moves nothing and
records nothing (`Overtaken`). So each record is recorded once, also where the broker gives a partition to another
process while the first one still works on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from workq.errors import NotFound
from workq.ledger import HintRows, Unpublished
from workq.ledger.decisions import Decisions
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, in_order
from workq.messages.intake.values import CancelOf, KnownIds, OffsetMove, Overtaken, Position, Step, TakenIn
from workq.messages.ledger.recorded import RecordedMessages
from workq.messages.ledger.tables import message_tables
from workq.messages.values import NewMessage
from workq.values import codec

_TRIES: Final = 5
_WHY_MAX: Final = 500

T = TypeVar("T")


class _RolledBack(Exception):
    """What was rehearsed can be recorded."""


class TakenRecords:
    """Takes in what was read from brokers."""

    def __init__(self, database: Database, *, recorded: RecordedMessages, decisions: Decisions) -> None:
        self.database = database
        self._recorded = recorded
        self._decisions = decisions

    def take_partition(
        self, intake: str, topic: str, part: int, *, owner: str, topic_id: str | None = None
    ) -> Position:
        """Take a partition from whoever had it; answers where to read on.

        `topic_id`: another one than before is another topic of the same name, which is read from its beginning.
        """
        o, now = message_tables(self.database).intake_offset, self.database.now
        mine = o.c.intake == intake, o.c.topic == topic, o.c.part == part

        def take(tx: Connection) -> Position:
            row = tx.execute(select(o.c.next_offset, o.c.epoch, o.c.topic_id).where(*mine).with_for_update()).first()
            if row is None:
                new = {"intake": intake, "topic": topic, "part": part, "topic_id": topic_id, "owner": owner, "epoch": 1}
                tx.execute(insert(o).values({**new, "changed_at": now()}))
                return Position(None, 1)
            is_other = topic_id is not None and row.topic_id is not None and row.topic_id != topic_id
            next_offset, epoch = None if is_other else row.next_offset, row.epoch + 1
            values = {"owner": owner, "epoch": epoch, "next_offset": next_offset, "changed_at": now()}
            tx.execute(update(o).where(*mine).values({**values, "topic_id": topic_id or row.topic_id}))
            return Position(next_offset, epoch)

        try:
            return self.database.run(take)
        except IntegrityError:  # another process has made the row in this moment
            return self.database.run(take)

    def standing(self, steps: Sequence[Step]) -> KnownIds:
        """Which of the destinations of these are there, and which of their ids, with their destinations."""
        d = message_tables(self.database).destination
        new = [one for one in steps if isinstance(one, NewMessage)]
        names = select(d.c.name).where(d.c.name.in_({one.destination for one in new}))

        def ask(tx: Connection) -> KnownIds:
            return KnownIds(frozenset(tx.execute(names).scalars()), self._there(tx, new))

        return self.database.ask(ask) if new else KnownIds(frozenset(), {})

    def _there(self, tx: Connection, messages: Sequence[NewMessage]) -> dict[str, str]:
        """The destinations of those of these ids that are there."""
        m = message_tables(self.database).message
        query = select(m.c.id, m.c.destination).where(among(m.c.id, self.database.dialect, item="TEXT"))
        return {row.id: row.destination for row in tx.execute(query, {"b_ids": in_order(one.id for one in messages)})}

    def record(
        self,
        intake: str,
        steps: Sequence[Step],
        *,
        owner: str,
        moves: Sequence[OffsetMove] = (),
        unreadable: Sequence[str] = (),
        hints: HintRows | None = None,
    ) -> tuple[TakenIn, list[Unpublished]]:
        """Record messages, and cancel those that are asked for, in their order; move the positions; count.

        Atomic. `moves`: fenced by owner and epoch. `unreadable`: what was wrong with each record that was put into
        quarantine; they are counted alone. Repeatable for ids that are there; what was moved is not read again.

        Raises:
            Overtaken: another process has taken a partition; nothing was recorded.
            NotFound: a destination is not there, or no such intake. KeyConflict: an id is another destination's.
        """
        return self._again(lambda tx: self._record(tx, intake, steps, owner, moves, list(unreadable), hints))

    def rehearse(self, intake: str, steps: Sequence[Step], *, hints: HintRows | None = None) -> None:
        """Record these without their positions, and roll it back. Raises what `record` would raise of them."""

        def attempt(tx: Connection) -> None:
            self._record(tx, intake, steps, "", (), [], hints)
            raise _RolledBack

        with suppress(_RolledBack):
            self._again(attempt)

    def _again(self, change: Callable[[Connection], T]) -> T:
        for left in reversed(range(_TRIES)):
            try:
                return self.database.run(change)
            except IntegrityError:  # another process has recorded one of the ids in this moment
                if not left:
                    raise
        raise AssertionError

    def _record(
        self,
        tx: Connection,
        intake: str,
        steps: Sequence[Step],
        owner: str,
        moves: Sequence[OffsetMove],
        unreadable: list[str],
        hints: HintRows | None,
    ) -> tuple[TakenIn, list[Unpublished]]:
        self._move(tx, intake, owner, moves)
        recorded = repeated = cancelled = 0
        fresh: list[Unpublished] = []
        for is_new, some in groupby(steps, key=lambda one: isinstance(one, NewMessage)):
            run = list(some)
            if is_new:
                new = [replace(one, intake=intake) for one in run if isinstance(one, NewMessage)]
                there = self._there(tx, new)  # of a commit that we could not see, what is ours: it was counted then
                sent, more = self._recorded.record_in(tx, new, hints)
                recorded += sum(one.created and one.id not in there for one in sent)
                repeated += sum(not one.created for one in sent)
                fresh += more
            else:
                for one in run:
                    assert isinstance(one, CancelOf)  # noqa: S101 - the choices are closed
                    self._cancel(tx, one.message_id, intake)
                    cancelled += 1
        self._count(tx, intake, recorded, repeated, cancelled, unreadable)
        return TakenIn(recorded, repeated, cancelled), fresh

    def _move(self, tx: Connection, intake: str, owner: str, moves: Sequence[OffsetMove]) -> None:
        o, now = message_tables(self.database).intake_offset, self.database.now
        for move in sorted(moves, key=lambda one: (one.topic, one.part)):  # one order for all: no deadlock
            mine = o.c.intake == intake, o.c.topic == move.topic, o.c.part == move.part
            fence = o.c.owner == owner, o.c.epoch == move.epoch
            values = {"next_offset": move.next_offset, "changed_at": now()}
            if not tx.execute(update(o).where(*mine, *fence).values(values)).rowcount:
                raise Overtaken(f"{move.topic}[{move.part}] was taken by another process")

    def _cancel(self, tx: Connection, message_id: str, intake: str) -> None:
        m, t = message_tables(self.database).message, self.database.tables.task
        query = select(t.c.id).join_from(m, t, t.c.id == m.c.task_id).where(m.c.id == message_id)
        task_id = tx.execute(query).scalar()
        if task_id is None:  # it never was, or has ended and is kept no longer
            return
        why = "workq-cancel, in a record"
        while self._decisions.cancel_in(tx, str(task_id), who=f"intake {intake}", why=why) is None:
            continue

    def _count(
        self, tx: Connection, intake: str, recorded: int, repeated: int, cancelled: int, unreadable: list[str]
    ) -> None:
        i, now = message_tables(self.database).intake, self.database.now
        values: dict[Any, Any] = {
            i.c.recorded: i.c.recorded + recorded,
            i.c.kept: i.c.kept + recorded,
            i.c.repeated: i.c.repeated + repeated,
            i.c.cancelled: i.c.cancelled + cancelled,
            i.c.quarantined: i.c.quarantined + len(unreadable),
            i.c.taken_at: now(),
        }
        if unreadable:
            values[i.c.quarantined_why] = codec.storable(unreadable[-1], characters_max=_WHY_MAX)
            values[i.c.quarantined_at] = now()
        if not tx.execute(update(i).where(i.c.name == intake).values(values)).rowcount:
            raise NotFound(f"no intake {intake[:100]!r}; it was removed")
