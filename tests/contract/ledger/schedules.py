"""Schedules: what ticks stands in the ledger, and one tick is one task, however many look at once."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from tests.contract.given import ARGUMENTS, HOUR_S, OTHER_THAN_DEFAULT, Clock, at_once, new
from tests.contract.ledger.steps import Steps
from workq.broker.embedded import EmbeddedBroker
from workq.config import Settings
from workq.errors import NotFound
from workq.inflight.embedded import EmbeddedInFlight
from workq.ledger import Prunes
from workq.ledger.engine.database import Database
from workq.ledger.sql import Ledger
from workq.schedules import tick
from workq.schedules.ledger import Schedules
from workq.schedules.timetable import MissedTicks, NewSchedule, ScheduleRow, Timetable
from workq.stores import Stores
from workq.values.options import LIMIT, OF_EACH_TASK
from workq.values.task import NewTask, OnCrash, State

WHO = "eve@host"
DAY_S = 86400.0
NIGHTLY = NewSchedule("nightly", Timetable.cron("0 3 * * *"), MissedTicks.ONCE, "index", "default", ARGUMENTS)
EVERY = replace(NIGHTLY, name="every", timetable=Timetable.every(60.0))


def last_sunday(year: int, month: int) -> datetime:
    """When Europe changes its clocks."""
    nights = (datetime(year, month, 31, 1, tzinfo=UTC) - timedelta(days=back) for back in range(7))
    return next(night for night in nights if night.weekday() == 6)


def ticks_of(timetable: Timetable, first: datetime | None, *, until: datetime) -> list[datetime]:
    """All from the first one on."""
    found: list[datetime] = []
    while first is not None and first <= until:
        found.append(first)
        first = timetable.after(first)
    return found


class SchedulesContract(Steps):
    @staticmethod
    def standing(ledger: Ledger, name: str) -> ScheduleRow:
        [row] = [one for one in ledger.part(Schedules).all() if one.name == name]
        return row

    @staticmethod
    def for_a_tick() -> NewTask:
        [task] = new()
        return task

    def test_it_is_written_once_and_found_when_it_is_due(self, ledger: Ledger, clock: Clock) -> None:
        assert ledger.part(Schedules).schedule(EVERY)
        assert not ledger.part(Schedules).schedule(EVERY), "it stands so already"
        row = self.standing(ledger, "every")

        early = ledger.part(Schedules).schedules_due(ahead_s=10.0, limit=9)
        clock.forward(55.0)
        due = ledger.part(Schedules).schedules_due(ahead_s=10.0, limit=9)

        assert row.next_at is not None
        assert (row.next_at - row.now).total_seconds() == pytest.approx(60.0, abs=30.0)
        assert (row.timetable, row.missed, row.payload, row.last_at) == (
            EVERY.timetable,
            MissedTicks.ONCE,
            ARGUMENTS,
            None,
        )
        assert row.on_crash is OnCrash.AGAIN
        assert early == []
        assert [one.name for one in due] == ["every"]

    def test_what_is_changed_keeps_its_next_tick_unless_its_timetable_is(self, ledger: Ledger) -> None:
        ledger.part(Schedules).schedule(EVERY)
        before = self.standing(ledger, "every").next_at

        assert ledger.part(Schedules).schedule(
            replace(EVERY, queue="mail", missed=MissedTicks.ALL, on_crash=OnCrash.ASK)
        )
        changed = self.standing(ledger, "every")
        assert ledger.part(Schedules).schedule(replace(EVERY, timetable=Timetable.every(HOUR_S)))
        moved = self.standing(ledger, "every")

        assert (changed.next_at, changed.queue, changed.missed) == (before, "mail", MissedTicks.ALL)
        assert changed.on_crash is OnCrash.ASK
        assert before is not None
        assert moved.next_at is not None
        assert moved.next_at > before

    def test_a_tick_is_one_task_and_the_schedule_moves_on(self, ledger: Ledger, clock: Clock) -> None:
        ledger.part(Schedules).schedule(EVERY)
        clock.forward(61.0)
        [row] = ledger.part(Schedules).schedules_due(ahead_s=0.0, limit=9)
        assert row.next_at is not None
        task, following = self.for_a_tick(), row.timetable.after(row.next_at)

        first = ledger.part(Schedules).tick(row, [(row.next_at, task)], next_at=following)
        again = ledger.part(Schedules).tick(row, [(row.next_at, task)], next_at=following)
        late = ledger.part(Schedules).tick(row, [(row.next_at, self.for_a_tick())], next_at=following)

        assert (first, again, late) == (True, True, False), "the same may be repeated"
        assert self.state(ledger, task.id) is State.READY
        assert ledger.part(Schedules).ticks("every", limit=9) == [(row.next_at, task.id)]
        stands = self.standing(ledger, "every")
        assert (stands.next_at, stands.last_at) == (following, row.next_at)

    def test_a_tick_becomes_a_task_with_the_options_of_its_schedule(
        self, ledger: Ledger, database: Database, clock: Clock
    ) -> None:
        options = {one.name: OTHER_THAN_DEFAULT[one.name] for one in (*OF_EACH_TASK, LIMIT)}
        ledger.part(Schedules).schedule(replace(EVERY, expires_s=HOUR_S, **options))
        clock.forward(61.0)
        broker = EmbeddedBroker(database)

        tick.tick(Stores(ledger, broker, EmbeddedInFlight(database), direct=broker), Settings(), limit=1)

        broker.close()
        [task, *_] = ledger.questions.tasks()
        assert {name: getattr(task, name) for name in options} == options
        assert task.expires_at is not None

    def test_many_at_once_make_one_task_of_one_tick(self, ledger: Ledger, clock: Clock) -> None:
        ledger.part(Schedules).schedule(EVERY)
        clock.forward(61.0)

        def look(_: int) -> bool:
            made = False
            for row in ledger.part(Schedules).schedules_due(ahead_s=0.0, limit=9):
                assert row.next_at is not None
                tick = [(row.next_at, self.for_a_tick())]
                made = ledger.part(Schedules).tick(row, tick, next_at=row.timetable.after(row.next_at)) or made
            return made

        assert at_once(8, look).count(True) == 1
        assert len(ledger.part(Schedules).ticks("every", limit=9)) == len(ledger.questions.tasks()) == 1

    def test_what_was_changed_or_paused_or_removed_since_the_look_does_not_tick(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        for change in (
            lambda: ledger.part(Schedules).schedule(replace(EVERY, queue="mail")),
            lambda: ledger.part(Schedules).pause_schedule("every", who=WHO, why="?"),
            lambda: ledger.part(Schedules).unschedule("every", who=WHO, why="gone"),
        ):
            ledger.part(Schedules).unschedule("every", who=WHO, why="gone")
            ledger.part(Schedules).schedule(EVERY)
            clock.forward(61.0)
            [row] = ledger.part(Schedules).schedules_due(ahead_s=0.0, limit=9)
            assert row.next_at is not None
            clock.forward(1.0)
            change()

            assert not ledger.part(Schedules).tick(row, [(row.next_at, self.for_a_tick())], next_at=None)
        assert ledger.questions.tasks() == []

    def test_a_clock_that_is_set_back_makes_nothing_tick_again(self, ledger: Ledger, clock: Clock) -> None:
        ledger.part(Schedules).schedule(EVERY)
        clock.forward(61.0)
        [row] = ledger.part(Schedules).schedules_due(ahead_s=0.0, limit=9)
        assert row.next_at is not None
        ledger.part(Schedules).tick(row, [(row.next_at, self.for_a_tick())], next_at=row.timetable.after(row.next_at))

        clock.forward(-120.0)

        assert ledger.part(Schedules).schedules_due(ahead_s=0.0, limit=9) == []

    @pytest.mark.parametrize(
        "month", [pytest.param(3, id="an hour is left out"), pytest.param(10, id="one comes twice")]
    )
    def test_while_the_clock_steps_and_three_look_at_once_each_tick_through_a_change_of_the_clocks_comes_once(
        self, ledger: Ledger, database: Database, clock: Clock, month: int
    ) -> None:
        changes_at = last_sunday(ledger.questions.clock().year + 1, month)
        broker = EmbeddedBroker(database)
        stores = Stores(ledger, broker, EmbeddedInFlight(database), direct=broker)
        settings = Settings()
        rng = random.Random(month)
        clock.forward((changes_at - timedelta(hours=3) - ledger.questions.clock()).total_seconds())
        nightly = replace(NIGHTLY, timetable=Timetable.cron("30 2 * * *", "Europe/Berlin"), missed=MissedTicks.ALL)
        quarters = replace(nightly, name="quarters", timetable=Timetable.cron("*/15 * * * *", "Europe/Berlin"))
        first = {}
        for one in (nightly, quarters):
            ledger.part(Schedules).schedule(one)
            first[one.name] = self.standing(ledger, one.name).next_at

        def look(number: int) -> int:
            if number == 3:
                clock.forward(rng.choice([-1500.0, -2.0, 1.0, 420.0, 900.0, 2400.0]))
                return 0
            return tick.tick(stores, settings, limit=9)

        while ledger.questions.clock() < changes_at + timedelta(hours=3):
            at_once(4, look)
        clock.forward((changes_at + timedelta(hours=4) - ledger.questions.clock()).total_seconds())
        look(0)
        broker.close()

        for one in (nightly, quarters):
            ticked = sorted(at for at, _ in ledger.part(Schedules).ticks(one.name, limit=999))
            assert ticked == ticks_of(
                one.timetable, first[one.name], until=ledger.questions.clock() + timedelta(seconds=10)
            )
        assert len(ledger.part(Schedules).ticks("nightly", limit=9)) == 1
        assert len(ledger.questions.tasks(limit=999)) == len(
            ledger.part(Schedules).ticks("nightly", limit=999) + ledger.part(Schedules).ticks("quarters", limit=999)
        )

    def test_what_is_removed_and_written_again_does_not_repeat_a_tick(self, ledger: Ledger) -> None:
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
        once = replace(NIGHTLY, name="once", timetable=Timetable.at(at))
        made = []
        for _ in range(2):
            ledger.part(Schedules).schedule(once)
            [row] = ledger.part(Schedules).schedules_due(ahead_s=60.0, limit=9)
            assert row.next_at == at
            made.append(ledger.part(Schedules).tick(row, [(at, self.for_a_tick())], next_at=None))
            ledger.part(Schedules).unschedule("once", who=WHO, why="gone")

        assert made == [True, True]
        assert len(ledger.questions.tasks()) == len(ledger.part(Schedules).ticks("once", limit=9)) == 1

    def test_a_paused_one_is_not_due_and_resumed_it_leaves_out_what_was_meanwhile(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        ledger.part(Schedules).schedule(EVERY)
        ledger.part(Schedules).pause_schedule("every", who=WHO, why="the disk is full")
        paused = self.standing(ledger, "every")
        clock.forward(HOUR_S)
        due = ledger.part(Schedules).schedules_due(ahead_s=10.0, limit=9)

        resumed = [ledger.part(Schedules).resume_schedule("every", who=WHO, why="?") for _ in range(2)]
        stands = self.standing(ledger, "every")

        assert (paused.who, paused.why) == (WHO, "the disk is full")
        assert paused.paused_at is not None
        assert due == []
        assert resumed == [True, False]
        assert stands.paused_at is None
        assert stands.next_at is not None
        assert 0.0 < (stands.next_at - stands.now).total_seconds() <= 60.0

    def test_what_is_not_there_is_told(self, ledger: Ledger, database: Database) -> None:
        before = self.everything(database)

        assert not ledger.part(Schedules).unschedule("nobody", who=WHO, why="gone")
        with pytest.raises(NotFound, match="no schedule 'nobody'"):
            ledger.part(Schedules).pause_schedule("nobody", who=WHO, why="?")
        with pytest.raises(NotFound, match="no schedule 'nobody'"):
            ledger.part(Schedules).resume_schedule("nobody", who=WHO, why="?")
        assert ledger.part(Schedules).ticks("nobody", limit=9) == []
        assert self.everything(database) == before

    def test_ticks_are_kept_for_thirty_days_and_the_last_one_is_known_for_ever(
        self, ledger: Ledger, clock: Clock
    ) -> None:
        ledger.part(Schedules).schedule(EVERY)
        kept = {"retention_s": 365 * DAY_S, "dead_retention_s": 365 * DAY_S}
        for _ in range(3):
            clock.forward(61.0)
            [row] = ledger.part(Schedules).schedules_due(ahead_s=0.0, limit=9)
            assert row.next_at is not None
            ledger.part(Schedules).tick(
                row, [(row.next_at, self.for_a_tick())], next_at=row.timetable.after(row.next_at)
            )
        ledger.part(Schedules).pause_schedule("every", who=WHO, why="?")
        last_at = self.standing(ledger, "every").last_at
        young = (
            ledger.plans.prunable(limit=9, **kept),
            ledger.upkeep.prune(limit=9, retention_s=365 * DAY_S, dead_retention_s=365 * DAY_S).ticks,
        )
        clock.forward(31 * DAY_S)

        [old] = [one for one in ledger.plans.prunable(limit=2, **kept) if one.what is Prunes.TICKS]
        applied = ledger.plans.prune_planned(old, by={"who": WHO}, **kept)
        counts = [
            ledger.upkeep.prune(limit=2, retention_s=365 * DAY_S, dead_retention_s=365 * DAY_S, dry_run=dry_run).ticks
            for dry_run in (True, False, False)
        ]

        assert young == ([], 0)
        assert applied.changed == old.ids
        assert len(old.ids) == 2
        assert counts == [1, 1, 0]
        assert ledger.part(Schedules).ticks("every", limit=9) == []
        assert self.standing(ledger, "every").last_at == last_at is not None
