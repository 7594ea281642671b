"""The URL of RabbitMQ: what is understood, what is refused, and that a password is never repeated."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workq.broker.rabbitmq import RabbitMQBroker
from workq.broker.rabbitmq.connection import Address
from workq.errors import ConfigError

CANARY = "canary-5f2c"


@pytest.mark.parametrize(
    ("url", "host", "port", "user", "password", "vhost"),
    [
        ("amqp://", "localhost", 5672, "guest", "guest", "/"),
        ("amqp://rabbit", "rabbit", 5672, "guest", "guest", "/"),
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

    assert (address.host, address.port, address.user) == (host, port, user)
    assert (address.password, address.vhost) == (password, vhost)


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
    options = Address.parse("amqps://rabbit/").parameters(name="test", heartbeat_s=20).ssl_options

    assert options is not None
    assert options.context.check_hostname
    assert options.server_hostname == "rabbit"


def test_without_the_client_library_the_extra_is_named() -> None:
    program = "import sys; sys.modules['pika'] = None; import workq.broker.rabbitmq"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "MissingExtra: broker: amqp:// needs the client library pika; install the extra [rabbitmq]" in ended.stderr
