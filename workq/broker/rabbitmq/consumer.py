"""One worker's subscription to RabbitMQ: a connection of its own, whose thread only moves deliveries into a buffer.

Handlers never run on that thread, so a long task cannot stop heartbeats. A delivery belongs to one life of the
connection: an ack for an earlier life is dropped, because the broker delivers that message again anyway, and its number
may mean another message by now.

What happens on each failure:

- the connection or the channel breaks: the buffer is dropped (it comes again), and the consumer connects anew;
- the queue is deleted under it (`basic.cancel`): the consumer connects anew, and declares it again;
- deliveries lie unacked for longer than the broker's `consumer_timeout` (30 minutes by default), also unfetched in the
  buffer of a paused consumer: the broker closes the channel and delivers them again, to somebody;
- a subscription, or its end, is not answered (a quorum queue without a leader): after `TOLD_S` the consumer tells so in
  `trouble`, and after `ANSWER_S` it connects anew, until somebody mends or deletes the queue;
- a classic queue is on a node that is away: it is asked for again every 5 s, `trouble` says so meanwhile, and what
  arrives from other queues goes on;
- a queue exists with other arguments: `fetch` raises ConfigError, for good. Nothing is retried or deleted.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from pika import BasicProperties, SelectConnection
from pika.channel import Channel

from workq.broker import QUARANTINE_BODY_MAX, Delivery
from workq.broker.fair_turns import FairBuffer
from workq.broker.rabbitmq.connection import ANSWER_S, Link
from workq.broker.rabbitmq.nodes import Nodes
from workq.broker.rabbitmq.topology import AWAY_S, Declarer, Topology
from workq.config.server_commands import rabbitmq_command
from workq.errors import BrokerUnavailable, ConfigError
from workq.values.codec import HINT_MAX_BYTES, decode_hint

RETURNS_HEADER: Final = "workq-returns"
CLOSE_S: Final = 1.0
TOLD_S: Final = 3.0
"""A broker that leaves a question about a queue unanswered for so long delivers nothing of it, either."""


@dataclass(frozen=True, slots=True)
class Tag:
    """Which message a delivery was, in which life of the connection, and its body for the quarantine."""

    life: int
    number: int
    body: bytes
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """A message for the quarantine, or, without a reason, for its own queue again after `delay_s`."""

    queue: str
    reason: str | None
    body: bytes
    size: int
    sha256: str
    delay_s: float = 0.0
    returns: int = 0


class _Turn(Enum):
    """Where the subscription to one queue stands."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    AWAY = "away"
    STOPPING = "stopping"


