"""What only one kind of destination can do, or do wrong, on its real server. What all promise is in tests/contract."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import confluent_kafka
import pytest
import redis

from tests.contract.broker import until
from tests.contract.kinds.stages import ArtemisStage, Receiver, new_name
from tests.contract.kinds.suite import LONG_S, fault_of, ids, posting, text_of
from tests.faults.rabbitmq import FULL, ask
from tests.faults.receivers import status
from tests.shared_servers import SharedArtemis, SharedKafka
from workq.config.addresses import Allowed
from workq.errors import ConfigError
from workq.lab.servers import RabbitMQ, Redis
from workq.lab.servers.server import free_port
from workq.messages.kinds import Confirmed, DestinationAddress, DestinationLink, Posting, SendFault
from workq.messages.kinds.registry import KINDS
from workq.messages.kinds.stomp import StompKind
from workq.messages.kinds.stomp_artemis import Management
from workq.outbound.signing import new_secret, verify

HERE = Allowed.of("loopback")


@pytest.fixture
def links() -> Iterator[Any]:
    """Opens links, and closes them afterwards."""
    made: list[DestinationLink] = []

    def link(kind: str, options: dict[str, Any], *, allowed: Allowed = HERE) -> DestinationLink:
        opener = KINDS[kind]()
        address = DestinationAddress(kind, opener.check(options), url=options.get("url"))
        made.append(opener.open(address, allowed=allowed))
        return made[-1]

    yield link
    for one in made:
        one.close()


# amqp


def amqp(server: RabbitMQ, **options: str) -> dict[str, Any]:
    return {"url": server.url, **options}


def test_a_cluster_is_reached_by_the_host_that_answers(links: Any, server: RabbitMQ) -> None:
    """One has nobody listening, one accepts and is silent, as a stopped node does."""
    queue = new_name()
    ask(server, lambda channel: channel.queue_declare(queue, durable=True))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{silent.getsockname()[1]}"
        all_of_it = f"amqp://guest:guest@{hosts},127.0.0.1:{server.port}/"
        link = links("amqp", {"url": all_of_it, "exchange": "", "routing_key": queue})
        nowhere = links("amqp", {"url": f"amqp://guest:guest@{hosts}/", "exchange": "", "routing_key": queue})

        assert isinstance(link.send([posting()], timeout_s=12.0)[0], Confirmed)
        [answer] = nowhere.send([posting()], timeout_s=1.0)

    assert fault_of(answer) is SendFault.AWAY
    assert all(said in text_of(answer) for said in ("nothing listens at", "did not answer in time"))


def test_an_exchange_that_leads_nowhere_gives_the_message_back(links: Any, server: RabbitMQ) -> None:
    exchange, queue = new_name(), new_name()
    ask(server, lambda channel: channel.exchange_declare(exchange, "direct"))
    ask(server, lambda channel: channel.queue_declare(queue, durable=True))
    ask(server, lambda channel: channel.queue_bind(queue, exchange, "here"))

    right = links("amqp", amqp(server, exchange=exchange, routing_key="here"))
    nowhere = links("amqp", amqp(server, exchange=exchange, routing_key="elsewhere"))
    no_exchange = links("amqp", amqp(server, exchange=f"{exchange}-other", routing_key="here"))

    assert isinstance(right.send([posting()], timeout_s=LONG_S)[0], Confirmed)
    [answer] = nowhere.send([posting()], timeout_s=LONG_S)
    assert (fault_of(answer), text_of(answer)) == (SendFault.NO_TARGET, "the exchange leads it to no queue")
    [answer] = no_exchange.send([posting()], timeout_s=LONG_S)
    assert (fault_of(answer), f"{exchange}-other" in text_of(answer)) == (SendFault.NO_TARGET, True)
    assert right.test(timeout_s=LONG_S) == []
    assert f"{exchange}-other" in no_exchange.test(timeout_s=LONG_S)[0]


def test_a_queue_that_is_full_and_refuses_asks_for_less(links: Any, server: RabbitMQ) -> None:
    queue = new_name()
    bound = {"x-max-length": 2, "x-overflow": "reject-publish"}
    ask(server, lambda channel: channel.queue_declare(queue, durable=True, arguments=bound))
    link = links("amqp", amqp(server, exchange="", routing_key=queue))

    first = [link.send([posting()], timeout_s=LONG_S)[0] for _ in range(5)]

    assert [fault_of(one) for one in first[:2]] == [None, None]
    assert fault_of(first[-1]) is SendFault.ASKED


def test_a_quorum_queue_that_was_full_by_a_policy_takes_messages_again(links: Any, server: RabbitMQ) -> None:
    queue = new_name()
    ask(server, lambda channel: channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"}))
    link = links("amqp", amqp(server, exchange="", routing_key=queue))
    server.operator.set_policy(queue, f"^{queue}$", FULL)
    until(lambda: fault_of(link.send([posting()], timeout_s=LONG_S)[0]) is SendFault.ASKED, "it is full")

    server.operator.clear_policy(queue)

    until(lambda: isinstance(link.send([posting()], timeout_s=LONG_S)[0], Confirmed), "it takes messages again")


def test_a_vhost_that_is_not_there_is_refused(links: Any, server: RabbitMQ) -> None:
    link = links("amqp", {"url": f"{server.url}nowhere", "exchange": "", "routing_key": "q"})

    [answer] = link.send([posting()], timeout_s=LONG_S)

    assert (fault_of(answer), "vhost 'nowhere'" in text_of(answer)) == (SendFault.REFUSED, True)


def test_a_connection_that_the_broker_has_closed_meanwhile_is_made_anew(links: Any, server: RabbitMQ) -> None:
    queue = new_name()
    ask(server, lambda channel: channel.queue_declare(queue, durable=True))
    link = links("amqp", amqp(server, exchange="", routing_key=queue))
    assert isinstance(link.send([posting()], timeout_s=LONG_S)[0], Confirmed)

    server.operator.close_connections("maintenance")

    assert isinstance(link.send([posting()], timeout_s=LONG_S)[0], Confirmed)


def test_an_alarm_of_the_broker_is_late_and_says_so(links: Any, server: RabbitMQ) -> None:
    queue = new_name()
    ask(server, lambda channel: channel.queue_declare(queue, durable=True))
    link = links("amqp", amqp(server, exchange="", routing_key=queue))
    server.operator.set_memory_limit(0.000001)
    try:
        answers = [link.send([posting()], timeout_s=2.0)[0] for _ in range(2)]
    finally:
        server.operator.set_memory_limit(0.4)

    assert fault_of(answers[-1]) is SendFault.LATE
    assert "alarm" in text_of(answers[-1])
    assert isinstance(link.send([posting()], timeout_s=LONG_S)[0], Confirmed)


@pytest.mark.parametrize(
    "bad",
    [
        Posting("i" * 300, 1, b"", "text/plain"),
        posting(headers={"n" * 300: "1"}),
        posting(headers={f"h{number}": "x" * 1000 for number in range(120)}),
        posting(headers={"CC": "x"}),
    ],
    ids=["id", "name", "many", "copies"],
)
def test_what_amqp_cannot_carry_is_of_the_message_alone(links: Any, server: RabbitMQ, bad: Posting) -> None:
    queue = new_name()
    ask(server, lambda channel: channel.queue_declare(queue, durable=True))
    link = links("amqp", amqp(server, exchange="", routing_key=queue))

    answers = link.send([posting(), bad, posting()], timeout_s=LONG_S)

    assert [fault_of(one) for one in answers] == [None, SendFault.MESSAGE, None]
    waiting = ask(server, lambda channel: channel.queue_declare(queue, passive=True).method.message_count)
    assert waiting == 2, "none was sent again"


# stomp


def test_artemis_throws_away_what_nobody_has_subscribed_to_and_the_test_finds_that_out(
    links: Any, artemis_server: SharedArtemis
) -> None:
    """The trap: it is confirmed. So a message asks for a queue, unless it is told not to."""
    address = new_name()
    plain = {"url": artemis_server.url, "address": address}
    multicast = links("stomp", plain | {"routing": "multicast"})

    [answer] = multicast.send([posting()], timeout_s=LONG_S)
    problems = multicast.test(timeout_s=LONG_S)

    assert isinstance(answer, Confirmed)
    assert "throws it away" in problems[0]
    stage = ArtemisStage(artemis_server)
    stage.address = address
    assert stage.arrived() == []
    queued = links("stomp", plain)
    assert queued.test(timeout_s=LONG_S) == []
    assert isinstance(queued.send([posting()], timeout_s=LONG_S)[0], Confirmed)
    assert len(stage.arrived()) == 1
    assert "throws it away" in multicast.test(timeout_s=LONG_S)[0]  # a queue for one consumer is none for it


def test_artemis_drops_the_second_copy_of_one_sending_and_takes_what_was_restored(
    links: Any, artemis_server: SharedArtemis
) -> None:
    stage = ArtemisStage(artemis_server)
    link = links("stomp", stage.options())
    one = posting()

    for sending in (1, 1, 2):
        assert isinstance(link.send([Posting(one.id, sending, b"", "text/plain")], timeout_s=LONG_S)[0], Confirmed)

    assert ids(stage.arrived()) == [one.id, one.id]


def test_a_test_at_artemis_leaves_no_address(artemis_server: SharedArtemis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others make addresses there meanwhile. What the link leaves it has named in something that it sent."""
    stage = ArtemisStage(artemis_server)
    stored = StompKind().check(stage.options())
    link: Any = StompKind().open(DestinationAddress("stomp", stored, url=stage.options()["url"]), allowed=HERE)

    def addresses() -> set[str]:
        stream = link._connected(time.monotonic() + LONG_S)
        ends = time.monotonic() + LONG_S
        management = Management(lambda data: stream.send(data, ends=ends), lambda: stream.read(ends=ends))
        found = management._ask("broker", attribute="AddressNames")
        management.end()
        return {one for one in found if one != management._reply}

    sent: list[bytes] = []
    stream = link._connected(time.monotonic() + LONG_S)
    send = stream.send

    def recorded(data: bytes, *, ends: float) -> None:
        sent.append(data)
        send(data, ends=ends)

    monkeypatch.setattr(stream, "send", recorded)
    before = addresses()
    link.test(timeout_s=LONG_S)

    assert sum(b"destination:workq.test." in one for one in sent) == 2, "one by the test, one by ours"
    assert {one for one in addresses() - before if any(one.encode() in data for data in sent)} == set()
    link.close()


