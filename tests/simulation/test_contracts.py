"""The stores of the simulation keep the promises of the ports too: what is proved against them holds for real ones.

What a contract does with real time or with threads that wait is left out here, and named.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import pytest

from tests.contract import broker as broker_contract
from tests.contract import inflight as inflight_contract
from tests.simulation import broker, inflight, partitions
from workq.broker import Broker, Consumer, Delivery


class _Waiting(broker.SimConsumer):
    """A consumer for a test in real time: it waits."""

    def fetch(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        while not (found := super().fetch(ids_max=ids_max, wait_s=0.0)):
            if time.monotonic() >= deadline or self.is_woken or not self.subscription.is_open:
                self.is_woken = False
                return []
            time.sleep(0.001)
        return found


class _RealTime(broker.SimBroker):
    """The simulated broker on the real clock."""

    def consumer(self, queues: Sequence[str], *, name: str, prefetch: int) -> broker.SimConsumer:
        consumer = _Waiting(self._server, self._befall, queues, name=name, prefetch=prefetch)
        self._consumers.append(consumer)
        return consumer


class SimStage(broker_contract.Stage):
    """One simulated server."""

    def __init__(self) -> None:
        self.server = broker.Server(time.monotonic)

    def open(self) -> Broker:
        return _RealTime(self.server)

    def put(self, queue: str, body: bytes) -> None:
        self.server.put(queue, body)

    def quarantined(self) -> list[broker_contract.Quarantined]:
        return [
            broker_contract.Quarantined(kept.reason, kept.queue, kept.body, kept.sha256)
            for kept in self.server.quarantine
        ]

    def lose(self, _: Broker, consumer: Consumer, name: str) -> None:
        assert isinstance(consumer, broker.SimConsumer)
        self.server.cut(consumer.subscription)

    def kept(self, body: bytes) -> bytes:
        return body

    def delete_queue(self, queue: str) -> None:
        self.server.delete_queue(queue)


class TestSimulatedBroker(
    broker_contract.DeletableQueuesContract,
    broker_contract.NoticedDeletionContract,
    broker_contract.SharedDelaysContract,
    broker_contract.AnyBytesContract,
):
    knows_unacked: ClassVar[bool] = True
    knows_consumers: ClassVar[bool] = True
    # threads that really run at the same time: one world is one thread
    test_nothing_is_lost_or_doubled_while_a_queue_is_browsed_and_worked_on = None  # type: ignore[assignment]
    test_two_consumers_share_a_queue_without_duplicates = None  # type: ignore[assignment]

    @pytest.fixture
    def stage(self) -> SimStage:
        return SimStage()


class _RealTimeParts(partitions.PartitionedBroker, _RealTime):
    """The one with parts on the real clock."""


class PartsStage(SimStage):
    """One simulated server whose queues have parts."""

    def __init__(self) -> None:
        self.server = partitions.PartitionedServer(time.monotonic, session_s=1.0)

    def open(self) -> Broker:
        return _RealTimeParts(self.server)


class TestSimulatedParts(broker_contract.PositionContract):
    @pytest.fixture
    def stage(self) -> PartsStage:
        return PartsStage()

    @pytest.fixture
    def broker(self, stage: PartsStage) -> Broker:
        return stage.open()

    @pytest.fixture
    def queue(self) -> str:
        return "parts"


class TestSimulatedInFlight(inflight_contract.InFlightContract):
    test_holds_of_the_same_ids_at_once_give_each_to_exactly_one = None  # type: ignore[assignment]
    test_entries_of_the_dead_taken_over_at_once_go_each_to_exactly_one = None  # type: ignore[assignment]

    @pytest.fixture
    def world(self) -> inflight_contract.World:
        server = inflight.Server(time.monotonic)
        return inflight_contract.World(
            inflight=inflight.SimInFlight(server),
            neighbour=inflight.SimInFlight(inflight.Server(time.monotonic)),
            wipe=server.wipe,
            disagreements=list,
            product="Simulated",
        )
