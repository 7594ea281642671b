"""Start gates: what has a say, at the claim, in whether a task may start; and what the task waits for if it may not.

The gates are a closed tuple, put together with the ledger, and asked one after the other in the transaction that
claims. One question looks at what all of them want to know. A task that no gate is concerned with is claimed without
any of this.

To add one: a class of these five functions, in the tuple of workq/slices.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection, Select, and_, not_, or_, select
from sqlalchemy.sql.elements import ColumnElement

from workq.ledger.engine.database import Database
from workq.ledger.engine.id_lists import among, as_text, in_order
from workq.ledger.engine.states import CLAIMABLE, guarded, unexpired
from workq.ledger.pauses import is_paused


class StartCandidate(NamedTuple):
    """A claimable task that is due, and that some gate is concerned with."""

    id: str
    may_start: bool
    """Neither has it expired nor is its queue paused."""
    knows: Mapping[str, tuple[Any, ...]]
    """By each gate that it concerns: the values of the columns that it wants to know."""


class StartGate(Protocol):
    """One of them. What it decides is written in the transaction that it is given."""

    name: str

    def concerns(self, database: Database) -> ColumnElement[bool]:
        """In a statement: whether it has a say about a row of the table of tasks."""

    def columns(self, database: Database) -> Sequence[ColumnElement[Any]]:
        """What it wants to know of a task."""

    def joined(self, database: Database, rows: Select[Any]) -> Select[Any]:
        """The statement with the tables, outer joined, that these columns need besides that of tasks."""

    def is_open(self, database: Database) -> ColumnElement[bool]:
        """In the statement that claims: what must hold for a row, whatever `ask` has said before."""

    def ask(
        self, tx: Connection, database: Database, candidates: Sequence[StartCandidate]
    ) -> Mapping[str, float | None]:
        """Which of these may start, and within how many seconds each has to (None: at any time).

        The time is kept of tasks that have a limit, alone. All of them concern it. What may not start is made to wait,
        or is cancelled.
        """


class StartGates:
    """All gates of a ledger, in their order."""

    def __init__(self, database: Database, gates: Sequence[StartGate]) -> None:
        self._database = database
        self._gates = tuple(gates)
        self._counts = [len(gate.columns(database)) for gate in self._gates]

    def concern(self) -> ColumnElement[bool]:
        """In a statement: whether any of them has a say about a row of the table of tasks."""
        return or_(*(gate.concerns(self._database) for gate in self._gates))

    def unconcerned(self) -> list[ColumnElement[bool]]:
        """In the statement that claims what none of them has a say about."""
        return [not_(gate.concerns(self._database)) for gate in self._gates]

    def are_open(self) -> ColumnElement[bool]:
        """In the statement that claims what they have let pass."""
        return and_(*(gate.is_open(self._database) for gate in self._gates))

    def look(self, tx: Connection, task_ids: Sequence[str]) -> list[StartCandidate]:
        """Of these tasks, in their order, what is claimable and concerns a gate."""
        asked = self._database.kept("ask the gates", self._asked).rows(tx, {"b_ids": in_order(task_ids)})
        found = {candidate.id: candidate for candidate in map(self._candidate, asked)}
        return [found[task_id] for task_id in dict.fromkeys(task_ids) if task_id in found]

    def ask(self, tx: Connection, candidates: Sequence[StartCandidate]) -> dict[str, float | None]:
        """Which of these all gates let start, and within how many seconds each has to (None: at any time)."""
        left_s: dict[str, float | None] = {one.id: None for one in candidates}
        for gate in self._gates:
            asking = [one for one in candidates if one.id in left_s and gate.name in one.knows]
            passed = gate.ask(tx, self._database, asking) if asking else {}
            for one in asking:
                before_s = left_s.pop(one.id)
                if one.id in passed:
                    left_s[one.id] = _sooner(before_s, passed[one.id])
        return left_s

    def _candidate(self, row: tuple[Any, ...]) -> StartCandidate:
        task_id, may_start, *rest = row
        knows: dict[str, tuple[Any, ...]] = {}
        for gate, count in zip(self._gates, self._counts, strict=True):
            is_concerned, *values = rest[: count + 1]
            if is_concerned:
                knows[gate.name] = tuple(values)
            rest = rest[count + 1 :]
        return StartCandidate(task_id, bool(may_start), knows)

    def _asked(self) -> Select[Any]:
        database, t = self._database, self._database.tables.task
        may_start = and_(unexpired(t.c.expires_at, database.now()), ~is_paused(t.c.queue, database))
        wanted = [column for gate in self._gates for column in (gate.concerns(database), *gate.columns(database))]
        rows = select(as_text(t.c.id, database.dialect), may_start, *wanted).select_from(t)
        for gate in self._gates:
            rows = gate.joined(database, rows)
        return rows.where(
            among(t.c.id, database.dialect),
            self.concern(),
            guarded(t.c.state, *CLAIMABLE),
            t.c.due_at <= database.now(),
        )


def _sooner(one_s: float | None, other_s: float | None) -> float | None:
    return one_s if other_s is None else other_s if one_s is None else min(one_s, other_s)
