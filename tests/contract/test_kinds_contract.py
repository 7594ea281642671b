"""Each kind of destination passes the whole contract on its real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Private
from tests.contract.kinds.stages import (
    AmqpStage,
    ArtemisStage,
    CallStage,
    HttpStage,
    KafkaStage,
    Receiver,
    RedisListStage,
    RedisStreamStage,
    StompAtRabbitMQStage,
)
from tests.contract.kinds.suite import KilledContract, KindContract, ReachedContract, RefusingContract
from workq.lab.proxy import FaultProxy
from workq.lab.servers import (
    Artemis,
    Kafka,
    RabbitMQ,
    Redis,
    start_artemis,
    start_kafka,
    start_rabbitmq,
    start_redis,
)
from workq.lab.servers.server import free_port

LOGIN = (
    "listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN",
    "listener.name.client.plain.sasl.jaas.config="
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_workq="workq";',
)


@pytest.fixture(scope="module")
def rabbitmq(private: Private) -> Iterator[RabbitMQ]:
    with private(start_rabbitmq, options=["max_message_size = 290000"], with_stomp=True) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(private: Private) -> Iterator[tuple[Kafka, FaultProxy]]:
    port = free_port()
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        private(start_kafka, options=LOGIN, port=port, advertised=proxy.port) as server,
    ):
        yield server, proxy


@pytest.fixture(scope="module")
def secured_redis(private: Private) -> Iterator[Redis]:
    with private(start_redis, options=["--requirepass", "workq"]) as server:
        yield server


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


class TestAmqp(KindContract, RefusingContract, ReachedContract, KilledContract):
    @pytest.fixture
    def stage(self, rabbitmq: RabbitMQ) -> AmqpStage:
        return AmqpStage(rabbitmq)


class TestStompAtRabbitMQ(KindContract, RefusingContract, ReachedContract, KilledContract):
    is_known_by_test = False

    @pytest.fixture
    def stage(self, rabbitmq: RabbitMQ) -> StompAtRabbitMQStage:
        return StompAtRabbitMQStage(rabbitmq)


class TestStompAtArtemis(KindContract, RefusingContract, ReachedContract):
    @pytest.fixture
    def stage(self, artemis_server: Artemis) -> ArtemisStage:
        return ArtemisStage(artemis_server)


class TestStompAtArtemisThatIsKilled(KilledContract):
    @pytest.fixture
    def stage(self, private: Private) -> Iterator[ArtemisStage]:
        with private(start_artemis) as server:
            yield ArtemisStage(server)


class TestKafka(KindContract, RefusingContract, ReachedContract, KilledContract):
    @pytest.fixture
    def stage(self, kafka: tuple[Kafka, FaultProxy]) -> KafkaStage:
        return KafkaStage(*kafka)


class TestRedisStream(KindContract, ReachedContract, KilledContract):
    @pytest.fixture
    def stage(self, secured_redis: Redis) -> RedisStreamStage:
        return RedisStreamStage(secured_redis)


class TestRedisList(KindContract, ReachedContract, KilledContract):
    @pytest.fixture
    def stage(self, secured_redis: Redis) -> RedisListStage:
        return RedisListStage(secured_redis)


class TestHttp(KindContract, RefusingContract, ReachedContract):
    is_known_by_test = False

    @pytest.fixture
    def stage(self, receiver: Receiver) -> HttpStage:
        return HttpStage(receiver)


class TestCall(KindContract, RefusingContract):
    @pytest.fixture
    def stage(self) -> CallStage:
        return CallStage()