class _Subscription:
    """One queue of a consumer."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.turn = _Turn.IDLE
        self.tag = ""
        self.starts = 0
        self.asked = 0
        """How many questions about it were asked: a later one is another."""
        self.is_unanswered = False
        """The last one, for `TOLD_S`."""
        self.prefetch = 0
        """With which it was started: RabbitMQ keeps it for as long as a subscription lasts."""


class RabbitMQConsumer:
    """A consumer, as the port promises it. `send_on` moves one foreign message and tells whether it is stored."""

    def __init__(
        self,
        nodes: Nodes,
        topology: Topology,
        queues: Sequence[str],
        *,
        name: str,
        prefetch: int,
        send_on: Callable[[Foreign, Callable[[bool | ConfigError], None]], None],
    ) -> None:
        self.link = Link(nodes, self, name=f"workq {name}")
        self._topology = topology
        self._vhost = nodes.address.vhost
        self._name = name
        self._prefetch = prefetch
        self._send_on = send_on
        self._arrived = threading.Condition()
        self._buffer = FairBuffer()
        self._life = 0
        self._error: ConfigError | None = None
        self._is_wanted = True
        self._served = tuple(dict.fromkeys(queues))
        self._is_closed = False
        self._is_woken = False
        # what follows belongs to the connection's thread
        self._subscriptions: dict[str, _Subscription] = {}
        self._declarer: Declarer | None = None
        self._channel: Channel | None = None
        self._unacked: set[int] = set()
        self.link.start()

    @property
    def trouble(self) -> str | None:
        """Why nothing can arrive just now: there is no connection, or no subscription. None when there is."""
        return self.link.trouble

    def fetch(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        with self._arrived:
            while not self._buffer or self._error is not None:
                if self._error is not None:
                    raise self._error
                left_s = deadline - time.monotonic()
                if self._is_closed or self._is_woken or left_s <= 0:
                    self._is_woken = False
                    return []
                self._arrived.wait(left_s)
            self._is_woken = False
            return self._buffer.take(ids_max)

    def wake(self) -> None:
        with self._arrived:
            self._is_woken = True
            self._arrived.notify_all()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        life = self._life
        numbers = [one.tag.number for one in deliveries if one.tag.life == life]
        if numbers:
            self.link.call(lambda: self._ack(life, numbers))

    def quarantine(self, delivery: Delivery, *, reason: str) -> None:
        tag: Tag = delivery.tag
        self._move(delivery, Foreign(delivery.queue, reason, tag.body, tag.size, tag.sha256))

    def put_back(self, delivery: Delivery, *, delay_s: float) -> None:
        tag: Tag = delivery.tag
        again = Foreign(delivery.queue, None, tag.body, tag.size, tag.sha256, delay_s, delivery.returns + 1)
        self._move(delivery, again)

    def set_prefetch(self, count: int) -> None:
        if count != self._prefetch:
            self._prefetch = count
            self.link.call(self._follow)

    def serve(self, queues: Collection[str]) -> None:
        served = tuple(dict.fromkeys(queues))
        if served != self._served:
            self._served = served
            self.link.call(self._follow)

    def pause(self) -> None:
        if self._is_wanted:
            self._is_wanted = False
            self.link.call(self._follow)

    def resume(self) -> None:
        if not self._is_wanted:
            self._is_wanted = True
            self.link.call(self._follow)

    def renew(self) -> None:
        self.link.call(lambda: self.link.recycle("hints wait, and none is delivered here"))

    def close(self) -> None:
        with self._arrived:
            self._is_closed = True
            self._buffer.clear()
            self._arrived.notify_all()
        self.link.close(within_s=CLOSE_S)

    # On the connection's thread

    def opened(self, connection: SelectConnection) -> None:
        self._declarer = Declarer(self._topology, connection, self.link)
        connection.channel(on_open_callback=self._channel_opened)

    def lost(self, *, was_open: bool) -> None:  # noqa: ARG002 - the same for a failed attempt
        with self._arrived:
            self._life += 1
            self._buffer.clear()
        self._declarer = self._channel = None
        self._unacked.clear()
        for subscription in self._subscriptions.values():
            subscription.turn, subscription.is_unanswered = _Turn.IDLE, False

    def _channel_opened(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_cancel_callback(self._on_cancelled)
        self._go(channel)

    def _channel_closed(self, _channel: Channel, reason: Exception) -> None:
        self._channel = None
        self.link.recycle(f"consuming: {self._topology.why(reason)}")

    def _go(self, channel: Channel) -> None:
        self._channel = channel
        if not (self._is_wanted and self._served):
            self.link.trouble = None
        self._follow()

    def _follow(self) -> None:
        """Bring every subscription to where it should be: running, with the prefetch in force; unwanted, idle."""
        if self._channel is None or self._declarer is None or self._error is not None:
            return
        served = self._served
        for queue in served:
            if queue not in self._subscriptions:
                self._subscriptions[queue] = _Subscription(queue)
        for subscription in self._subscriptions.values():
            is_wanted = self._is_wanted and subscription.queue in served
            if is_wanted and subscription.turn is _Turn.IDLE:
                self._ask(subscription, _Turn.STARTING)
                self._declarer.need(subscription.queue, self._starter(subscription, self._channel))
            elif subscription.turn is _Turn.RUNNING and (not is_wanted or subscription.prefetch != self._prefetch):
                self._expect_answer(subscription, self._ask(subscription, _Turn.STOPPING))
                self._channel.basic_cancel(subscription.tag, callback=self._setter(subscription, _Turn.IDLE))

    def _starter(
        self, subscription: _Subscription, channel: Channel
    ) -> Callable[[ConfigError | BrokerUnavailable | None], None]:
        def start(error: ConfigError | BrokerUnavailable | None) -> None:
            if isinstance(error, BrokerUnavailable):
                subscription.turn, subscription.is_unanswered = _Turn.AWAY, False
                self.link.trouble = str(error)
                self.link.later(AWAY_S, lambda: self._ask_again(subscription))
                return
            if error is not None:
                self._fail(error)
                return
            subscription.starts += 1
            # a new tag each time: pika rejects what still arrives for a cancelled one
            subscription.tag = f"{self._name}/{subscription.queue}/{subscription.starts}"
            subscription.prefetch = self._prefetch
            channel.basic_qos(prefetch_count=subscription.prefetch)  # for what is subscribed to after it
            self._expect_answer(subscription, self._ask(subscription, _Turn.STARTING))
            channel.basic_consume(
                self._topology.main_queue(subscription.queue),
                self._receiver(subscription.queue),
                consumer_tag=subscription.tag,
                callback=self._setter(subscription, _Turn.RUNNING),
            )

        return start

    def _ask(self, subscription: _Subscription, turn: _Turn) -> int:
        """Note that RabbitMQ is asked something about this queue; answers the number of the question."""
        subscription.turn = turn
        subscription.asked += 1
        asked = subscription.asked
        self.link.later(TOLD_S, lambda: self._tell_unanswered(subscription, asked))
        return asked

    def _waits(self, subscription: _Subscription, asked: int) -> bool:
        """Whether that question has no answer yet."""
        return subscription.asked == asked and subscription.turn in (_Turn.STARTING, _Turn.STOPPING)

    def _tell_unanswered(self, subscription: _Subscription, asked: int) -> None:
        if self._waits(subscription, asked):
            subscription.is_unanswered = True
            queue = self._topology.main_queue(subscription.queue)
            see = rabbitmq_command(self._vhost, "rabbitmq-queues", "quorum_status", queue)
            self.link.trouble = (
                f"broker: RabbitMQ does not answer about queue {queue}. "
                f"Do most of its nodes run, and has the queue a leader? See: {see}"
            )

    def _expect_answer(self, subscription: _Subscription, asked: int) -> None:
        self.link.later(ANSWER_S, lambda: self._check_answered(subscription, asked))

    def _check_answered(self, subscription: _Subscription, asked: int) -> None:
        if self._waits(subscription, asked):
            self.link.recycle(f"no answer to the subscription to {subscription.queue}")

    def _end_trouble(self) -> None:
        """Hints come, unless a queue that is wanted is away or has no leader."""
        if not any(one.turn is _Turn.AWAY or one.is_unanswered for one in self._subscriptions.values()):
            self.link.trouble = None

    def _ask_again(self, subscription: _Subscription) -> None:
        subscription.turn = _Turn.IDLE
        self._follow()
        if subscription.turn is _Turn.IDLE:  # it is not wanted any more
            self._end_trouble()

    def _setter(self, subscription: _Subscription, turn: _Turn) -> Callable[[Any], None]:
        def arrived_there(_ok: Any) -> None:
            was_unanswered = subscription.is_unanswered
            subscription.turn, subscription.is_unanswered = turn, False
            if turn is _Turn.RUNNING or was_unanswered:
                self._end_trouble()
            self._follow()

        return arrived_there

    def _receiver(self, queue: str) -> Callable[[Channel, Any, BasicProperties, bytes], None]:
        def receive(_channel: Channel, method: Any, properties: BasicProperties, body: bytes) -> None:
            number: int = method.delivery_tag
            self._unacked.add(number)
            hint = decode_hint(body)
            size = len(body)
            sha256 = ""
            if size > HINT_MAX_BYTES:  # keep no more of it than the quarantine does
                sha256, body = hashlib.sha256(body).hexdigest(), body[:QUARANTINE_BODY_MAX]
            tag = Tag(self._life, number, body, size, sha256)
            if isinstance(hint, str):
                delivery = Delivery(tag, queue, (), 0, method.redelivered, hint, _returns(properties))
            else:
                delivery = Delivery(
                    tag,
                    queue,
                    hint.task_ids,
                    hint.looks,
                    method.redelivered,
                    marker=hint.marker,
                    waits_s=tuple(one / 1000 for one in hint.waits_ms),
                )
            with self._arrived:
                self._buffer.append(delivery)
                if len(self._buffer) == 1:
                    self._arrived.notify()

        return receive

    def _on_cancelled(self, frame: Any) -> None:
        """The broker took a subscription away: the queue was deleted, or has moved.

        Everything is opened anew: a channel that has deliveries of a deleted quorum queue unacked gets nothing from the
        queue of the same name that is declared after it (RabbitMQ 3.10).
        """
        for subscription in self._subscriptions.values():
            if subscription.tag == frame.method.consumer_tag:
                self.link.recycle(f"the broker cancelled the subscription to {subscription.queue}")

    def _ack(self, life: int, numbers: list[int]) -> None:
        channel = self._channel
        if channel is None or life != self._life or not channel.is_open:
            return
        acked = self._unacked.intersection(numbers)
        if not acked:
            return
        self._unacked -= acked
        # one ack for all numbers below the first that somebody still holds
        floor = min(self._unacked, default=max(acked) + 1)
        below = [number for number in acked if number < floor]
        if len(below) > 1:
            channel.basic_ack(max(below), multiple=True)
            acked.difference_update(below)
        for number in sorted(acked):
            channel.basic_ack(number)

    # On any thread

    def _move(self, delivery: Delivery, foreign: Foreign) -> None:
        if delivery.tag.life == self._life:
            self._send_on(foreign, lambda stored: self._moved(delivery, stored))

    def _moved(self, delivery: Delivery, stored: bool | ConfigError) -> None:
        if stored is True:
            self.ack([delivery])
        elif isinstance(stored, ConfigError):
            self._fail(stored)
        else:
            with self._arrived:
                if delivery.tag.life == self._life and not self._is_closed:
                    self._buffer.append(delivery)
                    self._arrived.notify()

    def _fail(self, error: ConfigError) -> None:
        with self._arrived:
            self._error = error
            self._arrived.notify_all()


def _returns(properties: BasicProperties) -> int:
    """How often this message was put back. Anybody may have written anything there."""
    told = (properties.headers or {}).get(RETURNS_HEADER)
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 1_000_000 else 0
