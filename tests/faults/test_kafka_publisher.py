"""Records on their way to Kafka: what Kafka refuses, and what an idempotent producer of messages makes of it.

In a topic that was just made, Kafka takes records for duplicates that are nowhere: of two that are on their way to one
partition, the second one may arrive first. librdkafka reports such a record as sent, without an offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest
from confluent_kafka import KafkaError

from tests.contract.kinds.suite import HERE, fault_of, posting
from tests.faults.kafka_raw import RECORDS, WRITER, MockKafka, mock_kafka
from workq.broker.kafka.publisher import KafkaPublisher, KafkaRecord
from workq.broker.kafka.topics import TopicNames, Topics
from workq.config.kafka import KafkaUrl
from workq.errors import ConfigError
from workq.messages.kinds import Confirmed, DestinationAddress, SendFault
from workq.messages.kinds.kafka import KafkaKind

TOPIC = "t.q.mail"
LONG_S = 60.0


class MadeTopics(Topics):
    """They are there. The mock describes none."""

    def ensure(self, topics: Collection[str], *, ends: float) -> None:
        pass


def test_the_first_record_of_a_process_is_confirmed_at_once(kafka: MockKafka, publisher: KafkaPublisher) -> None:
    """An idempotent producer waits for an id, and looks for a node to ask but twice a second."""
    kafka.refuse(WRITER, KafkaError.CLUSTER_AUTHORIZATION_FAILED)

    assert publisher.send([KafkaRecord(TOPIC, b"one")], deadline_s=LONG_S) == [True], "it asked for none"


def test_a_message_that_kafka_refuses_as_a_duplicate_is_not_confirmed_and_may_be_sent_again() -> None:
    with mock_kafka(TOPIC) as kafka:
        options = {"url": f"kafka://{kafka.servers}", "topic": TOPIC}
        link = KafkaKind().open(DestinationAddress("orders", options, options["url"]), allowed=HERE)
        kafka.refuse(RECORDS, KafkaError.DUPLICATE_SEQUENCE_NUMBER)

        [first] = link.send([posting(b"one")], timeout_s=LONG_S)
        [again] = link.send([posting(b"one")], timeout_s=LONG_S)

        link.close()
    assert fault_of(first) is SendFault.LATE
    assert again == Confirmed(f"{TOPIC}[0]@0")


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with mock_kafka(TOPIC) as kafka:
        yield kafka


@pytest.fixture
def publisher(kafka: MockKafka) -> Iterator[KafkaPublisher]:
    url = KafkaUrl.parse(f"kafka://{kafka.servers}")
    topics = MadeTopics(url.place, url.settings(), TopicNames("t"), partitions=1)
    made = KafkaPublisher(url.settings(), topics, confirm_s=LONG_S, held_back=tuple)
    yield made
    made.close(within_s=LONG_S)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, f"{TOPIC}: .*Grant this user"),
        (KafkaError.INVALID_RECORD, f"{TOPIC}: .*set cleanup.policy=delete"),
        (KafkaError.MSG_SIZE_TOO_LARGE, f"{TOPIC}: .*max.message.bytes"),
    ],
)
def test_what_kafka_refuses_of_a_topic_is_an_error_that_says_what_to_do(
    kafka: MockKafka, publisher: KafkaPublisher, code: int, told: str
) -> None:
    kafka.refuse(RECORDS, code)

    with pytest.raises(ConfigError, match=told):
        publisher.send([KafkaRecord(TOPIC, b"one")], deadline_s=LONG_S)

    assert publisher.send([KafkaRecord(TOPIC, b"one")], deadline_s=LONG_S) == [True]


def test_a_message_of_who_may_write_nothing_at_all_is_refused_and_the_next_one_is_sent_once_he_may(
    kafka: MockKafka,
) -> None:
    options = {"url": f"kafka://{kafka.servers}", "topic": TOPIC}
    link = KafkaKind().open(DestinationAddress("orders", options, options["url"]), allowed=HERE)
    kafka.refuse(WRITER, KafkaError.CLUSTER_AUTHORIZATION_FAILED)

    refused = link.send([posting(b"one"), posting(b"two")], timeout_s=LONG_S)
    [sent] = link.send([posting(b"one")], timeout_s=LONG_S)

    link.close()
    assert [fault_of(one) for one in refused] == [SendFault.REFUSED] * 2
    assert isinstance(sent, Confirmed)
