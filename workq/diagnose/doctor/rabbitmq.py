"""RabbitMQ, as far as AMQP tells: who answers, and whether the queues that exist are those that workq declares.

AMQP has no question for policies, alarms and members of queues: management.py asks the management API for them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from workq.config import LEDGER, Settings, masked
from workq.diagnose.doctor.absence import why_unwatched
from workq.diagnose.doctor.check import Check, Level
from workq.diagnose.doctor.host import require
from workq.errors import BrokerUnavailable
from workq.values.lane import all_of

if TYPE_CHECKING:
    from workq.broker.rabbitmq.nodes import Address, Nodes

VERSION_MIN: Final = (3, 10)
CONNECT_S: Final = 3.0
HEARTBEAT_S: Final = 20.0
ANSWER_S: Final = 5.0


def look(settings: Settings, queues: tuple[str, ...]) -> Iterator[Check]:
    """Everything about the broker. `queues` are those of the application.

    Raises:
        BrokerUnavailable, ConfigError: it cannot be looked at.
    """
    url = settings.broker
    if url is None:
        yield Check("broker", Level.OK, "embedded: the ledger carries the hints")
        return
    require("amqp", url)
    from workq.broker.rabbitmq.nodes import Address, Nodes

    address = Address.parse(url)
    if address.user == "guest" and not all(_is_loopback(host) for host, _ in address.hosts):
        yield Check(
            "broker",
            Level.WARNING,
            f"{masked(url)} logs in as guest, whom RabbitMQ admits from its own host only; create a user",
        )
    from workq.broker.rabbitmq.connection import server_of
    from workq.broker.rabbitmq.delays import delays_of
    from workq.broker.rabbitmq.topology import Topology
    from workq.diagnose.doctor import management

    nodes = Nodes(address, heartbeat_s=HEARTBEAT_S, connect_s=CONNECT_S)
    server = server_of(nodes, deadline_s=CONNECT_S)
    yield Check("broker", Level.OK, f"{masked(url)}: {server}")
    answering = yield from _each(address)
    number = _number(server)
    if number and number < VERSION_MIN:
        yield Check("broker", Level.WARNING, f"{server} is older than 3.10, the oldest that workq is tested with")
    delays = delays_of(settings.ladder)
    if delays.is_late:
        yield Check(
            "broker",
            Level.OK,
            f"delays go by {settings.ladder}: a delayed task, or a retry, starts up to {delays.late_max_s:g} s late; "
            "when its hint is lost, that is found so much later, too",
        )
    if settings.ladder == LEDGER:
        yield Check("broker", Level.OK, "delays are rows of the ledger; each `workq worker` moves those that are due")
    topology = Topology(settings.namespace, settings.queue_type, delays)
    missing = _missing_right(topology, nodes)
    if missing is not None:
        yield Check("broker", Level.ERROR, missing)
        return
    unsigned = None if why_unwatched(settings) is not None else _missing_sign(settings.namespace, nodes)
    if unsigned is not None:
        yield Check(
            "broker",
            Level.WARNING,
            f"workers cannot give their sign of life, and a dead host is found late: {unsigned}",
        )
    yield from _declared(topology, nodes, queues)
    yield from management.look(topology, answering, queues)


def _each(address: Address) -> Generator[Check, None, Address]:
    """Where a URL names several hosts: which of them answer. Returns the first that does, or the only one."""
    from workq.broker.rabbitmq.connection import server_of
    from workq.broker.rabbitmq.nodes import Nodes

    if len(address.hosts) == 1:
        return address
    answering: list[Address] = []
    for node in address.nodes:
        try:
            server = server_of(Nodes(node, heartbeat_s=HEARTBEAT_S, connect_s=CONNECT_S), deadline_s=CONNECT_S)
        except BrokerUnavailable as error:
            yield Check("broker", Level.WARNING, f"one of {len(address.hosts)} hosts: {error}")
        else:
            answering.append(node)
            yield Check("broker", Level.OK, f"{node}: {server}")
    return answering[0] if answering else address.nodes[0]


def _missing_right(topology: Any, nodes: Nodes) -> str | None:
    """What this user may not do, and what to grant; None: nothing.

    A queue of this connection alone, which goes with it, is declared as one of workq's: RabbitMQ asks for the right to
    configure it, to read it and, because of its dead letters, to write where hints are published.
    """
    name = topology.turn_lock(f"doctor-{secrets.token_hex(8)}")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": topology.quarantine}
    reasons: list[str] = []

    def ask(channel: Any, done: Callable[[Any], None]) -> None:
        channel.queue_declare(name, exclusive=True, arguments=dead, callback=done)

    code = _asked(nodes, ask, reasons)
    return str(topology.refusal(code, reasons[0])) if code else None


def _missing_sign(namespace: str, nodes: Nodes) -> str | None:
    """Why this user may not give the sign of life of a worker, and what to grant; None: it may."""
    from workq.broker.rabbitmq.topology import ACCESS_REFUSED, grant_of, sign_queue

    name = sign_queue(namespace, f"doctor-{secrets.token_hex(8)}")
    reasons: list[str] = []
    code = _asked(nodes, lambda channel, done: channel.queue_declare(name, exclusive=True, callback=done), reasons)
    return f"{reasons[0]}. Grant it: {grant_of(namespace, reasons[0])}" if code == ACCESS_REFUSED else None


def _declared(topology: Any, nodes: Nodes, queues: Sequence[str]) -> Iterator[Check]:
    """Whether queues that exist are as this application declares them. Missing ones are not created."""
    bands = [band for queue in queues for band in all_of(queue)]
    existing = []
    for queue in bands:
        missing = _missing(nodes, topology.main_queue(queue))
        if missing is None:
            existing.append(queue)
        elif away := topology.away(404, missing):
            yield Check(
                "broker",
                Level.WARNING,
                f"queue {away} is on a node that is away ({missing}): its hints wait there, and workers find due tasks "
                "in the ledger; start that node. A quorum queue (queue_type) has members on others",
            )
    if not existing:
        return
    missing = _missing(nodes, topology.quarantine)
    if missing is not None and topology.away(404, missing):
        yield Check(
            "broker",
            Level.WARNING,
            f"queue {topology.quarantine} is on a node that is away ({missing}): what RabbitMQ gives up is dropped "
            "unseen, and what is not ours waits; start that node",
        )
        return  # to declare a main queue would declare it too
    if missing is not None:
        yield Check(
            "broker",
            Level.WARNING,
            f"queue {topology.quarantine} is missing: what RabbitMQ gives up and what is not ours is dropped unseen; "
            "restart the workers, which declare it, or see who deletes it",
        )
        return  # to declare a main queue would declare it too, and nothing is created here
    for queue in existing:
        refusal = _refusal(topology, nodes, queue)
        if refusal is not None:
            yield Check("broker", Level.ERROR, refusal)


def _missing(nodes: Nodes, name: str) -> str | None:
    """What RabbitMQ says of a queue that is not there; None if it is: a passive declaration creates nothing."""
    reasons: list[str] = []

    def ask(channel: Any, done: Callable[[Any], None]) -> None:
        channel.queue_declare(name, passive=True, callback=done)

    return reasons[0] if _asked(nodes, ask, reasons) == 404 else None


def _refusal(topology: Any, nodes: Nodes, queue: str) -> str | None:
    """Why the broker refuses our declaration of an existing queue; None if it accepts it."""
    reasons: list[str] = []
    code = _asked(nodes, lambda channel, done: topology.declare(channel, queue, done), reasons)
    return str(topology.refusal(code, reasons[0])) if code in (403, 405, 406) else None


def _asked(nodes: Nodes, ask: Callable[[Any, Callable[[Any], None]], None], reasons: list[str] | None = None) -> int:
    """Ask on a channel of its own: 0 when it was answered, or the code with which the broker closed the channel.

    Raises:
        BrokerUnavailable: no answer, or the connection broke.
    """
    from pika.exceptions import ChannelClosedByBroker

    from workq.broker.rabbitmq.connection import converse

    def talk(connection: Any, answer: Callable[[int | Exception], None]) -> None:
        def closed(_channel: Any, reason: Exception) -> None:
            if isinstance(reason, ChannelClosedByBroker):
                if reasons is not None:
                    reasons.append(reason.reply_text)
                answer(reason.reply_code)

        def opened(channel: Any) -> None:
            channel.add_on_close_callback(closed)
            ask(channel, lambda _: answer(0))

        connection.channel(on_open_callback=opened)

    return converse(nodes, talk, name="workq doctor", deadline_s=ANSWER_S)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _number(server: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", server)
    return (int(found[1]), int(found[2])) if found else ()
