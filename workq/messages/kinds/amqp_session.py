"""One connection to RabbitMQ with one channel in confirm mode, served only by whoever waits for something on it.

What comes is told to `on_confirm` and `on_return`; how it ended is `error`, and how its channel did `channel_error`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import pika
from pika import exceptions
from pika.adapters.select_connection import SelectConnection

from workq.messages.kinds.reach import left
from workq.outbound.amqp_loop import WatchedLoop
from workq.outbound.amqp_tables import read_any_table

CLOSE_S: Final = 0.5


class SendingSession:
    """One connection with one channel, served by whoever calls `run`."""

    def __init__(self, parameters: pika.ConnectionParameters) -> None:
        self.error: BaseException | None = None
        self.is_over = False
        self.channel: Any = None
        self.channel_error: exceptions.ChannelClosedByBroker | None = None
        self.is_blocked = False
        self.used_at = time.monotonic()
        self.tag = 0
        """Of the message that was published last on this channel."""
        self.on_confirm: Callable[[int, bool, bool], None] = lambda *_: None
        self.on_return: Callable[[str], None] = lambda *_: None
        self._is_done: Callable[[], bool] = lambda: False
        self._loop = WatchedLoop()
        read_any_table()
        self._connection = SelectConnection(
            parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._ended,
            on_close_callback=self._ended,
            custom_ioloop=self._loop,
        )

    def run(self, is_done: Callable[[], bool], *, ends: float, is_once: bool = False) -> bool:
        """Serve the connection until something holds, or it is over, or until an instant; whether that holds."""
        self._is_done = is_done
        while not is_done() and not self.is_over and time.monotonic() < ends:
            timer = self._loop.call_later(left(ends), self._loop.stop)
            try:
                self._loop.start()
            except Exception as error:  # of a callback: pika leaves the connection in an unknown state
                self.error = self.error or error
                self.is_over = True
            finally:
                self._loop.remove_timeout(timer)
            if is_once:
                break
        self._is_done = lambda: False
        return is_done()

    def glance(self) -> None:
        """Take notice of what has come since the last call: an end, most of all."""
        if not self.is_over:
            self._loop.add_callback(self._loop.stop)
            self.run(lambda: False, ends=time.monotonic() + CLOSE_S, is_once=True)

    def open_channel(self) -> None:
        """Open the channel anew; it is there when `channel` is."""
        self.channel = self.channel_error = None
        self.tag = 0
        self._connection.channel(on_open_callback=self._channel_opened)

    def declare(self, what: str, name: str) -> list[str]:
        """Ask whether an exchange or a queue is there; the list is filled with its name when it is."""
        found: list[str] = []

        def on_there(_: Any) -> None:
            found.append(name)
            self._look()

        if what == "exchange":
            self.channel.exchange_declare(name, passive=True, callback=on_there)
        else:
            self.channel.queue_declare(name, passive=True, callback=on_there)
        return found

    def close(self) -> None:
        """Politely, within half a second, or from below. Repeatable."""
        if not self.is_over:
            with contextlib.suppress(exceptions.AMQPError):
                self._connection.close()
            if not self.run(lambda: self.is_over, ends=time.monotonic() + CLOSE_S):
                self._loop.shut_down_sockets()
                self.run(lambda: self.is_over, ends=time.monotonic() + CLOSE_S / 2)
        self.is_over = True
        with contextlib.suppress(AssertionError):
            self._loop.close()

    def _look(self) -> None:
        if self._is_done() or self.is_over:
            self._loop.stop()

    def _opened(self, connection: SelectConnection) -> None:
        connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))
        self.open_channel()

    def _set_blocked(self, is_blocked: bool) -> None:
        self.is_blocked = is_blocked

    def _ended(self, _: Any, error: BaseException) -> None:
        self.error = self.error or error
        self.is_over = True
        self._loop.stop()

    def _channel_opened(self, channel: Any) -> None:
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(
            lambda _channel, _method, properties, _body: self.on_return(properties.message_id)
        )
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._ready(channel))

    def _ready(self, channel: Any) -> None:
        self.channel = channel
        self._look()

    def _channel_closed(self, _: Any, reason: Exception) -> None:
        self.channel = None
        if isinstance(reason, exceptions.ChannelClosedByBroker):
            self.channel_error = reason
        self._look()

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        self.on_confirm(method.delivery_tag, method.multiple, method.NAME.endswith("Ack"))
        self._look()
