"""What the parts of the ledger's contract share: who is there before a test, and steps that many take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, create_engine, select, text

from tests.contract.databases import OnDatabase
from tests.contract.given import Clock, incarnation, new
from tests.stores import tables_of
from workq.ledger import Evidence, Settled, Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.values.incarnation import Incarnation
from workq.values.task import Claim, Outcome, Settlement, State, Task


class Steps(OnDatabase):
    """Fixtures and short steps, for arranging and for looking."""

    BY: ClassVar[dict[str, str]] = {"who": "eve@host", "what": "test"}
    """Who applies a plan."""

    @pytest.fixture
    def clock(self, database: Database) -> Clock:
        return Clock(database)

    @pytest.fixture
    def theirs(self, url: str, pytestconfig: pytest.Config) -> Iterator[Engine]:
        """The caller's own engine to the same database, as SQLAlchemy makes it by default; behind a pooler, as it must.

        What the caller's driver prepares on the caller's connection is the caller's.
        """
        is_pooled = pytestconfig.getoption("--pooled") and url.startswith("postgresql")
        engine = create_engine(Database(url).url, connect_args={"prepare_threshold": None} if is_pooled else {})
        yield engine
        engine.dispose()

    @pytest.fixture
    def worker(self, ledger: Ledger) -> Incarnation:
        """A live incarnation."""
        worker = incarnation()
        ledger.workers.join(worker, queues=["default"], threads=4)
        return worker

    @pytest.fixture
    def claimed(self, ledger: Ledger, worker: Incarnation) -> Claim:
        """A task that runs."""
        return self.run_one(ledger, worker)

    @staticmethod
    def record(ledger: Ledger, count: int = 1, **facts: Any) -> list[str]:
        return [one.id for one in ledger.tasks.record(new(count, **facts))]

    @classmethod
    def run_one(cls, ledger: Ledger, worker: Incarnation, **facts: Any) -> Claim:
        [claim] = ledger.claims.claim(cls.record(ledger, **facts), by=worker.id)
        return claim

    @staticmethod
    def settle(ledger: Ledger, claim: Claim, outcome: Outcome) -> Settled:
        [settled] = ledger.outcomes.settle([Settlement(claim, outcome)])
        return settled

    @staticmethod
    def task(ledger: Ledger, task_id: str) -> Task:
        """As the ledger tells it. It is there."""
        task = ledger.questions.get(task_id)
        assert task is not None
        return task

    @classmethod
    def state(cls, ledger: Ledger, task_id: str) -> State:
        return cls.task(ledger, task_id).state

    @staticmethod
    def charges(ledger: Ledger, task_id: str) -> list[str]:
        """What each reaping cost it."""
        return [event.detail["charged"] for event in ledger.questions.history(task_id) if event.kind == "reaped"]

    @staticmethod
    def claim_elsewhere(ledger: Ledger, ids: Sequence[str]) -> list[Claim]:
        """The next claim of each, by another incarnation."""
        other = incarnation()
        ledger.workers.join(other, queues=["default"], threads=4)
        return ledger.claims.claim(ids, by=other.id)

    @classmethod
    def suspects(cls, ledger: Ledger, **facts: Any) -> list[str]:
        """Two tasks whose process died while both ran."""
        ids = cls.record(ledger, 2, **facts)
        [first, _] = cls.claim_elsewhere(ledger, ids)
        worker = cls.task(ledger, first.task_id).worker
        assert worker is not None
        ledger.workers.reap(worker, Evidence("SIGSEGV", started=dict.fromkeys(ids, 1)))
        return ids

    @staticmethod
    def marked(ledger: Ledger, hints: Iterable[Unpublished]) -> list[str]:
        """Note that these hints are confirmed; answers the tasks of which the ledger has noted it."""
        sent = list(hints)
        ledger.hints.mark_published(sent)
        fences = ledger.plans.fences([one.task_id for one in sent])
        return [one.task_id for one in sent if fences[one.task_id].published_at is not None]

    @staticmethod
    def unreserved(hints: Iterable[Unpublished]) -> list[Unpublished]:
        """Without the reservation, whose time the database's clock has decided."""
        return [replace(one, reserved_until=None) for one in hints]

    @staticmethod
    def kinds(ledger: Ledger, task_id: str) -> list[str]:
        return [event.kind for event in ledger.questions.history(task_id)]

    @staticmethod
    def everything(database: Database) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of all tables."""
        with database.engine.connect() as connection:
            return {
                table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
                for table in tables_of(database)
            }

    @contextmanager
    def without_events(self, database: Database) -> Iterator[None]:
        """The table of events is away meanwhile: whoever writes an event fails."""
        name = database.tables.event.name
        self.rename(database, name, f"{name}_away")
        try:
            yield
        finally:
            self.rename(database, f"{name}_away", name)

    @staticmethod
    def rename(database: Database, table: str, to: str) -> None:
        with database.engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} RENAME TO {to}"))

    @staticmethod
    def row(database: Database, task_id: str) -> Any:
        t = database.tables.task
        with database.engine.connect() as connection:
            return connection.execute(select(t).where(t.c.id == task_id)).one()

    @staticmethod
    def noted(ledger: Ledger, task_id: str) -> int:
        """How many events say that a person did something to this task."""
        return [event.kind for event in ledger.questions.history(task_id)].count("manual")

    @staticmethod
    def decided(ledger: Ledger) -> list[tuple[str, str, str]]:
        """What people have decided that is of no task, who and why, the oldest first."""
        events = ledger.questions.happened(["manual"], within_s=30 * 86_400.0, limit=99)
        told = [one.detail for one in events if one.task_id is None]
        assert all(one.keys() == {"what", "who", "why"} for one in told)
        return [(one["what"], one["who"], one["why"]) for one in told]
