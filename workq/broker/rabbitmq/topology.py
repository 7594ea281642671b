"""What exists in RabbitMQ for one namespace, and how it is declared: queues, the quarantine, the ladder of delays.

    {ns}.q.{queue}      durable; quorum (default) or classic. The one place that names them is `Topology.main_queue`
    {ns}.quarantine     durable, bounded: messages that are not ours, and hints that nobody could take twenty times
    {ns}.turn.{queue}   exclusive to a connection, and gone with it: the lock of who looks at all that is in a queue
    {ns}.sign.{worker}  the same: a worker's sign of life (see signs.py)
    {ns}.delay.00..12   exchanges and queues of the binary ladder; {ns}.due is its foot
    {ns}.level.{ms}     queues of levels, where these are chosen instead: behind {ns}.level, and before {ns}.due

A quorum queue always gets a delivery limit: without one, a hint returned by nack goes behind the marker (RabbitMQ
3.10), and the proof of loss would be wrong.

Who decides: whoever declared first. Something that exists with other arguments is reported as ConfigError, and never
deleted or changed. Something missing is declared again on the next connection, or when the broker says that it is gone.

In a cluster a classic queue is on one node, and while that is away nobody can declare it. If it is the quarantine, the
queues are declared without it. If it is a main queue, those who need it are told so, and others go on.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from pika import SelectConnection
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker

from workq.broker.rabbitmq.connection import ANSWER_S, Link
from workq.broker.rabbitmq.delays import Delays, due_exchange, due_pattern
from workq.config.server_commands import rabbitmq_grant
from workq.errors import BrokerUnavailable, ConfigError

QueueType = Literal["quorum", "classic"]

DELIVERY_LIMIT: Final = 20
QUARANTINE_MAX: Final = 100_000
QUARANTINE_MAX_BYTES: Final = 256 * 1024 * 1024

LADDER: Final = "*ladder"
QUARANTINE: Final = "*quarantine"
"""Things to declare that are not main queues: no queue may be called so."""

ACCESS_REFUSED: Final = 403
_REFUSED: Final = {
    405: "is locked by another connection",
    406: "exists with different arguments",
}
_OFFENDER: Final = re.compile(r"(?:queue|exchange) '([^']*)'")
_AWAY: Final = re.compile(r"NOT_FOUND - .*(?:is down or inaccessible|is stopped)", re.DOTALL)
"""What RabbitMQ says of a classic queue whose node is away."""
AWAY_S: Final = 5.0
"""For so long nobody asks again for what is on a node that is away."""
_USER: Final = re.compile(r"in vhost '([^']*)' refused for user '([^']*)'")


def sign_queue(namespace: str, worker: str) -> str:
    """The queue that exists, exclusive to its connection, while a worker gives its sign of life."""
    return f"{namespace}.sign.{worker}"


def grant_of(namespace: str, reply_text: str) -> str:
    """The command that gives a user all that producers and workers of this namespace need."""
    vhost, user = found.groups() if (found := _USER.search(reply_text)) else ("VHOST", "USER")
    return rabbitmq_grant(vhost, user, namespace)


@dataclass(frozen=True, slots=True)
class Topology:
    """The names and arguments of one namespace."""

    namespace: str
    queue_type: QueueType
    delays: Delays

    def main_queue(self, queue: str) -> str:
        return f"{self.namespace}.q.{queue}"

    def turn_lock(self, queue: str) -> str:
        """The queue that exists, exclusive to its connection, while somebody turns `queue`."""
        return f"{self.namespace}.turn.{queue}"

    @property
    def quarantine(self) -> str:
        return f"{self.namespace}.quarantine"

    def declare(
        self, channel: Channel, thing: str, done: Callable[[Any], None], *, with_quarantine: bool = True
    ) -> None:
        """Declare a main queue, the ladder or the quarantine; `done` is called when the broker has done all of it.

        Only the last method asks for an answer: a channel keeps its order, so one round trip serves for all. A refusal
        closes the channel instead. `with_quarantine`: a main queue comes after the place of its dead letters.
        """
        if thing == QUARANTINE:
            self._declare_quarantine(channel, done)
        elif thing == LADDER:
            self._declare_ladder(channel, done)
        else:
            if with_quarantine:
                self._declare_quarantine(channel, None)  # first: where the queue's own dead letters go
            self._declare_due(channel)
            self._declare_main(channel, self.main_queue(thing), done)

    def refusal(self, reply_code: int, reply_text: str) -> ConfigError:
        """The broker's refusal, in our words."""
        found = _OFFENDER.search(reply_text)
        name = found[1] if found else self.namespace
        if reply_code == ACCESS_REFUSED:
            return ConfigError(
                f"broker: {name} may not be used by this user (RabbitMQ: {reply_text}). "
                f"Grant it: {grant_of(self.namespace, reply_text)}"
            )
        return ConfigError(
            f"broker: queue {name} {_REFUSED[reply_code]} (RabbitMQ: {reply_text}). workq never deletes a queue: "
            "use another namespace or queue type, or empty and delete it yourself"
        )

    def away(self, reply_code: int, reply_text: str) -> str | None:
        """The queue that is on a node that is away, if the broker's refusal says so."""
        found = _OFFENDER.search(reply_text) if reply_code == 404 and _AWAY.search(reply_text) else None
        return found[1] if found else None

    def why(self, reason: Exception) -> str:
        """Why the broker has closed a channel."""
        if isinstance(reason, ChannelClosedByBroker) and reason.reply_code == ACCESS_REFUSED:
            return str(self.refusal(reason.reply_code, reason.reply_text))
        return str(reason)

    def _declare_main(self, channel: Channel, name: str, done: Callable[[Any], None]) -> None:
        arguments: dict[str, Any] = {"x-queue-type": self.queue_type}
        if self.queue_type == "quorum":
            arguments |= {
                "x-delivery-limit": DELIVERY_LIMIT,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": self.quarantine,
            }
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(name, due_exchange(self.namespace), due_pattern(name), callback=done)

    def _declare_quarantine(self, channel: Channel, done: Callable[[Any], None] | None) -> None:
        channel.queue_declare(
            self.quarantine,
            durable=True,
            arguments={
                "x-queue-type": "classic",
                "x-max-length": QUARANTINE_MAX,
                "x-max-length-bytes": QUARANTINE_MAX_BYTES,
                "x-overflow": "drop-head",
            },
            callback=done,
        )

    def _declare_due(self, channel: Channel) -> None:
        channel.exchange_declare(due_exchange(self.namespace), "topic", durable=True)

    def _declare_ladder(self, channel: Channel, done: Callable[[Any], None]) -> None:
        self._declare_due(channel)
        rungs = self.delays.queues(self.namespace)
        for rung in rungs:
            then = done if rung is rungs[-1] else None
            channel.exchange_declare(rung.exchange, "topic", durable=True)
            channel.queue_declare(
                rung.name,
                durable=True,
                arguments={
                    "x-queue-type": "classic",
                    "x-message-ttl": rung.ttl_ms,
                    "x-dead-letter-exchange": rung.next,
                },
            )
            if rung.passes is not None:
                channel.exchange_bind(rung.next, rung.exchange, rung.passes)
            channel.queue_bind(rung.name, rung.exchange, rung.waits, callback=then)


