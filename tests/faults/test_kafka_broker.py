"""Kafka as the broker, where its own ways show: partitions, positions, topics made anew, a node that is away."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from tests.conftest import Private
from tests.contract.broker import LONG_S, collect, gathered, hints, ids
from tests.faults.kafka_raw import produce_raw
from tests.system.fleet import wait_until
from workq.broker import Consumer, Delivery, Hint
from workq.broker.kafka import KafkaBroker
from workq.broker.kafka.positions import PartitionSpan
from workq.broker.kafka.topics import TopicNames
from workq.lab.servers import Kafka, start_kafka
from workq.values.codec import Envelope, encode_hint, new_task_id

QUEUE = "mail"


class Namespace:
    """One namespace on the run's Kafka, and what others do to it."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.name = f"t{secrets.token_hex(4)}"
        self.topic = TopicNames(self.name).topic(QUEUE)
        self.admin: Any = AdminClient(kafka.admin_conf)
        self.brokers: list[KafkaBroker] = []

    def open(self, *, partitions: int, protocol: str = "consumer") -> KafkaBroker:
        url = f"{self.kafka.url}?partitions={partitions}&protocol={protocol}"
        self.brokers.append(KafkaBroker(url, namespace=self.name))
        return self.brokers[-1]

    def delete_topic(self) -> None:
        self.admin.delete_topics([self.topic], operation_timeout=LONG_S)[self.topic].result(60)
        wait_until(lambda: self.topic not in self.admin.list_topics(timeout=60).topics, timeout_s=60, what="deleted")

    def setting(self, name: str) -> str:
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        [asked] = self.admin.describe_configs([resource]).values()
        return str(asked.result(60)[name].value)

    def close(self) -> None:
        for one in self.brokers:
            one.close()

    def clear(self) -> None:
        self.close()
        topics = [one for one in self.admin.list_topics(timeout=60).topics if one.startswith(f"{self.name}.")]
        for future in self.admin.delete_topics(topics).values() if topics else ():
            future.result(60)


@pytest.fixture
def namespace(kafka_server: Kafka) -> Iterator[Namespace]:
    made = Namespace(kafka_server)
    yield made
    made.clear()


@pytest.fixture(scope="module")
def own_kafka(private: Private) -> Iterator[Kafka]:
    """One that a test may stop and kill."""
    with private(start_kafka) as kafka:
        yield kafka


@pytest.fixture
def own(own_kafka: Kafka) -> Iterator[Namespace]:
    made = Namespace(own_kafka)
    yield made
    made.close()  # its topics end with its server


def waits(is_so: Callable[[], bool], what: str) -> None:
    wait_until(is_so, timeout_s=60, what=what)


def publish(broker: KafkaBroker, count: int) -> list[str]:
    sent = hints(QUEUE, count)
    assert all(broker.publish(sent, deadline_s=60))
    return ids(sent)


def spans(broker: KafkaBroker) -> dict[int, PartitionSpan]:
    return broker._positions.spans(QUEUE, ends=time.monotonic() + 60)[1]


def all_of(consumer: Consumer, wanted: set[str]) -> None:
    """Fetch and ack until each of these has come."""
    found: set[str] = set()

    def is_there() -> bool:
        page = consumer.fetch(ids_max=100, wait_s=0.2)
        consumer.ack(page)
        found.update(ids(page))
        return wanted <= found

    waits(is_there, "all have come")


def test_a_hint_with_a_header_that_cannot_be_read_is_taken_and_so_is_the_next_one(namespace: Namespace) -> None:
    broker = namespace.open(partitions=1)
    first, strange = publish(broker, 50), new_task_id()  # Python checks less of what it calls often
    produce_raw(namespace.kafka, namespace.topic, encode_hint(Envelope(QUEUE, (strange,))), {b"n\xff\xfeme": b"y"})

    all_of(broker.consumer([QUEUE], name="one", prefetch=100), {*first, strange, *publish(broker, 1)})


