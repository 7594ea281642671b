"""Permits: which of the tasks that share a limit may run. Decided at the claim, under the lock of the limit's row.

Only who comes where others wait already is parked without that lock, on a server (see `_park_behind`).

A task of a limit is recorded, hinted and fetched as any other. When it is claimed, it gets a permit, and runs; or, when
the limit is reached or others wait already, it is parked behind those who came before (see parked.py). It has
left its worker, and costs nothing. When there is room again, the first that is parked is promised a permit for its next
claim, and is hinted again (see limits.py); a promise counts like a permit.

How many run at once: a permit is in use for as long as its attempt runs, however that ends: the ledger knows, nobody
has to say so. Which of them are over is asked where there might be no room; else they are only counted. How many start
in a time: what was claimed within it is counted, and what comes too late from its claim to its start may not start (see
values/limit_rule.py). So a hint that is late costs nobody a start.

A limit may be closed for a time, because what it stands for is out of order: nothing of it starts then, what is claimed
is parked, and afterwards one at a time starts, until somebody opens it (see closing.py).

All of it is in the ledger: a wiped broker or in-flight store changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Connection,
    Delete,
    Insert,
    Select,
    Update,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger import Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.kept_rows import NewRow
from workq.ledger.engine.states import CLAIMABLE, guarded
from workq.ledger.pauses import is_paused
from workq.ledger.waiting import is_behind
from workq.limits.ledger import parked
from workq.limits.ledger.closing import make_row
from workq.limits.ledger.parked import come_at
from workq.limits.ledger.tables import limit_tables
from workq.values.limit_rule import Rate, rate_of
from workq.values.task import State

AHEAD_S: Final = 2.0
"""A promise is given for a time that is so near: a hint takes a moment."""
IDLE_S: Final = 86400.0
"""A limit that nobody has used for so long is forgotten."""
USED_EVERY_S: Final = 60.0
"""That a limit is used is noted so often."""
PROMISED_S: Final = 60.0
"""For so long a promise is kept for a task whose hint nobody takes: others want it, too."""
PLENTY: Final = 1_000
"""So many permits of a limit may be over and stay: they are looked at when there might be no room for others."""
_CLOCKS_DIFFER_S: Final = 1.0
"""What was claimed later than now was claimed before the clock was set back."""


class TaskOfLimit(NamedTuple):
    """A claimable task that has a limit."""

    id: str
    may_start: bool
    """Neither has it expired nor is its queue paused."""
    limit_key: str
    limit_most: int | None
    limit_rate: str | None


@dataclass(slots=True)
class _Limit:
    """The row of a limit, locked, and what hangs on it."""

    key: str
    last: int
    used_at: datetime
    """When somebody has used it, as far as that was noted."""
    closed_until: datetime | None
    now: datetime
    has_parked: bool
    """Somebody waits for it."""
    in_use_max: int
    """So many permits and promises there are, with those that are over."""
    has_promises: bool
    running: int = 0
    """Permits in use."""
    promises: dict[str, datetime] = field(default_factory=dict)
    """By task: from when on it may be claimed."""
    claimed: list[datetime] = field(default_factory=list)
    """When something was claimed, of what may still count for a rate."""
    promised: frozenset[str] = frozenset()
    """To whom something was promised when we looked."""
    parks: list[str] = field(default_factory=list)
    gives: set[str] = field(default_factory=set)
    """To whom a permit is given, to be used now."""
    new_promises: dict[str, datetime] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Whether nobody has used it for long."""
        return self.used_at < self.now - timedelta(seconds=IDLE_S)

    @property
    def is_closed(self) -> bool:
        """Whether nothing may start."""
        return self.closed_until is not None and self.closed_until > self.now

    def has_plenty(self, rows: Sequence[TaskOfLimit]) -> bool:
        """Whether all of these may run, however many of the permits are in use."""
        if self.closed_until is not None or self.has_parked or self.has_promises:
            return False
        if any(row.limit_rate is not None for row in rows):
            return False
        most = min(PLENTY if row.limit_most is None else row.limit_most for row in rows)
        return self.in_use_max + len(rows) <= min(most, PLENTY)

    def has_room(self, most: int | None) -> bool:
        """Whether one more may run, with all to whom it is promised."""
        if self.closed_until is not None:
            most = 0 if self.is_closed else 1
        return most is None or self.running + len(self.promises) < most

    def may_claim(self, rate: Rate | None) -> bool:
        """Whether one more may be claimed now, whatever was promised to others."""
        return rate is None or len(self._counted(rate, self.claimed)) < rate.count

    def when(self, rate: Rate | None) -> datetime | None:
        """From when on one more may be claimed, after all to whom it is promised; None when that is far ahead."""
        if rate is None:
            return self.now
        counted = self._counted(rate, [*self.claimed, *self.promises.values()])
        if len(counted) < rate.count:
            return self.now
        free_at = counted[len(counted) - rate.count] + timedelta(seconds=rate.counted_s)
        return max(self.now, _whole_ms(free_at)) if free_at <= self.now + timedelta(seconds=AHEAD_S) else None

    def _counted(self, rate: Rate, times: Sequence[datetime]) -> list[datetime]:
        since = self.now - timedelta(seconds=rate.counted_s)
        return sorted(one for one in times if one > since)

    def give(self, task_id: str) -> None:
        self.promises.pop(task_id, None)
        self.gives.add(task_id)
        self.running += 1
        self.claimed.append(self.now)

    def promise(self, task_id: str, at: datetime) -> None:
        self.promises[task_id] = self.new_promises[task_id] = at


