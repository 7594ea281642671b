"""A broker in memory that behaves like RabbitMQ, and loses what RabbitMQ can lose when somebody does the damage.

Queues are first in, first out; what a closed connection gives back goes in front, in its old order; a consumer is sent
up to `prefetch` messages ahead. Delays are a ladder beside the queues. An operator can purge, delete a queue, empty the
data folder, or start it again from an older copy of that. A delayed message that carries a dead-lettering header of an
earlier pass is dropped in silence, as before RabbitMQ 4.0.1.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from workq.broker import QUARANTINE_BODY_MAX, Browsed, Delivery, Depth, Hint, See
from workq.broker.fair_turns import Rotation
from workq.broker.rabbitmq.delays import delays_of, waits_ms
from workq.config import BINARY
from workq.values.codec import Envelope, decode_hint, encode_hint
from workq.values.hint import HintRow

HORIZON_S = 409.5

Befall = Callable[[str], BaseException | None]


@dataclass(eq=False, slots=True)
class Message:
    """One message. `passes` counts how often it was dead-lettered out of a delay (x-death)."""

    serial: int
    queue: str
    body: bytes
    ids: tuple[str, ...]
    is_redelivered: bool = False
    returns: int = 0
    passes: int = 0
    deliveries: int = 0

    def copy(self) -> Message:
        """The same, as a backup has it."""
        return Message(self.serial, self.queue, self.body, self.ids, self.is_redelivered, self.returns, self.passes)


@dataclass(frozen=True, slots=True)
class Tag:
    """Which delivery of which message."""

    message: Message
    number: int

    @property
    def body(self) -> bytes:
        """What is in it."""
        return self.message.body


@dataclass(frozen=True)
class Kept:
    """One message in the quarantine."""

    reason: str
    queue: str
    body: bytes
    sha256: str


@dataclass
class Backup:
    """A copy of the data folder."""

    queues: dict[str, list[Message]]
    delayed: list[tuple[float, int, Message]]


@dataclass(eq=False)
class Subscription:
    """What the server knows of a consumer: what it was sent and has not acked, by queue."""

    name: str
    queues: list[str]
    prefetch: int
    is_open: bool = True
    is_paused: bool = False
    unserved: frozenset[str] = frozenset()
    """Of its queues: it wants nothing from them for now."""
    sent: dict[int, Message] = field(default_factory=dict)
    arrived: deque[Message] = field(default_factory=deque)
    """Of those: not fetched yet."""
    on_arrival: Callable[[], None] = lambda: None

    def has_room(self, queue: str) -> bool:
        """Whether it may be sent one more of a queue."""
        if not self.is_open or self.is_paused or queue not in self.queues or queue in self.unserved:
            return False
        return sum(message.queue == queue for message in self.sent.values()) < self.prefetch


class Server:
    """The broker that all clients share."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.queues: dict[str, deque[Message]] = {}
        self.delayed: list[tuple[float, int, Message]] = []
        self.quarantine: list[Kept] = []
        self.subscriptions: list[Subscription] = []
        self.on_delay: Callable[[float], None] = lambda _: None
        """A message will be due at that moment."""
        self.on_lost: Callable[[Iterable[str]], None] = lambda _: None
        """Ids of messages that an operator has destroyed."""
        self._serials = itertools.count()

    # -- messages

    def put(self, queue: str, body: bytes, *, delay_s: float = 0.0, returns: int = 0, passes: int = 0) -> None:
        """Accept a message."""
        envelope = decode_hint(body)
        ids = envelope.task_ids if isinstance(envelope, Envelope) else ()
        message = Message(next(self._serials), queue, body, ids, returns=returns, passes=passes)
        if delay_s > 0.0:
            due_at = self.now() + delay_s
            heapq.heappush(self.delayed, (due_at, message.serial, message))
            self.on_delay(due_at)
        else:
            self.append(message)
            self.dispatch()

    def append(self, message: Message) -> None:
        """It waits behind all others of its queue."""
        self.queues.setdefault(message.queue, deque()).append(message)

    def undelay(self) -> None:
        """Move what is due out of the ladder."""
        while self.delayed and self.delayed[0][0] <= self.now():
            message = heapq.heappop(self.delayed)[2]
            if message.passes == 0:  # else the server takes it for a loop, and drops it
                message.passes = 1
                self.append(message)

    def dispatch(self) -> None:
        """Move what is due out of the ladder, and send consumers what they have room for, in turns."""
        self.undelay()
        for queue, waiting in self.queues.items():
            while waiting:
                taker = next((one for one in self.subscriptions if one.has_room(queue)), None)
                if taker is None:
                    break
                message = waiting.popleft()
                message.deliveries += 1
                taker.sent[message.serial] = message
                taker.arrived.append(message)
                self.subscriptions.remove(taker)
                self.subscriptions.append(taker)
                taker.on_arrival()

    def give_back(self, subscription: Subscription, messages: Iterable[Message]) -> None:
        """Deliver again, in front and in the old order."""
        for message in sorted(messages, key=lambda one: -one.serial):
            subscription.sent.pop(message.serial, None)
            message.is_redelivered = True
            self.queues.setdefault(message.queue, deque()).appendleft(message)
        subscription.arrived = deque(one for one in subscription.arrived if one.serial in subscription.sent)

    def cut(self, subscription: Subscription) -> None:
        """Its connection broke: what it has not acked is delivered again; it connects again by itself."""
        self.give_back(subscription, list(subscription.sent.values()))
        self.dispatch()

    def acked(self, message: Message) -> None:
        """A consumer is finished with it, and has let go of it."""

    def looks(self, subscription: Subscription) -> None:
        """A consumer asks what is there for it."""

    def dies(self, subscription: Subscription) -> None:
        """Its process is dead, and its connection is closed."""
        self.end(subscription)

    def end(self, subscription: Subscription) -> None:
        """It is gone."""
        subscription.is_open = False
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
        self.cut(subscription)

    def ids(self) -> list[str]:
        """Every task id in any message, waiting, delayed or sent."""
        return [task_id for message in self.messages() for task_id in message.ids]

    def messages(self) -> Iterable[Message]:
        """All of them."""
        for waiting in self.queues.values():
            yield from waiting
        for _, _, message in self.delayed:
            yield message
        for one in self.subscriptions:
            yield from one.sent.values()

    def shown(self, queue: str) -> list[Message]:
        """What is in a queue, delivered or waiting."""
        sent = [message for one in self.subscriptions for message in one.sent.values()]
        return [*(one for one in sent if one.queue == queue), *self.queues.get(queue, ())]

    def remove(self, message: Message) -> None:
        """Take out what waits."""
        if message in (waiting := self.queues.get(message.queue, deque())):
            waiting.remove(message)

    def depth(self, queue: str) -> Depth:
        """What is in a queue, and who takes from it."""
        takers = [one for one in self.subscriptions if queue in one.queues]
        unacked = sum(message.queue == queue for one in takers for message in one.sent.values())
        active = sum(not one.is_paused and queue not in one.unserved for one in takers)
        return Depth(len(self.queues.get(queue, ())), unacked, active)

    # -- an operator

    def purge(self, queue: str) -> int:
        """What waits is gone; what was delivered is not."""
        waiting = self.queues.get(queue, deque())
        self.on_lost([task_id for message in waiting for task_id in message.ids])
        count = len(waiting)
        waiting.clear()
        return count

    def purge_ladder(self) -> int:
        """Every delayed message is gone."""
        self.on_lost([task_id for _, _, message in self.delayed for task_id in message.ids])
        count = len(self.delayed)
        self.delayed.clear()
        return count

    def delete_queue(self, queue: str) -> int:
        """The queue and its messages are gone, delivered ones too. Whoever needs it declares it again."""
        count = self.purge(queue)
        for one in self.subscriptions:
            gone = [message for message in one.sent.values() if message.queue == queue]
            count += len(gone)
            self.on_lost([task_id for message in gone for task_id in message.ids])
            for message in gone:
                del one.sent[message.serial]
            one.arrived = deque(message for message in one.arrived if message.queue != queue)
        self.queues.pop(queue, None)
        return count

    def wipe(self) -> int:
        """An empty data folder."""
        count = self.purge_ladder()
        for one in self.subscriptions:
            self.give_back(one, list(one.sent.values()))
        for queue in list(self.queues):
            count += self.purge(queue)
        return count

    def copy(self) -> Backup:
        """A copy of the data folder: what was delivered and not acked waits in it."""
        queues: dict[str, list[Message]] = {
            name: [one.copy() for one in waiting] for name, waiting in self.queues.items()
        }
        for one in self.subscriptions:
            for message in one.sent.values():
                queues.setdefault(message.queue, []).append(message.copy())
        for waiting in queues.values():
            waiting.sort(key=lambda message: message.serial)
        return Backup(queues, [(due_at, serial, message.copy()) for due_at, serial, message in self.delayed])

    def roll_back(self, backup: Backup) -> None:
        """It was started from an older copy: newer messages are gone, older ones come again."""
        self.wipe()
        for name, waiting in backup.queues.items():
            self.queues[name] = deque(message.copy() for message in waiting)
        self.delayed = [(due_at, serial, message.copy()) for due_at, serial, message in backup.delayed]
        heapq.heapify(self.delayed)
        for due_at, _, _ in self.delayed:
            self.on_delay(due_at)
        self.dispatch()

    def repeat(self, message: Message) -> None:
        """Deliver something twice."""
        again = message.copy()
        again.serial, again.passes = next(self._serials), 0
        self.append(again)
        self.dispatch()


