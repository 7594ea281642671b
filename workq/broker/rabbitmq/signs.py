"""Signs of life in RabbitMQ: a queue for each worker, exclusive to a connection, and gone with it.

The connection is the sign's own, with short heartbeats: RabbitMQ ends one from which nothing came between two and three
of them. Handlers that hold the interpreter lock for so long let the sign end, and the beat of their supervisor goes on.

A reader asks for the queue passively: it is locked (405), or it is not there (404). Each answer closes a channel, and
no connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from pika import SelectConnection
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker

from workq.broker.rabbitmq.browser import NOT_FOUND, RESOURCE_LOCKED
from workq.broker.rabbitmq.connection import BACKOFF_MAX_S, Link
from workq.broker.rabbitmq.nodes import Address, Nodes
from workq.broker.rabbitmq.topology import ACCESS_REFUSED, grant_of, sign_queue
from workq.errors import BrokerUnavailable

CONNECT_S: Final = 3.0
CLOSE_S: Final = 0.5
MISSED: Final = 2
"""RabbitMQ ends a connection when it has missed so many heartbeats, or at the latest one more."""


def heartbeat_s(heard_s: float) -> int:
    """Whole seconds."""
    return max(1, int(heard_s / MISSED))


class RabbitMQSigns:
    """The port of signs of life, on RabbitMQ."""

    def __init__(self, url: str, *, namespace: str) -> None:
        """Raises ConfigError: the URL is wrong. Nothing was contacted."""
        self._address = Address.parse(url)
        self._namespace = namespace

    def give(self, worker: str, *, heard_s: float) -> ExclusiveQueue:
        return ExclusiveQueue(self._nodes(heard_s), self._namespace, worker)

    def reader(self, *, heard_s: float) -> ExclusiveQueues:
        return ExclusiveQueues(self._nodes(heard_s), self._queue)

    def _nodes(self, heard_s: float) -> Nodes:
        return Nodes(self._address, heartbeat_s=heartbeat_s(heard_s), connect_s=CONNECT_S)

    def _queue(self, worker: str) -> str:
        return sign_queue(self._namespace, worker)


class ExclusiveQueue:
    """The sign of one worker."""

    def __init__(self, nodes: Nodes, namespace: str, worker: str) -> None:
        self._namespace = namespace
        self._queue = sign_queue(namespace, worker)
        self._given = threading.Event()
        self._refusal: str | None = None
        self._link = Link(nodes, self, name=f"workq sign {worker}")
        self._link.start()

    def is_given(self) -> bool:
        return self._given.is_set()

    def refusal(self) -> str | None:
        return self._refusal

    def close(self) -> None:
        self._link.close(within_s=CLOSE_S)

    # -- on the link's thread

    def opened(self, connection: SelectConnection) -> None:
        connection.channel(on_open_callback=self._declare)

    def lost(self, *, was_open: bool) -> None:  # noqa: ARG002 - the port's
        self._given.clear()

    def _declare(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._refused)
        channel.queue_declare(self._queue, exclusive=True, callback=lambda _frame: self._confirmed())

    def _confirmed(self) -> None:
        self._refusal = None
        self._given.set()

    def _refused(self, _channel: Channel, reason: Exception) -> None:
        self._given.clear()
        if isinstance(reason, ChannelClosedByBroker):
            self._refusal = self._why(reason)
            self._link.recycle(str(reason))

    def _why(self, reason: ChannelClosedByBroker) -> str | None:
        if reason.reply_code == RESOURCE_LOCKED:
            return None  # our former connection still has it
        why = f"broker: queue {self._queue} is refused (RabbitMQ: {reason.reply_text})"
        if reason.reply_code != ACCESS_REFUSED:
            return why
        return f"{why}. Grant it: {grant_of(self._namespace, reason.reply_text)}"


class ExclusiveQueues:
    """Looks for the signs of others."""

    def __init__(
        self, nodes: Nodes, queue_of: Callable[[str], str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = nodes.address
        self.back_s = CONNECT_S * max(2, len(nodes.address.hosts)) + BACKOFF_MAX_S
        self._queue_of = queue_of
        self._clock = clock
        self._connection: SelectConnection | None = None
        self._since = clock()
        self._link = Link(nodes, self, name="workq signs")
        self._link.start()

    @property
    def lasts_s(self) -> float:
        return 0.0 if self._connection is None else self._clock() - self._since

    def absent(self, workers: Sequence[str], *, deadline_s: float) -> set[str]:
        answers: dict[str, bool] = {}
        is_over = threading.Event()

        def ask(worker: str) -> None:
            def told(*, is_there: bool) -> None:
                answers[worker] = is_there
                if len(answers) == len(workers):
                    is_over.set()

            def closed(_channel: Channel, reason: Exception) -> None:
                code = reason.reply_code if isinstance(reason, ChannelClosedByBroker) else None
                if code in (NOT_FOUND, RESOURCE_LOCKED):
                    told(is_there=code == RESOURCE_LOCKED)

            def opened(channel: Channel) -> None:
                channel.add_on_close_callback(closed)
                channel.queue_declare(self._queue_of(worker), passive=True, callback=lambda _frame: told(is_there=True))

            if self._connection is not None:
                self._connection.channel(on_open_callback=opened)

        if not workers:
            return set()

        def ask_all() -> None:
            for worker in workers:
                ask(worker)

        is_sent = self._link.call(ask_all)
        if not is_sent or not is_over.wait(deadline_s):
            raise BrokerUnavailable(
                self._link.trouble
                or f"broker: RabbitMQ at {self._address} did not tell within {deadline_s:g} s who is there"
            )
        return {worker for worker, is_there in answers.items() if not is_there}

    def close(self) -> None:
        self._link.close(within_s=CLOSE_S)

    # -- on the link's thread

    def opened(self, connection: SelectConnection) -> None:
        self._since = self._clock()
        self._connection = connection

    def lost(self, *, was_open: bool) -> None:  # noqa: ARG002 - the port's
        self._connection = None