# kafka


def test_a_broker_that_kafka_advertises_is_judged_before_it_is_connected_to(
    links: Any, kafka_server: SharedKafka
) -> None:
    topic = new_name()
    kafka_server.create_topic(topic)
    host, _, port = kafka_server.elsewhere.partition(":")
    options = {"url": f"kafka://127.0.0.1:{kafka_server.elsewhere_port}", "topic": topic}
    with socket.create_server((host, int(port))) as listener:
        listener.setblocking(False)
        link = links("kafka", options, allowed=Allowed.of("127.0.0.1"))

        [answer] = link.send([posting()], timeout_s=LONG_S)
        problems = link.test(timeout_s=LONG_S)

        with pytest.raises(BlockingIOError):
            listener.accept()
    assert (fault_of(answer), kafka_server.elsewhere in text_of(answer)) == (SendFault.REFUSED, True)
    assert kafka_server.elsewhere in problems[0]


def test_a_key_chooses_the_partition_and_keeps_its_order(links: Any, kafka_server: SharedKafka) -> None:
    topic = new_name()
    kafka_server.create_topic(topic, partitions=6)
    batch = [posting(str(number).encode(), key=f"k{number % 5}") for number in range(50)]
    link = links("kafka", {"url": kafka_server.url, "topic": topic, "client": {"linger.ms": 5}})

    answers = link.send(batch, timeout_s=LONG_S)

    assert [one for one in answers if not isinstance(one, Confirmed)] == []
    reader = confluent_kafka.Consumer({**kafka_server.admin_conf, "group.id": "none", "enable.auto.commit": False})
    reader.assign([confluent_kafka.TopicPartition(topic, place, 0) for place in range(6)])
    found: dict[str, list[tuple[int, int]]] = {}
    for _ in batch:
        message: Any = reader.poll(LONG_S)
        found.setdefault(message.key().decode(), []).append((message.partition(), int(message.value())))
    reader.close()
    assert len(found) == 5
    for read in found.values():
        assert len({partition for partition, _ in read}) == 1
        assert [number for _, number in read] == sorted(number for _, number in read)


