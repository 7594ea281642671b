"""Mailboxes: where the demo's messages arrive. Each keeps what came, with the moment, and none asks the queue.

    amqp   a queue of a private RabbitMQ, read by the demo as messages come: the moment is that of the reading
    kafka  a topic of a private Kafka, read at the end: the moment is the broker's own
    http   a path of the demo's listener; it can withhold its answers, and be away
    call   a file, which the function in the worker's processes appends to

A kind for which something is not installed is left out, and why is said, unless it was asked for by name.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from workq.demo.messages.plan import KINDS
from workq.demo.messages.proof import Arrival
from workq.demo.messages.taking import FILE, HANDLER
from workq.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from aiohttp import web

    from workq.demo.listener import Listener
    from workq.lab.servers import Kafka

NAME: Final = "workq-demo"
"""Of the queue, of the topic, and of the path."""
_PARTITIONS: Final = 3
_END: Final = "end"
_READ_S: Final = 60.0
"""Nothing that is read at the end may take longer."""


class Mailbox(Protocol):
    """Where messages of one destination arrive."""

    @property
    def about(self) -> str:
        """What it is, for a person."""
        ...

    @property
    def options(self) -> dict[str, Any]:
        """Those of `Destinations.add`."""
        ...

    def arrivals(self) -> list[Arrival]:
        """All that came. Once, when nothing comes any more."""
        ...


@dataclass(slots=True)
class HttpBox:
    """A path of the demo's listener. Its state is changed by one thread, and read by that of the listener."""

    listener: Listener = field(init=False)
    refused: int = 0
    """Requests that were answered with 503."""
    is_away: bool = False
    is_holding: bool = False
    """What comes is kept, and not answered yet."""
    _came: list[Arrival] = field(default_factory=list)

    @property
    def about(self) -> str:
        return "a receiver of HTTP of its own"

    @property
    def options(self) -> dict[str, Any]:
        return {"url": self.listener.url(NAME)}

    def arrivals(self) -> list[Arrival]:
        return list(self._came)

    async def take(self, _name: str, request: web.Request) -> web.Response:
        """One request."""
        from aiohttp import web

        at, body = time.time(), await request.text()
        if self.is_away:
            self.refused += 1
            return web.Response(status=503)
        self._came.append(Arrival(request.headers.get("workq-id", ""), body, at))
        while self.is_holding:
            await asyncio.sleep(0.02)
        return web.Response(status=204)


@dataclass(frozen=True, slots=True)
class CallBox:
    """What the function wrote."""

    folder: Path

    @property
    def about(self) -> str:
        return "a Python function, in the worker's processes"

    @property
    def options(self) -> dict[str, Any]:
        return {"handler": HANDLER}

    def arrivals(self) -> list[Arrival]:
        file = self.folder / FILE
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        parts = (line.split(" ", 2) for line in lines)
        return [Arrival(message_id, body, float(at)) for at, message_id, body in parts]


class AmqpBox:
    """A durable queue, and a thread that reads it, until a message tells it that nothing comes behind."""

    def __init__(self, url: str, about: str) -> None:
        self.about = about
        self._url = url
        self._came: list[Arrival] = []
        self._reader = threading.Thread(target=self._read, name="workq-demo-reader", daemon=True)
        with self._channel() as channel:
            channel.queue_declare(NAME, durable=True)
        self._reader.start()

    @property
    def options(self) -> dict[str, Any]:
        return {"url": self._url, "exchange": "", "routing_key": NAME}

    def arrivals(self) -> list[Arrival]:
        self.close()
        return list(self._came)

    def close(self) -> None:
        """End the thread. Repeatable."""
        from pika.exceptions import AMQPError

        if self._reader.is_alive():
            with suppress(AMQPError, OSError):  # a RabbitMQ that is gone: what has not been read is missing
                with self._channel() as channel:
                    channel.basic_publish("", NAME, _END.encode())
                self._reader.join(_READ_S)

    def _read(self) -> None:
        from pika.exceptions import AMQPError

        with suppress(AMQPError, OSError), self._channel() as channel:
            channel.basic_consume(NAME, self._take, auto_ack=True)
            channel.start_consuming()

    def _take(self, channel: Any, _method: Any, properties: Any, body: bytes) -> None:
        if body == _END.encode():
            channel.stop_consuming()
        else:
            headers = properties.headers or {}
            self._came.append(Arrival(str(headers.get("workq-id", "")), body.decode(), time.time()))

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        import pika

        scheme, _, rest = self._url.partition("://")
        login, at, place = rest.rpartition("@")
        hosts, slash, path = place.partition("/")  # of a cluster there are several
        each = [pika.URLParameters(f"{scheme}://{login}{at}{host}{slash}{path}") for host in hosts.split(",")]
        connection = pika.BlockingConnection(each)
        try:
            yield connection.channel()
        finally:
            connection.close()


