"""amqp: the messages of a RabbitMQ queue, acked after they were recorded.

A crash between both brings a message again; its `workq-id`, or else its `message_id`, says that it is recorded already.
A message that has neither may be recorded twice then. While the ledger is away, what was read is kept unacked: nothing
is sent back, as a quorum queue drops what came back too often.

What happens on each failure: the connection breaks or the channel ends, and everything unacked comes again.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pika
from pika import exceptions

from workq.config.addresses import Allowed
from workq.config.given_options import TEXT_MAX, GivenOptions, check_files
from workq.errors import ConfigError
from workq.messages.intake import IntakeInspector, IntakeKind, IntakeLink, TakePartition
from workq.messages.intake.amqp_inspector import AmqpInspector
from workq.messages.intake.amqp_reach import CONNECT_S, AmqpReach
from workq.messages.intake.amqp_records import record_of_amqp
from workq.messages.intake.aside import RecordsAside
from workq.messages.intake.values import BATCH, BrokerRecord, IntakeBatch
from workq.messages.kinds import DestinationAddress, SendFault, Unsent
from workq.messages.kinds.amqp import FORM, AmqpKind, amqp_place
from workq.messages.kinds.reach import Lookup, ReachFailed


class AmqpIntake(IntakeKind):
    """`--queue Q`. The queue has to be there already."""

    name = "amqp"

    def __init__(self, *, lookup: Lookup = socket.getaddrinfo) -> None:
        """`lookup`: for tests."""
        self._lookup = lookup

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See the port. `url`, `queue`, `quarantine` (a queue), `ca_file`, `cert_file`, `key_file`."""
        given = GivenOptions(options)
        place = amqp_place(given.take("url", why=f"it is {FORM}"))
        given.stored["url"] = str(place)
        queue = given.text("queue", why="it has to be there already")
        aside = given.text("quarantine", why="a queue", default=f"{queue}.quarantine")
        if len(aside.encode()) > TEXT_MAX or aside == queue:
            raise ConfigError(f"quarantine: need another queue, of at most {TEXT_MAX} bytes")
        check_files(given, is_tls=place.is_tls)
        return given.done(kind=self.name)

    def open(self, address: DestinationAddress, *, allowed: Allowed, take: TakePartition) -> IntakeLink:  # noqa: ARG002
        """See the port. A queue has no partitions to take."""
        return _AmqpIntakeLink(address, allowed=allowed, lookup=self._lookup)

    def inspector(self, address: DestinationAddress, *, allowed: Allowed) -> IntakeInspector:
        """See the port."""
        return AmqpInspector(address, allowed=allowed, lookup=self._lookup)


class _AmqpIntakeLink(IntakeLink):
    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._options = address.options
        self._reach = AmqpReach(address, allowed=allowed, lookup=lookup)
        self._queue: str = address.options["queue"]
        self._connection: pika.BlockingConnection | None = None
        self._channel: Any = None
        self._waiting: list[tuple[int, BrokerRecord]] = []
        """What has come and was not given out, with the delivery tags."""
        self._is_cancelled = False
        place = DestinationAddress(
            address.name,
            {**address.options, "exchange": "", "routing_key": address.options["quarantine"]},
            address.url,
        )
        self._aside = RecordsAside(AmqpKind(lookup=lookup).open(place, allowed=allowed), make=self._make_quarantine)

    def fetch(self, *, limit: int, timeout_s: float) -> IntakeBatch:
        """See the port."""
        try:
            connection = self._ready()
            until = time.monotonic() + timeout_s
            while not self._waiting and not self._is_cancelled and (left_s := until - time.monotonic()) > 0.0:
                connection.process_data_events(time_limit=left_s)
            if self._is_cancelled:
                raise ReachFailed(Unsent(SendFault.NO_TARGET, f"queue {self._queue!r} was deleted, or has moved"))
        except (exceptions.AMQPError, OSError) as error:
            self.close()
            raise self._reach.failed(error) from None
        except BaseException:
            self.close()
            raise
        chosen, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return IntakeBatch([one for _, one in chosen], tokens=[tag for tag, _ in chosen])

    def quarantine(self, unreadable: Sequence[tuple[BrokerRecord, str]], *, timeout_s: float) -> None:
        """See the port."""
        self._aside.keep(unreadable, timeout_s=timeout_s)

    def passed(self, batch: IntakeBatch) -> None:
        """See the port."""
        self._aside.passed()
        try:
            if self._channel is not None and batch.tokens:  # they are the lowest that are not acked
                self._channel.basic_ack(batch.tokens[-1], multiple=True)
        except (exceptions.AMQPError, OSError):
            self.close()

    def close(self) -> None:
        """See the port."""
        connection, self._connection, self._channel = self._connection, None, None
        self._waiting.clear()
        self._is_cancelled = False
        self._aside.close()
        if connection is not None:
            with contextlib.suppress(exceptions.AMQPError, OSError):
                connection.close()

    def _ready(self) -> pika.BlockingConnection:
        if self._connection is None:
            self._connection = self._reach.connect(time.monotonic() + CONNECT_S)
            self._channel = self._connection.channel()
            self._channel.basic_qos(prefetch_count=2 * BATCH)
            self._channel.add_on_cancel_callback(self._cancelled)
            self._channel.basic_consume(self._queue, self._came)
        return self._connection

    def _came(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        record = record_of_amqp(properties, body, where=f"{self._queue}#{method.delivery_tag}")
        self._waiting.append((method.delivery_tag, record))

    def _cancelled(self, _frame: Any) -> None:
        self._is_cancelled = True

    def _make_quarantine(self, _timeout_s: float) -> None:
        name = self._options["quarantine"]
        try:
            connection = self._reach.connect(time.monotonic() + CONNECT_S)
            try:
                connection.channel().queue_declare(name, durable=True)
            finally:
                connection.close()
        except (exceptions.AMQPError, OSError) as error:
            raise self._reach.failed(error, f"queue {name} could not be made: ") from None
