"""Commands of the servers' own programs: a shell takes each as it stands, and finds the server by it."""

from __future__ import annotations

import shlex

import pytest

from workq.config.kafka import KafkaUrl
from workq.config.server_commands import (
    kafka_command,
    rabbitmq_command,
    rabbitmq_grant,
    rabbitmq_growth,
    redis_cluster_check,
    redis_command,
)


def test_a_command_for_kafka_goes_to_the_first_node_of_the_url() -> None:
    place = KafkaUrl.parse("kafkas://shop:secret@[::1]:9093,two:9093").place

    command = kafka_command(place, "kafka-topics.sh", "--alter", "--topic", "shop.q.mail", "--partitions", 16)

    assert shlex.split(command) == [
        *("kafka-topics.sh", "--bootstrap-server", "[::1]:9093"),
        *("--alter", "--topic", "shop.q.mail", "--partitions", "16"),
    ]


def test_a_command_for_rabbitmq_names_its_vhost_and_where_names_are_patterns_exactly_one() -> None:
    assert rabbitmq_command("/", "rabbitmqctl", "list_policies") == "rabbitmqctl list_policies -p /"
    assert rabbitmq_grant("shop", "ann", "workq") == (
        r"rabbitmqctl set_permissions -p shop ann '^workq\.' '^workq\.|^amq\.default$' '^workq\.'"
    )
    assert shlex.split(rabbitmq_growth("a b", "rabbit@two", "shop.q.mail")) == [
        *("rabbitmq-queues", "grow", "rabbit@two", "all"),
        *("--vhost-pattern", r"^a\ b$", "--queue-pattern", r"^shop\.q\.mail$"),
    ]


@pytest.mark.parametrize(
    ("url", "at"),
    [
        ("redis://one", ["-h", "one", "-p", "6379"]),
        ("redis://:secret@one:7000/0", ["-h", "one", "-p", "7000", "--askpass"]),
        (
            "redis://shop%40x:secret@[::1]:7000/3",
            ["-h", "::1", "-p", "7000", "-n", "3", "--user", "shop@x", "--askpass"],
        ),
        (
            "redis://one?db=2&username=shop&password=secret",
            ["-h", "one", "-p", "6379", "-n", "2", "--user", "shop", "--askpass"],
        ),
        (
            "rediss://one:6380?ssl_ca_certs=/etc/ca.pem&ssl_certfile=/etc/me.pem",
            ["-h", "one", "-p", "6380", "--tls", "--cacert", "/etc/ca.pem", "--cert", "/etc/me.pem"],
        ),
        ("unix:///run/redis.sock?db=1", ["-s", "/run/redis.sock", "-n", "1"]),
    ],
)
def test_a_command_for_redis_goes_to_its_database_and_asks_for_the_password(url: str, at: list[str]) -> None:
    command = redis_command(url, "DEL", "{shop}:aside:1", "a b")

    assert shlex.split(command) == ["redis-cli", *at, "DEL", "{shop}:aside:1", "a b"]
    assert "secret" not in command


def test_a_cluster_is_asked_by_one_of_its_nodes() -> None:
    command = redis_cluster_check("one:7000", user="shop", has_password=True)

    assert command == "redis-cli --user shop --askpass --cluster check one:7000"
