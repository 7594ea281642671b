"""The stages: each kind's target on its server, and a client of our own that reads what has arrived there."""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import secrets
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import confluent_kafka
import pika
import redis
import stomp

from tests.contract.kinds.suite import LONG_S, Arrived, KindStage, posting
from workq.lab.proxy import FaultProxy
from workq.lab.servers import Artemis, Kafka, RabbitMQ, Redis, Server
from workq.messages.kinds import Posting

TOO_LARGE = 300_000


def new_name() -> str:
    return f"t-{secrets.token_hex(6)}"


class _AtRabbitMQ(KindStage):
    """What arrives in a durable queue of RabbitMQ."""

    def __init__(self, rabbitmq: RabbitMQ) -> None:
        self._rabbitmq = rabbitmq
        self.queue = new_name()
        self._read: list[Arrived] = []
        with self._channel() as channel:
            channel.queue_declare(self.queue, durable=True)

    @property
    def server(self) -> Server:
        return self._rabbitmq

    def kill(self) -> None:
        """RabbitMQ 4.0 may write down later that a queue was declared than what has come into it: not this time."""
        self._rabbitmq.evaluate("catch mnesia:sync_log().")
        super().kill()

    def arrived(self) -> list[Arrived]:
        with self._channel() as channel:
            while True:
                method, properties, body = channel.basic_get(self.queue, auto_ack=True)
                if method is None:
                    return list(self._read)
                assert properties.delivery_mode == 2
                self._read.append(self._arrived(properties, body))

    def _arrived(self, properties: Any, body: bytes) -> Arrived:
        assert properties.message_id == properties.headers["workq-id"]
        return Arrived(properties.message_id, body, properties.headers, properties.content_type)

    @contextlib.contextmanager
    def _channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self._rabbitmq.url))
        try:
            yield connection.channel()
        finally:
            connection.close()


class AmqpStage(_AtRabbitMQ):
    """The default exchange, which leads to the queue."""

    name = "amqp"

    @property
    def port(self) -> int:
        return self._rabbitmq.port

    def options(self, *, host: str = "127.0.0.1", port: int = 0, password: str | None = None) -> dict[str, Any]:
        url = f"amqp://guest:{password or 'guest'}@{host}:{port or self.port}/"
        return {"url": url, "exchange": "", "routing_key": self.queue}

    def unknown(self) -> dict[str, Any]:
        return self.options() | {"routing_key": new_name()}

    def refused(self) -> Posting:
        return posting(b"x" * TOO_LARGE)  # the server takes less


class StompAtRabbitMQStage(_AtRabbitMQ):
    """`/amq/queue/NAME`: a queue that is there."""

    name = "stomp"

    @property
    def port(self) -> int:
        return self._rabbitmq.stomp_port

    def options(self, *, host: str = "127.0.0.1", port: int = 0, password: str | None = None) -> dict[str, Any]:
        url = f"stomp://guest:{password or 'guest'}@{host}:{port or self.port}"
        return {"url": url, "address": f"/queue/{self.queue}"}

    def unknown(self) -> dict[str, Any]:
        return self.options() | {"address": f"/exchange/{new_name()}/key"}

    def refused(self) -> Posting:
        return posting(b"x" * TOO_LARGE)

    def _arrived(self, properties: Any, body: bytes) -> Arrived:
        return Arrived(properties.headers["workq-id"], body, properties.headers, properties.content_type)


