"""The URL of RabbitMQ: what is understood, what is refused, and that a password is never repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from unittest.mock import Mock

import pytest

from workq.broker.rabbitmq import RabbitMQBroker
from workq.broker.rabbitmq.connection import AmqpSession, Link
from workq.broker.rabbitmq.nodes import AVOIDED_S, Address, ConnectAttempt, Nodes
from workq.broker.rabbitmq.unavailable import unavailable
from workq.errors import ConfigError
from workq.values.own_order import own_order

CANARY = "canary-5f2c"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("url", "host", "port", "user", "password", "vhost"),
    [
        ("amqp://", "localhost", 5672, "guest", "guest", "/"),
        ("amqp://rabbit", "rabbit", 5672, "guest", "guest", "/"),
        ("amqp://u:@rabbit", "rabbit", 5672, "u", "", "/"),
        ("amqp://u:p@rabbit:1234/", "rabbit", 1234, "u", "p", "/"),
        ("amqp://u:p@rabbit/%2F", "rabbit", 5672, "u", "p", "/"),
        ("amqp://u:p@rabbit/%2Fapp%20one", "rabbit", 5672, "u", "p", "/app one"),
        ("amqp://a%40b:p%2Fq%3A@rabbit/app", "rabbit", 5672, "a@b", "p/q:", "app"),
        ("amqps://u:p@rabbit/app", "rabbit", 5671, "u", "p", "app"),
        ("amqp://u:p@[::1]:5673/app", "::1", 5673, "u", "p", "app"),
        ("  amqp://rabbit\n", "rabbit", 5672, "guest", "guest", "/"),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, user: str, password: str, vhost: str) -> None:
    address = Address.parse(url)

    assert (address.hosts, address.user) == (((host, port),), user)
    assert (address.password, address.vhost) == (password, vhost)


def test_a_url_of_a_cluster_names_several_hosts() -> None:
    address = Address.parse(f"amqps://u:{CANARY}@one:5673,[::1],three/app")

    assert address.hosts == (("one", 5673), ("::1", 5671), ("three", 5671))
    assert str(address) == "amqps://u:***@one:5673,[::1]:5671,three:5671/app"
    assert [str(node) for node in address.nodes][1] == "amqps://u:***@[::1]:5671/app"
    assert CANARY not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "rabbit:5672",
        f"http://u:{CANARY}@rabbit/",
        f"amqp://u:{CANARY}@rabbit:0/",
        f"amqp://u:{CANARY}@rabbit:70000/",
        f"amqp://u:{CANARY}@rabbit:abc/",
        f"amqp://u:{CANARY}/x@rabbit/",
        f"amqp://u:{CANARY}@:5672/",
        f"amqp://u:{CANARY}@[::1/",
        f"amqp://u:{CANARY}@one,/",
        f"amqp://u:{CANARY}@one,two:0/",
        f"amqp://u:{CANARY}@rabbit/app?heartbeat=3",
        f"amqp://u:{CANARY}@rabbit/app?nonsense",
        f"amqps://u:{CANARY}@rabbit/app?cacertfile=/missing/ca.pem",
        f"amqps://u:{CANARY}@rabbit/app?certfile=/missing/cert.pem",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^broker: ") as caught:
        RabbitMQBroker(url)

    assert CANARY not in str(caught.value)


def test_an_address_as_text_masks_its_password() -> None:
    address = Address.parse(f"amqps://u:{CANARY}@[::1]:5673/app")

    assert str(address) == "amqps://u:***@[::1]:5673/app"
    assert CANARY not in repr(address)


def test_an_unknown_type_of_queue_is_refused() -> None:
    with pytest.raises(ConfigError, match="use quorum or classic"):
        RabbitMQBroker("amqp://", queue_type="mirrored")  # type: ignore[arg-type]  # what the test is about


def test_the_certificate_is_always_verified() -> None:
    nodes = Nodes(Address.parse("amqps://one,two/"), heartbeat_s=20)

    options = [one.parameters.ssl_options for one in nodes.attempts("test", within_s=1.0)]

    assert all(one is not None and one.context.check_hostname for one in options)
    assert {one.server_hostname for one in options if one is not None} == {"one", "two"}


def cluster(clock: Clock) -> Nodes:
    return Nodes(Address.parse("amqp://one,two,three"), heartbeat_s=20, clock=clock)


def test_each_node_has_an_equal_share_of_the_time_that_is_left() -> None:
    clock = Clock()
    attempts = cluster(clock).attempts("test", within_s=3.0)

    silent = next(attempts)
    clock.now += 1.0  # it took its share
    refusing, last = next(attempts), next(attempts)

    assert [one.limit_s for one in (silent, refusing, last)] == [1.0, 1.0, 2.0]
    assert last.parameters.stack_timeout == 2.0
    assert {one.node.hosts[0][0] for one in (silent, refusing, last)} == {"one", "two", "three"}


def test_a_link_that_found_none_gives_each_node_more_time_up_to_that_of_a_single_one() -> None:
    given = []

    class NobodyAnswers(Nodes):
        def attempts(self, name: str, *, within_s: float) -> Iterator[ConnectAttempt]:
            given.append((name, within_s))
            return iter(())

    nodes = NobodyAnswers(Address.parse("amqp://one,two,three"), heartbeat_s=20, connect_s=3.0)
    link = Link(nodes, Mock(), name="test")
    for failures in (0, 1, 2, 100):
        link._connect_in_turn(failures)

    assert given == [("test", 3.0), ("test", 6.0), ("test", 9.0), ("test", 9.0)]


def test_a_node_that_failed_is_tried_last_for_a_while() -> None:
    clock = Clock()
    nodes = cluster(clock)
    first, second, third = nodes.in_turn()

    nodes.avoid(first)
    soon = nodes.in_turn()
    clock.now += AVOIDED_S

    assert soon == [second, third, first]
    assert nodes.in_turn() == [first, second, third]


def test_a_connection_that_brings_nothing_any_more_is_cut_soon_after_its_heartbeat() -> None:
    [attempt] = Nodes(Address.parse("amqp://one"), heartbeat_s=5).attempts("test", within_s=1.0)
    with closing(HeardByHand(attempt)) as session:
        found = [
            session.is_cut_after(looks, bytes_each) for looks, bytes_each in [(100, 8), (7, 0), (1, 8), (7, 0), (1, 0)]
        ]

    assert found == [False, False, False, False, True]
    assert "sent no heartbeat in time" in str(unavailable([(attempt.node, session.error)]))


class HeardByHand(AmqpSession):
    """A session that looks, each second, when the test says so."""

    def __init__(self, attempt: ConnectAttempt) -> None:
        self.connection = Mock(is_open=True, bytes_received=500)
        self.is_cut = False
        super().__init__(attempt, Mock())
        self._connection = self.connection
        self._looks: list[Callable[[], None]] = []
        self._on_open(self.connection)

    def is_cut_after(self, looks: int, bytes_each: int) -> bool:
        for _ in range(looks):
            self.connection.bytes_received += bytes_each
            self._looks.pop()()
        return self.is_cut

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds == 1.0
        self._looks.append(function)

    def cut(self) -> None:
        self.is_cut = True

    def close(self) -> None:
        self._loop.close()


def test_a_process_keeps_its_order_and_processes_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [own_order("abc") for _ in range(3)]
    firsts = set()
    for pid in range(100):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        firsts.add(own_order("abc")[0])

    assert orders[0] == orders[1] == orders[2]
    assert firsts == set("abc")


def test_nodes_with_one_reason_share_a_line_and_the_password_is_not_in_it() -> None:
    one, two, three = Address.parse(f"amqp://u:{CANARY}@one,two,three/").nodes

    found = unavailable(
        [(one, ConnectionRefusedError()), (two, TimeoutError(f"x {CANARY}")), (three, ConnectionRefusedError())]
    )

    assert str(found).startswith("broker: nothing listens at amqp://u:***@one:5672,three:5672/ (connection refused)")
    assert "; RabbitMQ at amqp://u:***@two:5672/ did not answer in time" in str(found)
    assert CANARY not in str(found)


def test_without_the_client_library_the_extra_is_named() -> None:
    program = "import sys; sys.modules['pika'] = None; import workq.broker.rabbitmq"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "MissingExtra: broker: amqp:// needs the client library pika; install the extra [rabbitmq]" in ended.stderr