def ask(tx: Connection, database: Database, rows: Iterable[TaskOfLimit]) -> dict[str, float | None]:
    """Which of these tasks, whose turn it would be but for their limits, get a permit for their next attempt.

    Answers, for each of those, within how many seconds it has to start (None: at any time). The others wait for a slot
    of their own, or are parked; but for those that may not start in any case.
    """
    granted: dict[str, float | None] = {}
    limited: dict[str, list[TaskOfLimit]] = {}
    for row in rows:
        if row.may_start:
            limited.setdefault(row.limit_key, []).append(row)
    crowded = {} if database.dialect == "sqlite" else parked.crowded(tx, database, limited)
    for key in sorted(limited):
        asking = limited[key]
        if key in crowded:
            asking = _park_behind(tx, database, key, asking, now=crowded[key])
            if not asking:
                continue
        limit = _locked(tx, database, key)
        if limit.has_plenty(asking):
            limit.running = limit.in_use_max
        else:
            _count(tx, database, limit)
        for row in asking:
            granted |= _decide(limit, row)
            limit.has_parked = limit.has_parked or bool(limit.parks)
        _write(tx, database, limit)
    return granted


def _park_behind(
    tx: Connection, database: Database, key: str, rows: Sequence[TaskOfLimit], *, now: datetime
) -> list[TaskOfLimit]:
    """Park these behind others, without the lock of their limit; answers those to whom it is promised.

    So whoever lets the next one start does not wait for those who come. Should all who wait, and all who run, have
    gone by when this is committed, the sweep finds these. On SQLite nobody else writes meanwhile.
    """
    given = {"b_key": key, "b_ids": in_order(row.id for row in rows)}
    promises = database.kept("promises to these", partial(_promised, database)).rows(tx, given)
    promised = {task_id for (task_id,) in promises}
    if parks := [row.id for row in rows if row.id not in promised]:
        parked.park(tx, database, key, parks, first=parked.number(now))
    return [row for row in rows if row.id in promised]


def _promised(database: Database) -> Select[Any]:
    p = limit_tables(database).permit
    of = p.c.limit_key == bindparam("b_key", type_=p.c.limit_key.type)
    these = among(p.c.task_id, database.dialect)
    return select(as_text(p.c.task_id, database.dialect)).where(of, p.c.attempt.is_(None), these)