class _Listener(stomp.ConnectionListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.frames: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def on_message(self, frame: Any) -> None:
        self.frames.put(frame)


class ArtemisStage(KindStage):
    """An address of Artemis with a queue for one consumer."""

    name = "stomp"

    def __init__(self, artemis: Artemis) -> None:
        self._artemis = artemis
        self.address = new_name()
        self._read: list[Arrived] = []

    @property
    def port(self) -> int:
        return self._artemis.port

    @property
    def server(self) -> Server:
        return self._artemis

    def options(self, *, host: str = "127.0.0.1", port: int = 0, password: str | None = None) -> dict[str, Any]:
        url = f"stomp://workq:{password or 'workq'}@{host}:{port or self.port}"
        return {"url": url, "address": self.address}

    def unknown(self) -> dict[str, Any]:
        return self.options() | {"address": f"closed.{new_name()}"}

    def refused(self) -> Posting:
        return posting(headers={"destination": "elsewhere"})

    def arrived(self) -> list[Arrived]:
        """All of the queue up to an end that we put behind it."""
        listener = _Listener()
        reader = stomp.Connection12([("127.0.0.1", self.port)], auto_decode=False)
        reader.set_listener("", listener)
        reader.connect("workq", "workq", wait=True)
        try:
            anycast = {"destination-type": "ANYCAST"}
            reader.send(self.address, b"end", headers=anycast)
            reader.subscribe(self.address, id="1", headers=anycast)
            while (frame := listener.frames.get(timeout=LONG_S)).body != b"end":
                headers = frame.headers
                body = frame.body if isinstance(frame.body, bytes) else frame.body.encode()
                assert headers["persistent"] == "true"
                self._read.append(Arrived(headers["workq-id"], body, headers, headers["content-type"]))
        finally:
            reader.disconnect()
        return list(self._read)


class KafkaStage(KindStage):
    """A topic with one partition, behind a proxy that Kafka itself sends its clients to."""

    name = "kafka"

    def __init__(self, kafka: Kafka, proxy: FaultProxy) -> None:
        self._kafka = kafka
        self._proxy = proxy
        self.topic = new_name()
        kafka.create_topic(self.topic, settings={"max.message.bytes": "290000"})

    @property
    def port(self) -> int:
        return self._proxy.port

    @property
    def server(self) -> Server:
        return self._kafka

    @contextlib.contextmanager
    def proxy(self) -> Iterator[FaultProxy]:
        try:
            yield self._proxy
        finally:
            self._proxy.heal()

    def options(self, *, host: str = "127.0.0.1", port: int = 0, password: str | None = None) -> dict[str, Any]:
        url = f"kafka://workq:{password or 'workq'}@{host}:{port or self.port}"
        return {"url": url, "topic": self.topic}

    def unknown(self) -> dict[str, Any]:
        return self.options() | {"topic": new_name()}

    def refused(self) -> Posting:
        return posting(b"x" * TOO_LARGE)

    def arrived(self) -> list[Arrived]:
        reader = confluent_kafka.Consumer({**self._kafka.admin_conf, "group.id": "none", "enable.auto.commit": False})
        try:
            place = confluent_kafka.TopicPartition(self.topic, 0, 0)
            _, end = reader.get_watermark_offsets(place, timeout=LONG_S)
            reader.assign([place])
            found: list[Arrived] = []
            while len(found) < end:
                message = reader.poll(LONG_S)
                assert message is not None
                assert message.error() is None
                pairs: Any = message.headers()
                headers = {name: value.decode() for name, value in pairs}
                body = message.value() or b""
                found.append(Arrived(headers["workq-id"], body, headers, headers["content-type"]))
            return found
        finally:
            reader.close()


class RedisStreamStage(KindStage):
    """A stream."""

    name = "redis"

    def __init__(self, server: Redis) -> None:
        self._redis = server
        self.key = new_name()
        with self._client() as client:  # once a second: a disk that is slow to sync keeps back what is answered already
            client.config_set("appendfsync", "always")

    @property
    def port(self) -> int:
        return self._redis.port

    @property
    def server(self) -> Server:
        return self._redis

    def options(self, *, host: str = "127.0.0.1", port: int = 0, password: str | None = None) -> dict[str, Any]:
        return {"url": f"redis://:{password or 'workq'}@{host}:{port or self.port}/0", "stream": self.key}

    def unknown(self) -> dict[str, Any]:
        """A key that is something else."""
        with self._client() as client:
            client.set(f"{self.key}-other", "1")
        return self.options() | {"stream": f"{self.key}-other"}

    def arrived(self) -> list[Arrived]:
        with self._client() as client:
            entries: Any = client.xrange(self.key)
        found = []
        for _, fields in entries:
            headers = {
                name.decode().removeprefix("header:"): value.decode()
                for name, value in fields.items()
                if name.startswith(b"header:")
            }
            kind = fields[b"content-type"].decode()
            found.append(Arrived(fields[b"workq-id"].decode(), fields[b"body"], headers, kind))
        return found

    def _client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password="workq")


