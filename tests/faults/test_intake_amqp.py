"""A queue of RabbitMQ as a way in, on a real RabbitMQ: acked after it is recorded, recorded once by its id."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.faults.rabbitmq import ask
from tests.faults.ways_in import LONG_S, WayIn, children_of, end
from tests.system.fleet import wait_until
from workq import State
from workq.lab.servers import RabbitMQ


class Queue:
    """A quorum queue of one test."""

    def __init__(self, server: RabbitMQ) -> None:
        self.server = server
        self.name = f"in-{secrets.token_hex(6)}"
        kind = {"x-queue-type": "quorum"}
        ask(server, lambda channel: channel.queue_declare(self.name, durable=True, arguments=kind))

    def publish(self, *messages: tuple[bytes, dict[str, Any], str | None]) -> None:
        """Each one a body, headers and a message id."""

        def send(channel: Any) -> None:
            for body, headers, message_id in messages:
                about = pika.BasicProperties(headers=headers, message_id=message_id, delivery_mode=2)
                channel.basic_publish("", self.name, body, about, mandatory=True)

        ask(self.server, send)

    def is_empty(self) -> bool:
        """Whether no message is left, acked or not. It has to be asked when nothing consumes."""
        found: list[int] = []
        ask(self.server, lambda channel: found.append(self._count(channel)))
        return found == [0]

    def _count(self, channel: Any) -> int:
        return int(channel.queue_declare(self.name, passive=True).method.message_count)

    def quarantined(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        def read(channel: Any) -> None:
            while True:
                method, properties, body = channel.basic_get(f"{self.name}.quarantine", auto_ack=True)
                if method is None:
                    return
                found.append({"body": body, **properties.headers})

        ask(self.server, read)
        return found


@pytest.fixture
def way_in(tmp_path: Path) -> Iterator[WayIn]:
    made = WayIn(tmp_path)
    yield made
    made.app.close()


@pytest.fixture
def queue(rabbitmq_server: RabbitMQ) -> Queue:
    return Queue(rabbitmq_server)


def add(way_in: WayIn, queue: Queue) -> None:
    way_in.add(kind="amqp", url=queue.server.url, queue=queue.name, to="orders")


def test_messages_are_recorded_as_their_headers_say_and_then_acked(way_in: WayIn, queue: Queue) -> None:
    add(way_in, queue)
    queue.publish(
        (b"1", {"colour": "red"}, "a"),
        (b"2", {"workq-id": "b", "workq-to": "bills"}, "other"),
        (b"3", {}, "a"),
        (b"4", {"workq-at": str(int(time.time() + 3600) * 1000)}, "later"),
        (b"", {"workq-cancel": "later"}, None),
        (b"5", {"workq-at": "tomorrow"}, "bad"),
        (b"6", {"number": 7}, None),
    )

    with way_in.running() as supervisor:
        wait_until(lambda: way_in.intake().recorded + way_in.intake().quarantined == 5, timeout_s=LONG_S, what="all")
        assert end(supervisor) == 0

    found = way_in.messages()
    assert {one: found[one].destination for one in ("a", "b", "later")} == {
        "a": "orders",
        "b": "bills",
        "later": "orders",
    }
    assert (way_in.body("a"), found["a"].headers, found["later"].state) == (b"1", {"colour": "red"}, State.CANCELLED)
    assert (len(found), way_in.intake().repeated, way_in.intake().cancelled) == (4, 1, 1)
    [aside] = queue.quarantined()
    assert (aside["body"], aside["workq-id-given"]) == (b"5", "bad")
    assert "need epoch milliseconds or RFC 3339" in aside["workq-reason"]
    assert queue.is_empty()


@pytest.mark.parametrize(
    "point", ["intake.before_record@2", "intake.after_record@2", "record.after_commit@2", "intake.before_quarantine@1"]
)
def test_a_death_in_each_gap_loses_no_message_and_records_none_twice(
    point: str, way_in: WayIn, queue: Queue, tmp_path: Path
) -> None:
    count = 1200
    add(way_in, queue)
    queue.publish(*[(b"x", {}, f"m{n}") for n in range(count)], (b"bad", {"workq-at": "?"}, None))
    name, _, nth = point.partition("@")
    died = tmp_path / "died"

    with way_in.running(WORKQ_FAILPOINT=f"{name}:exit137@{nth}", WORKQ_FAILPOINT_ONCE=str(died)) as supervisor:
        way_in.wait_for(count)
        wait_until(lambda: way_in.intake().quarantined == 1, timeout_s=LONG_S, what="all passed")
        end(supervisor)

    assert died.exists()
    assert (way_in.intake().recorded, set(way_in.messages())) == (count, {f"m{n}" for n in range(count)})
    assert {one["body"] for one in queue.quarantined()} == {b"bad"}
    assert queue.is_empty()


def test_processes_that_are_killed_lose_no_message(way_in: WayIn, queue: Queue) -> None:
    add(way_in, queue)
    count = 4000

    with way_in.running(processes=2) as supervisor:
        for start in range(0, count, 1000):
            queue.publish(*[(b"x", {}, f"m{n}") for n in range(start, start + 1000)])
            if living := children_of(supervisor):
                living[0].kill()
        way_in.wait_for(count, timeout_s=2 * LONG_S)
        end(supervisor)

    assert (way_in.intake().recorded, len(way_in.messages())) == (count, count)
    assert queue.is_empty()


def test_a_broker_that_may_not_be_reached_is_not_asked(way_in: WayIn, queue: Queue) -> None:
    add(way_in, queue)
    queue.publish((b"x", {}, "x"))

    with way_in.running(WORKQ_MESSAGE_ALLOW="192.0.2.0/24"):
        wait_until(lambda: way_in.intake().error is not None, timeout_s=LONG_S, what="noted")

    assert "WORKQ_MESSAGE_ALLOW" in (way_in.intake().error or "")
    assert way_in.intake().recorded == 0


def test_a_queue_that_is_missing_is_noted_and_read_when_it_is_there(way_in: WayIn, queue: Queue) -> None:
    add(way_in, queue)
    ask(queue.server, lambda channel: channel.queue_delete(queue.name))

    with way_in.running():
        wait_until(lambda: way_in.intake().failing_since is not None, timeout_s=LONG_S, what="noted")
        assert "no queue" in (way_in.intake().error or "")
        ask(queue.server, lambda channel: channel.queue_declare(queue.name, durable=True))
        queue.publish((b"x", {}, "x"))
        way_in.wait_for(1)
        wait_until(lambda: way_in.intake().failing_since is None, timeout_s=LONG_S, what="well again")
