"""RabbitMQ's own delay: a queue that nobody reads, whose messages are dead-lettered to the target at their time.

A queue for each delay, and each load here has one delay: so nothing waits behind what is due later, which is the rule
of this pattern. Each message says its own time to live, in whole ms, so that all may be due at one moment. Published
without confirms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Final

import pika

from benchmarks.contestants import mailbox, task

WAITING: Final = "waiting"
CONFIRM_EVERY: Final = 5_000
"""So often the server is asked something, which it answers when it has read what came before."""


class Hop(task.Contestant):
    def __init__(self) -> None:
        self._connection: pika.BlockingConnection | None = None
        self._channel: Any = None

    def prepare(self) -> None:
        mailbox.declare()
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": mailbox.QUEUE}
        self._opened().queue_declare(WAITING, durable=True, arguments=arguments)
        self.flush()

    def one(self, index: int) -> None:
        self._publish(mailbox.QUEUE, index, None)

    def later(self, index: int, delay_s: float) -> None:
        self._publish(WAITING, index, str(math.ceil(1000 * delay_s)))

    def many_at(self, indices: Sequence[int], at: float) -> None:
        for place, index in enumerate(indices):
            self.later(index, max(0.0, at - time.time()))
            if place % CONFIRM_EVERY == CONFIRM_EVERY - 1:
                self._opened().queue_declare(mailbox.QUEUE, passive=True)

    def flush(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = self._channel = None

    def worker(self, number: int) -> None:
        assert number == 0
        mailbox.read()

    def _publish(self, queue: str, index: int, expiration: str | None) -> None:
        properties = pika.BasicProperties(delivery_mode=2, expiration=expiration)
        self._opened().basic_publish("", queue, mailbox.body(index), properties)

    def _opened(self) -> Any:
        if self._channel is None:
            self._connection = mailbox.connected()
            self._channel = self._connection.channel()
        return self._channel


contestant = Hop()
