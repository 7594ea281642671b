"""A RabbitMQ for the tests of one file, which may kill, pause and break it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import pika
import pika.data
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from workq.lab.servers import RabbitMQ

T = TypeVar("T")
FULL = '{"max-length":1,"overflow":"reject-publish"}'
"""A policy: a queue takes one message, or two."""


@pytest.fixture
def server(mortal_rabbitmq: RabbitMQ) -> RabbitMQ:
    """One that may be harmed. It runs, whatever the test before did."""
    return mortal_rabbitmq


def ask(server: RabbitMQ, question: Callable[[BlockingChannel], T]) -> T:
    """What a client of our own is told."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()  # or what is published just before the channel closes may be dropped
        return question(channel)
    finally:
        connection.close()


class Encoded(bytes):
    """A value of a header as it goes over the wire: what pika would not send."""


def send_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pika send values that are `Encoded`, in this test."""
    encode = pika.data.encode_value

    def encode_value(pieces: list[bytes], value: Any) -> int:
        if not isinstance(value, Encoded):
            return encode(pieces, value)
        pieces.append(value)
        return len(value)

    monkeypatch.setattr(pika.data, "encode_value", encode_value)


YEAR_57879 = Encoded(b"T" + struct.pack(">Q", 1_764_340_000_000))
"""A time in milliseconds, where AMQP has seconds."""
