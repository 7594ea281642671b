"""Entry rules: what has a say when tasks come into the ledger, and when a person sends one back or moves its time.

They are a closed tuple, put together with the ledger. What they decide, they decide in the transaction that writes;
`bars` and `goes_on` are parts of questions, too.

To add one: a class with those of these six functions in which it has a say, in the tuple of workq/slices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, false, or_
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database
from workq.values.task import NewTask, State


class KeyedTask(NamedTuple):
    """A task that is there, and what it shares with others."""

    id: str
    order_key: str | None
    limit_key: str | None
    job_id: str | None
    state: State
    """Before the person's decision."""


class EntryRule:
    """One of them, which has nothing to say unless it says so. What it decides is written in the transaction given."""

    def enter(self, _tx: Connection, _database: Database, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        """Before new tasks are inserted: the same, in their order, with what each has to wait for."""
        return tasks

    def waits_again(self, _tx: Connection, _database: Database, _task: KeyedTask) -> str | None:
        """A person has sent this task back. What it has to wait for, as `waits_for` says it; None: it is ready."""
        return None

    def keeps_its_time(self, _tx: Connection, _database: Database, _task: KeyedTask) -> str | None:
        """Why a person cannot let a task that waits for others be due at another time, if so."""
        return None

    def bars(self, _database: Database) -> ColumnElement[bool]:
        """In a statement: which rows of the table of tasks, once they have ended, nobody sends back."""
        return false()

    def why_barred(self, _task: KeyedTask) -> str | None:
        """Why such a task is not sent back, and what to do instead; None: it is none of those."""
        return None

    def goes_on(self, _database: Database, _queues: Sequence[str]) -> Sequence[Select[Any]]:
        """Questions that find tasks of these queues that wait for others and will go on without a person."""
        return ()


class EntryRules:
    """All entry rules of a ledger, in their order."""

    def __init__(self, database: Database, rules: Sequence[EntryRule]) -> None:
        self._database = database
        self._rules = tuple(rules)
        self._entering = [rule for rule in rules if type(rule).enter is not EntryRule.enter]

    def enter(self, tx: Connection, tasks: Sequence[NewTask]) -> Sequence[NewTask]:
        """The same tasks, due never where they have to wait for others."""
        for rule in self._entering:
            tasks = rule.enter(tx, self._database, tasks)
        return tasks

    def waits_again(self, tx: Connection, task: KeyedTask) -> str | None:
        """What a task that a person has sent back has to wait for; None: it stays ready."""
        found = [rule.waits_again(tx, self._database, task) for rule in self._rules]  # each is told
        return next((one for one in found if one is not None), None)

    def keeps_its_time(self, tx: Connection, task: KeyedTask) -> str | None:
        """Why a task that waits for others cannot be due at another time, if so."""
        found = (rule.keeps_its_time(tx, self._database, task) for rule in self._rules)
        return next((why for why in found if why is not None), None)

    def barred(self) -> ColumnElement[bool]:
        """In a statement: which rows of the table of tasks, once they have ended, nobody sends back."""
        return or_(false(), *(rule.bars(self._database) for rule in self._rules))

    def goes_on(self, queues: Sequence[str]) -> list[Select[Any]]:
        """Questions that find tasks of these queues that wait for others and will go on without a person."""
        return [query for rule in self._rules for query in rule.goes_on(self._database, queues)]

    def why_barred(self, task: KeyedTask) -> str:
        """Why a task that is barred is not sent back."""
        found = (rule.why_barred(task) for rule in self._rules)
        return next((why for why in found if why is not None), f"task {task.id} is not sent back")