@pytest.mark.parametrize(
    "client",
    [
        {"plugin.library.paths": "/tmp/x.so"},
        {"acks": "0"},
        {"ssl.endpoint.identification.algorithm": "none"},
        {"enable.ssl.certificate.verification": False},
        {"bootstrap.servers": "10.0.0.5:9092"},
        {"sasl.password": "x"},
        {"error_cb": "x"},
        {"debug": "all"},
        {"no.such.setting": "1"},
        {"linger.ms": "soon"},
        {"linger.ms": ["5"]},
    ],
    ids=lambda one: next(iter(one)),
)
def test_settings_of_librdkafka_that_are_workqs_to_make_are_refused(client: dict[str, Any]) -> None:
    options = {"url": "kafka://127.0.0.1:9092", "topic": "t"}

    with pytest.raises(ConfigError, match="client: "):
        KINDS["kafka"]().check({**options, "client": client})
    assert KINDS["kafka"]().check({**options, "client": {"compression.type": "zstd"}})["client"]


# redis


def test_a_stream_keeps_about_so_many_and_a_list_takes_no_more(links: Any, redis_server: Redis) -> None:
    stream, rows = new_name(), new_name()
    client: Any = redis.Redis.from_url(redis_server.url)
    bounded = links("redis", {"url": redis_server.url, "stream": stream, "maxlen": 100})
    listed = links("redis", {"url": redis_server.url, "list": rows, "maxlen": "3"})

    answers = bounded.send([posting() for _ in range(1000)], timeout_s=LONG_S)
    refused = listed.send([posting() for _ in range(5)], timeout_s=LONG_S)

    assert {type(one) for one in answers} == {Confirmed}
    assert 100 <= client.xlen(stream) < 300
    assert [fault_of(one) for one in refused] == [None, None, None, SendFault.ASKED, SendFault.ASKED]
    assert client.llen(rows) == 3
    client.lpop(rows)
    assert isinstance(listed.send([posting()], timeout_s=LONG_S)[0], Confirmed)
    client.close()


