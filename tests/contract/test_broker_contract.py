"""The broker's contract, on RabbitMQ with both kinds of queues, and embedded in each kind of database."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import confluent_kafka as kafka
import msgspec
import pika
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from sqlalchemy import Engine, cast, insert, select
from sqlalchemy.types import LargeBinary

from workq.broker import Broker, Browsed, Consumer, Hint
from workq.broker.embedded import EmbeddedBroker
from workq.broker.kafka import KafkaBroker
from workq.broker.kafka.consumer import KafkaConsumer
from workq.broker.kafka.topics import TopicNames
from workq.broker.later import LedgerDelays
from workq.broker.later.mover import LOOK_S, Mover
from workq.broker.rabbitmq import RabbitMQBroker
from workq.broker.rabbitmq.browser import WINDOW
from workq.broker.rabbitmq.consumer import RabbitMQConsumer
from workq.broker.rabbitmq.delays import delays_of
from workq.broker.rabbitmq.topology import QueueType
from workq.config import BINARY, LEDGER
from workq.lab.servers import Kafka, MariaDB, PostgreSQL, RabbitMQ
from workq.ledger.engine.database import Database
from workq.slices import every_table
from workq.values.codec import Envelope, encode_hint, new_task_id
from workq.values.lane import all_of

pytest.register_assert_rewrite("tests.contract.broker")

from tests.contract.broker import (  # noqa: E402 - its assertions explain themselves from here on
    LONG_S,
    AnyBytesContract,
    BrokerContract,
    CarryingContract,
    DelaysContract,
    DeletableQueuesContract,
    ForgettingContract,
    LateDelaysContract,
    NoticedDeletionContract,
    OrderContract,
    PositionContract,
    PrefixAckContract,
    Quarantined,
    SharedDelaysContract,
    Stage,
    TransactionalContract,
    browse,
    collect,
    collect_ids,
    hints,
    ids,
    until,
)

T = TypeVar("T")


def a_namespace() -> str:
    return f"t{secrets.token_hex(4)}"


class RabbitMQStage(Stage):
    """One namespace on the run's RabbitMQ; everything in it is deleted at the end."""

    def __init__(self, server: RabbitMQ, queue_type: QueueType, ladder: str) -> None:
        self.namespace = a_namespace()
        self.puts_urgent_first = queue_type == "quorum" and int(server.version.partition(".")[0]) >= 4
        """Whether a queue hands out a message with a high priority before others. workq gives none a priority."""
        self._ladder = ladder
        self._ladders: set[str] = set()
        self.queues: set[str] = set()
        self.url = server.url
        self._queue_type: QueueType = queue_type
        self._quarantined: list[Quarantined] = []

    def open(self, ladder: str | None = None) -> Broker:
        chosen = ladder or self._ladder
        self._ladders.add(chosen)
        return _Noting(
            self.url, namespace=self.namespace, queue_type=self._queue_type, ladder=chosen, noted=self.queues
        )

    def put(self, queue: str, body: bytes) -> None:
        self.ask(lambda channel: channel.basic_publish("", f"{self.namespace}.q.{queue}", body))

    def delete_queue(self, queue: str) -> None:
        self.ask(lambda channel: channel.queue_delete(f"{self.namespace}.q.{queue}"))

    def quarantined(self) -> list[Quarantined]:
        def look(channel: BlockingChannel) -> None:
            while True:
                method, properties, body = channel.basic_get(f"{self.namespace}.quarantine", auto_ack=True)
                if method is None or properties is None or body is None:
                    return
                told: dict[str, Any] = dict(properties.headers or {})
                assert properties.delivery_mode == 2
                assert told["workq-bytes"] >= len(body)
                self._quarantined.append(
                    Quarantined(told["workq-reason"], told["workq-queue"], body, told["workq-sha256"])
                )

        self.ask(look)
        return self._quarantined

    def kept(self, body: bytes) -> bytes:
        return body

    def lose(self, broker: Broker, consumer: Consumer, name: str) -> None:
        assert isinstance(consumer, RabbitMQConsumer)
        link = consumer.link
        assert link.call(lambda: link.recycle("cut by the test"))

    def let_arrive(self, consumer: Consumer, count: int) -> None:
        assert isinstance(consumer, RabbitMQConsumer)
        until(lambda: len(consumer._buffer) == count, f"{count} deliveries have arrived")

    def clear(self) -> None:
        def delete(channel: BlockingChannel) -> None:
            for queue in self.queues:
                channel.queue_delete(f"{self.namespace}.q.{queue}")
            for ladder in self._ladders:
                for level in delays_of(ladder).queues(self.namespace):
                    channel.queue_delete(level.name)
                    channel.exchange_delete(level.exchange)
            channel.exchange_delete(f"{self.namespace}.due")
            channel.queue_delete(f"{self.namespace}.quarantine")

        self.ask(delete)

    def ask(self, question: Callable[[BlockingChannel], T]) -> T:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            channel = connection.channel()
            channel.confirm_delivery()  # or what is published just before the channel closes may be dropped
            return question(channel)
        finally:
            connection.close()


