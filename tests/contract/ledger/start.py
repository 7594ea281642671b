"""Start gates: a task starts when each gate that it concerns lets it; a further gate needs nothing of the core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, Select, true, update
from sqlalchemy.sql.elements import ColumnElement

from tests.contract.given import HOUR_S
from tests.contract.ledger.steps import Steps
from workq.jobs.ledger.gate import JobGate
from workq.ledger.claims import Claims
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.ledger.start import StartCandidate, StartGates
from workq.limits.ledger.gate import LimitGate
from workq.values.incarnation import Incarnation
from workq.values.task import Limit, State


class WorkingHours:
    """Tasks of the queue `office` start while it is open; afterwards they wait for an hour."""

    name = "hours"

    def __init__(self) -> None:
        self.is_working = False
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def concerns(self, database: Database) -> ColumnElement[bool]:
        return database.tables.task.c.queue == "office"

    def columns(self, database: Database) -> Sequence[ColumnElement[Any]]:
        return (database.tables.task.c.name, database.tables.task.c.attempt)

    def joined(self, _: Database, rows: Select[Any]) -> Select[Any]:
        return rows

    def is_open(self, _: Database) -> ColumnElement[bool]:
        return true()

    def ask(
        self, tx: Connection, database: Database, candidates: Sequence[StartCandidate]
    ) -> Mapping[str, float | None]:
        t = database.tables.task
        self.asked += [(one.id, one.knows[self.name]) for one in candidates]
        if not self.is_working:
            later = {"state": State.WAITING, "due_at": database.now(HOUR_S)}
            tx.execute(update(t).where(t.c.id.in_([one.id for one in candidates])).values(later))
            return {}
        return dict.fromkeys((one.id for one in candidates), 5.0)


class StartContract(Steps):
    @pytest.fixture
    def hours(self) -> WorkingHours:
        return WorkingHours()

    @pytest.fixture
    def claims(self, ledger: Ledger, hours: WorkingHours) -> Iterator[Claims]:
        """Claims of a ledger with one gate more."""
        statements = ledger.database._statements  # those that were put together for the gates of every day
        before = dict(statements)
        statements.clear()
        yield Claims(ledger.database, gates=StartGates(ledger.database, (JobGate(), hours, LimitGate())))
        statements.clear()
        statements.update(before)

    def test_what_no_gate_is_concerned_with_starts_and_no_gate_is_asked(
        self, ledger: Ledger, worker: Incarnation, claims: Claims, hours: WorkingHours
    ) -> None:
        ids = self.record(ledger, 2)

        assert [one.task_id for one in claims.claim(ids, by=worker.id)] == ids
        assert hours.asked == []

    def test_what_a_gate_holds_back_does_not_start_and_waits_as_it_says(
        self, ledger: Ledger, worker: Incarnation, claims: Claims, hours: WorkingHours
    ) -> None:
        held, free = self.record(ledger, queue="office"), self.record(ledger)

        assert [one.task_id for one in claims.claim(held + free, by=worker.id)] == free
        assert hours.asked == [(held[0], ("index", 0))]
        assert self.state(ledger, held[0]) is State.WAITING
        assert claims.look(held)[held[0]].due_in_s > HOUR_S / 2

    def test_what_all_gates_let_pass_starts_within_the_shortest_of_their_times(
        self, ledger: Ledger, worker: Incarnation, claims: Claims, hours: WorkingHours
    ) -> None:
        hours.is_working = True
        limited = self.record(ledger, queue="office", limit=Limit("printer", concurrency=9, rate="100/m"))

        [claim] = claims.claim(limited, by=worker.id)

        assert claim.start_within_s is not None
        assert 0.0 < claim.start_within_s <= 5.0

    def test_a_gate_that_would_open_is_not_asked_for_what_one_before_it_has_held_back(
        self, ledger: Ledger, worker: Incarnation, claims: Claims, hours: WorkingHours
    ) -> None:
        limit = Limit("printer", concurrency=1)
        [held] = self.record(ledger, queue="office", limit=limit)
        [free] = self.record(ledger, limit=limit)

        assert [one.task_id for one in claims.claim([held, free], by=worker.id)] == [free], "the permit is still there"