def test_a_topic_is_made_with_its_settings_and_one_that_exists_is_never_changed(namespace: Namespace) -> None:
    publish(namespace.open(partitions=3), 1)

    found = namespace.admin.list_topics(namespace.topic, timeout=60).topics[namespace.topic]
    assert len(found.partitions) == 3
    assert namespace.setting("cleanup.policy") == "delete"
    assert namespace.setting("retention.ms") == str(7 * 86_400_000)
    assert namespace.setting("unclean.leader.election.enable") == "false"

    publish(namespace.open(partitions=5), 1)

    assert len(namespace.admin.list_topics(namespace.topic, timeout=60).topics[namespace.topic].partitions) == 3


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_members_share_the_partitions_and_who_leaves_gives_what_it_did_not_ack(
    namespace: Namespace, protocol: str
) -> None:
    first, second = (namespace.open(partitions=4, protocol=protocol) for _ in range(2))
    one = first.consumer([QUEUE], name="one", prefetch=1000)
    sent = publish(first, 40)
    held = collect(one, 40, ack=False)
    assert Counter(ids(held)) == Counter(sent)

    two = second.consumer([QUEUE], name="two", prefetch=1000)
    begun: list[Delivery] = []

    def has_begun() -> bool:
        begun.extend(two.fetch(ids_max=100, wait_s=0.2))
        return bool(begun)

    waits(has_begun, "it has partitions of its own")
    one.ack(held)  # those of the partitions that went mean nothing any more
    two.ack(begun)
    more = publish(first, 200)
    came: Counter[str] = Counter()

    def is_shared() -> bool:
        for consumer in (one, two):
            page = consumer.fetch(ids_max=100, wait_s=0.1)
            came.update(ids(page))
            consumer.ack(page)
        return set(more) <= set(came)

    waits(is_shared, "both have taken all")
    assert [came[task_id] for task_id in more] == [1] * 200, "nothing twice while no partition moves"
    last = publish(first, 100)
    waits(lambda: bool(two.fetch(ids_max=100, wait_s=0.2)), "it has some, and does not ack them")
    two.close()
    all_of(one, set(last))
    waits(lambda: first.depths([QUEUE])[QUEUE].ready == 0, "the group is done with all")


def test_a_position_is_passed_when_all_before_it_is_acked_and_not_before(namespace: Namespace) -> None:
    broker = namespace.open(partitions=2)
    missing = broker.position(QUEUE)
    assert missing is not None
    assert broker.has_passed(QUEUE, missing)
    publish(broker, 20)
    marked = broker.position(QUEUE)
    assert marked is not None
    assert broker.has_passed(QUEUE, missing), "a topic that was not there held nothing"
    assert not broker.has_passed(QUEUE, marked), "the group has never committed"
    publish(broker, 20)
    consumer = broker.consumer([QUEUE], name="one", prefetch=100)
    found = collect(consumer, 40, ack=False)
    first = next(one for one in found if one.tag.offset == 0)

    consumer.ack([one for one in found if one is not first])
    other = 1 - first.tag.life.place[1]
    waits(
        lambda: broker._positions.spans(QUEUE, ends=time.monotonic() + 60)[1][other].done > 0, "a prefix is committed"
    )
    assert not broker.has_passed(QUEUE, marked), "one hint is still held, and not acked"
    consumer.ack([first])

    waits(lambda: broker.has_passed(QUEUE, marked), "it is passed")


