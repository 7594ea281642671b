"""Kafka as the broker without Kafka: its URL, its names, the prefix of one partition, and what is refused before."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from workq.broker import Hint
from workq.broker.kafka import KafkaBroker
from workq.broker.kafka.refusal import LastRefusal
from workq.broker.kafka.topics import TopicNames
from workq.broker.kafka.tracker import PartitionLife
from workq.config import Settings, check_broker_url, masked
from workq.config.kafka import KafkaUrl
from workq.errors import BrokerUnavailable, ConfigError
from workq.values.codec import new_task_id

CANARY = "c4nary"


@pytest.mark.parametrize(
    "url",
    [
        "kafka://one",
        "kafka://one:9092,two:9092,[::1]:9093",
        "kafka://app:secret@one:9092?mechanism=SCRAM-SHA-256",
        "kafkas://app:secret@one?ca_file=/etc/ca.pem&partitions=16&protocol=classic",
    ],
)
def test_a_url_of_the_right_form_is_taken_as_it_is(url: str) -> None:
    assert check_broker_url(url) == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("kafka://", "need kafka://host"),
        (f"kafka://app:{CANARY}@one:port", "need kafka://host"),
        (f"kafka://app:{CANARY}@one/topic", "nothing stands between"),
        ("kafka://app@one", "a login is a user and a password"),
        (f"kafka://app:{CANARY}@one?mechanism=GSSAPI", "need one of PLAIN"),
        ("kafka://one?ca_file=/etc/ca.pem", "they are for TLS"),
        ("kafkas://one?ca_file=ca.pem", "need an absolute path"),
        ("kafka://one?partitions=0", "from 1 to 1000"),
        ("kafka://one?protocol=share", "need one of consumer, classic"),
        (f"kafka://one?sasl.password={CANARY}", "is no option"),
        ("kafka://one?partitions", "NAME=VALUE"),
    ],
)
def test_another_url_is_refused_without_showing_what_may_be_a_password(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=r"broker \(argument\)") as refused:
        Settings.load(broker=url, environ={})

    assert why in str(refused.value)
    assert CANARY not in str(refused.value)


def test_the_password_is_masked_and_hosts_are_not() -> None:
    assert masked("kafka://one:9092,two:9093") == "kafka://one:9092,two:9093"
    assert masked(f"kafka://app:{CANARY}@one:9092,two?partitions=3") == "kafka://app:***@one:9092,two?***"
    assert CANARY not in repr(KafkaUrl.parse(f"kafkas://app:{CANARY}@one"))
    assert CANARY not in repr(Settings.load(broker=f"kafkas://app:{CANARY}@one", environ={}))


def test_a_ladder_that_kafka_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ladder \(argument\): Kafka knows no delays: use ledger"):
        Settings.load(broker="kafka://one", ladder="binary", environ={})

    assert Settings.load(broker="kafka://one", environ={}).ladder == "ledger"


def test_without_its_library_the_extra_is_named() -> None:
    program = (
        "import sys\n"
        "sys.modules['confluent_kafka'] = None\n"
        "from workq.errors import MissingExtra\n"
        "try:\n"
        "    import workq.broker.kafka\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)

    assert "install the extra [kafka]" in done.stdout


def test_what_differs_in_a_queues_name_differs_in_its_topics() -> None:
    names = TopicNames("shop")

    assert names.topic("mail") == "shop.q.mail"
    assert names.topic("a-b_c~low.d") == "shop.q.a--b-uc-blow.d"
    assert names.topic("a-u") != names.topic("a_")
    with pytest.raises(ConfigError, match="Kafka allows 249"):
        names.topic("-" * 130)


@given(st.text("a-_~ub.", max_size=12), st.text("a-_~ub.", max_size=12))
def test_no_two_queues_share_a_topic(one: str, other: str) -> None:
    names = TopicNames("n")

    assert (names.topic(one) == names.topic(other)) == (one == other)


def test_only_what_stands_before_the_first_open_record_is_committed() -> None:
    life = PartitionLife("mail", ("shop.q.mail", 3))
    for offset in (5, 6, 9):  # offsets may jump
        life.arrive(offset, 2)

    assert life.to_commit() is None
    assert life.close(6)
    assert not life.close(6), "once"
    assert not life.close(7), "it never came"
    assert life.to_commit() is None
    assert life.close(5)
    assert life.to_commit() == (7, 2)
    life.commit_sent(7)
    assert life.to_commit() is None
    life.commit_refused()
    assert life.to_commit() == (7, 2)
    assert life.close(9)
    assert life.to_commit() == (10, 2)
    assert life.begins_anew(9)
    assert not life.begins_anew(10)


@given(st.permutations(range(12)), st.integers(0, 12))
def test_nothing_open_is_ever_committed(order: list[int], closed: int) -> None:
    life = PartitionLife("mail", ("t", 0))
    for offset in range(12):
        life.arrive(offset, None)
    for done, offset in enumerate(order[:closed], 1):
        life.close(offset)
        still_open = set(order[done:])
        found = life.to_commit()
        assert (0 if found is None else found[0]) == min(still_open, default=12)


def test_a_delay_that_kafka_cannot_carry_is_refused_before_anything_is_sent() -> None:
    broker = KafkaBroker("kafka://127.0.0.1:1")
    for delay_s in (-0.1, 0.2, float("nan")):
        with pytest.raises(ValueError, match="a hint can wait"):
            broker.publish([Hint("mail", (new_task_id(),), delay_s)], deadline_s=1.0)
    broker.close()


def test_where_nothing_listens_each_question_says_so_and_nothing_is_confirmed() -> None:
    broker = KafkaBroker("kafka://127.0.0.1:1")
    consumer = broker.consumer(["mail"], name="one", prefetch=1)

    assert broker.publish([Hint("mail", (new_task_id(),))], deadline_s=0.5) == [False]
    assert consumer.fetch(ids_max=1, wait_s=0.0) == []
    with pytest.raises(BrokerUnavailable, match=r"nothing listens at 127\.0\.0\.1:1 \(connection refused\)"):
        broker.check()
    broker.close()


def test_a_file_that_cannot_be_read_is_refused_by_the_name_it_has_in_the_url() -> None:
    with pytest.raises(ConfigError, match=r"broker: ca_file in the URL: /nowhere/ca\.pem: No such file"):
        KafkaBroker("kafkas://one?ca_file=/nowhere/ca.pem")


@pytest.mark.parametrize(
    ("told", "why", "patience_s"),
    [
        ([], "one:9092,two:9092 did not answer; is Kafka there, and is that port one without TLS?", math.inf),
        ([(KafkaError._RESOLVE, "one:9092/bootstrap: Failed to resolve 'one:9092'")], "the host of one:9092 is", 60.0),
        (
            [(KafkaError._TRANSPORT, "two:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused")],
            "nothing listens at two:9092 (connection refused)",
            math.inf,
        ),
        (
            [
                (KafkaError._RESOLVE, "one:9092/bootstrap: Failed to resolve 'one:9092'"),
                (KafkaError._TRANSPORT, "two:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused"),
                (KafkaError._ALL_BROKERS_DOWN, "0/2 brokers are down"),
            ],
            "(connection refused); the host of one:9092 is unknown",
            math.inf,
        ),
        (
            [
                (KafkaError._TRANSPORT, "two:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused"),
                (KafkaError._TRANSPORT, "two:9092/1: Disconnected while requesting ApiVersion"),
            ],
            "is Kafka there",
            math.inf,
        ),
        (
            [
                (KafkaError._RESOLVE, "one:9092/bootstrap: Failed to resolve 'one:9092'"),
                (KafkaError._AUTHENTICATION, "two:9092/bootstrap: SASL authentication error: no"),
            ],
            "refused the login",
            0.0,
        ),
    ],
)
def test_what_librdkafka_tells_of_its_connections_is_told_where_no_answer_came(
    told: list[tuple[int, str]], why: str, patience_s: float
) -> None:
    refusal = LastRefusal(KafkaUrl.parse("kafka://one,two").place, ca_file=None)

    for code, text in told:
        refusal.heed(KafkaError(code, text))

    assert why in str(refusal.failure())
    assert refusal.failure().patience_s == patience_s
    refusal.forget()
    assert "is Kafka there" in str(refusal.failure())
