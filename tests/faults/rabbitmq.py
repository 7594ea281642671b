"""A RabbitMQ for the tests of one file, which may kill, pause and break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conftest import Private
from workq.lab.servers import RabbitMQ, start_rabbitmq

T = TypeVar("T")


@pytest.fixture(scope="module")
def shared_server(private: Private) -> Iterator[RabbitMQ]:
    with private(start_rabbitmq) as server:
        yield server


@pytest.fixture
def server(shared_server: RabbitMQ) -> RabbitMQ:
    """Running, whatever the test before did."""
    if not shared_server.is_running:
        shared_server.start()
    return shared_server


def ask(server: RabbitMQ, question: Callable[[BlockingChannel], T]) -> T:
    """What a client of our own is told."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()  # or what is published just before the channel closes may be dropped
        return question(channel)
    finally:
        connection.close()
