"""From a queue of RabbitMQ to another one, through three servers; and the process while its servers do not answer."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Any

from tests.faults.rabbitmq import ask
from tests.faults.ways_in import LONG_S, WayIn, end
from tests.system.conftest import OpenLeg
from tests.system.fleet import wait_until
from workq.lab.servers import RabbitMQ
from workq.messages.destinations import Destinations

SENDER = """
from workq import WorkQueue
from workq.messages import Messages

wq = WorkQueue()
messages = Messages(wq)
"""


def test_what_is_taken_in_is_sent_by_the_workers(open_leg: OpenLeg, rabbitmq_server: RabbitMQ, tmp_path: Path) -> None:
    leg = open_leg("servers")
    (tmp_path / "sender.py").write_text(SENDER)
    way_in = WayIn(tmp_path, environ=leg.environ, app=leg.app)
    source, target = f"in-{secrets.token_hex(6)}", f"out-{secrets.token_hex(6)}"
    ask(rabbitmq_server, lambda channel: [channel.queue_declare(one, durable=True) for one in (source, target)])
    Destinations(way_in.app).add("out", kind="amqp", url=rabbitmq_server.url, exchange="", routing_key=target)
    way_in.add(kind="amqp", url=rabbitmq_server.url, queue=source, to="out")

    def publish(channel: Any) -> None:
        from pika import BasicProperties

        for number in range(200):
            channel.basic_publish("", source, b"x", BasicProperties(message_id=f"m{number}"))

    arrived: list[str] = []

    def read(channel: Any) -> None:
        while True:
            method, properties, _ = channel.basic_get(target, auto_ack=True)
            if method is None:
                return
            arrived.append(properties.headers["workq-id"])

    ask(rabbitmq_server, publish)
    allowed = {"WORKQ_MESSAGE_ALLOW": "loopback", "PYTHONPATH": str(tmp_path)}
    with way_in.running() as supervisor, leg.fleet(processes=1, app="sender:wq", environ=allowed):

        def has_arrived() -> bool:
            ask(rabbitmq_server, read)
            return len(arrived) >= 200

        wait_until(has_arrived, timeout_s=2 * LONG_S, what="all messages at the destination")
        assert end(supervisor) == 0

    assert sorted(arrived) == sorted(f"m{number}" for number in range(200))
    assert way_in.intake().recorded == 200


def test_a_process_that_still_waits_for_its_ledger_ends_in_order_when_it_is_told_to(tmp_path: Path) -> None:
    way_in = WayIn(tmp_path)
    way_in.app.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(3 * LONG_S)
        ledger = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"

        with way_in.running(WORKQ_LEDGER_URL=ledger) as supervisor, silent.accept()[0]:
            assert end(supervisor) == 0
