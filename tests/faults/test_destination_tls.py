"""TLS of every kind of destination and way in: another authority, another name, a time that is over, no TLS at all.

Each is refused with its reason, and no message goes out in the clear instead. The right authority and name are
accepted, by the real servers.
"""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from tests.conftest import Private
from tests.contract.kinds.stages import Receiver
from tests.contract.kinds.suite import fault_of, posting, text_of
from tests.faults.rabbitmq import ask
from tests.faults.receivers import answering, stranger
from tests.shared_servers import CANARY, LONG_S, SharedArtemis, SharedKafka, SharedRabbitMQ
from workq.config.addresses import Allowed
from workq.errors import ConfigError
from workq.lab.servers import start_redis
from workq.lab.servers.server import free_port
from workq.messages.intake.registry import intake_kind_of
from workq.messages.intake.values import Position
from workq.messages.kinds import Answer, Confirmed, DestinationAddress, SendFault, Unsent
from workq.messages.kinds.reach import ReachFailed
from workq.messages.kinds.registry import KINDS

HERE = Allowed.of("loopback")


@dataclass(frozen=True)
class Secured:
    """A destination behind TLS. `url`: with {host} and {port}; the password is the canary, or what the server wants."""

    kind: str
    url: str
    port: int
    plain: str
    options: dict[str, Any] = field(default_factory=dict)

    def send(self, ca: Path | None, *, host: str = "127.0.0.1", port: int = 0, url: str | None = None) -> Answer:
        """One message. The name of another host leads here, too."""
        options = {"url": (url or self.url).format(host=host, port=port or self.port), **self.options}
        if ca is not None:
            options["ca_file"] = str(ca)
        made: Any = type(KINDS[self.kind]())
        kind = made(lookup=answering("127.0.0.1"))
        link = kind.open(DestinationAddress("tls", kind.check(options), url=options["url"]), allowed=HERE)
        try:
            [answer] = link.send([posting()], timeout_s=LONG_S)
            problems = link.test(timeout_s=LONG_S)
        finally:
            link.close()
        assert CANARY not in f"{answer} {problems}"
        assert not problems if isinstance(answer, Confirmed) else problems or fault_of(answer) is not SendFault.REFUSED
        return answer  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def queue(rabbitmq_server: SharedRabbitMQ) -> Iterator[str]:
    """A queue of RabbitMQ that no other process of the run knows."""
    name = f"tls-{secrets.token_hex(6)}"
    ask(rabbitmq_server, lambda channel: channel.queue_declare(name, durable=True))
    yield name
    ask(rabbitmq_server, lambda channel: channel.queue_delete(name))


@pytest.fixture(scope="module")
def secured_amqp(rabbitmq_server: SharedRabbitMQ, queue: str) -> Secured:
    url = f"amqps://secured:{CANARY}@{{host}}:{{port}}/"
    options = {"exchange": "", "routing_key": queue}
    return Secured("amqp", url, rabbitmq_server.amqps_port, url.replace("amqps", "amqp"), options)


@pytest.fixture(scope="module")
def secured_stomp(rabbitmq_server: SharedRabbitMQ, queue: str) -> Secured:
    url = f"stomps://secured:{CANARY}@{{host}}:{{port}}"
    options = {"address": f"/queue/{queue}"}
    return Secured("stomp", url, rabbitmq_server.stomps_port, url.replace("stomps", "stomp"), options)


@pytest.fixture(scope="module")
def secured_artemis(artemis_server: SharedArtemis) -> Secured:
    url = "stomps://workq:workq@{host}:{port}"
    options = {"address": f"tls-{secrets.token_hex(6)}"}
    return Secured("stomp", url, artemis_server.stomps_port, url.replace("stomps", "stomp"), options)


@pytest.fixture(scope="module")
def secured_kafka(kafka_server: SharedKafka) -> Secured:
    topic = f"tls-{secrets.token_hex(6)}"
    kafka_server.create_topic(topic)
    url = f"kafkas://workq:{CANARY}@{{host}}:{{port}}"
    return Secured("kafka", url, kafka_server.tls_port, url.replace("kafkas", "kafka"), {"topic": topic})