def _decide(limit: _Limit, row: TaskOfLimit) -> dict[str, float | None]:
    rate = None if row.limit_rate is None else rate_of(row.limit_rate)
    is_promised = row.id in limit.promises and not limit.is_closed
    if is_promised or (not limit.has_parked and limit.has_room(row.limit_most)):
        if limit.may_claim(rate) if is_promised else limit.when(rate) == limit.now:
            limit.give(row.id)
            return {row.id: None if rate is None else rate.spare_s}
        limit.promises.pop(row.id, None)
        at = limit.when(rate)
        if at is not None:  # a little early
            limit.promise(row.id, max(at, limit.now + timedelta(milliseconds=1)))
            return {}
    limit.promises.pop(row.id, None)
    limit.parks.append(row.id)
    return {}


@dataclass(slots=True)
class NextPermits:
    """Whose turn has come. `takes` have their permits already, for the attempts that begin in this transaction."""

    hints: list[Unpublished] = field(default_factory=list)
    """They have promises, and need their hints, which are reserved for the caller."""
    takes: list[Unpublished] = field(default_factory=list)
    """The caller claims them; those that are not granted `come`."""
    left_s: dict[str, float | None] = field(default_factory=dict)
    """Of each of these: within how many seconds it has to start (None: at any time)."""
    reserved_until: datetime | None = None
    """What comes is reserved until then."""
    is_cut: bool = False
    """None of those who were looked at waits any more, and there are others behind them: call again."""


def admit(
    tx: Connection, database: Database, key: str, *, reserved_s: float, room: int = 0, queues: Container[str] = ()
) -> NextPermits:
    """Give what is free of a limit to the first that are parked: to be used now, or later, by whoever gets the hint.

    Now: as many as the caller has `room` for, of its `queues`. What is of a job has to ask that,
    too (see jobs/ledger/gate.py).
    """
    limit = _locked(tx, database, key)
    turns = NextPermits(reserved_until=limit.now + timedelta(seconds=reserved_s))
    if not limit.has_parked and not limit.is_idle:
        return turns
    _count(tx, database, limit)
    seen: list[int] = []
    for row in parked.first(tx, database, key):
        if row.state == State.WAITING and row.due_at is not None and is_behind(row.due_at, limit.now):
            rate = None if row.limit_rate is None else rate_of(row.limit_rate)
            at = limit.when(rate) if limit.has_room(row.limit_most) else None
            if at is None:
                break
            if len(turns.takes) < room and at == limit.now and row.queue in queues and not row.is_of_job:
                limit.give(row.task_id)
                turns.takes.append(Unpublished(row.task_id, row.queue, row.attempt, 0.0))
                turns.left_s[row.task_id] = None if rate is None else rate.spare_s
            else:
                limit.promise(row.task_id, at)
                delay_s = max(0.0, (at - limit.now).total_seconds())
                hint = Unpublished(row.task_id, row.queue, row.attempt, delay_s, reserved_until=turns.reserved_until)
                turns.hints.append(hint)
        seen.append(row.number)
    if (
        limit.is_idle
        and limit.closed_until is None
        and not limit.running
        and not limit.promises
        and not limit.has_parked
    ):
        tx.execute(delete(limit_tables(database).throttle).where(limit_tables(database).throttle.c.id == key))
        return turns
    if seen:
        parked.leave(tx, database, key, seen)
    if len(seen) >= parked.AT_ONCE and not turns.hints and not turns.takes:
        parked.leave_gone(tx, database, key)
        turns.is_cut = True
    _write(tx, database, limit, reserved_until=turns.reserved_until, is_used=True)
    return turns


