"""RabbitMQ as the broker: hints in durable queues, confirmed when published, acked by hand when held.

One connection publishes, each consumer has its own (an alarm blocks publishers only), each on its own thread; questions
(`depths`, `check`) open one for a moment. Nothing connects before it is needed.

    nodes.py                 where the nodes are, and in which order they are tried
    connection.py            the connection thread
    unavailable.py           why there is no connection
    topology.py, delays.py   what exists in the broker, and how hints wait in it until they are due
    publisher.py             messages on their way, with what happens when they do not get there
    consumer.py              deliveries, and what happens when the connection breaks under them
    browser.py               what is in a queue, by turning it once

Who decides: the ledger. Works with RabbitMQ 3.10 and later, 4.x included: only durable queues, no global prefetch.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from workq.errors import ConfigError, MissingExtra

try:
    from pika import SelectConnection
    from pika.channel import Channel
    from pika.exceptions import ChannelClosedByBroker
except ModuleNotFoundError as missing:
    raise MissingExtra("broker: amqp:// needs the client library pika; install the extra [rabbitmq]") from missing

from workq.broker import Browsed, Depth, Hint, See
from workq.broker.confirms import Confirms
from workq.broker.rabbitmq.browser import Turn
from workq.broker.rabbitmq.connection import converse, server_of
from workq.broker.rabbitmq.consumer import RETURNS_HEADER, Foreign, RabbitMQConsumer
from workq.broker.rabbitmq.delays import delays_of, waits_ms
from workq.broker.rabbitmq.nodes import Address, Nodes
from workq.broker.rabbitmq.publisher import Message, Publisher, properties
from workq.broker.rabbitmq.topology import LADDER, QUARANTINE, QueueType, Topology
from workq.config import BINARY
from workq.values.codec import Envelope, encode_hint
from workq.values.hint import HintRow

ASK_S = 3.0
CLOSE_S = 1.0


class RabbitMQBroker:
    """The port of the broker, on RabbitMQ. Connects when first used, and anew when first used after a fork."""

    is_transactional = False
    rows_from_s = math.inf
    is_listable = False
    has_owners = False
    tells_position = False

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "workq",
        queue_type: QueueType = "quorum",
        ladder: str = BINARY,
        heartbeat_s: float = 20.0,
        confirm_s: float = 10.0,
    ) -> None:
        """`confirm_s` bounds the publishing that nobody waits for: of quarantined messages.

        Raises:
            ConfigError: the URL, the queue type or the ladder is wrong. Nothing was contacted.
        """
        if queue_type not in get_args(QueueType):
            raise ConfigError(f"broker: queue type {queue_type!r} is not known; use quorum or classic")
        # here, so that wrong files in the URL are found early
        self._nodes = Nodes(Address.parse(url), heartbeat_s=heartbeat_s, connect_s=ASK_S)
        self._delays = delays_of(ladder)
        self.horizon_s = self._delays.horizon_s
        self.unit_s = self._delays.unit_s
        self.is_late = self._delays.is_late
        self._topology = Topology(namespace, queue_type, self._delays)
        self._confirm_s = confirm_s
        self._properties = properties()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._publisher: Publisher | None = None
        self._consumers: list[RabbitMQConsumer] = []
        self._is_closed = False

    def publish(self, hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        """As the port promises.

        Raises:
            ValueError: a delay is negative or above `horizon_s`; nothing was sent.
            ConfigError: a queue exists with other arguments; other hints of the call may have been sent.
        """
        batch = Confirms(len(hints))
        messages = [self._message(batch, index, hint) for index, hint in enumerate(hints)]
        if not messages:
            return []
        publisher = self._open_publisher()
        publisher.send(messages)
        batch.wait(deadline_s)
        answers = [answer is True for answer in batch.answers]
        if not batch.is_over:
            publisher.forget(batch)
        if batch.error is not None:
            raise batch.error
        return answers

    def waits_s(self, delay_s: float) -> float:
        return self._delays.waits_s(delay_s)

    def rows(self, hints: Sequence[Hint]) -> list[HintRow]:
        raise NotImplementedError("RabbitMQ has no part in the ledger's transactions: publish after the commit")

    def wake(self) -> None:
        """Nothing to do: it delivers by itself."""

    def consumer(self, queues: Sequence[str], *, name: str, prefetch: int) -> RabbitMQConsumer:
        consumer = RabbitMQConsumer(
            self._nodes,
            self._topology,
            queues,
            name=name,
            prefetch=prefetch,
            send_on=self._send_on,
        )
        with self._lock:
            self._consumers.append(consumer)
        return consumer

    def forget_consumer(self, name: str) -> None:
        """Nothing to do: the kernel closes a dead process's connection, missing heartbeats close a dead host's."""

    def depths(self, queues: Sequence[str], *, with_consumers: bool = False) -> Mapping[str, Depth]:  # noqa: ARG002 - told anyway
        wanted = list(dict.fromkeys(queues))
        found: dict[str, Depth] = {}

        def talk(connection: SelectConnection, answer: Callable[[dict[str, Depth] | Exception], None]) -> None:
            def ask(channel: Channel) -> None:
                if len(found) == len(wanted):
                    answer(found)
                    return
                queue = wanted[len(found)]

                def tell(frame: Any) -> None:
                    # AMQP does not tell what is unacked
                    found[queue] = Depth(frame.method.message_count, None, frame.method.consumer_count)
                    ask(channel)

                channel.queue_declare(self._topology.main_queue(queue), passive=True, callback=tell)

            def missing(_channel: Channel, reason: Exception) -> None:
                if not isinstance(reason, ChannelClosedByBroker):
                    return  # the connection is ending
                if reason.reply_code == 404:
                    found[wanted[len(found)]] = Depth(0, None, 0)
                    begin()
                else:
                    answer(reason)

            def opened(channel: Channel) -> None:
                channel.add_on_close_callback(missing)
                ask(channel)

            def begin() -> None:
                connection.channel(on_open_callback=opened)

            begin()

        return converse(self._nodes, talk, name="workq depths", deadline_s=ASK_S)

    def position(self, queue: str) -> str | None:
        """None: it proves losses by markers."""

    def has_passed(self, queue: str, position: str) -> bool:  # noqa: ARG002 - it is of another broker
        return False

    def browse(self, queue: str, see: See, *, deadline_s: float) -> Browsed:
        """As the port promises: see browser.py."""
        names = self._topology.main_queue(queue), self._topology.turn_lock(queue)
        turn = Turn(queue, *names, see, deadline_s=deadline_s)
        # the time of a turn begins when it is connected, and what it has in hand at the end is brought back
        within_s = deadline_s + ASK_S + self._confirm_s
        browsed = converse(self._nodes, turn.talk, name="workq audit", deadline_s=within_s)
        if turn.raised is not None:
            raise turn.raised
        return browsed

    def check(self) -> str:
        return server_of(self._nodes, deadline_s=ASK_S)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            publisher, consumers = self._publisher, list(self._consumers)
            self._consumers.clear()
        for consumer in consumers:
            consumer.close()
        if publisher is not None:
            publisher.close(within_s=CLOSE_S)

    def _way(self, queue: str, delay_s: float) -> tuple[str, str, tuple[str, ...], int]:
        """For a message to a queue of ours: exchange, routing key, what must be declared, and the wait behind it."""
        exchange, routing_key, wait_ms = self._delays.way(
            self._topology.namespace, self._topology.main_queue(queue), delay_s
        )
        return exchange, routing_key, (queue, LADDER) if exchange else (queue,), wait_ms

    def _message(self, batch: Confirms, index: int, hint: Hint) -> Message:
        exchange, routing_key, needs, wait_ms = self._way(hint.queue, hint.delay_s)
        return Message(
            batch,
            index,
            exchange=exchange,
            routing_key=routing_key,
            needs=needs,
            body=encode_hint(Envelope(hint.queue, hint.task_ids, hint.looks, hint.marker, waits_ms(hint, wait_ms))),
            properties=self._properties,
        )

    def _open_publisher(self) -> Publisher:
        with self._lock:
            if self._pid != os.getpid():  # forked: the thread stayed in the parent, and so does its connection
                self._pid, self._publisher, self._consumers = os.getpid(), None, []
            if self._publisher is None:
                self._publisher = Publisher(self._nodes, self._topology, confirm_s=self._confirm_s)
                if self._is_closed:
                    self._publisher.close(within_s=0.0)
            return self._publisher

    def _send_on(self, foreign: Foreign, done: Callable[[bool | ConfigError], None]) -> None:
        """One message to the quarantine, or back into its queue; nobody waits for it, but `done` is told."""
        batch = Confirms(1, lambda ended: done(ended.error or ended.answers[0] is True))
        if foreign.reason is None:
            exchange, routing_key, needs, _ = self._way(foreign.queue, min(foreign.delay_s, self.horizon_s))
            headers: dict[str, Any] = {RETURNS_HEADER: foreign.returns}
        else:
            exchange, routing_key, needs = "", self._topology.quarantine, (QUARANTINE,)
            headers = {
                "workq-reason": foreign.reason,
                "workq-queue": foreign.queue,
                "workq-bytes": foreign.size,
                "workq-sha256": foreign.sha256 or hashlib.sha256(foreign.body).hexdigest(),
            }
        message = Message(
            batch,
            0,
            exchange=exchange,
            routing_key=routing_key,
            needs=needs,
            body=foreign.body,
            properties=properties(headers),
        )
        publisher = self._open_publisher()
        publisher.send([message])
        publisher.link.call(lambda: publisher.link.later(self._confirm_s, lambda: publisher.forget(batch)))
