"""Bands: which are in use is known before their first task can be seen; nobody who uses none pays for them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, delete

from tests.contract.given import HOUR_S, Clock, at_once, new
from tests.contract.ledger.schedules import EVERY
from tests.contract.ledger.steps import Steps
from tests.contract.sent import listen
from workq.ledger import Which, WhichOpen
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.schedules.ledger import Schedules
from workq.slices import SLICES
from workq.values.incarnation import Incarnation
from workq.values.lane import all_of
from workq.values.task import Dead, Priority, State


class BandsContract(Steps):
    def test_a_band_is_in_use_from_its_first_task_on_and_for_good(self, ledger: Ledger, worker: Incarnation) -> None:
        before = ledger.lanes.bands()
        self.record(ledger, 3, queue="mail")
        normal_only = ledger.lanes.bands()

        tasks = [*new(2, queue="mail~low"), *new(queue="mail"), *new(queue="mail~high"), *new(queue="index~low")]
        ledger.tasks.record(tasks)
        ledger.claims.claim([one.id for one in tasks], by=worker.id)

        assert before == normal_only == frozenset()
        assert ledger.lanes.bands() == {"mail~low", "mail~high", "index~low"}

    def test_a_tick_of_a_schedule_brings_its_band_into_use(self, ledger: Ledger, clock: Clock) -> None:
        ledger.part(Schedules).schedule(replace(EVERY, queue="mail~low"))
        scheduled = ledger.lanes.bands()
        clock.forward(61.0)
        [row] = ledger.part(Schedules).schedules_due(ahead_s=0.0, limit=9)
        assert row.next_at is not None

        ledger.part(Schedules).tick(row, [(row.next_at, one) for one in new(queue=row.queue)], next_at=None)

        assert (set(scheduled), set(ledger.lanes.bands())) == (set(), {"mail~low"})

    def test_many_at_once_bring_it_into_use_once(self, database: Database) -> None:
        """Each as if in a process of its own."""
        ledgers = [Ledger(database, SLICES) for _ in range(8)]

        made = at_once(8, lambda number: ledgers[number].tasks.record(new(queue=("a~low", "b~high")[number % 2])))

        assert all(one.created for answers in made for one in answers)
        assert ledgers[0].lanes.bands() == {"a~low", "b~high"}

    def test_in_the_callers_transaction_it_is_in_use_when_that_commits(self, ledger: Ledger, theirs: Engine) -> None:
        with theirs.connect() as connection:
            ledger.tasks.record(new(queue="mail~low"), connection=connection)
            connection.rollback()
        with theirs.connect() as connection:
            [one] = ledger.tasks.record(new(queue="mail~low"), connection=connection)
            ledger.tasks.record(new(queue="mail~low"), connection=connection)
            connection.commit()

        assert self.task(ledger, one.id).priority is Priority.LOW
        assert ledger.lanes.bands() == {"mail~low"}

    def test_a_process_asks_for_each_band_once(self, ledger: Ledger, database: Database) -> None:
        sent: list[str] = []
        self.record(ledger, queue="mail")
        listen(database, lambda text, _: sent.append(text))
        self.record(ledger, queue="mail")
        normal = len(sent)
        self.record(ledger, queue="mail~low")
        first = len(sent) - normal

        self.record(ledger, queue="mail~low")

        assert len(sent) - normal - first == normal < first

    def test_a_band_whose_row_is_lost_comes_into_use_again_when_somebody_sees_its_tasks(
        self, ledger: Ledger, database: Database
    ) -> None:
        self.record(ledger, queue="mail~low")
        with database.engine.begin() as connection:
            connection.execute(delete(database.tables.band))
        self.record(ledger, queue="mail~low")
        lost = ledger.lanes.bands()

        for _ in range(2):
            ledger.lanes.bands_used(["mail~low", "mail", "index"])

        assert (set(lost), set(ledger.lanes.bands())) == (set(), {"mail~low"})

    def test_a_task_tells_its_queue_and_its_priority_apart(self, ledger: Ledger, worker: Incarnation) -> None:
        ids = [self.record(ledger, queue=band)[0] for band in all_of("mail")]

        tasks = [self.task(ledger, one) for one in ids]
        claims = ledger.claims.claim(ids, by=worker.id)
        running = ledger.questions.running(worker.id)

        assert [(one.queue, one.priority) for one in tasks] == [("mail", priority) for priority in Priority]
        assert sorted(one.queue for one in claims) == sorted(all_of("mail")), "a claim names the band"
        assert {one.queue for one in running} == {"mail"}

    @pytest.mark.parametrize(
        ("said", "bands"), [("mail", all_of("mail")), ("mail~low", ["mail~low"]), ("mail~normal", ["mail"])]
    )
    def test_whoever_filters_by_a_queue_means_all_of_its_bands_or_the_one_that_is_named(
        self, ledger: Ledger, worker: Incarnation, said: str, bands: list[str]
    ) -> None:
        names = (*all_of("mail"), *all_of("index"))
        waiting = {band: self.record(ledger, queue=band)[0] for band in names}
        dead = {band: self.run_one(ledger, worker, queue=band) for band in names}
        for claim in dead.values():
            self.settle(ledger, claim, Dead("failures_max reached", "boom"))

        listed = ledger.questions.tasks(state=State.READY, queue=said)
        withdrawn = ledger.bulk.open_ids(WhichOpen(queue=said), limit=99)
        buried = ledger.bulk.dead_ids(Which(queue=said), after=None, limit=99)

        assert {one.id for one in listed} == set(withdrawn) == {waiting[band] for band in bands}
        assert set(buried) == {dead[band].task_id for band in bands}

    def test_a_marker_speaks_for_its_own_band_alone(self, ledger: Ledger, clock: Clock) -> None:
        self.record(ledger, queue="mail~low")
        self.record(ledger, queue="mail")
        ledger.hints.mark_published(ledger.hints.take_unpublished(limit=9, grace_s=0.0, horizon_s=HOUR_S))
        clock.forward(60.0)

        assert sorted(ledger.hints.lines(slack_s=1.0)) == ["mail", "mail~low"]


class BandsOnServersContract(Steps):
    """Where several may write at once."""

    def test_a_long_transaction_of_a_caller_keeps_no_other_producer_of_the_same_band_waiting(
        self, ledger: Ledger, database: Database, theirs: Engine
    ) -> None:
        with theirs.connect() as connection:
            ledger.tasks.record(new(queue="mail~low"), connection=connection)

            [other] = Ledger(database, SLICES).tasks.record(new(queue="mail~low"))

            assert self.state(ledger, other.id) is State.READY
            connection.rollback()
