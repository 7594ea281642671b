"""What is in a queue of RabbitMQ, which can only be told by taking it out: one turn of the whole queue.

Each message is delivered, published again at the end of the queue as it is, and acked only after the broker has
confirmed the copy. So nothing is lost by a crash at any moment; at most some messages are there twice. With nobody else
at the queue, exactly as many messages are taken as it held, so that their order afterwards is the order before. With
workers at it, the turn ends when its own first copy comes round.

One turn of a queue at a time: two would each see a part, and take it for the whole. A queue of the namespace that is
exclusive to the connection is the lock, which ends with the connection however that ends; who finds it locked waits.

Why not simply get everything and give it back: on a quorum queue that counts as a delivery, and after twenty audits
(`x-delivery-limit`) every waiting hint would be in the quarantine. A copy is a new message, with nothing counted.

A copy has fresh properties (a forwarded `x-death` makes RabbitMQ drop a message in silence); what it takes along is the
body, whatever it is, and `workq-returns`; `workq-turn` says which turn made it.

The consumer is cancelled only when no delivery can be on its way: when the window is full, or nothing has come for a
moment. What arrives behind a cancellation is rejected by the client, one by one; each counts as a delivery, and more
than 32 commands that the quorum queue has not applied yet make RabbitMQ (3.10) keep back what follows: the last ack,
which was lost with the channel. Seen as messages that were there twice after a turn without any fault.

What happens on each failure:

- the connection breaks, or this process dies: what was taken and not acked comes back to the head of the queue, beside
  copies of some of it;
- the queue is deleted meanwhile: BrokerUnavailable; what it held is lost, and the ledger has it;
- the broker takes nothing more (an alarm): the time is up, BrokerUnavailable, and everything is as after a break;
- the time is up, also while another turn has the lock: the turn stops where it is, and everything is in the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pika import BasicProperties, DeliveryMode, SelectConnection
from pika.channel import Channel
from pika.exceptions import AMQPError, ChannelClosedByBroker
from pika.spec import Basic

from workq.broker import Browsed, Hint, See
from workq.broker.rabbitmq.consumer import RETURNS_HEADER
from workq.values.codec import decode_hint, new_task_id

WINDOW: Final = 200
"""How many messages are out of the queue at once, at most."""
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
ACKED_AT_ONCE: Final = WINDOW // 4
IDLE_S: Final = 0.2
"""When nothing was delivered for so long, ask whether the queue is empty; and how often a lock is tried."""
TURN_HEADER: Final = "workq-turn"
"""Which turn made this copy."""

Answer = Callable[[Browsed | Exception], None]


class Turn:
    """One turn of one queue, on one connection. Everything runs on the connection's thread."""

    def __init__(self, queue: str, name: str, lock: str, see: See, *, deadline_s: float) -> None:
        """`queue` as hints call it, `name` as RabbitMQ does; `lock` is the name of the queue that locks it."""
        self.raised: Exception | None = None
        """What `see` raised, if it did."""
        self._queue = queue
        self._name = name
        self._lock = lock
        self._see = see
        self._deadline_s = deadline_s
        self._id = new_task_id()
        self._hints = self._foreign = 0
        self._there = self._taken = 0
        """How many messages the queue held at the beginning, and how many were delivered since."""
        self._window = 0
        self._unconfirmed: dict[int, int] = {}
        """By the number of its copy: the number of the delivery."""
        self._published = 0
        self._unacked: dict[int, bool] = {}
        """By the number of the delivery, in order: whether its copy is confirmed, or it shall not stay."""
        self._acked = 0
        self._tag = ""
        self._is_whole = True
        self._is_begun = self._is_stopping = self._is_cancelling = self._is_cancelled = self._is_over = False
        self._taken_before = -1

    def talk(self, connection: SelectConnection, answer: Answer) -> None:
        """For `converse`."""
        self._answer = answer
        self._connection = connection
        self._later: Callable[[float, Callable[[], None]], Any] = connection.ioloop.call_later
        self._later(self._deadline_s, self._give_up)
        self._try_lock()

    def _try_lock(self) -> None:
        if not self._is_over:
            self._connection.channel(on_open_callback=self._opened)

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._closed)
        channel.queue_declare(self._lock, exclusive=True, auto_delete=True, callback=self._locked)

    def _locked(self, _frame: Any) -> None:
        channel = self._channel
        channel.add_on_return_callback(self._returned)
        channel.add_on_cancel_callback(lambda _frame: self._fail(AMQPError(f"the queue {self._name} was deleted")))
        channel.confirm_delivery(self._on_confirm, callback=lambda _ok: self._ask_depth(self._begin))

    def _closed(self, _channel: Channel, reason: Exception) -> None:
        if isinstance(reason, ChannelClosedByBroker):
            if reason.reply_code == RESOURCE_LOCKED:
                self._later(IDLE_S, self._try_lock)
            elif reason.reply_code == NOT_FOUND and not self._taken:
                self._end()  # there is no such queue, and nothing in it
            else:
                self._fail(reason)

    def _ask_depth(self, then: Callable[[int], None]) -> None:
        self._channel.queue_declare(
            self._name, passive=True, callback=lambda frame: then(int(frame.method.message_count))
        )

    def _begin(self, there: int) -> None:
        if self._is_over:
            return
        self._is_begun = True
        self._there = there
        if not there:
            self._end()
            return
        self._window = min(WINDOW, there)
        self._channel.basic_qos(prefetch_count=self._window)
        self._tag = self._channel.basic_consume(self._name, self._on_delivery)
        self._later(IDLE_S, self._check_idle)

    def _on_delivery(self, channel: Channel, method: Any, properties: BasicProperties, body: bytes) -> None:
        self._taken += 1
        delivery: int = method.delivery_tag
        stays = True
        if not self._is_stopping:
            if (properties.headers or {}).get(TURN_HEADER) == self._id:
                self._stop()  # it has come round
            else:
                stays = self._show(body)
        self._unacked[delivery] = not stays
        if stays:
            self._published += 1
            self._unconfirmed[self._published] = delivery
            channel.basic_publish("", self._name, body, self._copied(properties), mandatory=True)
        else:
            self._ack()
        if self._taken >= self._there or self._is_stopping:
            self._stop()

    def _show(self, body: bytes) -> bool:
        found = decode_hint(body)
        if isinstance(found, str):
            self._foreign += 1
            return True
        self._hints += 1
        try:
            return self._see(Hint(self._queue, found.task_ids, 0.0, found.looks, found.marker))
        except Exception as error:  # the caller's: what is in hand is brought back first
            self.raised = error
            self._stop()
            return True

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if not isinstance(method, Basic.Ack):
            self._fail(AMQPError(f"the broker refused a copy in {self._name}"))
            return
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._unconfirmed if tag <= method.delivery_tag]
        for tag in tags:
            delivery = self._unconfirmed.pop(tag, None)
            if delivery is not None and delivery in self._unacked:
                self._unacked[delivery] = True
        self._ack()

    def _ack(self) -> None:
        """Ack from the first on, what is confirmed; until the end the last window is kept back.

        The broker delivers no more than a window beyond what was acked: so it never delivers more than the queue held.
        """
        if self._is_cancelled:
            if all(self._unacked.values()):
                self._ack_up_to(next(reversed(self._unacked), 0))
                self._end()
            return
        if self._is_stopping:
            return  # or more would be delivered
        left = self._there - self._window - self._acked  # so many more may be acked before the end
        last = count = 0
        for delivery, is_confirmed in self._unacked.items():
            if not is_confirmed or count == left:
                break
            last = delivery
            count += 1
        if count >= ACKED_AT_ONCE or count in (left, len(self._unacked)):
            self._ack_up_to(last)

    def _ack_up_to(self, last: int) -> None:
        if not last:
            return
        self._channel.basic_ack(last, multiple=True)
        for delivery in [one for one in self._unacked if one <= last]:
            del self._unacked[delivery]
            self._acked += 1

    def _stop(self) -> None:
        """Show no more, and take no more than what is on its way."""
        self._is_stopping = True
        if len(self._unacked) >= self._window:
            self._cancel()

    def _cancel(self) -> None:
        if not self._is_cancelling and not self._is_over:
            self._is_cancelling = True
            self._channel.basic_cancel(self._tag, callback=self._cancelled)

    def _cancelled(self, _frame: Any) -> None:
        self._is_cancelled = True
        self._ack()

    def _check_idle(self) -> None:
        """Others may have taken what was there: then it never comes round, and the window never fills."""
        if self._is_cancelling or self._is_over:
            return
        if self._taken == self._taken_before:
            if self._is_stopping:
                self._cancel()
            elif not self._unconfirmed:
                self._ask_depth(lambda there: None if there else self._stop())
        self._taken_before = self._taken
        self._later(IDLE_S, self._check_idle)

    def _give_up(self) -> None:
        if self._is_stopping:
            return
        self._is_whole = False
        if self._is_begun:
            self._stop()
        else:
            self._end()

    def _returned(self, _channel: Channel, _method: Any, _properties: BasicProperties, _body: bytes) -> None:
        self._fail(AMQPError(f"the queue {self._name} was deleted"))

    def _fail(self, error: Exception) -> None:
        if not self._is_over:
            self._is_over = True
            self._answer(error)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._answer(Browsed(self._hints, self._foreign, self._is_whole))

    def _copied(self, properties: BasicProperties) -> BasicProperties:
        """Fresh properties of ours. Nothing inbound is forwarded but a count of our own."""
        returns = (properties.headers or {}).get(RETURNS_HEADER)
        headers: dict[str, Any] = {TURN_HEADER: self._id}
        if isinstance(returns, int) and not isinstance(returns, bool):
            headers[RETURNS_HEADER] = returns
        return BasicProperties(
            app_id="workq",
            type="hint",
            content_type="application/json",
            delivery_mode=DeliveryMode.Persistent,
            headers=headers,
        )
