"""Rules: what the schema forbids, and a random walk of all operations that looks for a rule to break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError

from tests.contract.given import OUTCOMES, incarnation, new
from tests.contract.ledger.steps import Steps
from workq.errors import KeyConflict, NotFound, Refused
from workq.ledger import Evidence
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.slices import SLICES
from workq.values.incarnation import Incarnation
from workq.values.task import SETTLED, TRANSITIONS, Claim, Done, Settlement, State


class RulesContract(Steps):
    def test_the_schema_forbids_what_must_never_be_stored(self, ledger: Ledger, database: Database) -> None:
        [task_id] = self.record(ledger, key="k")
        t = database.tables.task
        nonsense: list[dict[str, Any]] = [
            {"state": "foo"},
            {"state": "running"},
            {"state": "succeeded"},
            {"settled_at": database.now()},
            {"state": "succeeded", "settled_at": database.now()},
            {"attempt": -1},
        ]
        for values in nonsense:
            with pytest.raises(DBAPIError, match=r"(?i)constraint"), database.engine.begin() as tx:
                tx.execute(update(t).where(t.c.id == task_id).values(**values))

    @pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.only_long)])
    def test_any_sequence_of_operations_keeps_the_rules(self, ledger: Ledger, database: Database, seed: int) -> None:
        Walk(ledger, database, seed).run(steps=120)

    def test_closing_again_does_no_harm(self, url: str) -> None:
        ledger = Ledger(Database(url), SLICES)
        ledger.close()
        ledger.close()


class Walk:
    """A random sequence of operations; after each, every row must have moved only as `task.TRANSITIONS` allows."""

    def __init__(self, ledger: Ledger, database: Database, seed: int) -> None:
        self.ledger, self.database, self.seed = ledger, database, seed
        self.rng = Random(seed)
        self.ids: list[str] = []
        self.claims: list[Claim] = []
        self.workers: list[Incarnation] = []
        self.won: Counter[tuple[str, int]] = Counter()
        self.steps: dict[str, Callable[[], object]] = {
            "record": self.record,
            "claim": self.claim,
            "settle": self.settle,
            "reap": lambda: ledger.workers.reap(self.a_worker(), self.evidence()),
            "leave": lambda: ledger.workers.leave(self.a_worker()),
            "join": self.join,
            "beat": lambda: ledger.workers.beat(self.a_worker()),
            "cancel": lambda: ledger.decisions.cancel(self.rng.choice(self.ids), who="ada", why="?"),
            "cancel_all": lambda: ledger.bulk.cancel_all(
                self.some_ids()[:2], states=self.rng.sample(list(State), 2), who="ada", why="?"
            ),
            "revive": lambda: ledger.decisions.revive(self.rng.choice(self.ids), who="ada", why="?"),
            "promote": lambda: ledger.upkeep.promote(limit=5),
            "orphans": lambda: ledger.workers.orphans(limit=5),
            "unhint": lambda: ledger.hints.unhint(self.some_ids()),
            "publish": lambda: ledger.hints.mark_published(
                ledger.hints.take_unpublished(limit=5, grace_s=0.0, horizon_s=self.rng.uniform(0, 100))
            ),
            "prune": lambda: ledger.upkeep.prune(limit=1, retention_s=300.0, dead_retention_s=400.0),
            "wait": self.wait,
        }
        self.weights = [9, 20, 25, 2, 1, 3, 1, 4, 3, 4, 4, 3, 2, 4, 1, 6]

    def run(self, *, steps: int) -> None:
        done: list[str] = []
        self.join()
        self.record()
        before = self.rows()
        for _ in range(steps):
            step = self.rng.choices([*self.steps], self.weights)[0]
            done.append(step)
            with suppress(Refused, KeyConflict, NotFound):
                self.steps[step]()
            after = self.rows()
            self.check(before, after, f"Walk(ledger, database, {self.seed}): {' '.join(done)}")
            before = after

    def check(self, before: dict[str, Any], after: dict[str, Any], how: str) -> None:
        for task_id, row in after.items():
            state = State(row.state)
            assert (state in SETTLED) == (row.settled_at is not None), how
            assert (state in SETTLED) <= (row.live_key is None), how
            assert state in SETTLED or (row.live_key is None) == (row.task_key is None), how
            assert row.failures + row.crashes <= row.attempt, how
            old = before.get(task_id)
            if old is None:
                assert row.attempt == 0, how
                continue
            assert row.attempt >= old.attempt, how
            assert row.failures >= old.failures or State(old.state) in (State.DEAD, State.CANCELLED), how
            if row.attempt > old.attempt:
                assert (state, row.token == old.token) == (State.RUNNING, False), how
            if state is not State(old.state):
                assert state in TRANSITIONS[State(old.state)], f"{old.state} -> {state.value}: {how}"
            elif state is State.RUNNING:
                assert (row.attempt, row.token) == (old.attempt, old.token), how
        assert all(State(before[task_id].state) in SETTLED for task_id in before.keys() - after.keys()), how
        assert not [fence for fence, count in self.won.items() if count > 1], how

    def rows(self) -> dict[str, Any]:
        with self.database.engine.connect() as connection:
            return {row.id: row for row in connection.execute(select(self.database.tables.task))}

    def record(self) -> None:
        facts = {
            "delay_s": self.rng.choice([0.0, 0.0, 30.0, 200.0]),
            "failures_max": self.rng.randint(1, 3),
            "crashes_max": self.rng.randint(1, 2),
            "key": self.rng.choice([None, None, "a", "b"]),
            "queue": self.rng.choice(["q", "r"]),
        }
        self.ids += [one.id for one in self.ledger.tasks.record(new(self.rng.randint(1, 3), **facts)) if one.created]

    def claim(self) -> None:
        self.claims += self.ledger.claims.claim(self.some_ids(), by=self.a_worker())

    def settle(self) -> None:
        chosen = self.rng.sample(self.claims, min(len(self.claims), self.rng.randint(1, 4)))  # also long settled ones
        outcomes = [self.rng.choice([Done("1"), Done(), *OUTCOMES.values()]) for _ in chosen]
        settled = self.ledger.outcomes.settle([Settlement(*pair) for pair in zip(chosen, outcomes, strict=True)])
        for one, claim, outcome in zip(settled, chosen, outcomes, strict=True):
            if one.state is State.SUCCEEDED:
                assert isinstance(outcome, Done)
                self.won[(one.task_id, claim.attempt)] += 1
                self.claims.remove(claim)

    def join(self) -> None:
        self.workers.append(incarnation())
        self.ledger.workers.join(self.workers[-1], queues=["q"], threads=1)

    def wait(self) -> None:
        self.database.clock_offset_s += self.rng.uniform(0.0, 60.0)

    def evidence(self) -> Evidence:
        started = {claim.task_id: claim.attempt for claim in self.claims if self.rng.random() < 0.5}
        failed = {claim.task_id: ("slow", 5.0) for claim in self.claims if self.rng.random() < 0.1}
        return Evidence("SIGKILL", started=self.rng.choice([None, started]), failed=self.rng.choice([None, failed]))

    def a_worker(self) -> str:
        return self.rng.choice(self.workers[-4:]).id

    def some_ids(self) -> list[str]:
        return self.rng.sample(self.ids[-40:], min(len(self.ids[-40:]), self.rng.randint(1, 8)))
