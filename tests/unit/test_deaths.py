"""The brake: when most of a fleet looks dead at once, it is more likely that the sweep sees badly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import database_of
from workq import WorkQueue
from workq.recovery.deaths import look_for_the_dead
from workq.values.incarnation import Incarnation

FLEET = 3


@pytest.fixture
def app(tmp_path: Path) -> Iterator[WorkQueue]:
    """A queue with a fleet that has joined a moment ago."""
    with WorkQueue(ledger=f"sqlite:///{tmp_path}/workq.db") as app:
        for number in range(FLEET):
            worker = Incarnation(f"host.boot.{number}.1.n", "host", number)
            app.stores.inflight.join(worker.id, lease_s=app.settings.times.lease_s)
            app.stores.ledger.workers.join(worker, queues=["default"], threads=1)
        yield app


def test_when_most_of_a_fleet_looks_dead_a_third_look_a_beat_later_decides(app: WorkQueue) -> None:
    clock, times = database_of(app), app.settings.times
    looks = []

    for after_s in (1.0, 1.0 + times.beat_s, 1.0 + 2 * times.beat_s):
        clock.clock_offset_s = times.lease_s + after_s
        looks.append(look_for_the_dead(app.stores, app.settings))

    assert [len(look.missing) for look in looks] == [FLEET] * 3
    assert [look.is_braked for look in looks] == [False, True, True]
    assert [len(look.confirmed) for look in looks] == [0, 0, FLEET]


def test_one_that_looks_dead_beside_a_living_fleet_is_confirmed_at_the_second_look(app: WorkQueue) -> None:
    clock, times = database_of(app), app.settings.times
    [dead, *alive] = [row.id for row in app.stores.ledger.questions.workers()]
    looks = []

    for after_s in (1.0, 1.0 + times.beat_s):
        clock.clock_offset_s = times.lease_s + after_s
        for worker in alive:
            app.stores.inflight.beat(worker, lease_s=times.lease_s, entries=[])
        looks.append(look_for_the_dead(app.stores, app.settings))

    assert [look.is_braked for look in looks] == [False, False]
    assert [list(look.confirmed) for look in looks] == [[], [dead]]
