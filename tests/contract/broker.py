"""What every broker promises. A subclass says only how to open one, and what its technology can tell.

What only some can do is a contract of its own, below; a backend inherits those that it declares.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
from sqlalchemy import Engine

from tests.system.fleet import wait_until
from workq.broker import Broker, Browsed, Consumer, Delivery, Hint
from workq.broker.embedded import EmbeddedBroker
from workq.errors import LedgerUnavailable, Unavailable
from workq.ledger.hint_rows import insert_hints
from workq.values.codec import Envelope, encode_hint, new_task_id
from workq.values.lane import all_of

LONG_S = 20.0
"""How long a noisy machine may take for what normally takes milliseconds."""
CAME_S = 60.0
"""For what has to come: on a busy machine a member of a group of Kafka can take half a minute to join."""
QUIET_S = 0.4
"""How long to listen before silence is believed."""


@dataclass(frozen=True)
class Quarantined:
    """One message found in the quarantine."""

    reason: str
    queue: str
    body: bytes
    sha256: str


class Stage(ABC):
    """One backend on a real server, with what the contract does behind the broker's back."""

    @abstractmethod
    def open(self) -> Broker:
        """A broker in this stage's namespace."""

    @abstractmethod
    def put(self, queue: str, body: bytes) -> None:
        """Somebody else writes a message into an existing queue of ours."""

    @abstractmethod
    def quarantined(self) -> list[Quarantined]:
        """What is in the quarantine."""

    @abstractmethod
    def lose(self, broker: Broker, consumer: Consumer, name: str) -> None:
        """The broker takes a consumer for gone and delivers again what it holds; the consumer is not told."""

    @abstractmethod
    def kept(self, body: bytes) -> bytes:
        """How the quarantine keeps a body of at most 64 KiB."""

    def let_arrive(self, consumer: Consumer, count: int) -> None:  # noqa: B027 - mostly there is nothing to wait for
        """Wait until so many deliveries can be fetched at once, where they have to travel."""

    def delete_queue(self, queue: str) -> None:
        """An operator deletes a queue. Only for `DeletableQueuesContract`."""
        raise NotImplementedError

    def engine(self) -> Engine:
        """The database of the ledger. Only where the broker is transactional."""
        raise NotImplementedError


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, with a bound."""
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {LONG_S} s in vain until {what}"
        time.sleep(0.01)


def hints(queue: str, count: int, *, delay_s: float = 0.0) -> list[Hint]:
    return [Hint(queue, (new_task_id(),), delay_s) for _ in range(count)]


def ids(of: list[Hint] | list[Delivery]) -> list[str]:
    return [task_id for one in of for task_id in one.task_ids]


def publish_confirmed(broker: Broker, sent: list[Hint]) -> None:
    """Publish until all of them are confirmed: a queue that two connections are just making may refuse one at first."""
    wait_until(lambda: all(broker.publish(sent, deadline_s=LONG_S)), timeout_s=CAME_S, what="they are confirmed")


def gathered(consumer: Consumer, count: int) -> set[str]:
    """Fetch and ack until so many different ids have come."""
    found: set[str] = set()
    deadline = time.monotonic() + CAME_S
    while len(found) < count and time.monotonic() < deadline:
        page = consumer.fetch(ids_max=100, wait_s=1.0)
        consumer.ack(page)
        found.update(ids(page))
    return found


def collect(consumer: Consumer, count: int, *, ack: bool = True) -> list[Delivery]:
    """Fetch until `count` deliveries came, or the bound is reached; more than `count` would show as well."""
    found: list[Delivery] = []
    deadline = time.monotonic() + CAME_S
    while len(found) < count and time.monotonic() < deadline:
        page = consumer.fetch(ids_max=100, wait_s=1.0)
        if ack:
            consumer.ack(page)
        found += page
    return found


def collect_ids(consumer: Consumer, count: int) -> list[str]:
    """Fetch and ack until `count` ids came, in whatever pages, or the bound is reached."""
    found: list[str] = []
    deadline = time.monotonic() + CAME_S
    while len(found) < count and time.monotonic() < deadline:
        page = consumer.fetch(ids_max=100, wait_s=1.0)
        consumer.ack(page)
        found += ids(page)
    return found


def browse(
    broker: Broker, queue: str, *, stays: Callable[[Hint], bool] = lambda _: True, deadline_s: float = 3 * LONG_S
) -> tuple[list[Hint], Browsed]:
    """What browsing shows, and its answer."""
    shown: list[Hint] = []

    def see(hint: Hint) -> bool:
        shown.append(hint)
        return stays(hint)

    browsed = broker.browse(queue, see, deadline_s=deadline_s)
    return shown, browsed


def one_by_one(consumer: Consumer, *, ids_max: int = 1) -> list[Delivery]:
    """The next delivery, acked."""
    page = consumer.fetch(ids_max=ids_max, wait_s=LONG_S)
    assert len(page) == 1
    consumer.ack(page)
    return page


class OpenedContract:
    """Two brokers of one stage, and a queue of one test."""

    @pytest.fixture
    def broker(self, stage: Stage) -> Iterator[Broker]:
        broker = stage.open()
        yield broker
        broker.close()

    @pytest.fixture
    def other_broker(self, stage: Stage) -> Iterator[Broker]:
        """As in another process."""
        broker = stage.open()
        yield broker
        broker.close()

    @pytest.fixture
    def queue(self) -> str:
        return f"q.{new_task_id()[-12:]}"


class DelaysContract(OpenedContract):
    """What every broker promises of delayed hints. How many of them share a delivery is its own affair."""

    passes: ClassVar[int] = 10
    """How often one task is sent through the delays."""

    @pytest.mark.parametrize("delay_s", [0.1, 0.25, 0.7])
    def test_a_delayed_hint_arrives_and_never_early(self, broker: Broker, queue: str, delay_s: float) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        sent = hints(queue, 3, delay_s=delay_s)
        began = time.monotonic()

        assert broker.publish(sent, deadline_s=LONG_S) == [True] * 3

        first = consumer.fetch(ids_max=1, wait_s=LONG_S)
        wait_s = max(first[0].waits_s, default=0.0)
        assert 0.0 <= wait_s < 0.1
        assert time.monotonic() - began + wait_s >= delay_s - 0.005  # clocks of a millisecond
        assert sorted([*ids(first), *collect_ids(consumer, 3 - len(ids(first)))]) == sorted(ids(sent))

    def test_a_short_delay_does_not_wait_behind_a_longer_one(self, broker: Broker, queue: str) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        broker.publish(hints(queue, 1), deadline_s=LONG_S)
        collect(consumer, 1)  # the queue is there
        [late], [soon], [now] = (hints(queue, 1, delay_s=delay_s) for delay_s in (2.0, 0.6, 0.0))
        broker.publish([late, soon, now], deadline_s=LONG_S)

        found = collect_ids(consumer, 3)

        assert found == ids([now, soon, late])

    def test_a_delay_below_zero_or_beyond_the_horizon_is_refused(self, broker: Broker, queue: str) -> None:
        for delay_s in (-0.1, broker.horizon_s + 1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="hint"):
                broker.publish([Hint(queue, (new_task_id(),), delay_s)], deadline_s=LONG_S)

    def test_one_task_passes_through_the_delays_again_and_again(self, broker: Broker, queue: str) -> None:
        """A retry that keeps the old message's headers is dropped in silence at its second pass (celery#9867)."""
        task_id = new_task_id()
        consumer = broker.consumer([queue], name="one", prefetch=10)

        for passed in range(self.passes):
            assert broker.publish([Hint(queue, (task_id,), 0.1, looks=passed)], deadline_s=LONG_S) == [True]
            # By its looks: one that was confirmed late comes twice, and is no sign of the pass after it.
            came = partial(_came, consumer, task_id, looks=passed)
            wait_until(came, timeout_s=CAME_S, what=f"pass {passed} has come")