class RedisListStage(RedisStreamStage):
    """A list."""

    def options(self, **more: Any) -> dict[str, Any]:
        options = super().options(**more)
        return {"url": options["url"], "list": self.key}

    def unknown(self) -> dict[str, Any]:
        return self.options() | {"list": super().unknown()["stream"]}

    def arrived(self) -> list[Arrived]:
        with self._client() as client:
            elements: Any = client.lrange(self.key, 0, -1)
        found = []
        for element in elements:
            told = json.loads(element)
            body = told["body"].encode() if "body" in told else base64.b64decode(told["body_base64"])
            found.append(Arrived(told["workq-id"], body, told["headers"], told["content_type"]))
        return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Connections that end as they like are what tests are about."""


class Receiver:
    """A server of HTTP with a login, which keeps what it was sent. `status`, `extra`: it answers so, whatever comes."""

    def __init__(self, *, trust: ssl.SSLContext | None = None) -> None:
        self.kept: list[Arrived] = []
        self.login: str | None = "Basic " + base64.b64encode(b"workq:workq").decode()
        self.status: int | None = None
        self.extra: dict[str, str] = {}
        receiver = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self._answer(receiver.judge(self.path, dict(self.headers.items()), body))

            def _answer(self, status: int) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": "0", **receiver.extra}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = _Server(("127.0.0.1", 0), _Handler)
        if trust is not None:
            self._server.socket = trust.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def judge(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """The status of an answer."""
        named = {name.lower(): value for name, value in headers.items()}
        if self.status is not None:
            return self.status
        if named.get("authorization") != self.login:
            return 401
        if path != "/in":
            return 404
        if len(body) >= TOO_LARGE:
            return 413
        self.kept.append(Arrived(named["workq-id"], body, Headers(named), named["content-type"]))
        return 204

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Headers(dict[str, str]):
    """By their names in lower case."""


class HttpStage(KindStage):
    """A path of a receiver."""

    name = "http"

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        receiver.kept.clear()

    @property
    def port(self) -> int:
        return self.receiver.port

    def options(self, *, host: str = "127.0.0.1", port: int = 0, password: str | None = None) -> dict[str, Any]:
        return {"url": f"http://workq:{password or 'workq'}@{host}:{port or self.port}/in"}

    def unknown(self) -> dict[str, Any]:
        return {"url": self.options()["url"] + "side-out"}

    def refused(self) -> Posting:
        return posting(b"x" * TOO_LARGE)

    def arrived(self) -> list[Arrived]:
        return list(self.receiver.kept)


CALLED: list[Posting] = []


def take(one: Posting) -> None:
    """A function of a user."""
    from workq.errors import Cancel

    if one.content_type == "not/wanted":
        raise Cancel("not for me")
    CALLED.append(one)


class CallStage(KindStage):
    """The function above."""

    name = "call"

    def __init__(self) -> None:
        CALLED.clear()

    def options(self, *, host: str = "", port: int = 0, password: str | None = None) -> dict[str, Any]:
        return {"handler": f"{__name__}.take"}

    def unknown(self) -> dict[str, Any]:
        return {"handler": f"{__name__}.nothing"}

    def refused(self) -> Posting:
        return posting(content_type="not/wanted")

    def arrived(self) -> list[Arrived]:
        return [Arrived(one.id, one.body, one.headers, one.content_type) for one in CALLED]
