"""Where a consumer of rows begins to look: behind what is dead, and now and then at everything."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from workq.broker.embedded.consumer import BEGINNING, SLACK, WHOLE_EVERY_S, WHOLE_PART, ScanFloor

NOON = datetime.fromisoformat("2026-01-01T12:00:00+00:00")


class Table:
    """Rows of one queue, by when they are due; asked as a database is, which takes `slow_s`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slow_s = 0.0
        self.due: list[datetime] = []
        self.asked: list[datetime] = []
        self.front = ScanFloor(lambda: self.now)

    def look(self, queue: str = "mail") -> list[datetime]:
        return [row[0] for row in self.front.look(queue, self.ask)]

    def ask(self, since: datetime) -> list[tuple[datetime]]:
        self.asked.append(since)
        self.now += self.slow_s
        return [(one,) for one in sorted(self.due) if one >= since]


@pytest.fixture
def table() -> Table:
    return Table()


def test_the_first_look_at_each_queue_is_from_the_beginning(table: Table) -> None:
    table.look("mail")
    table.look("index")

    assert table.asked == [BEGINNING, BEGINNING]


def test_the_next_looks_begin_a_little_before_the_oldest_row_that_was_seen(table: Table) -> None:
    table.due = [NOON]
    table.look()
    table.due = [NOON + timedelta(seconds=60)]
    table.look()
    table.look()

    assert table.asked == [BEGINNING, NOON - SLACK, NOON + timedelta(seconds=60) - SLACK]


def test_a_row_that_commits_a_little_late_is_seen_at_once(table: Table) -> None:
    table.due = [NOON]
    table.look()

    table.due = [NOON - SLACK / 2]

    assert table.look() == [NOON - SLACK / 2]


def test_a_row_behind_the_front_is_seen_within_a_second_and_those_near_it_at_once(table: Table) -> None:
    table.due = [NOON]
    table.look()
    table.due = [NOON - timedelta(hours=1), NOON - timedelta(minutes=50)]
    behind = table.look()

    table.now += WHOLE_EVERY_S

    assert behind == []
    assert table.look() == table.due
    assert table.look() == table.due, "the front went back to them"


def test_a_queue_that_was_empty_keeps_its_front(table: Table) -> None:
    table.due = [NOON]
    table.look()
    table.due = []
    table.now += WHOLE_EVERY_S
    table.look()
    table.look()

    assert table.asked == [BEGINNING, BEGINNING, NOON - SLACK]


def test_looks_at_everything_are_a_small_part_of_the_time_however_long_they_take(table: Table) -> None:
    table.due = [NOON]
    table.slow_s = 0.5
    table.look()
    began = table.now

    table.slow_s = 0.0
    while table.asked.count(BEGINNING) < 2:
        table.look()
        table.now += 0.1

    assert table.now - began == pytest.approx(0.5 / WHOLE_PART, rel=0.1)