@pytest.fixture(scope="module")
def secured_redis(private: Private, authority: Path) -> Iterator[Secured]:
    port = free_port()
    files = {"cert-file": "server.pem", "key-file": "server.key", "ca-cert-file": "ca.pem"}
    words = [word for name, file in files.items() for word in (f"--tls-{name}", str(authority / file))]
    login = ["--requirepass", CANARY]
    with private(start_redis, options=[*login, "--tls-port", str(port), "--tls-auth-clients", "no", *words]):
        url = f"rediss://:{CANARY}@{{host}}:{{port}}/0"
        yield Secured("redis", url, port, url.replace("rediss", "redis"), {"stream": "s"})


@pytest.fixture(scope="module")
def secured_http(authority: Path) -> Iterator[Secured]:
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(authority / "server.pem", authority / "server.key")
    receiver = Receiver(trust=trust)
    url = "https://workq:workq@{host}:{port}/in"
    yield Secured("http", url, receiver.port, url.replace("https", "http"))
    receiver.stop()


@pytest.fixture(params=["amqp", "stomp", "artemis", "kafka", "redis", "http"])
def secured(request: pytest.FixtureRequest) -> Secured:
    found: Secured = request.getfixturevalue(f"secured_{request.param}")
    return found


NO_TLS = b"ERROR\nmessage:no TLS here\n\n\0"


def test_the_right_authority_and_name_are_accepted(secured: Secured, authority: Path) -> None:
    assert isinstance(secured.send(authority / "ca.pem"), Confirmed)


def test_another_authority_is_refused(secured: Secured, authority: Path) -> None:
    for ca in (authority / "other.pem", None):
        answer = secured.send(ca)

        assert (fault_of(answer), "certificate" in text_of(answer).lower()) == (SendFault.REFUSED, True), answer


def test_another_name_is_refused(secured: Secured, authority: Path) -> None:
    answer = secured.send(authority / "ca.pem", host="localhost")

    assert fault_of(answer) is SendFault.REFUSED, answer


def test_a_certificate_whose_time_is_over_is_refused(secured: Secured, authority: Path, over: int) -> None:
    answer = secured.send(authority / "ca.pem", port=over)

    assert (fault_of(answer), "certificate" in text_of(answer).lower()) == (SendFault.REFUSED, True), answer


def test_a_server_without_tls_gets_nothing_in_the_clear(secured: Secured, authority: Path) -> None:
    with stranger(NO_TLS) as (port, heard):
        answer = secured.send(authority / "ca.pem", port=port)

    assert fault_of(answer) in (SendFault.REFUSED, SendFault.AWAY), answer
    assert heard
    assert all(piece[:1] == b"\x16" for piece in heard), "a handshake of TLS, and nothing else"


def test_a_port_with_tls_is_not_reached_without(secured: Secured) -> None:
    answer = secured.send(None, url=secured.plain)

    assert fault_of(answer) in (SendFault.REFUSED, SendFault.AWAY, SendFault.LATE), answer


def test_files_for_tls_without_tls_are_refused_and_a_file_that_is_missing_is_said(
    secured: Secured, authority: Path
) -> None:
    with pytest.raises(ConfigError, match="they are for TLS"):
        secured.send(authority / "ca.pem", url=secured.plain)
    answer = secured.send(authority / "missing.pem")

    assert (fault_of(answer), "cannot be used" in text_of(answer)) == (SendFault.REFUSED, True)


def test_kafka_is_come_to_by_scram_and_a_wrong_password_is_refused(secured_kafka: Secured, authority: Path) -> None:
    right = secured_kafka.url.replace("workq:", "scrammed:")
    wrong = right.replace(CANARY, f"{CANARY}-other")
    options = {**secured_kafka.options, "mechanism": "SCRAM-SHA-512"}
    scrammed = Secured("kafka", right, secured_kafka.port, right, options)

    assert isinstance(scrammed.send(authority / "ca.pem"), Confirmed)
    answer = scrammed.send(authority / "ca.pem", url=wrong)
    assert (fault_of(answer), "refused the login" in text_of(answer)) == (SendFault.REFUSED, True)
    lacking = Secured("kafka", right, secured_kafka.port, right, {**options, "mechanism": "SCRAM-SHA-256"})
    assert "no mechanism SCRAM-SHA-256" in text_of(lacking.send(authority / "ca.pem"))


