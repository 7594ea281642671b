"""When something ticks: both changes of the clocks, intervals, instants, and what becomes of missed ticks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workq.errors import ConfigError
from workq.schedules.timetable import Due, MissedTicks, Rule, Timetable, due

BERLIN = "Europe/Berlin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def ticks(timetable: Timetable, after: str, count: int) -> list[datetime]:
    found: list[datetime] = []
    at: datetime | None = utc(after)
    while at is not None and len(found) < count:
        at = timetable.after(at)
        if at is not None:
            found.append(at)
    return found


class TestCron:
    def test_a_fixed_time_in_the_gap_comes_when_the_gap_is_over(self) -> None:
        assert ticks(Timetable.cron("30 2 * * *", BERLIN), "2026-03-27T12:00:00+01:00", 3) == [
            utc("2026-03-28T02:30:00+01:00"),
            utc("2026-03-29T03:00:00+02:00"),
            utc("2026-03-30T02:30:00+02:00"),
        ]

    def test_a_fixed_time_that_comes_twice_ticks_once(self) -> None:
        assert ticks(Timetable.cron("30 2 * * *", BERLIN), "2026-10-24T12:00:00+02:00", 2) == [
            utc("2026-10-25T02:30:00+02:00"),
            utc("2026-10-26T02:30:00+01:00"),
        ]

    @pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
    def test_a_step_goes_on_in_real_time_through_both_changes(self, day: str) -> None:
        found = ticks(Timetable.cron("*/15 * * * *", BERLIN), f"{day}T00:00:00+00:00", 20)

        assert {later - one for one, later in pairwise(found)} == {timedelta(minutes=15)}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "need cron text"),
            ("* * * *", "five fields"),
            ("61 * * * *", "five fields"),
            ("0 0 30 2 *", "Bad day-of-month"),
            ("0 3 * * * * * *", "five fields"),
            (None, "need cron text"),
            ("*" * 200, "need cron text"),
        ],
    )
    def test_what_is_no_cron_text_is_refused(self, text: object, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            Timetable.cron(text)

    @pytest.mark.parametrize(
        ("nickname", "after", "tick"),
        [
            ("@hourly", "2026-03-27T12:20:00+01:00", "2026-03-27T13:00:00+01:00"),
            ("@daily", "2026-03-27T12:20:00+01:00", "2026-03-28T00:00:00+01:00"),
            ("@midnight", "2026-03-27T12:20:00+01:00", "2026-03-28T00:00:00+01:00"),
            ("@weekly", "2026-03-27T12:20:00+01:00", "2026-03-29T00:00:00+01:00"),
            ("@monthly", "2026-03-27T12:20:00+01:00", "2026-04-01T00:00:00+02:00"),
            (" @Yearly ", "2026-03-27T12:20:00+01:00", "2027-01-01T00:00:00+01:00"),
            ("@annually", "2026-03-27T12:20:00+01:00", "2027-01-01T00:00:00+01:00"),
        ],
    )
    def test_a_nickname_of_cron_is_its_five_fields(self, nickname: str, after: str, tick: str) -> None:
        made = Timetable.cron(nickname, BERLIN)

        assert ticks(made, after, 1) == [utc(tick)]
        assert len(made.text.split()) == 5

    @pytest.mark.parametrize("text", ["@reboot", "@fortnightly", "@"])
    def test_a_nickname_that_names_no_time_is_refused_with_those_that_do(self, text: str) -> None:
        with pytest.raises(ConfigError, match="@daily"):
            Timetable.cron(text)

    @pytest.mark.parametrize("zone", ["Mars/Olympus", "", "/etc/passwd", "../UTC", None])
    def test_a_zone_that_nobody_knows_is_refused(self, zone: object) -> None:
        with pytest.raises(ConfigError, match="time zone"):
            Timetable.cron("0 3 * * *", zone)


class TestEvery:
    def test_it_keeps_its_grid_however_late_it_is_looked_at(self) -> None:
        every = Timetable.every(90)
        began = utc("2026-11-22T00:00:00+00:00")

        assert every.newest(began, began + timedelta(seconds=1000)) == began + timedelta(seconds=990)
        assert every.newest(began, began + timedelta(seconds=990)) == began + timedelta(seconds=990)
        assert every.after(began) == began + timedelta(seconds=90)

    @pytest.mark.parametrize("seconds", [0, 0.5, -1, float("nan"), float("inf"), True, "60", None, 1e9])
    def test_what_is_no_interval_is_refused(self, seconds: object) -> None:
        with pytest.raises(ConfigError, match="every_s"):
            Timetable.every(seconds)


class TestAt:
    def test_it_ticks_once_also_when_it_is_past(self) -> None:
        at = Timetable.at(datetime(2026, 12, 1, 9, tzinfo=UTC))

        assert at.first(utc("2027-01-01T00:00:00+00:00")) == utc("2026-12-01T09:00:00+00:00")
        assert at.after(utc("2026-12-01T09:00:00+00:00")) is None

    @pytest.mark.parametrize("at", [datetime(2026, 12, 1), "2026-12-01T09:00Z", None, 5])  # noqa: DTZ001 - refused
    def test_what_is_no_instant_is_refused(self, at: object) -> None:
        with pytest.raises(ConfigError, match="aware"):
            Timetable.at(at)


class TestMissed:
    NEXT = utc("2026-11-22T00:00:00+00:00")
    HOURLY = Timetable.cron("0 * * * *")

    def due(self, missed: MissedTicks, now: str, *, ahead_s: float = 10.0, limit: int = 100) -> Due:
        return due(self.HOURLY, missed, self.NEXT, now=utc(now), ahead_s=ahead_s, late_s=60.0, limit=limit)

    @pytest.mark.parametrize("missed", list(MissedTicks))
    def test_in_time_it_is_the_same_for_all(self, missed: MissedTicks) -> None:
        early = self.due(missed, "2026-11-21T23:59:49+00:00")
        near = self.due(missed, "2026-11-21T23:59:51+00:00")
        late = self.due(missed, "2026-11-22T00:00:59+00:00")

        assert early == Due((), self.NEXT)
        assert near == late == Due((self.NEXT,), utc("2026-11-22T01:00:00+00:00"))

    def test_after_five_hours_each_policy_does_as_it_says(self) -> None:
        now = "2026-11-22T05:30:00+00:00"
        following = utc("2026-11-22T06:00:00+00:00")

        assert self.due(MissedTicks.SKIP, now) == Due((), following)
        assert self.due(MissedTicks.ONCE, now) == Due((utc("2026-11-22T05:00:00+00:00"),), following)
        assert self.due(MissedTicks.ALL, now) == Due(tuple(self.NEXT + timedelta(hours=n) for n in range(6)), following)
        assert self.due(MissedTicks.ALL, now, limit=2).next_at == utc("2026-11-22T02:00:00+00:00")

    def test_a_tick_in_time_stands_for_those_that_were_missed(self) -> None:
        found = self.due(MissedTicks.ONCE, "2026-11-22T05:00:30+00:00")

        assert found == Due((utc("2026-11-22T05:00:00+00:00"),), utc("2026-11-22T06:00:00+00:00"))

    def test_a_year_of_missed_minutes_is_no_work(self) -> None:
        found = due(
            Timetable.cron("* * * * *"),
            MissedTicks.ONCE,
            self.NEXT,
            now=self.NEXT + timedelta(days=365, seconds=30),
            ahead_s=10.0,
            late_s=60.0,
            limit=100,
        )

        assert len(found.ticks) == 1

    @given(
        st.sampled_from([Timetable.cron("*/7 * * * *"), Timetable.every(61.0), Timetable.cron("0 3 * * *", BERLIN)]),
        st.sampled_from(list(MissedTicks)),
        st.lists(st.floats(0.0, 200_000.0), min_size=1, max_size=20),
    )
    def test_however_it_is_looked_at_no_tick_comes_twice_and_none_is_left_out_of_all(
        self, timetable: Timetable, missed: MissedTicks, gaps: list[float]
    ) -> None:
        first = timetable.first(self.NEXT)
        assert first is not None
        next_at: datetime | None = first
        now, seen = self.NEXT, list[datetime]()
        for gap in gaps:
            now += timedelta(seconds=gap)
            for _ in range(400):
                assert next_at is not None
                found = due(timetable, missed, next_at, now=now, ahead_s=10.0, late_s=60.0, limit=10)
                seen += found.ticks
                next_at = found.next_at
                if len(found.ticks) < 10:
                    break

        assert seen == sorted(set(seen))
        assert next_at is not None
        assert next_at > now + timedelta(seconds=10)
        if missed is MissedTicks.ALL:
            assert all(timetable.after(one) == later for one, later in pairwise([*seen, next_at]))


@pytest.mark.parametrize(
    "timetable",
    [
        Timetable(Rule.CRON, "0 3 * * *", "Mars/Olympus_Mons"),
        Timetable(Rule.CRON, "at noon", BERLIN),
        Timetable(Rule.EVERY, "often"),
        Timetable(Rule.AT, "tomorrow"),
    ],
    ids=lambda one: one.text,
)
def test_one_that_this_host_cannot_read_says_so_in_a_line_and_is_shown_all_the_same(timetable: Timetable) -> None:
    now = utc("2026-11-26T12:00:00+01:00")

    for ask in (timetable.after, timetable.first):
        with pytest.raises(ConfigError, match=f"this host cannot read the timetable '{re.escape(timetable.text)}'"):
            ask(now)
    assert timetable.text in timetable.shown()
