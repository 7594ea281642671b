"""AmqpInspector: what can be asked of a queue of RabbitMQ beside its readers: its depth, and whether it is there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pika import exceptions

from workq.config.addresses import Allowed
from workq.errors import Refused
from workq.messages.intake import IntakeInspector
from workq.messages.intake.amqp_reach import AmqpReach
from workq.messages.intake.values import BrokerRecord, IntakeBacklog, IntakeOffset
from workq.messages.kinds import DestinationAddress, SendFault
from workq.messages.kinds.reach import Lookup, ReachFailed


class AmqpInspector(IntakeInspector):
    """A question is a passive declaration, which changes nothing."""

    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._queue: str = address.options["queue"]
        self._quarantine: str = address.options["quarantine"]
        self._reach = AmqpReach(address, allowed=allowed, lookup=lookup)

    def backlog(self, offsets: Sequence[IntakeOffset], *, timeout_s: float) -> IntakeBacklog:  # noqa: ARG002
        """See the port. What its readers have in their hands is not counted: only RabbitMQ's management knows that."""
        return IntakeBacklog(self._depth(self._queue, timeout_s))

    def faults(self, *, timeout_s: float) -> list[str]:
        """See the port. A quarantine that is missing is made when it is needed."""
        self._depth(self._queue, timeout_s)
        try:
            self._depth(self._quarantine, timeout_s)
        except ReachFailed as error:
            if error.unsent.fault is not SendFault.NO_TARGET:
                return [f"its quarantine {self._quarantine!r} cannot be used: {error}"]
        return []

    def peek(
        self,
        offsets: Sequence[IntakeOffset],  # noqa: ARG002
        *,
        limit: int,  # noqa: ARG002
        timeout_s: float,  # noqa: ARG002
    ) -> list[BrokerRecord]:
        """See the port."""
        raise Refused(
            "a look at a message of RabbitMQ is a delivery: a quorum queue counts it, and drops the message after "
            f"some; nothing was read of {self._queue!r}. How many wait: workq intake show"
        )

    def _depth(self, queue: str, timeout_s: float) -> int:
        try:
            connection: Any = self._reach.connect(time.monotonic() + timeout_s)
            try:
                return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
            finally:
                if connection.is_open:
                    connection.close()
        except (exceptions.AMQPError, OSError) as error:
            raise self._reach.failed(error) from None