def _locked(tx: Connection, database: Database, key: str) -> _Limit:
    """The limit, under its lock; what is in use of it is not counted yet."""
    given = {"b_key": key}
    lock = database.kept("lock a limit", partial(_locking, database))
    while not (found := lock.rows(tx, given)):
        make_row(tx, database, key)
    [(last, used_at, closed_until)] = found
    waiting = database.kept("now, and who waits", partial(_waiting, database))
    [(now, has_parked, count, permits)] = waiting.rows(tx, given)  # the lock may have taken its time
    return _Limit(key, last, used_at, closed_until, now, bool(has_parked), count, count > permits)


def _count(tx: Connection, database: Database, limit: _Limit) -> None:
    """What is in use of a limit and promised; what has come free or does not count any more goes."""
    permits = database.kept("permits", partial(_permits, database)).rows(tx, {"b_key": limit.key})
    gone = [row[0] for row in permits if not _counts(limit, _Permit(*row))]
    if gone:
        database.kept("permits over", partial(_ending, database)).write(tx, {"b_ids": sorted(gone)})
    limit.promised = frozenset(limit.promises)


def _waiting(database: Database) -> Select[Any]:
    tables = limit_tables(database)
    k, p = tables.parked, tables.permit
    waits = select(k.c.number).where(k.c.limit_key == bindparam("b_key", type_=k.c.limit_key.type))
    mine = p.c.limit_key == bindparam("b_key", type_=p.c.limit_key.type)
    return select(database.now(), waits.exists(), func.count(), func.count(p.c.attempt)).select_from(p).where(mine)


def _ending(database: Database) -> Delete:
    p = limit_tables(database).permit
    return delete(p).where(among(p.c.id, database.dialect, item="BIGINT"))


def _locking(database: Database) -> Select[Any]:
    h = limit_tables(database).throttle
    key = bindparam("b_key", type_=h.c.id.type)
    return select(h.c.last, h.c.changed_at, h.c.closed_until).where(h.c.id == key).with_for_update()


class _Permit(NamedTuple):
    """A permit or a promise, and its task, if that is still there. `attempt` is None for a promise.

    `at` is there for promises and rates; `due_at` for promises. Those that are just in use are told together, by their
    number.
    """

    id: int
    in_use: int
    task_id: str
    attempt: int | None
    at: datetime | None
    state: str | None
    newest: int | None
    due_at: datetime | None
    limit_rate: str | None
    is_paused: bool


def _permits(database: Database) -> Select[Any]:
    """A limit may have hundreds of permits, and most of them are just in use: those make one row."""
    p, t = limit_tables(database).permit, database.tables.task
    is_promise = p.c.attempt.is_(None)
    is_in_use = and_(guarded(t.c.state, State.RUNNING), t.c.attempt == p.c.attempt, t.c.limit_rate.is_(None))
    number = case((is_in_use, 0), else_=p.c.id)
    return (
        select(
            number,
            func.sum(case((is_in_use, 1), else_=0)),
            func.min(as_text(p.c.task_id, database.dialect)),
            func.min(p.c.attempt),
            func.min(case((or_(is_promise, t.c.limit_rate.is_not(None)), p.c.at))),
            func.min(t.c.state),
            func.min(t.c.attempt),
            func.min(case((is_promise, t.c.due_at))),
            func.min(t.c.limit_rate),
            func.max(case((and_(is_promise, is_paused(t.c.queue, database)), 1), else_=0)),
        )
        .outerjoin(t, t.c.id == p.c.task_id)
        .where(p.c.limit_key == bindparam("b_key", type_=p.c.limit_key.type))
        .group_by(number)
    )


