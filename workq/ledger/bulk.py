"""Decisions about many tasks: open ones that nobody wants any more are cancelled, dead ones sent back or discarded.

Open ones are counted, found and cancelled by what they have in common. A page is decided in one transaction that locks
its rows, with an event for each. What does not run is cancelled; what runs is asked. Neither is found again: so whoever
is interrupted begins again with those that are left.

Dead ones are counted, grouped by what they died of, sent back or discarded, page by page. Each write decides row by row
that a task is still dead, in one transaction that locks the rows, with an event for each. So whoever is interrupted
half-way begins again, and what was done is not done twice; two at once share the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import Connection, Select, case, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from workq.errors import NotFound, Refused
from workq.ledger import NO_GROUP, DeadGroup, Unpublished, Which, WhichOpen
from workq.ledger.decisions import Decisions
from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import as_text
from workq.ledger.engine.states import CLAIMABLE, ENDED, found, guarded
from workq.ledger.entry import EntryRules, KeyedTask
from workq.ledger.hint_rows import drop_hints_of
from workq.ledger.history import REASON_MAX, History, who_and_why
from workq.values import codec
from workq.values.lane import meant
from workq.values.task import State

_OPEN: Final = (*CLAIMABLE, State.RUNNING)
DISCARDED = "discarded"


class BulkDecisions:
    """Decisions of a person about many tasks at once."""

    def __init__(self, database: Database, *, history: History, decisions: Decisions, rules: EntryRules) -> None:
        self.database = database
        self._history = history
        self._decisions = decisions
        self._rules = rules

    def open_count(self, which: WhichOpen) -> Mapping[State, int]:
        """How many they are, in each state in which there are any."""
        t = self.database.tables.task

        def count(tx: Connection) -> dict[State, int]:
            counted: dict[State, int] = {}
            for state in _chosen(which.states):
                query = select(func.count()).select_from(t).where(*self._in(state), *self._like(which))
                counted[state] = int(tx.execute(query).scalar_one())
            return {state: number for state, number in counted.items() if number}

        return self.database.ask(count)

    def open_ids(self, which: WhichOpen, *, limit: int) -> list[str]:
        """Some of those of whom no cancel was asked yet, in no order; none, when there are no more."""
        c = self.database.tables.task.c

        def look(tx: Connection) -> list[str]:
            ids: list[str] = []
            for state in _chosen(which.states):  # one after the other: each is one range of an index
                unasked = [c.cancel_requested_at.is_(None)] if state is State.RUNNING else []
                query = select(c.id).where(*self._in(state), *unasked, *self._like(which)).limit(limit - len(ids))
                ids += tx.execute(query).scalars()
                if len(ids) >= limit:
                    break
            return ids

        return list(dict.fromkeys(self.database.ask(look)))

    def cancel_all(
        self, task_ids: Sequence[str], *, states: Collection[State], who: str, why: str
    ) -> tuple[list[str], list[str]]:
        """As `cancel`, of many that are in one of these states, in one transaction.

        Answers who was cancelled, and who was asked. What has left these states since is in neither. Repeatable.
        """
        t, now = self.database.tables.task, self.database.now
        ids = sorted({one for one in task_ids if codec.is_task_id(one)})
        chosen = _chosen(states)
        if not ids or not chosen:
            return [], []
        by, kept = who_and_why(who, why).values()
        locked = (
            select(t.c.id, t.c.state, t.c.cancel_requested_at)
            .where(t.c.id.in_(ids), guarded(t.c.state, *chosen))
            .order_by(t.c.id)
            .with_for_update()
        )

        def decide(tx: Connection) -> tuple[list[str], list[str]]:
            rows = tx.execute(locked).all()
            waits = [row.id for row in rows if row.state in CLAIMABLE]
            runs = [row.id for row in rows if row.state == State.RUNNING and row.cancel_requested_at is None]
            if waits:
                mine = update(t).where(t.c.id.in_(waits), guarded(t.c.state, *CLAIMABLE))
                tx.execute(mine.values(state=State.CANCELLED, reason=kept, settled_at=now(), live_key=None))
                drop_hints_of(tx, self.database, waits)
                self._history.append(tx, "cancelled", {"reason": kept, "who": by}, task_ids=waits)
            if runs:
                mine = update(t).where(t.c.id.in_(runs), guarded(t.c.state, State.RUNNING))
                tx.execute(mine.values(cancel_requested_at=now(), reason=kept))
                self._history.append(tx, "cancelled", {"reason": kept, "who": by, "asked": True}, task_ids=runs)
            return waits, runs

        return self.database.run(decide)

    def _in(self, state: State) -> list[ColumnElement[bool]]:
        """Both, where the index has two states: SQLite proves it by the first."""
        c = self.database.tables.task.c
        return (
            [found(c.state, state)] if state is State.RUNNING else [found(c.state, *CLAIMABLE), found(c.state, state)]
        )

    def _like(self, which: WhichOpen) -> list[ColumnElement[bool]]:
        c, now = self.database.tables.task.c, self.database.now
        chosen: list[ColumnElement[Any]] = []
        if which.name is not None:
            chosen.append(c.name == which.name)
        if which.queue is not None:
            chosen.append(c.queue.in_(meant(which.queue)))
        if which.before is not None:
            chosen.append(c.created_at <= which.before)
        if which.older_s is not None:
            chosen.append(c.created_at <= now(-which.older_s))
        if which.younger_s is not None:
            chosen.append(c.created_at > now(-which.younger_s))
        return chosen

    def dead_groups(self, which: Which, *, limit: int) -> list[DeadGroup]:
        """The dead by what they died of, the largest group first."""
        c = self.database.tables.task.c
        tasks = func.count().label("tasks")
        query = (
            select(
                c.fingerprint,
                c.name,
                tasks,
                func.min(c.settled_at).label("first_at"),
                func.max(c.settled_at).label("last_at"),
                func.min(c.reason).label("reason"),
                self._least_id().label("sample"),
                func.count(case((self._rules.barred(), 1))).label("of_jobs"),
            )
            .where(*self._which(which))
            .group_by(c.fingerprint, c.name)
            .order_by(tasks.desc(), c.name, c.fingerprint)
            .limit(limit)
        )
        rows = self.database.ask(lambda tx: tx.execute(query).all())
        return [DeadGroup(group or NO_GROUP, *rest) for group, *rest in rows]

    def dead_count(self, which: Which) -> int:
        """How many they are."""
        query = select(func.count()).select_from(self.database.tables.task).where(*self._which(which))
        return self.database.ask(lambda tx: int(tx.execute(query).scalar_one()))

    def revivable_count(self, which: Which) -> int:
        """How many of them `revive_dead` would send back now: not those of jobs, nor those whose key is not free."""
        t = self.database.tables.task
        other = t.alias("other")
        key = t.c.name.concat("/").concat(t.c.task_key)  # see `live_key` in keys.py
        is_held = select(other.c.id).where(other.c.live_key == key).exists()
        # of several that have one key, one can be live
        count = func.count(case((t.c.task_key.is_(None), t.c.id))) + func.count(case((~is_held, key)).distinct())
        query = select(count).select_from(t).where(*self._which(replace(which, of_job=False)))
        return self.database.ask(lambda tx: int(tx.execute(query).scalar_one()))

    def dead_ids(self, which: Which, *, after: str | None, limit: int) -> list[str]:
        """A page of them, by id from the oldest: `after` is the last id of the page before."""
        c = self.database.tables.task.c
        rest = [] if after is None else [c.id > after]
        query = select(c.id).where(*self._which(which), *rest).order_by(c.id).limit(limit)
        return self.database.ask(lambda tx: list(tx.execute(query).scalars()))

    def revive_dead(self, task_ids: Sequence[str], *, who: str, why: str) -> tuple[list[Unpublished], dict[str, str]]:
        """As `revive`, of many that are dead, in one transaction; answers the hints, and by id why another is not.

        What is not dead any more is in neither: somebody was faster. Repeatable.
        """
        t = self.database.tables.task
        is_barred = self._rules.barred().label("is_barred")
        keys = (t.c.task_key, t.c.order_key, t.c.limit_key, t.c.job_id)
        columns = (t.c.id, t.c.queue, t.c.attempt, *keys, is_barred, self.database.now().label("now"))
        locked = self._still_dead(task_ids, *columns)
        refused: dict[str, str] = {}

        def send_back(tx: Connection) -> tuple[list[Unpublished], list[str]]:
            found = tx.execute(locked).all()
            refused.update((row.id, self._rules.why_barred(_keyed(row))) for row in found if row.is_barred)
            rows = [row for row in found if not row.is_barred]
            alone = [row for row in rows if row.task_key is None]
            keyed = [row.id for row in rows if row.task_key is not None]
            if not alone:
                return [], keyed
            ids, until = [row.id for row in alone], self._decisions.reserved_from(alone[0].now)
            mine = update(t).where(t.c.id.in_(ids), guarded(t.c.state, State.DEAD))
            tx.execute(mine.values(self._decisions.revived(until)))
            self._history.append(tx, "revived", who_and_why(who, why), task_ids=ids)
            hints = []
            for row in sorted(alone, key=lambda row: (row.order_key or "", row.id)):
                delay_s = self._decisions.come_back(tx, _keyed(row))
                hints.append(Unpublished(row.id, row.queue, row.attempt, delay_s, reserved_until=until))
            return hints, keyed

        hints, keyed = self.database.run(send_back)
        for task_id in keyed:  # the unique constraint decides for each by itself whether its key is free
            try:
                hints.append(self._decisions.revive_from(task_id, State.DEAD, who=who, why=why))
            except (Refused, NotFound) as error:
                refused[task_id] = str(error)
        return hints, refused

    def discard_dead(self, task_ids: Sequence[str], *, who: str, why: str) -> list[str]:
        """Dead tasks that nobody wants back: cancelled, as `discarded`. Answers which were. Repeatable."""
        t, now = self.database.tables.task, self.database.now
        locked = self._still_dead(task_ids, t.c.id)
        by, said = who_and_why(who, why).values()
        reason = f"{DISCARDED}: {said}"[:REASON_MAX]

        def discard(tx: Connection) -> list[str]:
            ids = list(tx.execute(locked).scalars())
            if ids:
                mine = update(t).where(t.c.id.in_(ids), guarded(t.c.state, State.DEAD))
                tx.execute(mine.values(state=State.CANCELLED, reason=reason, settled_at=now(), fingerprint=None))
                self._history.append(tx, "cancelled", {"reason": reason, "who": by}, task_ids=ids)
            return ids

        return self.database.run(discard)

    def _still_dead(self, task_ids: Sequence[str], *columns: ColumnElement[Any]) -> Select[Any]:
        t = self.database.tables.task
        ids = sorted({one for one in task_ids if codec.is_task_id(one)})
        query = select(*columns).where(t.c.id.in_(ids), guarded(t.c.state, State.DEAD))
        return query.order_by(t.c.id).with_for_update(skip_locked=True)

    def _which(self, which: Which) -> list[ColumnElement[bool]]:
        c, now = self.database.tables.task.c, self.database.now
        # both, unless it is a group: SQLite proves the index of the settled by the first
        chosen = [found(c.state, State.DEAD)] if which.group else [found(c.state, *ENDED), found(c.state, State.DEAD)]
        group = None if which.group == NO_GROUP else which.group
        if which.group == NO_GROUP:
            chosen.append(c.fingerprint.is_(None))
        for column, value in ((c.fingerprint, group), (c.name, which.name)):
            if value is not None:
                chosen.append(column == value)
        if which.queue is not None:
            chosen.append(c.queue.in_(meant(which.queue)))
        if which.older_s is not None:
            chosen.append(c.settled_at <= now(-which.older_s))
        if which.younger_s is not None:
            chosen.append(c.settled_at > now(-which.younger_s))
        if which.ids is not None:
            chosen.append(c.id.in_([one for one in which.ids if codec.is_task_id(one)]))
        if which.of_job is not None:
            of_job = self._rules.barred()
            chosen.append(of_job if which.of_job else ~of_job)
        return chosen

    def _least_id(self) -> ColumnElement[Any]:
        """PostgreSQL 12 to 17 has no min() of a UUID; as text it sorts the same."""
        c = self.database.tables.task.c
        return func.min(as_text(c.id, self.database.dialect))


def _keyed(row: Any) -> KeyedTask:
    return KeyedTask(row.id, row.order_key, row.limit_key, row.job_id, State.DEAD)


def _chosen(states: Collection[State]) -> list[State]:
    """Of these, those in which a task is open."""
    return [state for state in _OPEN if state in states]