Answered = Callable[[ConfigError | BrokerUnavailable | None], None]


class Declarer:
    """Declares things on a channel of its own, each once for a connection. Lives on the connection's thread.

    Its own channel, because a refusal closes the channel: nothing else may be lost with it.
    """

    def __init__(self, topology: Topology, connection: SelectConnection, link: Link) -> None:
        self.declared: set[str] = set()
        self._topology = topology
        self._connection = connection
        self._link = link
        self._asked = 0
        self._channel: Channel | None = None
        self._turn: deque[str] = deque()
        self._waiting: dict[str, list[Answered]] = {}
        self._is_busy = False
        self._has_quarantine = True
        """Else its node is away: on this connection, what needs it alone waits for it."""
        self._away: dict[str, BrokerUnavailable] = {}
        """What is on a node that is away, for `AWAY_S`."""

    def need(self, thing: str, then: Answered) -> None:
        """Call `then` once the thing is declared, or refused, or away with its node.

        Never called if the connection breaks before. The quarantine is waited for while its node is away: a message
        that cannot go there has nowhere else to go.
        """
        if thing in self.declared:
            then(None)
            return
        if (error := self._away.get(thing)) is not None:
            then(error)
            return
        waiting = self._waiting.get(thing)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[thing] = [then]
        self._turn.append(thing)
        self._go_on()

    def forget(self, thing: str) -> None:
        """The broker says that it is gone: declare it again when it is needed."""
        self.declared.discard(thing)

    def _go_on(self) -> None:
        if self._is_busy or not self._turn:
            return
        self._is_busy = True
        if self._channel is None:
            self._connection.channel(on_open_callback=self._opened)
        else:
            self._declare(self._channel)

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._closed)
        self._declare(channel)

    def _declare(self, channel: Channel) -> None:
        self._asked += 1
        asked = self._asked
        self._link.later(ANSWER_S, lambda: self._check_answered(asked))
        self._topology.declare(channel, self._turn[0], self._done, with_quarantine=self._has_quarantine)

    def _check_answered(self, asked: int) -> None:
        if self._is_busy and self._asked == asked:
            self._link.recycle(f"no answer to the declaration of {self._turn[0]}")

    def _done(self, _answer: Any) -> None:
        self.declared.add(self._turn[0])
        self._finish(None)

    def _closed(self, _channel: Channel, reason: Exception) -> None:
        self._channel = None
        if not isinstance(reason, ChannelClosedByBroker):
            return  # the whole connection is ending
        away = self._topology.away(reason.reply_code, reason.reply_text)
        if self._turn and reason.reply_code in (ACCESS_REFUSED, *_REFUSED):
            self._finish(self._topology.refusal(reason.reply_code, reason.reply_text))
        elif self._turn and away is not None:
            self._do_without(away, reason.reply_text)
        else:
            self._link.recycle(f"declaring: {reason.reply_code} {reason.reply_text}")

    def _do_without(self, queue: str, reply_text: str) -> None:
        """This queue is on a node that is away."""
        thing = self._turn[0]
        if queue != self._topology.quarantine:
            error = BrokerUnavailable(
                f"broker: queue {queue} is on a node of RabbitMQ that is away (RabbitMQ: {reply_text}). Start that node"
            )
            self._away[thing] = error
            self._link.later(AWAY_S, lambda: self._away.clear())
            self._finish(error)
            return
        self._has_quarantine = False
        self._is_busy = False
        if thing == QUARANTINE:
            self._turn.popleft()
            self._link.later(AWAY_S, lambda: self._ask_again(thing))
        self._go_on()

    def _ask_again(self, thing: str) -> None:
        self._turn.append(thing)
        self._go_on()

    def _finish(self, error: ConfigError | BrokerUnavailable | None) -> None:
        self._is_busy = False
        for then in self._waiting.pop(self._turn.popleft()):
            then(error)
        self._go_on()
