"""Schedules on both legs: three processes that sweep make one task of each tick, whatever is killed meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from tests.system.legs import Leg
from workq import ConfigError, State
from workq.recovery.sweep import sweep
from workq.schedules.ledger import Schedules, schedule_tables
from workq.schedules.tick import tick

WHO = "eve@host"


def scheduled(leg: Leg, name: str, **timetable: object) -> None:
    leg.app.schedule(name, leg["note"], kwargs={"number": 1}, **timetable)  # type: ignore[arg-type]  # one of three
    [given] = [one for one in leg.app.registry.schedules() if one.name == name]
    leg.app.stores.ledger.part(Schedules).schedule(given)


def test_each_tick_runs_once_and_on_time_while_three_fleets_sweep_and_are_killed(fast_leg: Leg) -> None:
    leg, ledger = fast_leg, fast_leg.app.stores.ledger
    scheduled(leg, "each-second", every_s=1.0, missed="all")
    fleets = [leg.fleet(processes=1, threads=2) for _ in range(3)]
    try:
        for number in range(3):
            time.sleep(2.0)
            fleets[number].kill()
            fleets[number] = leg.fleet(processes=1, threads=2)
        wait_until(lambda: len(leg.starts()) >= 8, timeout_s=30, what="it ticks on")
        ledger.part(Schedules).pause_schedule("each-second", who=WHO, why="enough")
        leg.wait_settled(timeout_s=30)
        for fleet in fleets:
            fleet.wait_whole(1, timeout_s=30)
    finally:
        for fleet in fleets:
            fleet.terminate()
        assert [fleet.wait(60) for fleet in fleets] == [0, 0, 0]

    ticks = dict(reversed(ledger.part(Schedules).ticks("each-second", limit=1000)))
    instants = sorted(ticks)
    assert {later - one for one, later in pairwise(instants)} == {timedelta(seconds=1)}
    assert len(set(ticks.values())) == len(ticks)
    assert set(leg.starts()) == set(ticks.values())
    again = {task: count for task, count in leg.starts().items() if count > 1}
    assert sum(again.values()) - len(again) <= 6, "only what ran when its process was killed"
    first = {line.task_id: line.at for line in reversed(leg.testimony()) if line.what == "start"}
    early = [first[task_id] - at.timestamp() for at, task_id in ticks.items() if first[task_id] < at.timestamp()]
    assert not early
    assert leg.states()[State.SUCCEEDED] == len(ticks)


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_what_was_missed_while_nobody_swept_becomes_what_the_policy_says(fast_leg: Leg, missed: str) -> None:
    leg, ledger = fast_leg, fast_leg.app.stores.ledger
    scheduled(leg, "minutely", cron="* * * * *", missed=missed)
    [row] = ledger.part(Schedules).all()
    assert row.next_at is not None
    past = row.next_at - timedelta(hours=1)
    assert ledger.part(Schedules).tick(row, [], next_at=past), "as if nobody had been there for an hour"

    made = tick(leg.app.stores, leg.app.settings, limit=100)
    again = tick(leg.app.stores, leg.app.settings, limit=100)

    ticks = Counter(at for at, _ in ledger.part(Schedules).ticks("minutely", limit=1000))
    assert again == 0
    assert made == sum(ticks.values()) == len(ticks)
    assert len(ticks) in {"skip": (0, 1, 2), "once": (1, 2), "all": (59, 60, 61)}[missed]
    assert leg.states()[State.READY] + leg.states()[State.WAITING] == len(ticks)


@pytest.mark.parametrize("leg_name", ["sqlite", "servers"])
def test_a_one_off_survives_everything_and_runs_once(leg_name: str, open_leg: OpenLeg) -> None:
    leg = open_leg(leg_name, divide=10.0)
    at = datetime.now(UTC) + timedelta(seconds=4)
    scheduled(leg, "launch", at=at)
    with leg.fleet(processes=1) as fleet:
        wait_until(lambda: fleet.text().count("worker.started") == 1, timeout_s=30, what="it works")
        fleet.kill()
    with leg.fleet(processes=1) as fleet:
        wait_until(lambda: bool(leg.starts()), timeout_s=30, what="it runs")
        leg.wait_settled(timeout_s=30)
        # on a slow machine the first fleet has run it, and this one has hardly begun
        wait_until(lambda: "worker.started" in fleet.text(), timeout_s=30, what="the second fleet works")
        fleet.terminate()
        assert fleet.wait(60) == 0

    assert list(leg.starts().values()) == [1]
    assert leg.testimony()[0].at >= at.timestamp() - 0.05
    [row] = leg.app.stores.ledger.part(Schedules).all()
    assert row.next_at is None


def test_a_dry_run_counts_and_makes_nothing(fast_leg: Leg) -> None:
    leg = fast_leg
    scheduled(leg, "each-second", every_s=1.0)
    time.sleep(1.2)

    done = sweep(leg.app.stores, leg.app.settings, only=["tick"], dry_run=True)

    assert done.ticked >= 1
    assert sum(leg.states().values()) == 0


def test_a_timetable_that_this_host_cannot_read_stops_nobody_else(open_leg: OpenLeg) -> None:
    """One of another application, whose host knows more time zones."""
    leg = open_leg("sqlite", divide=10.0)
    ledger, settings = leg.app.stores.ledger, leg.app.settings
    scheduled(leg, "theirs", every_s=1.0)
    scheduled(leg, "ours", every_s=1.0)
    database = leg.app.database()
    s = schedule_tables(database).schedule
    with database.engine.begin() as connection:
        known = {"rule": "cron", "text": "0 3 * * *", "zone": "Mars/Olympus_Mons"}
        connection.execute(s.update().where(s.c.name == "theirs").values(known))
    database.close()

    wait_until(lambda: tick(leg.app.stores, settings, limit=9) > 0, timeout_s=30, what="ours ticks")
    swept = sweep(leg.app.stores, settings)

    assert ledger.part(Schedules).ticks("theirs", limit=9) == []
    assert len(ledger.part(Schedules).ticks("ours", limit=9)) >= 1
    assert swept.away == []
    [theirs] = [row for row in ledger.part(Schedules).all() if row.name == "theirs"]
    with pytest.raises(ConfigError, match="cannot read the timetable '0 3 ") as caught:
        theirs.timetable.after(theirs.now)
    assert "Mars/Olympus_Mons" in str(caught.value)
