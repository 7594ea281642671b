"""A queue of RabbitMQ as a way in, on a real RabbitMQ: what its message ids mean. The rest: tests/contract."""

from __future__ import annotations

import secrets
import struct
import time
from contextlib import closing
from pathlib import Path
from socket import getaddrinfo
from typing import Any

import pika
import pytest

from tests.faults.rabbitmq import YEAR_57879, Encoded, ask, send_encoded
from tests.faults.ways_in import LONG_S, WayIn, end
from tests.system.fleet import wait_until
from workq.config.addresses import Allowed
from workq.lab.servers import RabbitMQ
from workq.lab.servers.server import free_port
from workq.messages.intake.amqp_reach import AmqpReach
from workq.messages.intake.registry import intake_kind_of
from workq.messages.kinds import DestinationAddress


def test_a_message_id_names_a_message_and_what_is_strange_in_its_headers_stops_nothing(
    tmp_path: Path, rabbitmq_server: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_encoded(monkeypatch)
    way_in, name = WayIn(tmp_path), f"in-{secrets.token_hex(6)}"
    sent: list[tuple[bytes, dict[str, Any], str | None]] = [
        (b"1", {"colour": "red"}, "a"),
        (b"2", {"workq-id": "b"}, "other"),
        (b"3", {}, "a"),
        (b"4", {"workq-at": "tomorrow"}, "bad"),
        (b"5", {"number": 7}, None),
        (b"6", {"at": YEAR_57879, "part": Encoded(b"d" + struct.pack(">d", 3.75))}, "strange"),
        (b"7", {}, "behind"),
    ]

    def publish(channel: Any) -> None:
        channel.queue_declare(name, durable=True)
        for body, headers, message_id in sent:
            channel.basic_publish("", name, body, pika.BasicProperties(headers=headers, message_id=message_id))

    ask(rabbitmq_server, publish)
    way_in.add(kind="amqp", url=rabbitmq_server.url, queue=name, to="orders")

    with way_in.running() as supervisor:
        wait_until(lambda: way_in.intake().recorded + way_in.intake().quarantined == 6, timeout_s=LONG_S, what="all")
        assert end(supervisor) == 0

    found: Any = way_in.messages()
    aside: list[Any] = []
    ask(rabbitmq_server, lambda channel: aside.append(channel.basic_get(f"{name}.quarantine", auto_ack=True)))
    way_in.app.close()
    assert (found["a"].headers, found.keys() >= {"a", "b", "behind"}, len(found)) == ({"colour": "red"}, True, 5)
    assert found["strange"].headers == {"at": "1764340000000", "part": "3.75"}
    assert [one.headers for one in found.values() if one.id not in ("a", "b", "strange", "behind")] == [{"number": "7"}]
    assert way_in.intake().repeated == 1
    [(_, properties, body)] = aside
    assert (body, properties.headers["workq-id-given"]) == (b"4", "bad")


def test_a_cluster_is_reached_by_the_host_that_answers(rabbitmq_server: RabbitMQ) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{free_port()},127.0.0.1:{rabbitmq_server.port}/"
    stored = intake_kind_of("amqp").check({"url": url, "queue": "q"})
    reach = AmqpReach(DestinationAddress("in", stored, url=url), allowed=Allowed.of("loopback"), lookup=getaddrinfo)

    with closing(reach.connect(time.monotonic() + LONG_S)) as connection:
        assert connection.is_open
    assert f"127.0.0.1:{rabbitmq_server.port} did not answer" in str(reach.failed(TimeoutError()))