@pytest.mark.parametrize("how", ["records deleted", "topic deleted", "topic made anew"])
def test_a_position_is_passed_when_what_stood_before_it_is_gone(namespace: Namespace, how: str) -> None:
    broker = namespace.open(partitions=1)
    publish(broker, 10)
    marked = broker.position(QUEUE)
    assert marked is not None
    assert not broker.has_passed(QUEUE, marked)

    if how == "records deleted":
        [asked] = namespace.admin.delete_records([TopicPartition(namespace.topic, 0, 9)]).values()
        asked.result(60)
        assert not broker.has_passed(QUEUE, marked), "one is left"
        [asked] = namespace.admin.delete_records([TopicPartition(namespace.topic, 0, 10)]).values()
        asked.result(60)
    else:
        namespace.delete_topic()
        if how == "topic made anew":
            publish(broker, 30)

    waits(lambda: broker.has_passed(QUEUE, marked), "it is passed")


def test_an_offset_beyond_the_end_of_a_topic_passes_nothing_until_its_records_are_acked(namespace: Namespace) -> None:
    """As a process may leave it that commits what it had of a topic after others have made it anew."""
    broker = namespace.open(partitions=1)
    waiting = publish(broker, 5)
    marked = broker.position(QUEUE)
    assert marked is not None
    late = confluent_kafka.Consumer({**namespace.kafka.admin_conf, "group.id": namespace.name})

    def is_committed() -> bool:  # the group's coordinator may be moving in
        with contextlib.suppress(KafkaException):
            late.commit(offsets=[TopicPartition(namespace.topic, 0, 90)], asynchronous=False)
            return True
        return False

    waits(is_committed, "it is committed")
    late.close()
    assert spans(broker)[0].done == 90
    assert not broker.has_passed(QUEUE, marked), "five hints are waiting"
    all_of(broker.consumer([QUEUE], name="one", prefetch=100), set(waiting))

    waits(lambda: broker.has_passed(QUEUE, marked), "it is passed")


def test_a_topic_that_is_gone_is_made_again_by_who_waits_for_less_than_it_takes_to_hear_of_it(
    namespace: Namespace,
) -> None:
    broker = namespace.open(partitions=2)
    publish(broker, 4)
    namespace.delete_topic()

    def is_made() -> bool:
        broker.publish(hints(QUEUE, 1), deadline_s=0.05)
        return namespace.topic in namespace.admin.list_topics(timeout=60).topics

    waits(is_made, "it is made again")
    publish(broker, 1)


@pytest.mark.parametrize("new", [5, 60])
def test_a_topic_made_anew_under_a_living_consumer_is_read_from_its_beginning(namespace: Namespace, new: int) -> None:
    """By its name alone the consumer would go on where it was: at 30, of which 60 new records have 30 behind it."""
    broker = namespace.open(partitions=1)
    before = publish(broker, 30)
    consumer = broker.consumer([QUEUE], name="one", prefetch=100)
    all_of(consumer, set(before))
    waits(lambda: spans(broker)[0].done == 30, "it is committed")

    namespace.delete_topic()
    again = publish(namespace.open(partitions=1), new)

    all_of(consumer, set(again))


def test_while_kafka_does_not_answer_nothing_is_confirmed_or_raised_and_all_goes_on_afterwards(
    own: Namespace,
) -> None:
    broker = own.open(partitions=1)
    consumer = broker.consumer([QUEUE], name="one", prefetch=100)
    all_of(consumer, set(publish(broker, 3)))
    own.kafka.pause()
    try:
        began = time.monotonic()
        answers = broker.publish(hints(QUEUE, 3), deadline_s=1.0)
        took_s = time.monotonic() - began
        for _ in range(10):  # by an admin client this question ends the process, not each time
            with pytest.raises(KafkaException):
                broker._positions._done([TopicPartition(own.topic, 0)], time.monotonic())
    finally:
        own.kafka.resume()

    assert answers == [False] * 3
    assert took_s < 30.0
    all_of(consumer, set(publish(broker, 3)))


