"""Marks by positions: the sweep notes where each queue ends, sends nothing, and proves what is gone from before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.given import Clock
from tests.simulation.broker import Server, SimBroker
from tests.simulation.partitions import PartitionedBroker, PartitionedServer
from tests.unit.process import Process, opened
from workq.broker import Hint
from workq.errors import BrokerUnavailable, ConfigError
from workq.ledger import Marker, Unpublished
from workq.recovery.lost_hints import Marked, mark, slack_s
from workq.stores import Stores


class Swept:
    """A ledger and a broker with parts, and a sweep that only marks."""

    def __init__(self, process: Process) -> None:
        self.now = 0.0
        self.server = PartitionedServer(lambda: self.now, session_s=45.0)
        self.broker = PartitionedBroker(self.server)
        self.stores: Stores = replace(process.stores, broker=self.broker, direct=None)
        self.times = process.wq.settings.times
        self.clock = Clock(process.stores.ledger.database)
        self.clock.forward(60.0)  # the in-flight store is no young one
        handler = process.wq.handler("work")
        new = [handler.new_task(handler.defaults, (number,), {}) for number in range(3)]
        self.ids = [one.id for one in new]
        process.stores.ledger.tasks.record(new)
        self.stores.ledger.hints.mark_published([Unpublished(one, "default", 0, 0.0) for one in self.ids])
        assert all(self.broker.publish([Hint("default", (one,)) for one in self.ids], deadline_s=1.0))
        self.clock.forward(slack_s(self.times) + 1.0)

    def mark(self) -> Marked:
        return mark(self.stores, self.times, limit=100)

    def markers(self) -> list[Marker]:
        return self.stores.ledger.markers.all()

    def later(self) -> None:
        """All that was repaired is known to be published, and the next may be sent."""
        self.clock.forward(max(self.times.marker_s, self.times.marker_grace_s) + 1.0)


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[Swept]:
    with opened(tmp_path) as process:
        yield Swept(process)


@pytest.mark.parametrize("what", ["depths", "has_passed"])
def test_a_broker_that_refuses_to_tell_stops_no_sweep(swept: Swept, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def refuse(*_: Any) -> None:
        raise ConfigError("a right is missing")

    assert swept.mark().sent == 1
    swept.later()
    monkeypatch.setattr(swept.broker, what, refuse)

    assert swept.mark().lost == 0


def test_what_was_there_before_a_mark_and_is_gone_is_sent_again_once(swept: Swept) -> None:
    assert swept.mark().sent == 1
    [marker] = swept.markers()
    assert marker.position is not None
    assert len(swept.server.ids()) == 3, "no marker is sent"
    swept.later()
    assert swept.mark().lost == 0, "it has not passed"
    assert [one.returned_for_s for one in swept.markers()] == [None, None]

    swept.server.purge("default")
    swept.mark()
    swept.later()

    assert swept.mark().lost == 3
    assert sorted(swept.server.ids()) == sorted(swept.ids)
    swept.later()
    assert swept.mark().lost == 0


@pytest.mark.parametrize("error", [BrokerUnavailable, ConfigError])
def test_a_broker_that_does_not_tell_its_position_leaves_a_mark_that_proves_nothing_and_another_follows(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def away(*_: Any) -> None:
        raise error("away")

    with monkeypatch.context() as patch:
        patch.setattr(swept.broker, "position", away)
        assert swept.mark().is_blind
    assert [one.position for one in swept.markers()] == [None]
    swept.server.purge("default")
    swept.later()
    assert swept.mark().sent == 1
    with monkeypatch.context() as patch:
        patch.setattr(swept.broker, "has_passed", away)
        swept.mark()
    assert [one.returned_for_s for one in swept.markers()] == [None, None]

    swept.mark()
    swept.later()

    assert swept.mark().lost == 3


def test_the_position_is_asked_for_after_the_mark_was_noted(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    """So each hint that was confirmed before `sent_at` is before the position."""
    noted: list[int] = []
    position = swept.broker.position

    def asked(queue: str) -> str | None:
        noted.append(len(swept.markers()))
        return position(queue)

    monkeypatch.setattr(swept.broker, "position", asked)
    swept.mark()

    assert noted == [1]


def test_while_workers_of_two_brokers_live_what_waits_in_one_is_sent_to_the_other_once(swept: Swept) -> None:
    """An installation moves. The one broker is deep, and nobody takes from it; the other one is empty."""
    other = Server(lambda: swept.now)
    beside = replace(swept.stores, broker=SimBroker(other))

    lost: list[tuple[int, int]] = []
    for _ in range(6):
        lost.append((swept.mark().lost, mark(beside, swept.times, limit=100).lost))
        if len(other.ids()) == 0:  # a marker that nothing waits before is handed back at once
            swept.stores.ledger.markers.returned([one.id for one in swept.markers() if one.position is None])
        swept.later()

    assert sorted(swept.server.ids()) == sorted(swept.ids), "what is still there is not sent there again"
    assert sorted(other.ids()) == sorted(swept.ids)
    assert [sum(counts) for counts in zip(*lost, strict=True)] == [0, 3]


def test_the_proof_of_one_broker_does_not_wait_for_a_marker_of_another(swept: Swept) -> None:
    """Which may be gone for good, and its marker with it."""
    beside = replace(swept.stores, broker=SimBroker(Server(lambda: swept.now)))
    assert mark(beside, swept.times, limit=100).sent == 1
    swept.server.purge("default")

    assert swept.mark().sent == 1
    swept.mark()
    swept.later()

    assert swept.mark().lost == 3
