"""Each kind of way in passes the whole contract on its real server."""

from __future__ import annotations

import pytest

from tests.contract.ways_in.stages import KafkaTopicStage, RabbitQueueStage
from tests.contract.ways_in.suite import IntakeContract
from workq.lab.servers import Kafka, RabbitMQ


class TestKafkaIn(IntakeContract):
    @pytest.fixture
    def stage(self, kafka_server: Kafka) -> KafkaTopicStage:
        return KafkaTopicStage(kafka_server)


class TestRabbitMQIn(IntakeContract):
    @pytest.fixture
    def stage(self, rabbitmq_server: RabbitMQ) -> RabbitQueueStage:
        return RabbitQueueStage(rabbitmq_server)