def test_a_node_that_is_away_is_told_as_trouble_until_it_is_back(own: Namespace) -> None:
    broker = own.open(partitions=1)
    consumer = broker.consumer([QUEUE], name="one", prefetch=100)
    all_of(consumer, set(publish(broker, 3)))
    assert consumer.trouble is None

    own.kafka.kill()
    try:
        waits(lambda: consumer.trouble is not None, "it is told")
        assert broker.publish(hints(QUEUE, 1), deadline_s=0.5) == [False]
    finally:
        own.kafka.start()

    wait_until(lambda: any(broker.publish(hints(QUEUE, 1), deadline_s=5.0)), timeout_s=60, what="it is back")
    assert gathered(consumer, 1)
    waits(lambda: consumer.trouble is None, "nothing is wrong any more")


def test_the_child_of_a_fork_publishes_by_itself_and_ends(namespace: Namespace) -> None:
    broker = namespace.open(partitions=1)
    consumer = broker.consumer([QUEUE], name="one", prefetch=100)
    all_of(consumer, set(publish(broker, 1)))
    in_child = new_task_id()
    garbage: list[Any] = [AdminClient(namespace.kafka.admin_conf)]
    assert garbage[0].list_topics(timeout=60)
    garbage.append(garbage)
    del garbage

    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        status_of_child = 1
        try:
            gc.collect()
            status_of_child = 0 if broker.publish([Hint(QUEUE, (in_child,))], deadline_s=60) == [True] else 1
            broker.close()
        finally:
            os._exit(status_of_child)  # it must not go on as the tests
    status: list[int] = []

    def has_ended() -> bool:
        ended, how = os.waitpid(pid, os.WNOHANG)
        status.extend([how] if ended else [])
        return bool(ended)

    try:
        waits(has_ended, "the child ends")
    except BaseException:  # also of a test that takes too long: the child must not stay
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    assert os.waitstatus_to_exitcode(status[0]) == 0
    all_of(consumer, {in_child, *publish(broker, 1)})


def test_a_topic_with_another_id_is_read_from_its_beginning_though_the_position_would_go_on(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether librdkafka sees by itself that a topic was made anew depends on the moment."""
    monkeypatch.setattr("workq.broker.kafka.consumer.LOOK_EVERY_S", 0.2)
    broker = namespace.open(partitions=2)
    sent = set(publish(broker, 30))
    consumer = broker.consumer([QUEUE], name="one", prefetch=100)
    all_of(consumer, sent)
    waits(lambda: broker.depths([QUEUE])[QUEUE].ready == 0, "all is committed")
    waits(lambda: namespace.topic in consumer._ids, "it knows the topic's id")

    consumer._ids[namespace.topic] = "another"

    all_of(consumer, sent)


def test_who_renews_keeps_its_partitions_while_nothing_of_them_is_missing(namespace: Namespace) -> None:
    """An idle worker asks for it while hints wait for others: partitions must not be dealt out anew for that."""
    broker = namespace.open(partitions=1)
    consumer = broker.consumer([QUEUE], name="one", prefetch=100)
    publish(broker, 5)
    held = collect(consumer, 5, ack=False)

    consumer.renew()
    waits(lambda: bool(consumer._owed), "it is heeded")
    waits(lambda: not consumer._owed, "and judged")
    publish(broker, 5)
    more = collect(consumer, 5, ack=False)

    assert {one.tag.life for one in more} == {one.tag.life for one in held}
    consumer.ack([*held, *more])
    waits(lambda: broker.depths([QUEUE])[QUEUE].ready == 0, "all acks count")


def test_what_a_full_process_gives_back_goes_to_a_partition_of_another(namespace: Namespace) -> None:
    first, second = (namespace.open(partitions=4) for _ in range(2))
    full = first.consumer([QUEUE], name="full", prefetch=100)
    free = second.consumer([QUEUE], name="free", prefetch=100)
    waits(lambda: len(full._arrivals.lives) == len(free._arrivals.lives) == 2, "each has two partitions")
    full.pause()

    sent = publish(first, 40)

    all_of(free, set(sent))
    assert {part for part, span in spans(first).items() if span.end} <= {part for _, part in free._arrivals.lives}