def _came(consumer: Consumer, task_id: str, *, looks: int) -> bool:
    return (task_id, looks) in [(one.task_ids[0], one.looks) for one in collect(consumer, 1)]


class CarryingContract(OpenedContract):
    """What every broker promises of hints without a delay."""

    knows_unacked: ClassVar[bool]
    """`depths` tells how many hints are delivered and not acked."""
    knows_consumers: ClassVar[bool]
    """`depths` tells how many consumers a queue has."""

    # Publishing and fetching

    def test_a_published_hint_is_delivered(self, broker: Broker, queue: str) -> None:
        hint = Hint(queue, (new_task_id(), new_task_id()), looks=2)

        assert broker.publish([hint], deadline_s=LONG_S) == [True]

        [delivery] = broker.consumer([queue], name="one", prefetch=10).fetch(ids_max=10, wait_s=LONG_S)
        assert (delivery.queue, delivery.task_ids, delivery.looks) == (queue, hint.task_ids, 2)
        assert delivery.fault is None
        assert not delivery.is_redelivered

    def test_nothing_to_publish_is_no_error(self, broker: Broker) -> None:
        assert broker.publish([], deadline_s=LONG_S) == []

    def test_a_confirmed_hint_outlives_its_producer(self, broker: Broker, other_broker: Broker, queue: str) -> None:
        sent = hints(queue, 3)
        assert other_broker.publish(sent, deadline_s=LONG_S) == [True] * 3

        other_broker.close()

        found = collect(broker.consumer([queue], name="one", prefetch=10), 3)
        assert ids(found) == ids(sent)

    def test_one_call_may_publish_to_many_queues(self, broker: Broker, queue: str) -> None:
        sent = [hints(f"{queue}.{n % 3}", 1)[0] for n in range(9)]

        assert broker.publish(sent, deadline_s=LONG_S) == [True] * 9

        consumer = broker.consumer([f"{queue}.{n}" for n in range(3)], name="one", prefetch=20)
        found = collect(consumer, 9)
        assert sorted((one.queue, one.task_ids) for one in found) == sorted((one.queue, one.task_ids) for one in sent)

    def test_a_consumer_of_an_unknown_queue_declares_it_and_waits(
        self, broker: Broker, other_broker: Broker, queue: str
    ) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        assert consumer.fetch(ids_max=10, wait_s=QUIET_S) == []

        [sent] = hints(queue, 1)
        other_broker.publish([sent], deadline_s=LONG_S)

        assert ids(consumer.fetch(ids_max=10, wait_s=LONG_S)) == ids([sent])

    def test_fetch_returns_nothing_after_its_time(self, broker: Broker, queue: str) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        began = time.monotonic()

        assert consumer.fetch(ids_max=10, wait_s=0.2) == []

        assert 0.2 <= time.monotonic() - began < LONG_S

    def test_fetch_takes_no_more_ids_than_asked_for_but_at_least_one_delivery(self, broker: Broker, queue: str) -> None:
        broker.publish([Hint(queue, tuple(new_task_id() for _ in range(10))) for _ in range(6)], deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=10)

        one = consumer.fetch(ids_max=5, wait_s=LONG_S)
        few = consumer.fetch(ids_max=25, wait_s=LONG_S)

        assert len(one) == 1
        assert 1 <= len(few) <= 2

    def test_no_more_is_delivered_than_prefetch_until_something_is_acked(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 12)
        broker.publish(sent, deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=5)

        first = collect(consumer, 5, ack=False)
        assert consumer.fetch(ids_max=10, wait_s=QUIET_S) == []
        consumer.ack(first)
        rest = collect(consumer, 7)

        assert ids(first + rest) == ids(sent)

    def test_the_prefetch_can_be_widened_and_narrowed_while_deliveries_are_unacked(
        self, broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 60)
        broker.publish(sent, deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=2)
        first = collect(consumer, 2, ack=False)

        consumer.set_prefetch(8)
        consumer.set_prefetch(8)
        more = collect(consumer, 6, ack=False)
        while page := consumer.fetch(ids_max=100, wait_s=QUIET_S):
            more += page
        assert 6 <= len(more) <= 8  # RabbitMQ counts none that a subscription before this one delivered
        consumer.ack(more)
        consumer.set_prefetch(32)
        many = collect(consumer, 30, ack=False)
        consumer.set_prefetch(2)
        consumer.ack([*first, *many])
        rest = collect(consumer, 60 - len(first + more + many))

        assert ids(first) == ids(sent[:2])
        # nothing twice, nothing lost; what reached a subscription that was being given up comes again, a little later
        assert sorted(ids(first + more + many + rest)) == sorted(ids(sent))
        assert consumer.fetch(ids_max=100, wait_s=QUIET_S) == []
        assert broker.depths([queue])[queue].ready == 0

    def test_two_consumers_share_a_queue_without_duplicates(
        self, broker: Broker, other_broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 200)
        broker.publish(sent, deadline_s=LONG_S)
        seen: Counter[str] = Counter()
        consumers = [
            each.consumer([queue], name=f"share.{n}", prefetch=20) for n, each in enumerate([broker, other_broker])
        ]

        def work(consumer: Consumer) -> None:
            deadline = time.monotonic() + LONG_S
            while seen.total() < 200 and time.monotonic() < deadline:
                page = consumer.fetch(ids_max=10, wait_s=0.1)
                seen.update(ids(page))
                consumer.ack(page)

        threads = [threading.Thread(target=work, args=[consumer]) for consumer in consumers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert seen == Counter(ids(sent))

    # Custody: ack, close, forget

    def test_what_was_not_acked_comes_again_after_close(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 3)
        broker.publish(sent, deadline_s=LONG_S)
        first = broker.consumer([queue], name="first", prefetch=10)
        assert len(collect(first, 3, ack=False)) == 3

        first.close()

        again = collect(broker.consumer([queue], name="second", prefetch=10), 3)
        assert ids(again) == ids(sent)

    def test_forgetting_a_consumer_that_never_was_is_no_error(self, broker: Broker) -> None:
        broker.forget_consumer("nobody")

    def test_what_was_acked_never_comes_again(self, broker: Broker, queue: str) -> None:
        broker.publish(hints(queue, 20), deadline_s=LONG_S)
        first = broker.consumer([queue], name="first", prefetch=50)
        assert len(collect(first, 20)) == 20
        first.close()

        [last] = hints(queue, 1)
        broker.publish([last], deadline_s=LONG_S)

        found = broker.consumer([queue], name="second", prefetch=50).fetch(ids_max=100, wait_s=LONG_S)
        assert ids(found) == ids([last])

    def test_an_ack_is_ignored_when_its_delivery_was_lost_to_the_consumer(
        self, stage: Stage, broker: Broker, other_broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 3)
        broker.publish(sent, deadline_s=LONG_S)
        slow = broker.consumer([queue], name="slow", prefetch=10)
        held = collect(slow, 3, ack=False)
        slow.pause()

        stage.lose(broker, slow, "slow")
        quick = other_broker.consumer([queue], name="quick", prefetch=10)
        again = collect(quick, 3, ack=False)
        slow.ack(held)
        slow.ack(held)

        assert ids(again) == ids(sent)
        quick.close()
        assert ids(collect(other_broker.consumer([queue], name="third", prefetch=10), 3)) == ids(sent)

    def test_a_consumer_goes_on_by_itself_after_it_was_taken_for_gone(
        self, stage: Stage, broker: Broker, queue: str
    ) -> None:
        [sent] = hints(queue, 1)
        broker.publish([sent], deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=10)
        assert ids(collect(consumer, 1, ack=False)) == ids([sent])

        stage.lose(broker, consumer, "one")

        assert ids(collect(consumer, 1)) == ids([sent])

    def test_close_is_repeatable_and_bounded(self, stage: Stage, queue: str) -> None:
        broker = stage.open()
        broker.publish(hints(queue, 1), deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=10)
        began = time.monotonic()

        for _ in range(2):
            consumer.close()
        for _ in range(2):
            broker.close()

        assert consumer.fetch(ids_max=1, wait_s=LONG_S) == []
        assert time.monotonic() - began < LONG_S

    def test_who_is_woken_goes_on_without_a_delivery_once(self, broker: Broker, queue: str) -> None:
        """Whether it waits already, or comes to wait a moment later."""
        consumer = broker.consumer([queue], name="one", prefetch=10)
        assert consumer.fetch(ids_max=1, wait_s=0.0) == []
        answers: list[list[Delivery]] = []
        for _ in range(2):
            waiting = threading.Thread(target=lambda: answers.append(consumer.fetch(ids_max=1, wait_s=10 * LONG_S)))
            waiting.start()
            consumer.wake()
            waiting.join(LONG_S)
        began = time.monotonic()

        assert answers == [[], []]
        assert consumer.fetch(ids_max=1, wait_s=QUIET_S) == []
        assert time.monotonic() - began > 0.9 * QUIET_S

    def test_close_wakes_a_waiting_fetch(self, broker: Broker, queue: str) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        answers: list[list[Delivery]] = []
        waiting = threading.Thread(target=lambda: answers.append(consumer.fetch(ids_max=1, wait_s=10 * LONG_S)))
        waiting.start()

        consumer.close()
        waiting.join(LONG_S)

        assert answers == [[]]

    # Pausing

    def test_a_paused_consumer_gets_nothing_until_it_resumes(self, broker: Broker, queue: str) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        assert consumer.fetch(ids_max=1, wait_s=QUIET_S) == []
        for _ in range(2):
            consumer.pause()
        if self.knows_consumers:
            until(lambda: broker.depths([queue])[queue].consumers == 0, "the broker knows of the pause")
        sent = hints(queue, 3)
        broker.publish(sent, deadline_s=LONG_S)

        assert consumer.fetch(ids_max=10, wait_s=QUIET_S) == []
        for _ in range(2):
            consumer.resume()

        assert ids(collect(consumer, 3)) == ids(sent)

    def test_a_consumer_takes_from_the_queues_that_it_serves_and_from_no_other(
        self, broker: Broker, queue: str
    ) -> None:
        other = f"{queue}-other"
        consumer = broker.consumer([queue, other], name="one", prefetch=10)
        assert consumer.fetch(ids_max=1, wait_s=QUIET_S) == []
        for _ in range(2):
            consumer.serve([other])
        if self.knows_consumers:
            until(lambda: broker.depths([queue])[queue].consumers == 0, "the broker knows")
        sent, sent_to_other = hints(queue, 3), hints(other, 3)
        broker.publish([*sent, *sent_to_other], deadline_s=LONG_S)

        served = collect(consumer, 3)
        assert consumer.fetch(ids_max=10, wait_s=QUIET_S) == []
        consumer.pause()
        consumer.resume()
        assert consumer.fetch(ids_max=10, wait_s=QUIET_S) == []
        consumer.serve([])
        assert consumer.fetch(ids_max=10, wait_s=QUIET_S) == []
        assert consumer.trouble is None
        consumer.serve([queue, other])
        rest = collect(consumer, 3)

        assert (ids(served), ids(rest)) == (ids(sent_to_other), ids(sent))

    def test_a_consumer_may_be_told_to_serve_queues_that_it_did_not_begin_with(
        self, broker: Broker, queue: str
    ) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        sent = [*hints(f"{queue}~low", 3), *hints(queue, 2)]
        broker.publish(sent, deadline_s=LONG_S)
        before = collect(consumer, 2)
        assert consumer.fetch(ids_max=10, wait_s=QUIET_S) == []

        for _ in range(2):
            consumer.serve([queue, f"{queue}~low"])

        assert ids(before) == ids(sent[3:])
        assert ids(collect(consumer, 3)) == ids(sent[:3])

    def test_while_all_bands_of_a_queue_wait_they_share_by_their_weights_and_none_starves(
        self, stage: Stage, broker: Broker, queue: str
    ) -> None:
        high, normal, low = all_of(queue)
        consumer = broker.consumer([], name="one", prefetch=200)
        sent = {band: hints(band, 84) for band in (low, normal, high)}
        for one in sent.values():
            assert all(broker.publish(one, deadline_s=LONG_S))
        consumer.serve([high, normal, low])
        stage.let_arrive(consumer, 3 * 84)

        found = [one for _ in range(84) for one in one_by_one(consumer)]

        for start in range(84 - 20):
            assert Counter(one.queue for one in found[start : start + 21]) == {high: 16, normal: 4, low: 1}
        for band, hinted in sent.items():
            of_band = [one.task_ids[0] for one in found if one.queue == band]
            assert of_band == ids(hinted)[: len(of_band)], "first in, first out"

    def test_a_high_hint_overtakes_a_backlog_of_low_ones(self, stage: Stage, broker: Broker, queue: str) -> None:
        high, _, low = all_of(queue)
        consumer = broker.consumer([high, low], name="one", prefetch=200)
        broker.publish(hints(low, 150), deadline_s=LONG_S)
        stage.let_arrive(consumer, 150)
        began = [one for _ in range(30) for one in one_by_one(consumer)]

        broker.publish(hints(high, 5), deadline_s=LONG_S)
        stage.let_arrive(consumer, 120 + 5)
        found = [one.queue for _ in range(6) for one in one_by_one(consumer)]

        assert {one.queue for one in began} == {low}
        assert found.count(high) == 5

    def test_where_hints_are_pages_it_is_pages_that_are_counted(self, stage: Stage, broker: Broker, queue: str) -> None:
        high, normal, low = all_of(queue)
        consumer = broker.consumer([high, normal, low], name="one", prefetch=60)
        for band in (low, normal, high):
            page = [Hint(band, tuple(new_task_id() for _ in range(100))) for _ in range(42)]
            assert all(broker.publish(page, deadline_s=LONG_S))
        stage.let_arrive(consumer, 3 * 42)

        found = [one.queue for _ in range(42) for one in one_by_one(consumer, ids_max=100)]

        assert Counter(found[:21]) == Counter(found[21:]) == {high: 16, normal: 4, low: 1}

    def test_serving_other_queues_in_haste_loses_nothing(self, broker: Broker, queue: str) -> None:
        other = f"{queue}-other"
        sent = [*hints(queue, 15), *hints(other, 15)]
        consumer = broker.consumer([queue, other], name="one", prefetch=10)

        for number, hint in enumerate(sent):
            consumer.serve([queue, other][number % 2 :])
            publish_confirmed(broker, [hint])
            consumer.serve([queue] if number % 3 else [queue, other])
        consumer.serve([queue, other])

        assert gathered(consumer, 30) == set(ids(sent))

    def test_pausing_and_resuming_in_haste_loses_nothing(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 30)
        consumer = broker.consumer([queue], name="one", prefetch=10)

        for start in range(0, 30, 3):
            consumer.pause()
            publish_confirmed(broker, sent[start : start + 3])
            consumer.resume()

        assert gathered(consumer, 30) == set(ids(sent))

    # Messages that are not ours

    @pytest.mark.parametrize(
        ("reason", "body"),
        [
            ("empty", b""),
            ("not_json", b'{"v":1,"q":'),
            ("bad_envelope", b"[]"),
            ("bad_envelope", b'{"v":1,"q":"x","ids":["no id"]}'),
            ("newer_version", b'{"v":3,"q":"x","anything":1}'),
            ("too_large", b"x" * 70_000),
        ],
    )
    def test_a_foreign_message_comes_with_its_fault_and_moves_to_the_quarantine(
        self, stage: Stage, broker: Broker, queue: str, reason: str, body: bytes
    ) -> None:
        self._quarantine_one(stage, broker, queue, reason, body)

    def test_a_message_that_is_put_back_comes_again_later_as_it_was_and_counts_its_returns(
        self, stage: Stage, broker: Broker, queue: str
    ) -> None:
        body = b'{"v":3,"q":"x","anything":1}'
        consumer = broker.consumer([queue], name="one", prefetch=10)
        broker.publish(hints(queue, 1), deadline_s=LONG_S)
        collect(consumer, 1)
        stage.put(queue, body)
        for returns in range(3):
            [delivery] = collect(consumer, 1, ack=False)
            assert (delivery.fault, delivery.returns) == ("newer_version", returns)
            consumer.put_back(delivery, delay_s=0.1)

        [last] = collect(consumer, 1, ack=False)
        consumer.quarantine(last, reason="newer_version")
        until(lambda: any(one.queue == queue for one in stage.quarantined()), "it is in the quarantine")
        [kept] = [one for one in stage.quarantined() if one.queue == queue]
        assert kept.body == stage.kept(body)

    def _quarantine_one(self, stage: Stage, broker: Broker, queue: str, reason: str, body: bytes) -> None:
        first, second = hints(queue, 2)
        broker.publish([first], deadline_s=LONG_S)
        stage.put(queue, body)
        broker.publish([second], deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=10)

        found = collect(consumer, 3, ack=False)
        [foreign] = [delivery for delivery in found if delivery.fault]
        consumer.quarantine(foreign, reason=reason)
        consumer.ack([delivery for delivery in found if not delivery.fault])

        assert (foreign.fault, foreign.queue, foreign.task_ids) == (reason, queue, ())
        assert ids(found) == ids([first, second])
        until(lambda: any(one.queue == queue for one in stage.quarantined()), "it is in the quarantine")
        [kept] = [one for one in stage.quarantined() if one.queue == queue]
        assert (kept.reason, kept.body) == (reason, stage.kept(body[: 64 * 1024]))
        assert kept.sha256 == hashlib.sha256(body).hexdigest()
        [last] = hints(queue, 1)
        consumer.close()
        broker.publish([last], deadline_s=LONG_S)
        assert ids(broker.consumer([queue], name="two", prefetch=10).fetch(ids_max=9, wait_s=LONG_S)) == ids([last])

    def test_a_hint_of_ours_can_be_quarantined_as_well(self, stage: Stage, broker: Broker, queue: str) -> None:
        [sent] = hints(queue, 1)
        broker.publish([sent], deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=10)
        [delivery] = collect(consumer, 1, ack=False)

        consumer.quarantine(delivery, reason="unknown_id")

        until(lambda: any(one.queue == queue for one in stage.quarantined()), "it is in the quarantine")
        [kept] = [one for one in stage.quarantined() if one.queue == queue]
        assert (kept.reason, kept.body) == ("unknown_id", encode_hint(Envelope(queue, sent.task_ids)))

    def test_a_hint_found_in_a_queue_that_it_does_not_name_belongs_to_the_queue_where_it_was(
        self, stage: Stage, broker: Broker, queue: str
    ) -> None:
        broker.publish(hints(queue, 1), deadline_s=LONG_S)
        stray = new_task_id()
        stage.put(queue, encode_hint(Envelope("elsewhere", (stray,))))

        found = collect(broker.consumer([queue], name="one", prefetch=10), 2)

        [delivery] = [one for one in found if one.task_ids == (stray,)]
        assert (delivery.queue, delivery.fault) == (queue, None)

    # Questions

    def test_depths_count_hints_and_a_missing_queue_counts_nothing(self, broker: Broker, queue: str) -> None:
        broker.publish(hints(queue, 3), deadline_s=LONG_S)

        until(lambda: broker.depths([queue])[queue].ready == 3, "three are ready")
        depths = broker.depths([queue, f"{queue}.missing"])

        assert depths[queue].unacked == (0 if self.knows_unacked else None)
        assert depths[f"{queue}.missing"].ready == 0

    # Browsing

    def test_browsing_shows_what_waits_in_its_order_and_leaves_it_there(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 5)
        sent += [Hint(queue, tuple(new_task_id() for _ in range(40)), looks=2), Hint(queue, (), marker=new_task_id())]
        sent += hints(queue, 5)
        assert all(broker.publish(sent, deadline_s=LONG_S))
        until(lambda: broker.depths([queue])[queue].ready == len(sent), "all are ready")

        for _ in range(2):
            shown, browsed = browse(broker, queue)
            assert shown == sent
            assert browsed == Browsed(len(sent), 0, is_whole=True)

        found = collect(broker.consumer([queue], name="one", prefetch=100), len(sent))
        assert [(one.task_ids, one.looks, one.marker) for one in found] == [
            (one.task_ids, one.looks, one.marker) for one in sent
        ]

    def test_browsing_an_empty_or_a_missing_queue_shows_nothing(self, broker: Broker, queue: str) -> None:
        broker.publish(hints(queue, 1), deadline_s=LONG_S)
        collect(broker.consumer([queue], name="one", prefetch=10), 1)
        until(lambda: broker.depths([queue])[queue].ready == 0, "the queue is empty")

        assert browse(broker, queue) == ([], Browsed(0, 0, is_whole=True))
        assert browse(broker, f"{queue}.missing") == ([], Browsed(0, 0, is_whole=True))

    def test_browsing_again_and_again_costs_no_hint_its_life(self, stage: Stage, broker: Broker, queue: str) -> None:
        """A queue with a limit of deliveries would have it in the quarantine after the twentieth."""
        sent = hints(queue, 10)
        broker.publish(sent, deadline_s=LONG_S)
        until(lambda: broker.depths([queue])[queue].ready == 10, "all are ready")

        for _ in range(25):
            assert browse(broker, queue)[0] == sent

        found = collect(broker.consumer([queue], name="one", prefetch=20), 10)
        assert ids(found) == ids(sent)
        assert not any(one.is_redelivered for one in found), "nothing was delivered and given back"
        assert not any(one.queue == queue for one in stage.quarantined())

    def test_ten_thousand_hints_are_all_shown_and_stay_in_their_order(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 10_001)
        for start in range(0, len(sent), 2000):
            assert all(broker.publish(sent[start : start + 2000], deadline_s=3 * LONG_S))
        until(lambda: broker.depths([queue])[queue].ready == len(sent), "all are ready")

        for _ in range(2):
            shown, browsed = browse(broker, queue)
            assert shown == sent
            assert browsed.is_whole

        first = collect(broker.consumer([queue], name="one", prefetch=100), 300)
        assert ids(first) == ids(sent)[: len(first)]
        assert not any(one.is_redelivered for one in first), "nothing was taken and given back"

    def test_nothing_is_lost_or_doubled_while_a_queue_is_browsed_and_worked_on(
        self, broker: Broker, other_broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 2000)
        assert all(broker.publish(sent[:1500], deadline_s=LONG_S))
        taken: Counter[str] = Counter()
        consumers = [other_broker.consumer([queue], name=f"worker.{n}", prefetch=10) for n in range(2)]

        def work(consumer: Consumer) -> None:
            deadline = time.monotonic() + 3 * LONG_S
            while taken.total() < 2000 and time.monotonic() < deadline:
                page = consumer.fetch(ids_max=20, wait_s=0.1)
                taken.update(ids(page))
                consumer.ack(page)

        threads = [threading.Thread(target=work, args=[consumer]) for consumer in consumers]
        for thread in threads:
            thread.start()
        times = 0
        while any(thread.is_alive() for thread in threads):
            shown, browsed = browse(broker, queue)
            assert max(Counter(shown).values(), default=1) == 1, "shown twice"
            assert browsed.is_whole
            if times < 2:
                assert all(broker.publish(sent[1500 + 250 * times : 1750 + 250 * times], deadline_s=LONG_S))
            times += 1
        for thread in threads:
            thread.join()

        assert taken == Counter(ids(sent))

    def test_two_who_browse_at_once_both_see_everything_once(
        self, broker: Broker, other_broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 2000)
        assert all(broker.publish(sent, deadline_s=LONG_S))
        until(lambda: broker.depths([queue])[queue].ready == len(sent), "all are ready")
        seen: list[list[Hint]] = []
        threads = [
            threading.Thread(target=lambda one=one: seen.append(browse(one, queue)[0]))
            for one in (broker, other_broker)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [Counter(ids(shown)) for shown in seen] == [Counter(ids(sent))] * 2
        until(lambda: broker.depths([queue])[queue].ready == len(sent), "all are ready again")
        last, browsed = browse(broker, queue)
        assert browsed.is_whole
        assert Counter(last) == Counter(sent)

    def test_browsing_ends_in_its_time_and_leaves_everything(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 2000)
        assert all(broker.publish(sent, deadline_s=LONG_S))

        shown, browsed = browse(broker, queue, deadline_s=0.0)

        assert not browsed.is_whole
        assert len(shown) < 2000
        assert Counter(ids(collect(broker.consumer([queue], name="one", prefetch=500), 2000))) == Counter(ids(sent))

    def test_whoever_looks_may_break_off_and_nothing_is_lost(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 50)
        broker.publish(sent, deadline_s=LONG_S)
        until(lambda: broker.depths([queue])[queue].ready == 50, "all are ready")

        def see(hint: Hint) -> bool:
            if hint == sent[20]:
                raise LedgerUnavailable("away")
            return True

        with pytest.raises(Unavailable, match="away"):  # the embedded broker says it in its own words
            broker.browse(queue, see, deadline_s=LONG_S)

        found = collect(broker.consumer([queue], name="one", prefetch=100), 50)
        assert Counter(ids(found)) == Counter(ids(sent))

    def test_a_foreign_message_is_only_counted_and_stays_as_it_is(
        self, stage: Stage, broker: Broker, queue: str
    ) -> None:
        body = b'{"v":3,"q":"x","anything":1}'
        [ours] = hints(queue, 1)
        broker.publish([ours], deadline_s=LONG_S)
        first = broker.consumer([queue], name="one", prefetch=10)
        collect(first, 1)
        stage.put(queue, body)
        [foreign] = collect(first, 1, ack=False)
        first.put_back(foreign, delay_s=0.0)
        [foreign] = collect(first, 1, ack=False)
        assert foreign.returns == 1
        first.close()
        until(lambda: broker.depths([queue])[queue].ready >= 1, "it is back")

        shown, browsed = browse(broker, queue)

        # twice there, if the consumer was closed before it had acked the one that it put back
        assert (shown, browsed.is_whole) == ([], True)
        assert browsed.foreign in (1, 2)
        found = collect(broker.consumer([queue], name="two", prefetch=10), browsed.foreign, ack=False)
        assert {(one.fault, one.tag.body) for one in found} == {("newer_version", body)}
        assert max(one.returns for one in found) >= 1

    def test_check_tells_name_and_version(self, broker: Broker) -> None:
        assert re.fullmatch(r"((RabbitMQ|embedded in \w+) \d+\.\d+|Kafka of \d+ broker).*", broker.check())

    def test_publishing_within_a_transaction_is_offered_only_where_it_is_promised(self, broker: Broker) -> None:
        if broker.is_transactional:
            assert isinstance(self, TransactionalContract)
        else:
            with pytest.raises(NotImplementedError):
                broker.rows([])


class OrderContract(OpenedContract):
    """A broker that keeps the order of one producer in a queue."""

    def test_hints_of_one_producer_arrive_in_their_order_at_one_consumer(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 300)
        for start in range(0, 300, 100):
            assert all(broker.publish(sent[start : start + 100], deadline_s=LONG_S))

        found = collect(broker.consumer([queue], name="one", prefetch=50), 300)

        assert ids(found) == ids(sent)


class MarkerContract(OpenedContract):
    """A broker that proves a loss by a marker."""

    def test_a_marker_of_a_band_comes_after_all_hints_of_it_that_were_confirmed_before(
        self, broker: Broker, queue: str
    ) -> None:
        high, normal, low = all_of(queue)
        consumer = broker.consumer([high, normal, low], name="one", prefetch=30)
        sent: dict[str, list[Hint]] = {}
        for band in (low, normal, high):
            sent[band] = [*hints(band, 20), Hint(band, (), marker=new_task_id())]
            for one in sent[band]:
                assert broker.publish([one], deadline_s=LONG_S) == [True]

        found = collect(consumer, 63)

        for band, of_band in sent.items():
            came = [one for one in found if one.queue == band]
            assert [one.marker for one in came] == [one.marker for one in of_band]
            assert ids(came) == ids(of_band)

    def test_it_has_no_positions_and_no_owners(self, broker: Broker, queue: str) -> None:
        assert broker.position(queue) is None
        assert not broker.has_passed(queue, "[0]"), "it is of the broker that was there before"
        assert not broker.has_owners


class RedeliveryContract(OpenedContract):
    """A broker that tells which deliveries are not the first of their message."""

    def test_what_was_not_acked_is_told_when_it_comes_again(self, broker: Broker, queue: str) -> None:
        broker.publish(hints(queue, 3), deadline_s=LONG_S)
        first = broker.consumer([queue], name="first", prefetch=10)
        assert not any(delivery.is_redelivered for delivery in collect(first, 3, ack=False))

        first.close()

        again = collect(broker.consumer([queue], name="second", prefetch=10), 3)
        assert [delivery.is_redelivered for delivery in again] == [True] * 3


def acked_out_of_order(broker: Broker, queue: str, *, left: int) -> tuple[list[Hint], list[Delivery]]:
    """Ten hints, of which the numbers 7, 2, 0, 1 and 9 are acked; and the `left` that come to the next consumer."""
    sent = hints(queue, 10)
    broker.publish(sent, deadline_s=LONG_S)
    first = broker.consumer([queue], name="first", prefetch=10)
    found = collect(first, 10, ack=False)

    first.ack([found[7], found[2]])
    first.ack([found[0], found[1]])
    first.ack([found[9]])
    first.close()

    return sent, collect(broker.consumer([queue], name="second", prefetch=10), left)


class SingleAckContract(OpenedContract):
    """A broker that forgets each message which is acked, whatever stands before it."""

    def test_only_what_was_acked_is_gone_when_acks_come_out_of_order(self, broker: Broker, queue: str) -> None:
        sent, again = acked_out_of_order(broker, queue, left=5)

        assert ids(again) == ids([sent[n] for n in (3, 4, 5, 6, 8)])


class PrefixAckContract(OpenedContract):
    """A broker that forgets what is acked as far as nothing before it is unacked."""

    def test_what_stands_before_the_first_unacked_is_gone_and_the_rest_comes_again(
        self, broker: Broker, queue: str
    ) -> None:
        sent, again = acked_out_of_order(broker, queue, left=7)

        assert ids(again) == ids(sent[3:])


class UnackedContract(OpenedContract):
    """A broker that counts what is delivered and not acked apart from what is ready."""

    knows_unacked: ClassVar[bool]
    knows_consumers: ClassVar[bool]

    def test_depths_tell_what_is_delivered_and_what_is_gone(self, broker: Broker, queue: str) -> None:
        broker.publish(hints(queue, 3), deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=10)
        found = collect(consumer, 3, ack=False)

        until(lambda: broker.depths([queue])[queue].ready == 0, "none is ready")
        depth = broker.depths([queue])[queue]
        consumer.ack(found)

        assert depth.unacked == (3 if self.knows_unacked else None)
        assert depth.consumers == (1 if self.knows_consumers else None)
        consumer.close()
        until(lambda: broker.depths([queue])[queue].ready == 0, "nothing has come back")

    def test_browsing_shows_what_is_delivered_where_that_can_be_told(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 6)
        broker.publish(sent, deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=3)
        assert len(collect(consumer, 3, ack=False)) == 3
        until(lambda: broker.depths([queue])[queue].ready == 3, "three are ready")

        shown, _ = browse(broker, queue)

        assert shown == (sent if self.knows_unacked else sent[3:])
        consumer.close()


class RemovingContract(OpenedContract):
    """A broker from whose queues one message can be removed."""

    def test_what_browsing_is_told_not_to_leave_is_gone_and_the_rest_stays(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 40)
        unwanted = set(ids(sent[::3]))
        broker.publish(sent, deadline_s=LONG_S)
        until(lambda: broker.depths([queue])[queue].ready == 40, "all are ready")

        shown, browsed = browse(broker, queue, stays=lambda hint: hint.task_ids[0] not in unwanted)

        assert (shown, browsed.is_whole) == (sent, True)
        kept = [one for one in ids(sent) if one not in unwanted]
        assert [task_id for hint in browse(broker, queue)[0] for task_id in hint.task_ids] == kept
        assert ids(collect(broker.consumer([queue], name="one", prefetch=50), len(kept))) == kept


class BrokerContract(
    CarryingContract,
    DelaysContract,
    OrderContract,
    MarkerContract,
    SingleAckContract,
    RedeliveryContract,
    UnackedContract,
    RemovingContract,
):
    """What a broker promises that can do all of it."""

    def test_browsing_does_not_show_what_is_delayed(self, broker: Broker, queue: str) -> None:
        [now], [later] = hints(queue, 1), hints(queue, 1, delay_s=60.0)
        broker.publish([later, now], deadline_s=LONG_S)

        assert browse(broker, queue)[0] == [now]


class PositionContract(OpenedContract):
    """A broker that tells where a queue ends, and what of that has left it: the proof of loss without a marker."""

    def test_a_position_has_passed_when_all_that_was_before_it_is_acked_and_not_earlier(
        self, broker: Broker, queue: str
    ) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=100)
        sent = hints(queue, 20)
        assert all(broker.publish(sent, deadline_s=LONG_S))
        position = position_of(broker, queue)
        assert not broker.has_passed(queue, position)

        found: list[Delivery] = []
        while len(found) < len(sent):
            found += consumer.fetch(ids_max=100, wait_s=LONG_S)
        assert sorted(ids(found)) == sorted(ids(sent))
        consumer.ack(found[1:])
        time.sleep(QUIET_S)
        assert not broker.has_passed(queue, position), "one is unacked"
        assert broker.publish(hints(queue, 5), deadline_s=LONG_S) == [True] * 5
        consumer.ack(found[:1])

        until(lambda: broker.has_passed(queue, position), "it has passed")
        assert len(collect(consumer, 5)) == 5

    def test_a_position_in_an_empty_or_a_missing_queue_has_passed(self, broker: Broker, queue: str) -> None:
        missing = position_of(broker, f"{queue}-missing")
        consumer = broker.consumer([queue], name="one", prefetch=10)
        assert broker.publish(hints(queue, 1), deadline_s=LONG_S) == [True]
        collect(consumer, 1)

        assert broker.has_passed(f"{queue}-missing", missing)
        until(lambda: broker.has_passed(queue, position_of(broker, queue)), "it has passed")

    def test_a_position_in_a_queue_that_was_deleted_has_passed(self, stage: Stage, broker: Broker, queue: str) -> None:
        assert all(broker.publish(hints(queue, 20), deadline_s=LONG_S))
        position = position_of(broker, queue)
        assert not broker.has_passed(queue, position)

        stage.delete_queue(queue)

        until(lambda: broker.has_passed(queue, position), "nothing is left of it")


def position_of(broker: Broker, queue: str) -> str:
    position = broker.position(queue)
    assert position is not None
    return position


class ForgettingContract(BrokerContract):
    """A broker that does not notice by itself that a consumer's process has died: it must be told."""

    def test_what_was_not_acked_comes_again_when_its_consumer_is_forgotten(
        self, broker: Broker, other_broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 3)
        broker.publish(sent, deadline_s=LONG_S)
        assert len(collect(broker.consumer([queue], name="killed", prefetch=10), 3, ack=False)) == 3

        other_broker.forget_consumer("killed")

        assert ids(collect(other_broker.consumer([queue], name="second", prefetch=10), 3)) == ids(sent)


class SharedDelaysContract(BrokerContract):
    """A broker where tasks that are due in the same unit of time may share a hint."""

    def test_tasks_that_are_due_in_one_unit_may_share_a_hint_and_each_waits_for_its_own_time(
        self, broker: Broker, queue: str
    ) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        ids_ = tuple(new_task_id() for _ in range(3))
        began = time.monotonic()

        assert broker.publish([Hint(queue, ids_, 0.22, waits_s=(0.0, 0.03, 0.08))], deadline_s=LONG_S) == [True]

        [found] = collect(consumer, 1)
        came_s = time.monotonic() - began
        assert found.task_ids == ids_
        assert found.waits_s == (0.02, 0.05, 0.1)
        assert came_s >= 0.195


class LateDelaysContract(BrokerContract):
    """A broker whose delayed hints come late, as it tells, and never early."""

    @pytest.mark.parametrize("delay_s", [0.12, 0.31])
    def test_a_hint_comes_after_what_it_waits_and_nothing_of_it_is_left_to_its_consumer(
        self, broker: Broker, queue: str, delay_s: float
    ) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        ids_ = tuple(new_task_id() for _ in range(3))
        began = time.monotonic()

        assert broker.publish([Hint(queue, ids_, delay_s)], deadline_s=LONG_S) == [True]

        [found] = collect(consumer, 1)
        came_s = time.monotonic() - began
        assert (found.task_ids, found.waits_s) == (ids_, ())
        assert broker.is_late
        assert delay_s < broker.waits_s(delay_s) <= came_s + 0.005  # clocks of a millisecond

    def test_what_is_handed_back_early_still_tells_what_is_left(self, broker: Broker, queue: str) -> None:
        """It came through an exact delay, before the setting was changed."""
        consumer = broker.consumer([queue], name="one", prefetch=10)

        broker.publish([Hint(queue, (new_task_id(),), waits_s=(0.08,))], deadline_s=LONG_S)

        [found] = collect(consumer, 1)
        assert found.waits_s == (0.08,)


class DeletableQueuesContract(CarryingContract):
    """A broker whose queues an operator can delete."""

    def test_a_deleted_queue_is_declared_again_and_the_hint_is_confirmed(
        self, stage: Stage, broker: Broker, queue: str
    ) -> None:
        broker.publish(hints(queue, 1), deadline_s=LONG_S)
        stage.delete_queue(queue)
        sent = hints(queue, 5)

        assert broker.publish([*sent, sent[0]], deadline_s=LONG_S) == [True] * 6

        found = collect(broker.consumer([queue], name="one", prefetch=10), 6)
        assert Counter(ids(found)) == Counter(ids([*sent, sent[0]]))


class NoticedDeletionContract(CarryingContract):
    """A broker that tells a consumer that its queue was deleted, so that it gets what comes after that once."""

    def test_a_consumer_whose_queue_is_deleted_declares_it_and_goes_on(
        self, stage: Stage, broker: Broker, queue: str
    ) -> None:
        broker.publish(hints(queue, 1), deadline_s=LONG_S)
        consumer = broker.consumer([queue], name="one", prefetch=10)
        assert len(collect(consumer, 1)) == 1

        stage.delete_queue(queue)
        until(lambda: broker.depths([queue])[queue].consumers == 1, "it consumes again")
        sent = hints(queue, 3)
        broker.publish(sent, deadline_s=LONG_S)

        assert ids(collect(consumer, 3)) == ids(sent)


class AnyBytesContract(CarryingContract):
    """A broker into which somebody can write anything, not only text."""

    @pytest.mark.parametrize("body", [b"\xff\xfe\x00", b"\x1f\x8b\x08\x00binary\x00", b"{\x00}"])
    def test_a_message_that_is_not_even_text_is_quarantined_too(
        self, stage: Stage, broker: Broker, queue: str, body: bytes
    ) -> None:
        self._quarantine_one(stage, broker, queue, "not_json", body)


class TransactionalContract(BrokerContract):
    """A broker that is part of the ledger's transactions."""

    def test_hints_written_in_a_transaction_arrive_after_its_commit_and_never_without(
        self, stage: Stage, broker: Broker, queue: str
    ) -> None:
        kept, dropped = hints(queue, 2), hints(queue, 2)
        consumer = broker.consumer([queue], name="one", prefetch=10)

        assert isinstance(broker, EmbeddedBroker)
        with broker.database.engine.connect() as connection:
            insert_hints(connection, broker.database, broker.rows(dropped))
            connection.rollback()
        with broker.database.engine.connect() as connection:
            insert_hints(connection, broker.database, broker.rows(kept))
            connection.commit()

        assert ids(collect(consumer, 2)) == ids(kept)
        assert consumer.fetch(ids_max=10, wait_s=QUIET_S) == []
