"""Recording tasks: one transaction, ours or the caller's.

The ids are made by the client, so a commit whose outcome is unknown is simply repeated: rows that stand already are
found by their ids. A key is decided by the unique constraint on `live_key`, never by looking first, and keys are
always taken in one order: producers of the same keys wait for each other, and never in a circle.

In the caller's transaction everything happens inside a savepoint: what cannot be recorded leaves the rest of that
transaction as it was. When the caller's connection breaks, the caller's transaction is gone, and the task with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import Column, Connection, Insert, bindparam, case, func, insert, null, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.types import Float

from workq.errors import KeyConflict
from workq.ledger import HintRows, keys
from workq.ledger.callers_transaction import begin_in_sqlite, core_connection, reads_the_past, unseen
from workq.ledger.engine.database import Database
from workq.ledger.engine.failures import without_values
from workq.ledger.engine.id_lists import ArrayText
from workq.ledger.engine.kept_rows import NewRow
from workq.ledger.entry import EntryRules
from workq.ledger.hint_rows import given_hints, insert_hints, with_hints
from workq.ledger.lanes import Lanes
from workq.ledger.named_instants import LedgerClock, left_at, left_s
from workq.ledger.waiting import NEVER_S, is_behind
from workq.values.options import LIMIT, TASK_OPTIONS, Stored
from workq.values.task import Enqueued, NewTask, State

_TRIES: Final = 50
"""How often a key may change hands between our insert and our look: it does once in three, where all do little else."""

RARE: Final = (
    *(one for one in (*TASK_OPTIONS, LIMIT) if not one.is_always_written),
    Stored(name="job_id", columns=("job_id",), is_apart=True),
    Stored(name="waits_for", columns=("waits_for",), is_apart=True),
)
"""Fields of a task that most leave at their default: a statement names the columns of those that its tasks have."""
_rare_of = attrgetter(*(one.name for one in RARE))
_NOTHING_RARE: Final = {tuple(one.default for one in RARE)}


class InAWindow(Exception):
    """A key is held for a time by a task that may be settled."""


class Tasks:
    """Records new tasks."""

    def __init__(self, database: Database, *, lanes: Lanes, rules: EntryRules) -> None:
        self.database = database
        self._lanes = lanes
        self._rules = rules

    @property
    def writers(self) -> int:
        """How many transactions are worth writing at once from one process: SQLite has one writer."""
        return 1 if self.database.dialect == "sqlite" else 2

    def record(
        self, tasks: Sequence[NewTask], *, connection: Any = None, hints: HintRows | None = None
    ) -> list[Enqueued]:
        """Record tasks in one transaction, in the caller's own when `connection` (or a session) is given.

        With `hints`, in the same transaction, and the tasks are published with it.

        All or nothing. Repeatable after CommitUnknown, because the ids are made by the client: rows that stand already
        are answered as created. A task whose key a live task holds is not recorded; the live one is answered with
        `created=False`.

        Raises:
            KeyConflict: the live task with that key has another name or other arguments.
        """
        if not tasks:
            return []
        if connection is not None:
            return self._record_within(core_connection(connection, self.database), tasks, hints)
        self._lanes.announce(tasks)
        try:
            rare = self._rare_of_alike(tasks)
            if rare is not None:
                return self.database.run(lambda tx: self._all_alike(tx, tasks, rare, hints), is_single=True)
            return self.database.run(lambda tx: self.all_at_once(tx, tasks, hints))
        except (IntegrityError, InAWindow):  # a key is taken, or rows of an unknown commit stand already
            return self.database.run(lambda tx: self._one_by_one(tx, tasks, hints))

    def _record_within(self, tx: Connection, tasks: Sequence[NewTask], hints: HintRows | None) -> list[Enqueued]:
        try:
            begin_in_sqlite(tx)
            self._lanes.announce(tasks, within=tx)
            try:
                with tx.begin_nested():
                    return self.all_at_once(tx, tasks, hints)
            except (IntegrityError, InAWindow):
                with tx.begin_nested():
                    return self._one_by_one(tx, tasks, hints, is_newest=reads_the_past(self.database))
        except IntegrityError as error:
            raise without_values(error) from None
        except DBAPIError as error:
            raise unseen("a task, or what it waits for,", error, self.database) from error

    def all_at_once(self, tx: Connection, tasks: Sequence[NewTask], hints: HintRows | None) -> list[Enqueued]:
        return [_enqueued(task) for task in self.insert(tx, tasks, hints)]

    def _all_alike(
        self, tx: Connection, tasks: Sequence[NewTask], rare: Sequence[Stored], hints: HintRows | None
    ) -> list[Enqueued]:
        self._insert_alike(tx, tasks, rare, hints)
        return [_enqueued(task) for task in tasks]

    def insert(self, tx: Connection, tasks: Sequence[NewTask], hints: HintRows | None) -> Sequence[NewTask]:
        """Answers them as they were inserted: a task that stands behind another one waits for it."""
        rare = self._rare_of_alike(tasks)
        if rare is not None:
            self._insert_alike(tx, tasks, rare, hints)
            return tasks
        clock = self._clock_of(tx, tasks)
        tasks = self._rules.enter(tx, tasks if clock is None else left_at(tasks, clock.now()))
        self._insert_each(tx, [tasks[place] for place in _by_key(tasks)], is_published=hints is not None)
        self._keep_keys(tx, tasks)
        if hints is not None:
            self._insert_hints(tx, [task for task in tasks if task.waits_for is None], hints, clock)
        return tasks

    def _clock_of(self, tx: Connection, tasks: Sequence[NewTask]) -> LedgerClock | None:
        """What decides how long it is until then; None where no task names an instant."""
        return None if all(task.at is None for task in tasks) else LedgerClock(tx, self.database)

    def _insert_hints(
        self, tx: Connection, tasks: Sequence[NewTask], hints: HintRows, clock: LedgerClock | None
    ) -> None:
        """The hints of tasks that were inserted just now: to record a thousand takes a while."""
        since = None if clock is None else clock.now()
        rows = hints(tasks if since is None else left_at(tasks, since))
        insert_hints(tx, self.database, rows, since=since)

    def _rare_of_alike(self, tasks: Sequence[NewTask]) -> Sequence[Stored] | None:
        """The rare fields of tasks that differ in their ids and payloads alone; None where one insert is not enough.

        On PostgreSQL alone, which has arrays.
        """
        first = tasks[0]
        if self.database.dialect != "postgresql" or first.key is not None or first.at is not None:
            return None
        rare = _rare_in([first])
        if rare and any(one.is_apart for one in rare):
            return None
        is_alike = all(replace(task, id=first.id, payload=first.payload) == first for task in tasks[1:])
        return rare if is_alike else None

    def _insert_alike(
        self, tx: Connection, tasks: Sequence[NewTask], rare: Sequence[Stored], hints: HintRows | None
    ) -> None:
        """Calls of one handler, on PostgreSQL: ids and payloads travel as two arrays, and the rest once."""
        alike = tasks[0]
        name = f"insert{', with hints' * (hints is not None)}{_told(rare)}"
        make = partial(self._alike_statement, has_hints=hints is not None, rare=rare)
        self.database.kept(name, make).write(
            tx,
            {
                **({} if hints is None else given_hints(hints(tasks))),
                "b_ids": [task.id for task in tasks],
                "b_payloads": [task.payload for task in tasks],
                "b_name": alike.name,
                "b_queue": alike.queue,
                "b_state": _first_state(alike),
                "b_failures_max": alike.failures_max,
                "b_crashes_max": alike.crashes_max,
                "b_delay_s": alike.delay_s,
                **{parameter: value for one in rare for parameter, value in _parameters(one, alike)},
            },
        )

    def _alike_statement(self, *, has_hints: bool, rare: Sequence[Stored]) -> Insert:
        c, now = self.database.tables.task.c, self.database.now
        given = func.unnest(
            bindparam("b_ids", type_=ArrayText("UUID")), bindparam("b_payloads", type_=ArrayText("TEXT"))
        )
        each = given.table_valued("id", "payload").render_derived()
        once = (c.name, c.queue, c.state, c.failures_max, c.crashes_max)
        values: dict[Column[Any], Any] = {
            c.id: each.c.id,
            c.payload: each.c.payload,
            **{column: bindparam(f"b_{column.name}", type_=column.type) for column in once},
            c.due_at: now(bindparam("b_delay_s", type_=Float())),
            c.created_at: now(),
            c.queued_at: now(),
            **self._rare_values(rare),
        }
        if has_hints:
            values[c.published_at] = now()
        statement = insert(self.database.tables.task).from_select(list(values), select(*values.values()))
        return with_hints(self.database, statement) if has_hints else statement

    def _rare_values(self, rare: Sequence[Stored], *, is_plain: bool = False) -> dict[Column[Any], Any]:
        """The columns of these fields, and what an insert puts there: the parameters of `_parameters`.

        `is_plain`: the instants are computed already.
        """
        c, now = self.database.tables.task.c, self.database.now
        values: dict[Column[Any], Any] = {}
        for one in rare:
            if one.is_from_now and not is_plain:
                column, seconds = c[one.columns[0]], bindparam(f"b_{one.name}", type_=Float())
                values[column] = now(seconds)
                if self.database.dialect == "sqlite":  # where what is added to NULL is not NULL
                    values[column] = case((seconds.is_(None), null()), else_=now(seconds))
            else:
                values |= {c[name]: bindparam(f"b_{name}", type_=c[name].type) for name in one.columns}
        return values

    def _insert_each(self, tx: Connection, tasks: Sequence[NewTask], *, is_published: bool) -> None:
        rows: list[dict[str, Any]] = [
            {
                "b_id": task.id,
                "b_name": task.name,
                "b_queue": task.queue,
                "b_state": _first_state(task),
                "b_delay_s": task.delay_s if task.waits_for is None else NEVER_S,
                "b_failures_max": task.failures_max,
                "b_crashes_max": task.crashes_max,
                "b_live_key": keys.live_key(task.name, task.key),
                "b_task_key": task.key,
                "b_payload": task.payload,
            }
            for task in tasks
        ]
        rare = _rare_in(tasks)
        for one in rare:
            for row, task in zip(rows, tasks, strict=True):
                row.update(_parameters(one, task))
        is_exact = any(task.at is not None for task in tasks)
        if is_exact:
            for row, task in zip(rows, tasks, strict=True):
                row["b_at"] = task.at if task.waits_for is None else None
        # MySQL's driver sends many rows at once only where every value is plain: one question for the clock, then
        is_plain = self.database.dialect == "mysql" and len(rows) > 1
        if is_plain:
            instant: datetime = tx.execute(select(self.database.now())).scalar_one()
            seconds = {f"b_{one.name}": f"b_{one.columns[0]}" for one in rare if one.is_from_now}
            for row in rows:
                due_at = instant + timedelta(seconds=row.pop("b_delay_s"))
                at = row.pop("b_at", None)
                row |= {"b_now": instant, "b_due_at": due_at if at is None else max(at, instant)}
                for given, computed in seconds.items():
                    given_s = row.pop(given)
                    row[computed] = None if given_s is None else instant + timedelta(seconds=given_s)
            is_exact = False
        marks = f"{', published' * is_published}{', plain' * is_plain}{', exact' * is_exact}{_told(rare)}"
        make = partial(self._new_row, is_published=is_published, is_plain=is_plain, is_exact=is_exact, rare=rare)
        self.database.kept_rows(f"insert each{marks}", make).write(tx, rows)

    def _new_row(self, *, is_published: bool, is_plain: bool, is_exact: bool, rare: Sequence[Stored]) -> NewRow:
        """The row of a task. `is_plain`: its instants are computed already. `is_exact`: some are due at an instant."""
        c, now = self.database.tables.task.c, self.database.now
        given = (c.id, c.name, c.queue, c.state, c.failures_max, c.crashes_max, c.live_key, c.task_key, c.payload)
        values: dict[Column[Any], Any] = {one: bindparam(f"b_{one.name}", type_=one.type) for one in given}
        values[c.due_at] = (
            bindparam("b_due_at", type_=c.due_at.type) if is_plain else now(bindparam("b_delay_s", type_=Float()))
        )
        if is_exact:
            at = bindparam("b_at", type_=c.due_at.type)
            values[c.due_at] = case((at > now(), at), (at.is_not(None), now()), else_=values[c.due_at])
        values |= self._rare_values(rare, is_plain=is_plain)
        for one in (c.created_at, c.queued_at, *[c.published_at] * is_published):
            values[one] = bindparam("b_now", type_=one.type) if is_plain else now()
        return values

    def _one_by_one(
        self, tx: Connection, tasks: Sequence[NewTask], hints: HintRows | None, *, is_newest: bool = False
    ) -> list[Enqueued]:
        answers: dict[int, Enqueued] = {}
        hinted: dict[int, NewTask] = {}
        clock = self._clock_of(tx, tasks)
        tasks = tasks if clock is None else left_at(tasks, clock.now())
        for place in _by_key(tasks):
            found = self._insert_or_find(tx, tasks[place], is_published=hints is not None, is_newest=is_newest)
            if isinstance(found, Enqueued):
                answers[place] = found
                continue
            answers[place] = _enqueued(found)
            if found.waits_for is None:
                hinted[place] = found
        if hints is not None and hinted:
            self._insert_hints(tx, [hinted[place] for place in sorted(hinted)], hints, clock)
        return [answers[place] for place in range(len(tasks))]

    def _insert_or_find(
        self, tx: Connection, task: NewTask, *, is_published: bool, is_newest: bool
    ) -> Enqueued | NewTask:
        """The task as it was inserted, or what stands in its place."""
        for _ in range(_TRIES):
            try:
                with tx.begin_nested():
                    [entered] = self._rules.enter(tx, [task])
                    self._insert_each(tx, [entered], is_published=is_published)
                    self._keep_keys(tx, [entered])
                return entered
            except (IntegrityError, InAWindow):
                standing = self._standing(tx, task, is_newest=is_newest)
                if standing is not None:
                    return standing
                if task.key is None:
                    raise
                # the key's holder was settled between our insert and our look: it is free now
        raise KeyConflict(
            f"key {task.key!r} of {task.name} is held by a task that this transaction does not see, as it began "
            "before, or changes hands too fast to be taken; roll it back, and try again"
        )

    def _keep_keys(self, tx: Connection, tasks: Sequence[NewTask]) -> None:
        """Behind the insert: are their keys free of windows? Then those that they want for themselves begin."""
        if all(task.key is None for task in tasks):
            return
        if keys.is_open(tx, self.database, tasks):
            raise InAWindow
        keys.begin(tx, self.database, tasks)

    def _standing(self, tx: Connection, task: NewTask, *, is_newest: bool) -> Enqueued | None:
        """The row in whose place this task would be: itself, from a commit that we could not see, or its key's.

        `is_newest`: as it is by now, in a transaction that reads what was there when it began.
        """
        t = self.database.tables.task
        columns = select(
            t.c.id, t.c.state, t.c.name, t.c.task_key, t.c.payload, t.c.due_at, self.database.now().label("now")
        )
        if is_newest:
            columns = columns.with_for_update(read=True)
        itself = tx.execute(columns.where(t.c.id == task.id)).first()
        if itself is not None:
            due_in_s = None if task.at is None else left_s(task.at, itself.now)
            waits = is_behind(itself.due_at, itself.now)
            return Enqueued(task.id, State(itself.state), True, is_behind=waits, due_in_s=due_in_s)
        if task.key is None:
            return None
        key = keys.live_key(task.name, task.key) or ""
        holder = tx.execute(columns.where(t.c.live_key == key)).first()
        if holder is None and (settled := keys.holder(tx, self.database, key)) is not None:
            holder = tx.execute(columns.where(t.c.id == settled)).first()
        if holder is None:
            return None
        if (holder.name, holder.task_key, holder.payload) != (task.name, task.key, task.payload):
            raise KeyConflict(
                f"key {task.key!r} of {task.name} is held by task {holder.id} ({holder.state}) with other arguments. "
                f"Use another key, or wait until that task is settled; look at it with: workq task show {holder.id}"
            )
        return Enqueued(holder.id, State(holder.state), False)


def _rare_in(tasks: Sequence[NewTask]) -> Sequence[Stored]:
    """The fields that most tasks leave at their default, and some of these do not. Nearly always none.

    In one pass: tasks of one call are one tuple here.
    """
    found = set(map(_rare_of, tasks))
    if found == _NOTHING_RARE:
        return ()
    return [one for one, values in zip(RARE, zip(*found, strict=True), strict=True) if {*values} != {one.default}]


def _told(rare: Sequence[Stored]) -> str:
    """These fields in the name of a statement: there is one for each set of them."""
    return "".join(f", with {one.name}" for one in rare)


def _parameters(one: Stored, task: NewTask) -> Iterable[tuple[str, Any]]:
    """What `_rare_values` names, for one task."""
    value = getattr(task, one.name)
    if one.is_from_now:
        return [(f"b_{one.name}", value)]
    return [(f"b_{name}", written) for name, written in zip(one.columns, one.written(value), strict=True)]


def _by_key(tasks: Sequence[NewTask]) -> list[int]:
    """The places of tasks, in the order in which every producer takes keys. Of two with one key, the first is first."""
    return sorted(range(len(tasks)), key=lambda place: keys.live_key(tasks[place].name, tasks[place].key) or "")


def _enqueued(task: NewTask) -> Enqueued:
    due_in_s = None if task.at is None else task.delay_s
    return Enqueued(task.id, _first_state(task), True, is_behind=task.waits_for is not None, due_in_s=due_in_s)


def _first_state(task: NewTask) -> State:
    return State.WAITING if task.delay_s > 0.0 or task.waits_for is not None else State.READY
