"""Watch: a consumer looks at once when there may be something, and rarely while there is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workq.broker.embedded.wakeup import LOOK_MAX_S, Wakeup
from workq.ledger.engine.database import Database
from workq.slices import every_table

LONG_S = 30.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'workq.db'}")
    every_table(database.tables).create_all(database.engine)
    yield database
    database.close()


class Looks:
    """Counts looks, and finds something after so many. Its clock moves only by waiting."""

    def __init__(self, finds_after: int, again_s: float = LONG_S) -> None:
        self.count = 0
        self.now = 1000.0
        self.waits: list[float] = []
        self.finds_after, self.again_s = finds_after, again_s

    def look(self) -> tuple[str | None, float]:
        self.count += 1
        return ("found" if self.count > self.finds_after else None), self.again_s

    def wait(self, wait_s: float) -> bool:
        self.waits.append(wait_s)
        self.now += wait_s
        return False

    def clock(self) -> float:
        return self.now


def test_what_is_there_is_found_at_the_first_look(database: Database) -> None:
    looks = Looks(finds_after=0)
    watch = Wakeup(database, looks.wait, clock=looks.clock)

    assert watch.until(looks.look, LONG_S) == "found"
    assert (looks.count, looks.waits) == (1, [])
    watch.close()


def test_it_looks_once_when_there_is_no_time_to_wait(database: Database) -> None:
    looks = Looks(finds_after=9)
    watch = Wakeup(database, looks.wait, clock=looks.clock)

    assert watch.until(looks.look, 0.0) is None
    assert looks.count == 1
    watch.close()


def test_after_a_commit_of_another_process_it_looks_at_once(database: Database) -> None:
    looks = Looks(finds_after=1)
    other = Database(str(database.url))

    def wait(wait_s: float) -> bool:
        looks.waits.append(wait_s)
        if len(looks.waits) == 3:
            other.run(lambda tx: tx.exec_driver_sql("CREATE TABLE something (x)"))
        return False  # at once, so that the time for the next look by itself does not come

    watch = Wakeup(database, wait, clock=looks.clock)
    looks.now += LONG_S

    assert watch.until(looks.look, LONG_S) == "found"
    assert (looks.count, len(looks.waits)) == (2, 3), "it only compared until then"
    other.close()
    watch.close()


def test_it_looks_again_when_a_row_becomes_due(database: Database) -> None:
    looks = Looks(finds_after=1, again_s=0.05)
    watch = Wakeup(database, looks.wait, clock=looks.clock)
    looks.now += LONG_S

    assert watch.until(looks.look, LONG_S) == "found"
    assert sum(looks.waits) == pytest.approx(0.05)
    watch.close()


def test_the_longer_it_is_quiet_the_more_rarely_it_looks(database: Database) -> None:
    looks = Looks(finds_after=9)
    watch = Wakeup(database, looks.wait, clock=looks.clock)
    watch._version = None  # as on a server
    watch.until(looks.look, 1.0)
    early = list(looks.waits)
    looks.now += LONG_S
    looks.waits.clear()
    looks.count = 0
    watch.until(looks.look, 1.0)

    assert early[0] < LOOK_MAX_S
    assert early == sorted(early[:-1]) + early[-1:]
    assert looks.waits[0] == pytest.approx(LOOK_MAX_S)
    watch.close()


def test_closing_ends_the_wait(database: Database) -> None:
    looks = Looks(finds_after=10**9)
    watch = Wakeup(database, looks.wait, clock=looks.clock)

    def look() -> tuple[str | None, float]:
        if looks.count == 3:
            watch.close()
        return looks.look()

    assert watch.until(look, LONG_S) is None
    assert looks.count == 4
