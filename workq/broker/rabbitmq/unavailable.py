"""Why RabbitMQ cannot be reached, in our words, with what to do next: one line for all nodes that were tried."""

from __future__ import annotations

import math
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import Final

from pika import exceptions
from pika.adapters.utils import connection_workflow

from workq.broker.rabbitmq.nodes import BLOCKED_S, Address
from workq.config.server_commands import rabbitmq_command, rabbitmq_grant
from workq.errors import NAME_PATIENCE_S, BrokerUnavailable
from workq.values.names import NAMESPACE_PATTERN

_CLOSED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_NAMESPACE: Final = re.compile(rf"queue '({NAMESPACE_PATTERN})\.")
"""Of the queue that an error is about."""
_ANY_HOST: Final = ("host", 1)


def unavailable(troubles: Sequence[tuple[Address, BaseException | None]]) -> BrokerUnavailable:
    """Why there is no connection: what happened at each node that was tried. Those with one reason share a text."""
    alike: dict[str, list[tuple[Address, BaseException | None]]] = {}
    for node, error in troubles:
        why, _ = _why(error, node.at(_ANY_HOST))
        alike.setdefault(why, []).append((node, error))
    found = [
        _why(shared[0][1], shared[0][0].at(*(host for node, _ in shared for host in node.hosts)))
        for shared in alike.values()
    ]
    unavailable = BrokerUnavailable(f"broker: {'; '.join(why for why, _ in found)}")
    unavailable.patience_s = max((patience_s for _, patience_s in found), default=math.inf)
    return unavailable


def _why(error: BaseException | None, address: Address) -> tuple[str, float]:
    """The reason, and for how long it may pass by itself."""
    at = f"RabbitMQ at {address}"
    patience_s = math.inf
    leaves = list(_leaves(error))

    def find(*kinds: type[BaseException]) -> BaseException | None:
        return next((leaf for leaf in leaves if isinstance(leaf, kinds)), None)

    if (found := find(exceptions.ProbableAccessDeniedError)) and "(530)" in str(found):
        why = (
            f"{at} has no vhost {address.vhost!r}, or user {address.user!r} may not use it. "
            f"See: rabbitmqctl list_vhosts; {rabbitmq_command(address.vhost, 'rabbitmqctl', 'list_permissions')}"
        )
        patience_s = 0.0
    elif (found := find(exceptions.ChannelClosedByBroker)) and "(403)" in str(found):
        cure = "See least-privilege.md"
        if named := _NAMESPACE.search(str(found)):
            cure = f"Grant it: {rabbitmq_grant(address.vhost, address.user, named[1])}"
        why = f"{at} says that this user lacks a right ({found}). {cure}"
        patience_s = 0.0
    elif find(exceptions.AuthenticationError) or (
        (found := find(exceptions.ProbableAuthenticationError)) and "(403)" in str(found)
    ):
        why = f"{at} refused the login: wrong user or password. (The user guest may only come from the same host.)"
        patience_s = 0.0
    elif found := find(ssl.SSLError):
        reason = getattr(found, "verify_message", "") or getattr(found, "reason", "") or type(found).__name__
        why = (
            f"{at} could not be verified by TLS ({reason}). Name the CA in the URL, ?cacertfile=/path/ca.pem, "
            "and the host as its certificate does; a port without TLS needs amqp://"
        )
        patience_s = NAME_PATIENCE_S if isinstance(found, _CLOSED) else 0.0
    elif find(exceptions.IncompatibleProtocolError):
        why = f"what listens at {address} does not speak AMQP 0-9-1. Is it the port of AMQP (5672), without TLS?"
        patience_s = NAME_PATIENCE_S  # pika says the same of a port that accepts, and closes at once
    elif found := find(socket.gaierror):
        names = " and ".join(repr(host) for host, _ in address.hosts)
        why = f"the host {names} of {address} is unknown. Check the name, or the DNS"
        patience_s = NAME_PATIENCE_S
    elif find(ConnectionRefusedError):
        why = f"nothing listens at {address} (connection refused). Is RabbitMQ running, on that port?"
    elif find(TimeoutError, connection_workflow.AMQPConnectorStackTimeout):
        why = f"{at} did not answer in time. Is it overloaded or stopped, or does a firewall drop packets?"
    elif find(exceptions.ConnectionBlockedTimeout):
        why = f"{at} has blocked publishing for {BLOCKED_S:.0f} s: a memory or disk alarm. See: rabbitmqctl status"
    elif find(exceptions.AMQPHeartbeatTimeout):
        why = f"{at} sent no heartbeat in time. Is it overloaded or stopped?"
    elif found := find(exceptions.ConnectionClosed):
        why = f"{at} closed the connection ({found})"
    else:
        last = leaves[-1] if leaves else None
        why = f"the connection to {at} broke ({type(last).__name__}: {last})"
    if address.password and address.password != address.user:
        why = why.replace(address.password, "***")
    return why, patience_s


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    """The errors that pika has wrapped, innermost ones only."""
    if error is None:
        return
    inner = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args]
    inner = [one for one in inner if isinstance(one, BaseException)]
    if not inner:
        yield error
    for one in inner:
        yield from _leaves(one)
