"""The ledger on SQLite, PostgreSQL and MySQL/MariaDB, put together from its parts and what the slices add to them.

One set of statements serves the three dialects; where one does better, it says so where it matters (`RETURNING` in
claims.py, `SKIP LOCKED` in workers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Connection

from workq.ledger.after_settle import AfterSettle
from workq.ledger.audits import Audits
from workq.ledger.bulk import BulkDecisions
from workq.ledger.claims import Claims
from workq.ledger.decisions import Decisions
from workq.ledger.due_tasks import DueTasks
from workq.ledger.engine.database import Database
from workq.ledger.entry import EntryRule, EntryRules
from workq.ledger.hints import RESERVED_S, Hints
from workq.ledger.history import History
from workq.ledger.lanes import Lanes
from workq.ledger.markers import Markers
from workq.ledger.outcomes import Outcomes
from workq.ledger.pauses import Pauses
from workq.ledger.plans import Plans
from workq.ledger.questions import Questions
from workq.ledger.scan_floor import Floor
from workq.ledger.signs import Signs
from workq.ledger.start import StartGate, StartGates
from workq.ledger.tasks import Tasks
from workq.ledger.transactions import HandlerTransactions
from workq.ledger.upkeep import Upkeep
from workq.ledger.workers import Workers

T = TypeVar("T")
AtItsTurn = Callable[[Connection, Database, str, str], str | None]
WithPruned = Callable[[Connection, Database, Sequence[str]], None]


class Slices(NamedTuple):
    """What the slices add to the path of a task: closed tuples, called plainly, in their order (see workq.slices)."""

    gates: Sequence[StartGate]
    counters: Callable[[Ledger], Sequence[AfterSettle]]
    """Who follows what is settled. The function is called before the parts `outcomes` and `transactions` are made."""
    entry: Sequence[EntryRule]
    at_its_turn: Sequence[AtItsTurn]
    """Whether a task, of an id and a name, stays due never although it is its turn. Asked under the lock of its row."""
    with_pruned: Sequence[WithPruned] = ()
    """What goes with tasks that retention removes, by their ids, in the transaction that removes them."""


class Ledger:
    """A ledger in one SQL database: what each part of it does is in the part's own class. Thread-safe."""

    def __init__(
        self, database: Database, slices: Slices, *, reserved_s: float = RESERVED_S, floor: Floor | None = None
    ) -> None:
        """`reserved_s`: after how long another sweep may publish what a relay that died had reserved."""
        self.database = database
        self.slices = slices
        self.reserved_s = reserved_s
        self._parts: dict[object, Any] = {}
        floor = floor or Floor(database)
        rules = EntryRules(database, slices.entry)
        self.history = History(database)
        self.lanes = Lanes(database)
        self.claims = Claims(database, gates=StartGates(database, slices.gates))
        self.due_tasks = DueTasks(database)
        self.hints = Hints(database, floor=floor, reserved_s=reserved_s)
        self.markers = Markers(database, floor=floor, reserved_s=reserved_s)
        self.questions = Questions(database, rules=rules)
        self.tasks = Tasks(database, lanes=self.lanes, rules=rules)
        self.workers = Workers(database, history=self.history, floor=floor, reserved_s=reserved_s)
        self.signs = Signs(database)
        self.upkeep = Upkeep(database, history=self.history, floor=floor, with_pruned=slices.with_pruned)
        self.pauses = Pauses(database, history=self.history)
        self.decisions = Decisions(database, history=self.history, reserved_s=reserved_s, rules=rules)
        self.plans = Plans(
            database, upkeep=self.upkeep, workers=self.workers, history=self.history, reserved_s=reserved_s
        )
        self.bulk = BulkDecisions(database, history=self.history, decisions=self.decisions, rules=rules)
        self.audits = Audits(database, plans=self.plans, workers=self.workers)
        self.outcomes = Outcomes(database, counters=slices.counters(self))
        self.transactions = HandlerTransactions(database, outcomes=self.outcomes)

    def part(self, kind: Callable[[Ledger], T]) -> T:
        """What a slice keeps in this ledger, made when it is first asked for: `ledger.part(JobLedger).questions`."""
        found = self._parts.get(kind)
        if found is None:  # of two that ask at once, the first makes it: no lock, which a fork could find held
            found = self._parts.setdefault(kind, kind(self))
        return cast(T, found)

    def give_way(self) -> None:
        """For a loop of events, between two rounds: wait a moment for a thread that keeps all others from writing."""
        self.database.writer.give_way()

    def close(self) -> None:
        """Close connections. Repeatable."""
        self.database.close()
