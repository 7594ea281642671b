"""Hints on their way to RabbitMQ: persistent, mandatory, confirmed, and pipelined on one channel.

Callers hand over `Confirms` and wait for them with a deadline of their own; the connection's thread sends, and answers
each message once: True when the broker has confirmed that it is stored in a queue, False when it cannot be sent.

What happens on each failure:

- the connection breaks: what was not confirmed is sent once more on the next connection, if its batch still waits;
- an attempt to connect fails: everything that waits is answered False at once, the ledger keeps the tasks;
- a queue was deleted (`basic.return`): everything that the message needs is declared again, and it is sent once more;
- the broker blocks publishers (an alarm): nothing is sent until it ends; batches run into their deadlines, and what has
  gone out meanwhile is at most one window;
- confirms fail to come though the broker lives (a quorum queue without its majority): the connection is opened anew;
- a classic queue is on a node that is away: False, and messages to other queues go on;
- a queue refuses (it is full, by a policy): False, and the channel is opened anew. A channel that a quorum queue has
  refused once is refused by it for good, also after there is room (RabbitMQ 3.10);
- a queue exists with other arguments: the whole batch fails with ConfigError.

A message that was answered False may still arrive. Nothing here decides anything: a duplicate hint is harmless.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

from pika import BasicProperties, DeliveryMode, SelectConnection
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker, ChannelClosedByClient
from pika.spec import Basic

from workq.broker.confirms import Confirms
from workq.broker.rabbitmq.connection import Link
from workq.broker.rabbitmq.nodes import Nodes
from workq.broker.rabbitmq.topology import ACCESS_REFUSED, Declarer, Topology
from workq.errors import BrokerUnavailable, ConfigError

WINDOW: Final = 2000
"""How many messages may be unconfirmed at once: enough for full speed, and a bound for what an alarm can strand."""
SENDS_MAX: Final = 2
RENEW_S: Final = 5.0
"""The channel is opened anew after a refusal, at most so often."""
DRAIN_S: Final = 0.5
"""So long what is on its way has to be confirmed on the old channel. The rest is sent again on the new one."""


class Message:
    """One message to publish, and what must be declared before."""

    __slots__ = ("batch", "body", "exchange", "index", "needs", "properties", "routing_key", "sends", "sent_at")

    def __init__(
        self,
        batch: Confirms,
        index: int,
        *,
        exchange: str,
        routing_key: str,
        needs: tuple[str, ...],
        body: bytes,
        properties: BasicProperties,
    ) -> None:
        self.batch = batch
        self.index = index
        self.exchange = exchange
        self.routing_key = routing_key
        self.needs = needs
        self.body = body
        self.properties = properties
        self.sends = 0
        self.sent_at = 0.0


def properties(headers: dict[str, Any] | None = None) -> BasicProperties:
    """Fresh properties of ours. Nothing inbound is ever forwarded: an old `x-death` makes RabbitMQ drop a message."""
    return BasicProperties(
        app_id="workq",
        type="hint" if headers is None else "quarantined",
        content_type="application/json" if headers is None else "application/octet-stream",
        delivery_mode=DeliveryMode.Persistent,
        headers=headers,
    )


class Publisher:
    """The publishing connection of one broker, opened by its first batch. `send`, `forget` and `close`: any thread."""

    def __init__(self, nodes: Nodes, topology: Topology, *, confirm_s: float) -> None:
        self.link = Link(nodes, self, name="workq publisher")
        self._topology = topology
        self._confirm_s = confirm_s
        self._inbox: deque[Message] = deque()
        self._is_closed = False
        # what follows belongs to the connection's thread
        self._declarer: Declarer | None = None
        self._channel: Channel | None = None
        self._ready: deque[Message] = deque()
        self._parked: dict[str, list[Message]] = {}
        self._unconfirmed: dict[int, Message] = {}
        self._returned: Counter[tuple[str, str, bytes]] = Counter()
        self._last_tag = 0
        self._window = 0
        self._is_blocked = False
        self._is_watching = False
        self._is_renewing = False
        self._renewed_at = -RENEW_S

    def send(self, messages: Sequence[Message]) -> None:
        """Queue the messages of one batch for the connection's thread."""
        self._inbox.extend(messages)
        self.link.start()
        self.link.call(self._pump)
        if self._is_closed:
            self._drop_all()

    def forget(self, batch: Confirms) -> None:
        """Nobody waits for this batch any more."""
        batch.end()
        self.link.call(lambda: self._free(batch))

    def close(self, *, within_s: float) -> None:
        """Answer False to all that is left, and end. Repeatable."""
        self._is_closed = True
        self.link.close(within_s=within_s)
        self._drop_all()

    # On the connection's thread

    def opened(self, connection: SelectConnection) -> None:
        self._connection = connection
        self._declarer = Declarer(self._topology, connection, self.link)
        connection.add_on_connection_blocked_callback(lambda *_: self._blocked(True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._blocked(False))
        connection.channel(on_open_callback=self._channel_opened)

    def lost(self, *, was_open: bool) -> None:
        parked = [one for parked in self._parked.values() for one in parked]
        self._parked.clear()
        self._ready.extendleft(reversed(parked))
        self._forget_channel()
        self._declarer = None
        self._is_blocked = self._is_watching = False
        if not was_open:
            self._drop_all()

    def _channel_opened(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _ok: self._go(channel))

    def _forget_channel(self) -> None:
        """It is gone: what it has not confirmed is to be sent again."""
        for message in self._unconfirmed.values():
            message.batch.unconfirmed = 0
        self._ready.extendleft(reversed(self._unconfirmed.values()))
        self._unconfirmed.clear()
        self._returned.clear()
        self._last_tag = self._window = 0
        self._channel = None
        self._is_renewing = False

    def _begin_renewal(self) -> None:
        """A queue has refused. Nothing more is sent on this channel, and another is opened soon."""
        now, channel = time.monotonic(), self._channel
        if self._is_renewing or channel is None or now - self._renewed_at < RENEW_S:
            return
        self._is_renewing, self._renewed_at = True, now
        self.link.later(DRAIN_S, lambda: self._renew(channel))

    def _renew(self, channel: Channel) -> None:
        if self._is_renewing and channel is self._channel and channel.is_open:
            channel.close()

    def _channel_closed(self, _channel: Channel, reason: Exception) -> None:
        if self._is_renewing and isinstance(reason, ChannelClosedByClient):
            self._forget_channel()
            if self._connection.is_open:
                self._connection.channel(on_open_callback=self._channel_opened)
            return
        self._channel = None
        if isinstance(reason, ChannelClosedByBroker) and reason.reply_code == ACCESS_REFUSED:
            refusal = self._topology.refusal(reason.reply_code, reason.reply_text)
            for message in [*self._unconfirmed.values(), *self._ready]:
                message.batch.fail(refusal)
        self.link.recycle(f"publishing: {self._topology.why(reason)}")

    def _go(self, channel: Channel) -> None:
        self._channel = channel
        self.link.trouble = None
        self._pump()

    def _pump(self) -> None:
        """Send what is ready, as far as the window allows."""
        while self._inbox:
            self._ready.append(self._inbox.popleft())
        channel, declarer = self._channel, self._declarer
        if channel is None or declarer is None or self._is_blocked or self._is_renewing:
            return
        declared, now = declarer.declared, time.monotonic()
        while self._ready and self._window < WINDOW:
            message = self._ready.popleft()
            batch = message.batch
            if batch.is_over:
                continue
            if message.sends >= SENDS_MAX:
                batch.answer(message.index, False)
                continue
            missing = next((thing for thing in message.needs if thing not in declared), None)
            if missing is not None:
                self._park(message, missing, declarer)
                continue
            channel.basic_publish(
                message.exchange, message.routing_key, message.body, message.properties, mandatory=True
            )
            message.sends += 1
            message.sent_at = now
            batch.unconfirmed += 1
            self._window += 1
            self._last_tag += 1
            self._unconfirmed[self._last_tag] = message
        if self._unconfirmed and not self._is_watching:
            self._is_watching = True
            self.link.later(self._confirm_s, self._watch)

    def _park(self, message: Message, thing: str, declarer: Declarer) -> None:
        parked = self._parked.get(thing)
        if parked is not None:
            parked.append(message)
            return
        self._parked[thing] = [message]
        declarer.need(thing, lambda error: self._unpark(thing, error))

    def _unpark(self, thing: str, error: ConfigError | BrokerUnavailable | None) -> None:
        messages = self._parked.pop(thing, [])
        if error is not None:
            for message in messages:
                if isinstance(error, ConfigError):
                    message.batch.fail(error)
                else:
                    message.batch.answer(message.index, False)
            return
        self._ready.extendleft(reversed(messages))
        self._pump()

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tag, stored = method.delivery_tag, isinstance(method, Basic.Ack)
        if not method.multiple:
            message = self._unconfirmed.pop(tag, None)
            if message is not None:
                self._confirmed(message, stored)
        else:
            for earlier in list(self._unconfirmed):  # in order of their tags
                if earlier > tag:
                    break
                self._confirmed(self._unconfirmed.pop(earlier), stored)
        if not stored:
            self._begin_renewal()
        if self._is_renewing and not self._unconfirmed and self._channel is not None:
            self._renew(self._channel)
        elif self._ready or self._inbox:
            self._pump()

    def _confirmed(self, message: Message, stored: bool) -> None:
        batch = message.batch
        if batch.unconfirmed:  # else nobody waits any more, and its place in the window was given back
            batch.unconfirmed -= 1
            self._window -= 1
        if self._returned:
            key = (message.exchange, message.routing_key, message.body)
            if self._returned[key]:
                self._returned -= Counter([key])
                self._ready.append(message)
                return
        batch.answer(message.index, stored)

    def _on_return(self, _channel: Channel, method: Any, _properties: BasicProperties, body: bytes) -> None:
        """No queue took it. Its confirm follows; what it needs is declared again before it is sent once more."""
        self._returned[(method.exchange, method.routing_key, body)] += 1
        if self._declarer is not None:
            self._declarer.declared.clear()

    def _blocked(self, is_blocked: bool) -> None:
        self._is_blocked = is_blocked
        self._pump()

    def _watch(self) -> None:
        self._is_watching = False
        if not self._unconfirmed:
            return
        oldest = next(iter(self._unconfirmed.values()))
        if not self._is_blocked and time.monotonic() - oldest.sent_at > 2 * self._confirm_s:
            self.link.recycle("no confirm in time")
            return
        self._is_watching = True
        self.link.later(self._confirm_s, self._watch)

    def _free(self, batch: Confirms) -> None:
        self._window -= batch.unconfirmed
        batch.unconfirmed = 0
        self._ready = deque(message for message in self._ready if not message.batch.is_over)
        for parked in self._parked.values():
            parked[:] = [message for message in parked if not message.batch.is_over]
        self._pump()

    def _drop_all(self) -> None:
        for waiting in (self._ready, self._inbox):
            while waiting:
                try:
                    message = waiting.popleft()
                except IndexError:  # the other thread took the last one
                    break
                message.batch.answer(message.index, False)