def _counts(limit: _Limit, permit: _Permit) -> bool:
    """Whether a permit or a promise still counts, and as what."""
    now, at = limit.now, permit.at
    if permit.in_use:
        limit.running += int(permit.in_use)
        return True
    if permit.attempt is None:
        is_kept = (
            permit.state in CLAIMABLE
            and not permit.is_paused
            and at is not None
            and permit.due_at is not None
            and permit.due_at <= max(now, at)
            and now <= at + timedelta(seconds=PROMISED_S)
        )
        if is_kept and at is not None:
            limit.promises[permit.task_id] = at
        return is_kept
    is_running = permit.state == State.RUNNING and permit.newest == permit.attempt
    limit.running += is_running
    if permit.limit_rate is None or at is None:
        return is_running
    since = now - timedelta(seconds=rate_of(permit.limit_rate).counted_s)
    is_recent = since < at <= now + timedelta(seconds=_CLOCKS_DIFFER_S)
    if is_recent:
        limit.claimed.append(at)
    return is_running or is_recent


def _write(
    tx: Connection,
    database: Database,
    limit: _Limit,
    *,
    reserved_until: datetime | None = None,
    is_used: bool = False,
) -> None:
    """What was decided. Without `reserved_until`, who asked has the hints in hand, and sends them again in time.

    That it was used is noted now and then, or when `is_used`: everybody writes to this row.
    """
    is_used = is_used or bool(limit.parks) or limit.used_at < limit.now - timedelta(seconds=USED_EVERY_S)
    if limit.parks:
        first = max(parked.number(limit.now), limit.last + 1)
        parked.park(tx, database, limit.key, limit.parks, first=first)
        limit.last = first + len(limit.parks)
    promised = sorted(limit.promised & {*limit.parks, *limit.gives, *limit.new_promises})
    if promised:
        mine: dict[str, Any] = {"b_key": limit.key, "b_ids": in_order(promised)}
        database.kept("promises over", partial(_taking_back, database)).write(tx, mine)
    if limit.gives:
        given = {"b_key": limit.key, "b_at": limit.now, "b_ids": in_order(limit.gives)}
        database.kept("permit", partial(_giving, database)).write(tx, given)
    if limit.new_promises:
        rows = [{"b_key": limit.key, "b_task": one, "b_at": at} for one, at in limit.new_promises.items()]
        database.kept_rows("promise", partial(_promising, database)).write(tx, rows)
    for at, coming in groupby(sorted((at, task_id) for task_id, at in limit.new_promises.items()), lambda one: one[0]):
        ids = [task_id for _, task_id in coming]
        come_at(tx, database, ids, None if at <= limit.now else at, reserved_until=reserved_until)
    if is_used:
        used = database.kept("use a limit", partial(_using, database))
        used.write(tx, {"b_key": limit.key, "b_last": limit.last})


def _taking_back(database: Database) -> Delete:
    p = limit_tables(database).permit
    promises = delete(p).where(p.c.limit_key == bindparam("b_key", type_=p.c.limit_key.type), p.c.attempt.is_(None))
    return promises.where(among(p.c.task_id, database.dialect))


def _giving(database: Database) -> Insert:
    """For the attempts that are to begin."""
    p, t = limit_tables(database).permit.c, database.tables.task.c
    values: dict[Any, ColumnElement[Any]] = {
        p.limit_key: bindparam("b_key", type_=p.limit_key.type),
        p.task_id: t.id,
        p.attempt: t.attempt + 1,
        p.at: bindparam("b_at", type_=p.at.type),
    }
    attempts = select(*values.values()).where(among(t.id, database.dialect))
    return insert(p.id.table).from_select(list(values), attempts)


def _promising(database: Database) -> NewRow:
    p = limit_tables(database).permit.c
    given = {p.limit_key: "b_key", p.task_id: "b_task", p.at: "b_at"}
    return {column: bindparam(bind, type_=column.type) for column, bind in given.items()}


def _using(database: Database) -> Update:
    h = limit_tables(database).throttle
    mine = update(h).where(h.c.id == bindparam("b_key", type_=h.c.id.type))
    return mine.values(last=bindparam("b_last", type_=h.c.last.type), changed_at=database.now())


def _whole_ms(at: datetime) -> datetime:
    """Never earlier: SQLite keeps no more."""
    return at + timedelta(microseconds=-at.microsecond % 1000)
