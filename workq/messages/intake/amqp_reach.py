"""AmqpReach: a connection to the RabbitMQ of a way in, and what its errors mean."""

from __future__ import annotations

import time
from typing import Final

import pika
from pika import exceptions
from pika.adapters.utils import connection_workflow

from workq.config.addresses import Allowed
from workq.config.place import shown
from workq.messages.kinds import DestinationAddress, SendFault, Unsent
from workq.messages.kinds.amqp import amqp_place
from workq.messages.kinds.reach import Lookup, ReachFailed, left, permitted, trouble_of, trust_of, unsent_to_all
from workq.outbound.amqp_tables import read_any_table
from workq.values.own_order import own_order

CONNECT_S: Final = 10.0
HEARTBEAT_S: Final = 60
_NOT_FOUND: Final = 404


class AmqpReach:
    """The way to one RabbitMQ."""

    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._options = address.options
        self._place = amqp_place(address.url)
        self._allowed = allowed
        self._lookup = lookup

    def connect(self, ends: float) -> pika.BlockingConnection:
        """A connection to the first address of the first host that answers.

        Raises:
            ReachFailed: one may not be reached. AMQPError, OSError: none answers, or it refuses us.
        """
        trust = trust_of(self._options) if self._place.is_tls else None
        addresses = self._permitted(ends)
        read_any_table()
        try:
            return pika.BlockingConnection(
                [
                    pika.ConnectionParameters(
                        host=address,
                        port=port,
                        virtual_host=self._place.path or "/",
                        credentials=pika.PlainCredentials(*self._place.login("guest")),
                        heartbeat=HEARTBEAT_S,
                        connection_attempts=1,
                        retry_delay=0,
                        socket_timeout=left(ends) / len(addresses),
                        stack_timeout=left(ends) / len(addresses),
                        blocked_connection_timeout=CONNECT_S,
                        ssl_options=None if trust is None else pika.SSLOptions(trust, host),
                        client_properties={"connection_name": "workq intake"},
                    )
                    for host, port, address in addresses
                ]
            )
        except connection_workflow.AMQPConnectorStackTimeout as error:  # of no common kind
            raise TimeoutError(str(error)) from None

    def _permitted(self, ends: float) -> list[tuple[str, int, str]]:
        """Name, port and address of what may be tried; a name without an address is left out while others have one.

        Raises:
            ReachFailed: one may not be reached, or none has an address.
        """
        hosts = own_order(self._place.hosts)
        found: list[tuple[str, int, str]] = []
        missing: list[ReachFailed] = []
        for place, (host, port) in enumerate(hosts):
            until = time.monotonic() + left(ends) / (len(hosts) - place)
            try:
                known = permitted(host, port, self._allowed, lookup=self._lookup, ends=until)
            except ReachFailed as failed:
                if failed.unsent.fault is SendFault.REFUSED:
                    raise
                missing.append(failed)
            else:
                found += ((host, port, one) for one in known)
        if not found:
            raise ReachFailed(unsent_to_all([one.unsent for one in missing]))
        return found

    def failed(self, error: BaseException, before: str = "") -> ReachFailed:
        """What it means that a call has failed."""
        if isinstance(error, exceptions.ChannelClosedByBroker):
            fault = SendFault.NO_TARGET if error.reply_code == _NOT_FOUND else SendFault.REFUSED
            return ReachFailed(Unsent(fault, self._place.clean(f"RabbitMQ says: {before}{error.reply_text}")))
        if isinstance(error, exceptions.ProbableAuthenticationError | exceptions.AuthenticationError):
            return ReachFailed(Unsent(SendFault.REFUSED, "RabbitMQ refused the login: wrong user or password"))
        first, *others = [shown(*one) for one in self._place.hosts]
        unsent = trouble_of(error, *self._place.hosts[0])
        text = unsent.text.replace(first, f"one of {', '.join([first, *others])}") if others else unsent.text
        return ReachFailed(Unsent(unsent.fault, self._place.clean(before + text)))