def test_without_the_replicas_that_were_asked_for_nothing_is_confirmed(links: Any, redis_server: Redis) -> None:
    link = links("redis", {"url": redis_server.url, "stream": new_name(), "replicas": 1})

    answers = link.send([posting(), posting()], timeout_s=2.0)

    assert [fault_of(one) for one in answers] == [SendFault.LATE, SendFault.LATE]
    assert "0 of 1 replicas" in text_of(answers[0])


# http


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


@pytest.mark.parametrize("code", [200, 408], ids=["success", "timeout"])
def test_what_a_receiver_says_unasked_between_two_calls_answers_no_message(
    request: pytest.FixtureRequest, links: Any, code: int
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(listener.close)
    may_speak, has_spoken = threading.Event(), threading.Event()

    def serve() -> None:
        """Two connections: the first one is good, and then says more; the next one fails each request."""
        for answer in (status(200), status(503)):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)
                assert may_speak.wait(LONG_S)
                connection.sendall(status(code))
                has_spoken.set()
                connection.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    link = links("http", {"url": f"http://127.0.0.1:{listener.getsockname()[1]}/in"})

    first = link.send([posting()], timeout_s=LONG_S)
    may_speak.set()
    assert has_spoken.wait(LONG_S)
    second = link.send([posting()], timeout_s=LONG_S)

    assert [fault_of(*one) for one in (first, second)] == [None, SendFault.AWAY]


def test_a_request_is_signed_where_there_is_a_secret(links: Any, receiver: Receiver) -> None:
    secret = new_secret()
    receiver.login = None
    url = f"http://{quote(secret, safe='')}@127.0.0.1:{receiver.port}/in"
    link = links("http", {"url": url})
    one, binary = posting(content_type="text/plain"), posting(b"\xff\xfe")

    answers = link.send([one, binary], timeout_s=LONG_S)

    assert [fault_of(answer) for answer in answers] == [None, SendFault.MESSAGE]
    [kept] = receiver.kept
    assert verify(kept.headers, kept.body, secret) == one.id
    assert kept.headers["content-type"] == "text/plain"
    assert KINDS["http"]().check({"url": url})["url"] == f"http://***@127.0.0.1:{receiver.port}/***"


@pytest.mark.parametrize(
    ("status", "fault", "after_s"),
    [
        (200, None, None),
        (202, None, None),
        (302, SendFault.NO_TARGET, None),
        (400, SendFault.MESSAGE, None),
        (401, SendFault.REFUSED, None),
        (404, SendFault.NO_TARGET, None),
        (408, SendFault.LATE, None),
        (413, SendFault.MESSAGE, None),
        (429, SendFault.ASKED, 7.0),
        (500, SendFault.LATE, None),
        (502, SendFault.AWAY, None),
        (503, SendFault.ASKED, 7.0),
    ],
)
def test_what_each_status_means(
    links: Any, receiver: Receiver, status: int, fault: SendFault | None, after_s: float | None
) -> None:
    receiver.status = status
    receiver.extra = {"Retry-After": "7"} if after_s else {"Location": "/elsewhere"}
    link = links("http", {"url": f"http://127.0.0.1:{receiver.port}/in"})

    [answer] = link.send([posting()], timeout_s=LONG_S)

    assert fault_of(answer) is fault
    assert getattr(answer, "after_s", None) == after_s


def test_a_header_that_is_workqs_to_say_is_of_the_message_alone(links: Any, receiver: Receiver) -> None:
    link = links("http", {"url": f"http://workq:workq@127.0.0.1:{receiver.port}/in"})

    bad = [posting(headers={"Host": "x"}), posting(headers={"a": "ü"}), posting(content_type="a\nb")]
    answers = link.send([posting(), *bad, posting()], timeout_s=LONG_S)

    assert [fault_of(one) for one in answers] == [None, *[SendFault.MESSAGE] * 3, None]


def test_ports_of_other_services_are_refused(links: Any) -> None:
    with pytest.raises(ConfigError, match="blocked port 6379"):
        links("http", {"url": "http://127.0.0.1:6379/in"})
