"""Where messages arrive that are no tasks: what each says, and a reader of a queue of RabbitMQ."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import pika

from benchmarks.contestants import task

QUEUE: Final = "mailbox"


def body(index: int) -> bytes:
    """What a message says: as many bytes as a task of the others has."""
    return f"{index} {task.PAD}".encode()


def take(said: bytes) -> None:
    """A message has arrived."""
    task.record(int(said.split(b" ", 1)[0]))


def connected() -> pika.BlockingConnection:
    """To the place of this measure."""
    return pika.BlockingConnection(pika.URLParameters(task.setting("RABBITMQ_URL")))


def declare() -> None:
    """The queue that is read: durable, as those who send to it want it."""
    connection = connected()
    connection.channel().queue_declare(QUEUE, durable=True)
    connection.close()


def read() -> NoReturn:
    """Take what arrives, until the driver ends this process. Nothing is acknowledged: what is sent here is gone."""
    channel = connected().channel()

    def came(_channel: Any, _method: Any, _properties: Any, said: bytes) -> None:
        take(said)

    channel.basic_consume(QUEUE, came, auto_ack=True)
    channel.start_consuming()
    raise SystemExit("the mailbox was closed")
