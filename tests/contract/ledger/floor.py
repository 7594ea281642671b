"""Floor: looks for open tasks that take long begin at the oldest of the last look, and go all the way more rarely."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from sqlalchemy import Connection

from tests.contract.given import HOUR_S, Clock, incarnation
from tests.contract.ledger.steps import Steps
from workq.errors import LedgerUnavailable
from workq.ledger import Unpublished
from workq.ledger.engine.database import Database
from workq.ledger.scan_floor import Floor
from workq.ledger.sql import Ledger
from workq.slices import SLICES
from workq.values.clock import PACE, QUICK_S
from workq.values.incarnation import Incarnation
from workq.values.task import HandedBack

TOOK_S = 2 * QUICK_S


class Hands:
    """The clock of a floor: `took_s` pass with each reading, so that a look takes as long."""

    def __init__(self, took_s: float) -> None:
        self.now, self.took_s = 1000.0, took_s

    def __call__(self) -> float:
        self.now += self.took_s
        return self.now


class FloorContract(Steps):
    @pytest.fixture
    def hands(self) -> Hands:
        return Hands(TOOK_S)

    @pytest.fixture
    def slow(self, database: Database, hands: Hands) -> Ledger:
        """A ledger in which each look takes long."""
        return Ledger(database, SLICES, floor=Floor(database, clock=hands))

    @classmethod
    def tire(cls, ledger: Ledger) -> None:
        """Each look took long for the second time in a row."""
        for _ in range(2):
            ledger.hints.lines(slack_s=2.0)
            cls.unpublished(ledger)
            ledger.upkeep.promote(limit=9, dry_run=True)
            ledger.workers.orphans(limit=9, dry_run=True)

    @staticmethod
    def unpublished(ledger: Ledger) -> list[str]:
        found = ledger.hints.take_unpublished(limit=99, grace_s=0.0, horizon_s=HOUR_S, dry_run=True)
        return [one.task_id for one in found]

    def test_a_slow_look_goes_on_from_the_oldest_that_was_open(self, slow: Ledger, clock: Clock) -> None:
        [oldest] = self.record(slow)
        clock.forward(100.0)
        slow.hints.mark_published([Unpublished(oldest, "default", 0, 0.0)])
        assert slow.hints.lines(slack_s=2.0) == ["default"]
        self.tire(slow)
        [newest] = self.record(slow)
        slow.hints.unhint([oldest])
        clock.forward(60.0)

        found = self.unpublished(slow)

        assert found == [oldest, newest]
        assert slow.hints.lines(slack_s=2.0) == []

    def test_what_becomes_open_below_it_waits_for_a_look_that_goes_all_the_way(
        self, slow: Ledger, hands: Hands, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(slow, worker)
        clock.forward(100.0)
        self.tire(slow)
        self.settle(slow, claim, HandedBack())

        missed = self.unpublished(slow)
        hands.now += PACE * TOOK_S
        found = self.unpublished(slow)

        assert (missed, found) == ([], [claim.task_id])

    def test_quick_looks_all_go_all_the_way(
        self, slow: Ledger, hands: Hands, worker: Incarnation, clock: Clock
    ) -> None:
        hands.took_s = QUICK_S / 4
        claim = self.run_one(slow, worker)
        clock.forward(100.0)
        self.tire(slow)
        self.settle(slow, claim, HandedBack())

        assert self.unpublished(slow) == [claim.task_id]

    def test_one_slow_look_alone_changes_nothing(
        self, slow: Ledger, hands: Hands, worker: Incarnation, clock: Clock
    ) -> None:
        """A server that stood still for a moment answers late, once: nothing must wait because of that."""
        claim = self.run_one(slow, worker)
        clock.forward(100.0)
        slow.hints.lines(slack_s=2.0)
        self.unpublished(slow)
        hands.took_s = QUICK_S / 4
        self.settle(slow, claim, HandedBack())

        assert self.unpublished(slow) == [claim.task_id]

    def test_a_look_that_ends_because_the_ledger_is_away_says_nothing_about_the_next(self, database: Database) -> None:
        floor = Floor(database, clock=Hands(TOOK_S))
        seen: list[datetime | None] = []

        def look(_: Connection, since: datetime | None) -> str:
            seen.append(since)
            if len(seen) <= 4:
                raise LedgerUnavailable("it stands still")
            return "found"

        def first() -> datetime:
            raise LedgerUnavailable("it stands still")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(floor, "_first", first)
            for _ in range(4):
                with pytest.raises(LedgerUnavailable, match="stands still"):
                    floor.ask("look", look)

        assert floor.ask("look", look) == "found"
        assert seen == [None] * 5

    def test_a_queue_that_is_served_is_looked_at_though_it_is_new(self, slow: Ledger, clock: Clock) -> None:
        self.record(slow)
        self.tire(slow)
        slow.workers.join(incarnation(), queues=["new"], threads=1)
        ids = self.record(slow, queue="new")
        slow.hints.mark_published([Unpublished(one, "new", 0, 0.0) for one in ids])
        clock.forward(10.0)

        assert slow.hints.lines(slack_s=2.0) == ["new"]

    def test_waiting_tasks_are_promoted_from_there_on(self, slow: Ledger, clock: Clock) -> None:
        self.record(slow)
        self.tire(slow)
        assert slow.upkeep.promote(limit=9) == 0
        [waiting] = self.record(slow, delay_s=10.0)
        clock.forward(11.0)

        assert slow.upkeep.promote(limit=9) == 1
        assert self.state(slow, waiting).value == "ready"

    def test_orphans_of_workers_that_have_ended_are_found_all_the_same(
        self, slow: Ledger, worker: Incarnation, clock: Clock
    ) -> None:
        claim = self.run_one(slow, worker)
        self.record(slow)
        clock.forward(10.0)
        self.tire(slow)
        assert slow.workers.orphans(limit=9) == []
        slow.workers.leave(worker.id)

        assert [one.task_id for one in slow.workers.orphans(limit=9)] == [claim.task_id]

    def test_a_look_that_fails_because_it_is_long_begins_a_minute_ago(self, database: Database, clock: Clock) -> None:
        floor = Floor(database, clock=Hands(TOOK_S))
        seen: list[datetime | None] = []

        def look(tx: Connection, since: datetime | None) -> str:
            seen.append(since)
            if since is None:
                raise LedgerUnavailable("statement timeout")
            return "found"

        answers = [floor.ask("look", look) for _ in range(3)]

        now = Ledger(database, SLICES).questions.clock()
        assert answers == ["found"] * 3
        assert [one is None for one in seen] == [True, False, True, False, False]
        assert all(30.0 < (now - one).total_seconds() < 90.0 for one in seen if one is not None)

    def test_a_look_that_fails_at_once_fails(self, database: Database) -> None:
        def look(_: Connection, __: datetime | None) -> str:
            raise LedgerUnavailable("nothing listens")

        with pytest.raises(LedgerUnavailable, match="nothing listens"):
            Floor(database, clock=time.monotonic).ask("look", look)