def test_librdkafka_verifies_by_itself_too(secured_kafka: Secured, authority: Path) -> None:
    """The look that comes before it has verified another host, perhaps."""
    for host, ca in (("localhost", "ca.pem"), ("127.0.0.1", "other.pem")):
        kind: Any = KINDS["kafka"]()
        url = secured_kafka.url.format(host=host, port=secured_kafka.port)
        options = {"url": url, **secured_kafka.options, "ca_file": str(authority / ca)}
        link = kind.open(DestinationAddress("tls", kind.check(options), url=url), allowed=HERE)
        link._reach._addresses = [f"{host}:{secured_kafka.port}"]
        producer = Producer(link._conf(LONG_S))

        ends = time.monotonic() + LONG_S
        while not any("certificate verify failed" in one.str() for one in link._told):
            assert time.monotonic() < ends, [one.str() for one in link._told]
            with pytest.raises(KafkaException):
                producer.list_topics(timeout=3.0)
            producer.poll(0.1)
        producer.purge()


@pytest.fixture(params=["amqp", "kafka"])
def source(request: pytest.FixtureRequest) -> Secured:
    """Where one of the destinations leads to, as a way in."""
    found: Secured = request.getfixturevalue(f"secured_{request.param}")
    return found


def read(source: Secured, ca: Path | None, *, host: str = "127.0.0.1", port: int = 0, url: str = "") -> Unsent | None:
    """Why nothing can be read by a reader, nor asked beside it; None: it can."""
    place = (url or source.url).format(host=host, port=port or source.port)
    if source.kind == "amqp":
        own = {"queue": source.options["routing_key"]}
    else:
        own = {**source.options, "group": secrets.token_hex(8)}
    options = {"url": place, **own, **({} if ca is None else {"ca_file": str(ca)})}
    made: Any = type(intake_kind_of(source.kind))
    kind = made(lookup=answering("127.0.0.1"))
    address = DestinationAddress("in", kind.check(options), url=place)
    link = kind.open(address, allowed=HERE, take=lambda *_: Position(None, 1))
    unsent: Unsent | None = None
    try:
        ends = time.monotonic() + 3 * LONG_S
        while not link.fetch(limit=1, timeout_s=1.0).records:
            assert time.monotonic() < ends, "nothing was read"
    except ReachFailed as error:
        unsent = error.unsent
    finally:
        link.close()
    inspector = kind.inspector(address, allowed=HERE)
    if unsent is None:
        assert inspector.backlog([], timeout_s=LONG_S).records is not None
        return None
    with pytest.raises(ReachFailed) as asked:
        inspector.backlog([], timeout_s=LONG_S)
    assert asked.value.unsent == unsent
    assert CANARY not in unsent.text
    return unsent


def test_a_way_in_reads_by_the_right_authority_and_name_alone(source: Secured, authority: Path, over: int) -> None:
    assert isinstance(source.send(authority / "ca.pem"), Confirmed)
    assert read(source, authority / "ca.pem") is None

    refused = {
        "another authority": read(source, authority / "other.pem"),
        "none": read(source, None),
        "another name": read(source, authority / "ca.pem", host="localhost"),
        "its time is over": read(source, authority / "ca.pem", port=over),
    }
    for why, unsent in refused.items():
        assert unsent is not None, why
        assert (unsent.fault, "certificate" in unsent.text.lower()) == (SendFault.REFUSED, True), (why, unsent)


def test_a_way_in_is_told_that_its_password_is_wrong(source: Secured, authority: Path) -> None:
    unsent = read(source, authority / "ca.pem", url=source.url.replace(CANARY, f"{CANARY}-other"))

    assert unsent is not None
    assert (unsent.fault, "refused the login" in unsent.text) == (SendFault.REFUSED, True), unsent


def test_a_way_in_sends_nothing_in_the_clear(source: Secured, authority: Path) -> None:
    with stranger(NO_TLS) as (port, heard):
        unsent = read(source, authority / "ca.pem", port=port)

    assert unsent is not None
    assert heard
    assert all(piece[:1] == b"\x16" for piece in heard), "a handshake of TLS, and nothing else"