class SimBroker:
    """The port, for one client. `befall` as in inflight.py."""

    is_transactional = False
    rows_from_s = math.inf
    is_listable = True
    has_owners = False
    tells_position = False

    def __init__(self, server: Server, befall: Befall = lambda _: None, *, ladder: str = BINARY) -> None:
        self._delays = delays_of(ladder)
        self.horizon_s = min(self._delays.horizon_s, HORIZON_S)
        self.unit_s = self._delays.unit_s
        self.is_late = self._delays.is_late
        self._server = server
        self._befall = befall
        self._consumers: list[SimConsumer] = []
        self.on_confirmed: Callable[[Sequence[Hint]], None] = lambda _: None
        self.on_accepted: Callable[[Hint], None] = lambda _: None
        self.inherited: Callable[[Hint], int] = lambda _: 0
        """Dead-lettering headers that a client copies into what it publishes: none. A mutant does."""

    def publish(self, hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        if not hints:
            return []
        if any(not 0 <= one.delay_s <= self.horizon_s for one in hints):
            raise ValueError("a hint can wait between 0 s and the horizon")
        try:
            after = self._befall("publish")
        except ConnectionError:
            return [False] * len(hints)
        for hint in hints:
            self.on_accepted(hint)
            _, _, wait_ms = self._delays.way("sim", hint.queue, hint.delay_s)
            body = encode_hint(Envelope(hint.queue, hint.task_ids, hint.looks, hint.marker, waits_ms(hint, wait_ms)))
            delay_s = round(self.waits_s(hint.delay_s) - wait_ms / 1000, 3)
            self._server.put(hint.queue, body, delay_s=delay_s, passes=self.inherited(hint))
        if isinstance(after, ConnectionError):
            return [False] * len(hints)
        if after is not None:
            raise after
        self.on_confirmed(hints)
        return [True] * len(hints)

    def waits_s(self, delay_s: float) -> float:
        return self._delays.waits_s(delay_s)

    def rows(self, hints: Sequence[Hint]) -> list[HintRow]:
        raise NotImplementedError

    def wake(self) -> None:
        """Nothing to do: it delivers by itself."""

    def consumer(self, queues: Sequence[str], *, name: str, prefetch: int) -> SimConsumer:
        consumer = SimConsumer(self._server, self._befall, queues, name=name, prefetch=prefetch)
        self._consumers.append(consumer)
        return consumer

    def forget_consumer(self, name: str) -> None:
        """Nothing to do: the server sees the connection end."""

    def depths(self, queues: Sequence[str], *, with_consumers: bool = False) -> Mapping[str, Depth]:
        after = self._befall("depths")
        if after is not None:
            raise after
        self._server.dispatch()
        return {queue: self._server.depth(queue) for queue in dict.fromkeys(queues)}

    def position(self, queue: str) -> str | None:
        return None

    def has_passed(self, queue: str, position: str) -> bool:
        return False

    def browse(self, queue: str, see: See, *, deadline_s: float) -> Browsed:
        after = self._befall("browse")
        if after is not None:
            raise after
        self._server.dispatch()
        if deadline_s <= 0.0:
            return Browsed(0, 0, False)
        hints = foreign = 0
        for message in self._server.shown(queue):
            envelope = decode_hint(message.body)
            if isinstance(envelope, str):
                foreign += 1
                continue
            hints += 1
            stays = see(Hint(queue, envelope.task_ids, looks=envelope.looks, marker=envelope.marker))
            if not stays:
                self._server.remove(message)
        return Browsed(hints, foreign, True)

    def check(self) -> str:
        return "RabbitMQ 3.10 (simulated)"

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()


class SimConsumer:
    """The port's consumer."""

    def __init__(self, server: Server, befall: Befall, queues: Sequence[str], *, name: str, prefetch: int) -> None:
        self.trouble: str | None = None
        self.is_woken = False
        self._server = server
        self._befall = befall
        self.subscription = Subscription(name, list(dict.fromkeys(queues)), prefetch)
        self._turns = Rotation()
        self._met: set[str] = set()
        server.subscriptions.append(self.subscription)
        server.dispatch()

    def fetch(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        try:
            after = self._befall("fetch")
        except ConnectionError as error:
            self._server.cut(self.subscription)
            self.trouble = str(error)
            return []
        self.trouble = None
        if not self.subscription.is_open:
            return []
        if after is not None and not isinstance(after, ConnectionError):
            raise after  # crash
        self._server.looks(self.subscription)
        self._server.dispatch()
        found: list[Delivery] = []
        size = 0
        arrived = self.subscription.arrived
        if not self._met.issuperset(message.queue for message in arrived):
            self._met.update(message.queue for message in arrived)
            self._turns.serve(sorted(self._met))
        while (chosen := self._turns.next(lambda name: any(one.queue == name for one in arrived))) is not None:
            line, name = chosen
            message = next(one for one in arrived if one.queue == name)
            if found and size + len(message.ids) > ids_max:
                break
            arrived.remove(message)
            line.took(name, min(len(message.ids), ids_max))
            self._turns.turn(line)
            size += max(1, len(message.ids))
            found.append(_delivery(message))
        return found

    def wake(self) -> None:
        self.is_woken = True
        self.subscription.on_arrival()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        try:
            after = self._befall("ack")
        except ConnectionError:
            self._server.cut(self.subscription)
            return  # it comes again
        for delivery in deliveries:
            self._drop(delivery)
        self._server.dispatch()
        if isinstance(after, ConnectionError):
            self._server.cut(self.subscription)
        elif after is not None:
            raise after

    def quarantine(self, delivery: Delivery, *, reason: str) -> None:
        body = delivery.tag.body
        if self._drop(delivery):
            kept = Kept(reason, delivery.queue, body[:QUARANTINE_BODY_MAX], hashlib.sha256(body).hexdigest())
            self._server.quarantine.append(kept)

    def put_back(self, delivery: Delivery, *, delay_s: float) -> None:
        if self._drop(delivery):
            self._server.put(delivery.queue, delivery.tag.body, delay_s=delay_s, returns=delivery.returns + 1)

    def renew(self) -> None:
        """Nothing to do here: a subscription of the simulation gives what there is."""

    def set_prefetch(self, count: int) -> None:
        if count > self.subscription.prefetch:
            self.subscription.prefetch = count
            self._server.dispatch()
        self.subscription.prefetch = count

    def serve(self, queues: Collection[str]) -> None:
        self.subscription.queues = list(dict.fromkeys([*self.subscription.queues, *queues]))
        self.subscription.unserved = frozenset(self.subscription.queues) - frozenset(queues)
        self._server.dispatch()

    def pause(self) -> None:
        self.subscription.is_paused = True

    def resume(self) -> None:
        if self.subscription.is_paused:
            self.subscription.is_paused = False
            self._server.dispatch()

    def close(self) -> None:
        if self.subscription.is_open:
            self._server.end(self.subscription)

    def die(self) -> None:
        """Its process is dead."""
        if self.subscription.is_open:
            self._server.dies(self.subscription)

    def _drop(self, delivery: Delivery) -> bool:
        tag: Tag = delivery.tag
        message = tag.message
        # after a cut the same message may have been sent here again: that is another delivery
        if self.subscription.sent.get(message.serial) is message and message.deliveries == tag.number:
            del self.subscription.sent[message.serial]
            self._server.acked(message)
            return True
        return False


def _delivery(message: Message) -> Delivery:
    envelope = decode_hint(message.body)
    tag = Tag(message, message.deliveries)
    if isinstance(envelope, str):
        return Delivery(tag, message.queue, (), 0, message.is_redelivered, envelope, message.returns)
    return Delivery(
        tag,
        message.queue,
        envelope.task_ids,
        envelope.looks,
        message.is_redelivered,
        None,
        message.returns,
        envelope.marker,
        tuple(one / 1000 for one in envelope.waits_ms),
    )