class _Noting(RabbitMQBroker):
    """Remembers its queues, so that the stage can delete them."""

    def __init__(self, url: str, *, namespace: str, queue_type: QueueType, ladder: str, noted: set[str]) -> None:
        super().__init__(url, namespace=namespace, queue_type=queue_type, ladder=ladder)
        self._noted = noted

    def publish(self, hints: Any, *, deadline_s: float) -> list[bool]:
        self._noted.update(hint.queue for hint in hints)
        return super().publish(hints, deadline_s=deadline_s)

    def consumer(self, queues: Any, *, name: str, prefetch: int) -> RabbitMQConsumer:
        self._noted.update(queues)
        return super().consumer(queues, name=name, prefetch=prefetch)


class RabbitMQContract(DeletableQueuesContract, NoticedDeletionContract, AnyBytesContract, BrokerContract):
    knows_unacked = False
    knows_consumers = True
    passes = 50
    queue_type: QueueType = "quorum"
    ladder = BINARY

    @pytest.fixture(scope="class")
    @classmethod
    def stage(cls, rabbitmq_server: RabbitMQ) -> Iterator[RabbitMQStage]:
        stage = RabbitMQStage(rabbitmq_server, cls.queue_type, cls.ladder)
        yield stage
        stage.clear()

    def test_a_band_that_nobody_has_used_is_not_declared(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        high, normal, low = all_of(queue)
        consumer = broker.consumer([normal], name="one", prefetch=10)
        broker.publish(hints(normal, 1), deadline_s=20)
        consumer.serve([normal, low])
        broker.publish(hints(low, 1), deadline_s=20)
        assert len(collect(consumer, 2)) == 2
        until(lambda: broker.depths([low])[low].consumers == 1, "it is subscribed to")

        def exists(channel: BlockingChannel) -> bool:
            try:
                channel.queue_declare(f"{stage.namespace}.q.{high}", passive=True)
            except ChannelClosedByBroker as error:
                return error.reply_code != 404
            return True

        assert not stage.ask(exists)

    def test_the_priority_of_a_strangers_message_changes_no_order_of_ours(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 3)
        urgent = new_task_id()
        assert all(broker.publish(sent, deadline_s=20))
        body = encode_hint(Envelope(queue, (urgent,)))
        properties = pika.BasicProperties(priority=255, reply_to="somebody", headers={"CC": [f"{queue}-other"]})
        stage.ask(lambda channel: channel.basic_publish("", f"{stage.namespace}.q.{queue}", body, properties))

        found = collect(broker.consumer([queue], name="one", prefetch=10), 4)

        assert ids(found) == ([urgent, *ids(sent)] if stage.puts_urgent_first else [*ids(sent), urgent])

    def test_high_hints_do_not_wait_behind_a_full_prefetch_of_low_ones(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        high, _, low = all_of(queue)
        consumer = broker.consumer([high, low], name="one", prefetch=5)
        broker.publish(hints(low, 50), deadline_s=20)
        until(lambda: broker.depths([low])[low].ready == 45, "the prefetch is full")

        sent = hints(high, 3)
        broker.publish(sent, deadline_s=20)
        stage.let_arrive(consumer, 5 + 3)
        found = [consumer.fetch(ids_max=1, wait_s=20)[0] for _ in range(4)]

        assert ids([one for one in found if one.queue == high]) == ids(sent)

    def test_what_arrived_before_the_pause_can_still_be_fetched(self, broker: Broker, queue: str) -> None:
        sent = hints(queue, 3)
        broker.publish(sent, deadline_s=20)
        consumer = broker.consumer([queue], name="one", prefetch=10)
        first = consumer.fetch(ids_max=1, wait_s=20)
        until(lambda: broker.depths([queue])[queue].ready == 0, "all have left the queue")

        consumer.pause()

        assert ids(first + collect(consumer, 2)) == ids(sent)

    def test_a_consumer_that_is_paused_when_its_connection_breaks_stays_paused(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        broker.publish(hints(queue, 1), deadline_s=20)
        assert len(collect(consumer, 1)) == 1
        consumer.pause()
        until(lambda: broker.depths([queue])[queue].consumers == 0, "the broker knows of the pause")

        stage.lose(broker, consumer, "one")
        [sent] = hints(queue, 1)
        broker.publish([sent], deadline_s=20)

        assert consumer.fetch(ids_max=1, wait_s=1.0) == []
        assert broker.depths([queue])[queue].consumers == 0
        consumer.resume()
        assert ids(collect(consumer, 1)) == ids([sent])

    def test_a_crash_in_the_middle_of_browsing_loses_nothing_and_doubles_little(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 1000)
        assert all(broker.publish(sent, deadline_s=20))
        until(lambda: broker.depths([queue])[queue].ready == 1000, "all are ready")
        program = (
            "import os, sys\n"
            "from workq.broker.rabbitmq import RabbitMQBroker\n"
            "url, namespace, queue_type, queue = sys.argv[1:]\n"
            "seen = []\n"
            "def see(hint):\n"
            "    seen.append(hint)\n"
            "    if len(seen) == 600:\n"
            "        os._exit(9)\n"
            "    return True\n"
            "RabbitMQBroker(url, namespace=namespace, queue_type=queue_type).browse(queue, see, deadline_s=20)\n"
        )

        crashed = subprocess.run(
            [sys.executable, "-c", program, stage.url, stage.namespace, self.queue_type, queue], timeout=60, check=False
        )

        assert crashed.returncode == 9
        until(lambda: broker.depths([queue])[queue].consumers == 0, "the broker has noticed")
        there = broker.depths([queue])[queue].ready
        shown, browsed = browse(broker, queue)
        assert browsed.is_whole, "what is there twice was taken for its own copy"
        assert len(shown) == there
        found = collect(broker.consumer([queue], name="one", prefetch=100), there)
        assert set(ids(found)) == set(ids(sent))
        assert 1000 <= len(found) <= 1000 + WINDOW

    def test_whoever_finds_a_queue_being_turned_waits_for_it_and_says_when_that_took_too_long(
        self, broker: Broker, other_broker: Broker, queue: str
    ) -> None:
        sent = hints(queue, 300)
        assert all(broker.publish(sent, deadline_s=20))
        until(lambda: broker.depths([queue])[queue].ready == 300, "all are ready")
        meanwhile: list[tuple[list[Hint], Browsed]] = []

        def see(_hint: Hint) -> bool:
            if not meanwhile:
                meanwhile.append(browse(other_broker, queue, deadline_s=0.5))
            return True

        browsed = broker.browse(queue, see, deadline_s=60)

        assert meanwhile == [([], Browsed(0, 0, is_whole=False))]
        assert browsed == Browsed(300, 0, is_whole=True)
        assert Counter(browse(other_broker, queue)[0]) == Counter(sent)

    def test_the_queue_says_its_type_and_the_quorum_queue_its_limit(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        """The marker's proof of loss needs the limit: see topology.py."""
        broker.publish(hints(queue, 1), deadline_s=20)
        arguments: dict[str, Any] = {"x-queue-type": self.queue_type}
        if self.queue_type == "quorum":
            arguments |= {
                "x-delivery-limit": 20,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": f"{stage.namespace}.quarantine",
            }
        name = f"{stage.namespace}.q.{queue}"

        stage.ask(lambda channel: channel.queue_declare(name, durable=True, arguments=arguments))  # the same: no error
        with pytest.raises(ChannelClosedByBroker, match="PRECONDITION_FAILED"):
            stage.ask(lambda channel: channel.queue_declare(name, durable=True, arguments={"x-expires": 1000}))


class TestRabbitMQQuorum(RabbitMQContract, SharedDelaysContract):
    pass


class TestRabbitMQClassic(RabbitMQContract, SharedDelaysContract):
    queue_type: QueueType = "classic"


class TestRabbitMQLevels(RabbitMQContract, LateDelaysContract):
    """Delays by levels, in the place of the binary ladder."""

    ladder = "levels:0.1s,0.3s,1s,2s,1m"

    def test_each_level_is_one_queue_and_nothing_else_is_declared_for_delays(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        assert broker.publish(hints(queue, 1, delay_s=0.1), deadline_s=20) == [True]

        for ttl_ms in (100, 300, 1000, 2000, 60000):
            arguments = {
                "x-queue-type": "classic",
                "x-message-ttl": ttl_ms,
                "x-dead-letter-exchange": f"{stage.namespace}.due",
            }
            name = f"{stage.namespace}.level.{ttl_ms}"
            stage.ask(partial(_declare_again, name=name, arguments=arguments))  # the same: no error
        with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
            stage.ask(lambda channel: channel.queue_declare(f"{stage.namespace}.level.500", passive=True))

    def test_what_waits_in_the_binary_ladder_or_in_other_levels_arrives_when_the_setting_has_changed(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        sent = []
        for ladder in (BINARY, "levels:0.1s,1500ms", self.ladder):
            before = stage.open(ladder)
            sent += hints(queue, 2, delay_s=1.2)
            assert before.publish(sent[-2:], deadline_s=20) == [True, True]
            before.close()

        found = collect(broker.consumer([queue], name="one", prefetch=10), 6)

        assert set(ids(found)) == set(ids(sent))

    def test_what_is_put_back_for_longer_than_the_longest_delay_comes_after_that(
        self, stage: RabbitMQStage, queue: str
    ) -> None:
        broker = stage.open("levels:0.1s,1s")
        consumer = broker.consumer([queue], name="one", prefetch=10)
        broker.publish(hints(queue, 1), deadline_s=20)
        collect(consumer, 1)
        stage.put(queue, b'{"v":3,"q":"x","anything":1}')
        [delivery] = collect(consumer, 1, ack=False)

        consumer.put_back(delivery, delay_s=3600.0)

        [again] = collect(consumer, 1)
        assert again.returns == 1
        broker.close()

    def test_a_level_that_an_operator_deletes_is_declared_again(
        self, stage: RabbitMQStage, broker: Broker, queue: str
    ) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        broker.publish(hints(queue, 1, delay_s=0.1), deadline_s=20)
        collect(consumer, 1)
        stage.ask(lambda channel: channel.queue_delete(f"{stage.namespace}.level.300"))
        sent = hints(queue, 3, delay_s=0.2)

        assert broker.publish(sent, deadline_s=20) == [True] * 3

        assert set(ids(collect(consumer, 3))) == set(ids(sent))


class LedgerDelaysStage(RabbitMQStage):
    """RabbitMQ, with delays in the rows of a database, and a mover for them."""

    def __init__(self, server: RabbitMQ, database: Database) -> None:
        super().__init__(server, "quorum", LEDGER)
        self.database = database
        every_table(database.tables).create_all(database.engine)
        self._behind = super().open()
        self._mover = Mover(database, self._behind, look_s=LOOK_S, confirm_s=10.0)
        self._mover.start()

    def open(self, ladder: str | None = None) -> Broker:
        behind = super().open(ladder)
        return behind if ladder is not None else LedgerDelays(behind, self.database)

    def clear(self) -> None:
        self._mover.close()
        self._behind.close()
        super().clear()
        self.database.close()


class TestRabbitMQWithDelaysInTheLedger(DelaysContract):
    passes = 5

    @pytest.fixture(scope="class")
    @classmethod
    def stage(cls, rabbitmq_server: RabbitMQ, postgres_server: PostgreSQL) -> Iterator[LedgerDelaysStage]:
        stage = LedgerDelaysStage(rabbitmq_server, Database(postgres_server.create_database(), namespace=a_namespace()))
        yield stage
        stage.clear()

    def test_ids_that_share_a_hint_each_wait_for_their_own_time(self, broker: Broker, queue: str) -> None:
        consumer = broker.consumer([queue], name="one", prefetch=10)
        delays = dict.fromkeys((new_task_id() for _ in range(3)), 0.0)
        delays = {task_id: 0.2 + 0.03 * place for place, task_id in enumerate(delays)}
        waits_s = tuple(delay_s - 0.2 for delay_s in delays.values())
        began = time.monotonic()

        assert broker.publish([Hint(queue, tuple(delays), 0.2, waits_s=waits_s)], deadline_s=20) == [True]

        due_s: dict[str, float] = {}
        while len(due_s) < 3:
            [delivery] = consumer.fetch(ids_max=1, wait_s=20)
            came_s = time.monotonic() - began
            left = delivery.waits_s or (0.0,) * len(delivery.task_ids)
            assert max(left) < 0.1
            due_s |= {task_id: came_s + left_s for task_id, left_s in zip(delivery.task_ids, left, strict=True)}
        assert due_s.keys() == delays.keys()
        assert all(due_s[one] >= delays[one] - 0.005 for one in delays), "never early"

    def test_what_waits_in_queues_or_rows_arrives_when_the_ladder_has_changed(
        self, stage: LedgerDelaysStage, broker: Broker, queue: str
    ) -> None:
        sent = []
        for ladder in (BINARY, "levels:0.1s,1500ms", None):
            before = stage.open(ladder)
            sent += hints(queue, 2, delay_s=0.7)
            assert before.publish(sent[-2:], deadline_s=20) == [True, True]
            before.close()

        found = collect_ids(broker.consumer([queue], name="one", prefetch=10), 6)

        assert sorted(found) == sorted(ids(sent))

    def test_hints_of_delayed_tasks_are_rows_and_others_are_not(self, broker: Broker, queue: str) -> None:
        later = hints(queue, 2, delay_s=60.0)

        assert broker.publish([*hints(queue, 1), *later], deadline_s=20) == [True] * 3

        assert [(row.queue, row.size, row.delay_s) for row in broker.rows(later)] == [(queue, 1, 60.0)] * 2
        until(lambda: broker.depths([queue])[queue].ready == 1, "what is not delayed is in the queue, and no more")
        assert len(browse(broker, queue)[0]) == 1


def _declare_again(channel: BlockingChannel, *, name: str, arguments: dict[str, Any]) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)


class KafkaStage(Stage):
    """One namespace on the run's Kafka, with one partition for each topic: only there the order of all is promised."""

    def __init__(self, kafka: Kafka, protocol: str) -> None:
        self.kafka = kafka
        self._protocol = protocol
        self.namespace = a_namespace()
        self.names = TopicNames(self.namespace)
        self.admin: Any = AdminClient(kafka.admin_conf)
        self._quarantined: list[Quarantined] = []
        self._read = 0

    def open(self) -> Broker:
        return KafkaBroker(f"{self.kafka.url}?partitions=1&protocol={self._protocol}", namespace=self.namespace)

    def put(self, queue: str, body: bytes) -> None:
        producer = Producer(self.kafka.admin_conf)
        producer.produce(self.names.topic(queue), body)
        assert producer.flush(60) == 0

    def delete_queue(self, queue: str) -> None:
        topic = self.names.topic(queue)
        self.admin.delete_topics([topic], operation_timeout=LONG_S)[topic].result(60)
        # until then its partition takes what is sent, and goes with it
        until(lambda: topic not in self.admin.list_topics(timeout=60).topics, "the topic is gone")

    def quarantined(self) -> list[Quarantined]:
        reader = kafka.Consumer(
            {**self.kafka.admin_conf, "group.id": "witness", "enable.partition.eof": True, "enable.auto.commit": False}
        )
        reader.assign([kafka.TopicPartition(self.names.quarantine, 0, self._read)])
        while (message := reader.poll(1.0)) is not None and message.error() is None:
            headers: Any = message.headers() or ()
            told = {name: value.decode() for name, value in headers}
            body = message.value() or b""
            assert int(told["workq-bytes"]) >= len(body)
            self._read = (message.offset() or 0) + 1
            self._quarantined.append(Quarantined(told["workq-reason"], told["workq-queue"], body, told["workq-sha256"]))
        reader.close()
        return self._quarantined

    def kept(self, body: bytes) -> bytes:
        return body

    def lose(self, broker: Broker, consumer: Consumer, name: str) -> None:
        assert isinstance(consumer, KafkaConsumer)
        consumer._is_to_leave = True

    def let_arrive(self, consumer: Consumer, count: int) -> None:
        assert isinstance(consumer, KafkaConsumer)
        until(lambda: len(consumer._arrivals._buffer) == count, f"{count} deliveries have arrived")

    def clear(self) -> None:
        topics = [one for one in self.admin.list_topics(timeout=60).topics if one.startswith(f"{self.namespace}.")]
        for future in self.admin.delete_topics(topics).values() if topics else ():
            future.result(60)


class TestKafka(
    DeletableQueuesContract, AnyBytesContract, OrderContract, PrefixAckContract, PositionContract, CarryingContract
):
    knows_unacked = False
    knows_consumers = False

    @pytest.fixture(scope="class")
    @classmethod
    def stage(cls, kafka_server: Kafka, kafka_protocol: str) -> Iterator[KafkaStage]:
        stage = KafkaStage(kafka_server, kafka_protocol)
        yield stage
        stage.clear()


class KafkaDelaysStage(KafkaStage):
    """Kafka, with delays in the rows of a database, and a mover for them."""

    def __init__(self, kafka: Kafka, protocol: str, database: Database) -> None:
        super().__init__(kafka, protocol)
        self.database = database
        every_table(database.tables).create_all(database.engine)
        self._behind = super().open()
        self._mover = Mover(database, self._behind, look_s=LOOK_S, confirm_s=10.0)
        self._mover.start()

    def open(self) -> Broker:
        return LedgerDelays(super().open(), self.database)

    def clear(self) -> None:
        self._mover.close()
        self._behind.close()
        super().clear()
        self.database.close()


class TestKafkaWithDelaysInTheLedger(DelaysContract):
    passes = 3

    @pytest.fixture(scope="class")
    @classmethod
    def stage(
        cls, kafka_server: Kafka, kafka_protocol: str, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[KafkaDelaysStage]:
        url = f"sqlite:///{tmp_path_factory.mktemp('delays') / 'workq.db'}"
        stage = KafkaDelaysStage(kafka_server, kafka_protocol, Database(url, namespace=a_namespace(), makes=True))
        yield stage
        stage.clear()


class EmbeddedStage(Stage):
    """One namespace in a database; its tables vanish with it."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, namespace=a_namespace())
        every_table(self.database.tables).create_all(self.database.engine)

    def open(self) -> Broker:
        return EmbeddedBroker(self.database)

    def put(self, queue: str, body: bytes) -> None:
        database = self.database
        content = cast(body, LargeBinary) if database.dialect == "sqlite" else body.decode()
        row = {"queue": queue, "due_at": database.now(), "body": content, "size": 1}
        database.run(lambda connection: connection.execute(insert(database.tables.hint).values(row)))

    def quarantined(self) -> list[Quarantined]:
        event = self.database.tables.event
        with self.database.read() as connection:
            rows = connection.execute(select(event.c.detail).where(event.c.kind == "quarantined")).scalars()
            details = [msgspec.json.decode(row) for row in rows]
        return [Quarantined(one["reason"], one["queue"], one["body"].encode(), one["sha256"]) for one in details]

    def kept(self, body: bytes) -> bytes:
        return body.decode("utf-8", "backslashreplace").replace("\x00", "\\x00").encode()

    def lose(self, broker: Broker, consumer: Consumer, name: str) -> None:
        broker.forget_consumer(name)

    def engine(self) -> Engine:
        return self.database.engine


class EmbeddedContract(ForgettingContract, TransactionalContract):
    knows_unacked = True
    knows_consumers = False

    def test_a_delivery_that_is_not_acked_in_time_comes_again(self, stage: EmbeddedStage, queue: str) -> None:
        broker = stage.open()
        sent = hints(queue, 2)
        broker.publish(sent, deadline_s=20)
        assert len(collect(broker.consumer([queue], name="stuck", prefetch=10), 2, ack=False)) == 2
        other = broker.consumer([queue], name="other", prefetch=10)
        assert other.fetch(ids_max=10, wait_s=0.0) == []

        stage.database.clock_offset_s += 31.0

        assert ids(collect(other, 2)) == ids(sent)
        broker.close()


class TestEmbeddedInSQLite(EmbeddedContract, AnyBytesContract):
    """Servers refuse what is not text; SQLite stores it."""

    @pytest.fixture(scope="class")
    @classmethod
    def stage(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStage]:
        stage = EmbeddedStage(f"sqlite:///{tmp_path_factory.mktemp('broker') / 'workq.db'}")
        yield stage
        stage.database.close()


class TestEmbeddedInPostgreSQL(EmbeddedContract):
    @pytest.fixture(scope="class")
    @classmethod
    def stage(cls, postgres_server: PostgreSQL) -> Iterator[EmbeddedStage]:
        stage = EmbeddedStage(postgres_server.create_database())
        yield stage
        stage.database.close()


class TestEmbeddedInMariaDB(EmbeddedContract):
    @pytest.fixture(scope="class")
    @classmethod
    def stage(cls, mariadb_server: MariaDB) -> Iterator[EmbeddedStage]:
        stage = EmbeddedStage(mariadb_server.create_database())
        yield stage
        stage.database.close()