class KafkaBox:
    """A topic whose records have the moment at which the broker got them."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.about = f"a topic of a private {kafka.name} {kafka.version}"
        kafka.create_topic(NAME, partitions=_PARTITIONS, settings={"message.timestamp.type": "LogAppendTime"})

    @property
    def options(self) -> dict[str, Any]:
        return {"url": self._kafka.url, "topic": NAME}

    def arrivals(self) -> list[Arrival]:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        reader = Consumer({**self._kafka.admin_conf, "group.id": NAME, "enable.auto.commit": False})
        found: list[Arrival] = []
        with closing(reader), suppress(KafkaException):  # a Kafka that is gone: what has not been read is missing
            places = [TopicPartition(NAME, number, 0) for number in range(_PARTITIONS)]
            count = sum(reader.get_watermark_offsets(one, timeout=_READ_S)[1] for one in places)
            reader.assign(places)
            ends = time.monotonic() + _READ_S
            while len(found) < count and time.monotonic() < ends:
                for record in reader.consume(1000, timeout=1.0):
                    if record.error() is None:
                        found.append(_arrival_in(record))
        return found


def _arrival_in(record: Any) -> Arrival:
    headers = dict(record.headers() or [])
    return Arrival(headers.get("workq-id", b"").decode(), (record.value() or b"").decode(), record.timestamp()[1] / 1e3)


# -- which of them there are


@contextmanager
def open_mailboxes(
    asked: tuple[str, ...], folder: Path, *, broker_url: str | None
) -> Iterator[tuple[dict[str, Mailbox], dict[str, str]]]:
    """The mailboxes by their kinds, and why others are left out.

    Args:
        asked: the kinds that have to be there; none: those that can be had.
        folder: where the function writes.
        broker_url: a RabbitMQ that is there already.

    Raises:
        ConfigError, MissingExtra: what was asked for cannot be had.
    """
    from workq.lab.servers import ServerFailed, ServerMissing

    openers: dict[str, Callable[[ExitStack], Mailbox]] = {
        "amqp": lambda stack: _amqp(stack, broker_url),
        "kafka": _kafka,
        "http": _http,
        "call": lambda _stack: CallBox(folder),
    }
    boxes: dict[str, Mailbox] = {}
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        for kind in asked or KINDS:
            try:
                boxes[kind] = openers[kind](stack)
            except (MissingExtra, ServerMissing) as error:
                if kind in asked:
                    raise ConfigError(f"--kind {kind}: {error}") from error
                left_out[kind] = str(error)
            except ServerFailed as error:
                raise ConfigError(f"{kind}: {error}") from error
        yield boxes, left_out


def _http(stack: ExitStack) -> Mailbox:
    _need("aiohttp", "webhooks")
    from workq.demo.listener import Listener

    box = HttpBox()
    box.listener = stack.enter_context(Listener(box.take))
    return box


def _amqp(stack: ExitStack, url: str | None) -> Mailbox:
    _need("pika", "rabbitmq")
    from workq.lab.servers import start_rabbitmq

    about = "a queue of the RabbitMQ that carries the hints, too"
    if url is None:
        server = stack.enter_context(start_rabbitmq())
        url, about = server.url, f"a queue of a private {server.name} {server.version}"
    box = AmqpBox(url, about)
    stack.callback(box.close)
    return box


def _kafka(stack: ExitStack) -> Mailbox:
    _need("confluent_kafka", "kafka")
    from workq.lab.servers import start_kafka

    return KafkaBox(stack.enter_context(start_kafka()))


def _need(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtra(f"{module} is not installed: install workq with its extra [{extra}]")
