"""amqp: to an exchange of RabbitMQ, persistent, mandatory and confirmed.

All messages of a call are published at once, and their confirms awaited together. A message is confirmed when RabbitMQ
has it in every queue that it was routed to; one that is routed to none comes back, and is `NO_TARGET`.

The connection is served only while a call runs, on the caller's thread, so it has no heartbeats; one that was idle for
a while is made anew before it is used. What happens on each failure:

- the connection breaks: what was published and not confirmed is `LATE`, and may have arrived;
- the channel ends for one message (it is larger than the broker permits): those left are sent again one by one, so that
  it alone is `MESSAGE`; some of the others may arrive twice then;
- the exchange is missing, or the user may not write to it: nothing more is sent;
- a queue refuses (it is full and says so, or has lost its majority): `ASKED`, and the next call connects anew.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from workq.config.addresses import Allowed
from workq.config.given_options import GivenOptions, check_files
from workq.config.place import UrlPlace, place_of
from workq.errors import MissingExtra
from workq.messages.kinds import (
    Answer,
    Confirmed,
    DestinationAddress,
    DestinationLink,
    Kind,
    Posting,
    SendFault,
    Unsent,
)
from workq.messages.kinds.reach import Lookup, ReachFailed, left, permitted, trouble_of, trust_of, unsent_to_all
from workq.values.own_order import own_order

try:
    import pika
    from pika import exceptions

    from workq.messages.kinds.amqp_session import SendingSession
except ModuleNotFoundError as error:
    raise MissingExtra("a destination of the kind amqp needs a client library: install the extra [rabbitmq]") from error

FORM: Final = "amqp://user:password@host:5672/vhost or amqps://..., for a cluster one:5672,two:5672"
CLUSTER_MAX: Final = 9
"""Hosts of one URL. They share the time for a connection."""
IDLE_S: Final = 30.0
"""A connection that was not used for so long may have been dropped on its way, unseen."""
HEADERS_MAX_BYTES: Final = 100_000
"""All that is said of a message goes into one frame, which has 128 KiB."""
_COPIES_TO: Final = ("CC", "BCC")
"""With a text in one, RabbitMQ closes the channel, and those beside it would be sent again."""
_NOT_FOUND: Final = 404
_ACCESS_REFUSED: Final = 403


class AmqpKind(Kind):
    """`--exchange EX --routing-key RK`. The exchange '' is the default one: the routing key is a queue's name."""

    name = "amqp"

    def __init__(self, *, lookup: Lookup = socket.getaddrinfo) -> None:
        """`lookup`: for tests."""
        self._lookup = lookup

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See the port. `url`, `exchange`, `routing_key` (''), `ca_file`, `cert_file`, `key_file`."""
        given = GivenOptions(options)
        place = amqp_place(given.take("url", why=f"it is {FORM}"))
        given.stored["url"] = str(place)
        exchange = given.text("exchange", why="'' is the default exchange", may_be_empty=True)
        why = "the default exchange sends to the queue of that name" if exchange == "" else "'' is for fanout"
        if exchange == "":
            given.text("routing_key", why=why)
        else:
            given.text("routing_key", why=why, default="", may_be_empty=True)
        check_files(given, is_tls=place.is_tls)
        return given.done(kind=self.name)

    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:
        """See the port."""
        return _AmqpLink(address, allowed=allowed, lookup=self._lookup)


def amqp_place(url: object) -> UrlPlace:
    """The place of a RabbitMQ, or of what speaks AMQP 0-9-1.

    Raises:
        ConfigError: it is none.
    """
    return place_of(url, {"amqp": 5672, "amqps": 5671}, form=FORM, tls="amqps", hosts_max=CLUSTER_MAX)


class _Round:
    """Messages that were published together, and what has come of each."""

    def __init__(self, session: SendingSession, waiting: Mapping[int, Posting]) -> None:
        self.answers: dict[int, Answer] = {}
        self.published = 0
        self._indexes = list(waiting)
        self._first_tag = session.tag + 1
        self._open = {session.tag + 1 + place: index for place, index in enumerate(waiting)}
        self._returned: set[int] = set()
        self._of_id: dict[str, list[int]] = defaultdict(list)
        for index, posting in waiting.items():
            self._of_id[posting.id].append(index)

    @property
    def is_done(self) -> bool:
        """Whether each has its answer."""
        return not self._open

    @property
    def left(self) -> list[int]:
        """Those that have none."""
        return [index for index in self._indexes if index not in self.answers]

    def confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        tags = [one for one in self._open if one <= tag] if multiple else [tag]
        for one in tags:
            index = self._open.pop(one, None)
            if index is None:
                continue
            if not is_ack:
                text = "RabbitMQ did not take it: a queue that it is routed to is full, or has lost its majority"
                self.answers[index] = Unsent(SendFault.ASKED, text)
            elif index in self._returned:
                self.answers[index] = Unsent(SendFault.NO_TARGET, "the exchange leads it to no queue")
            else:
                self.answers[index] = Confirmed()

    def give_back(self, message_id: str) -> None:
        """A return comes before the confirm of the same message."""
        indexes = self._of_id.get(message_id)
        if indexes:
            self._returned.add(indexes.pop(0))


class _AmqpLink(DestinationLink):
    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._options = address.options
        self._place = amqp_place(address.url)
        self._allowed = allowed
        self._lookup = lookup
        self._host = self._place.hosts[0]
        """Of the session, or the one that was tried last."""
        self._session: SendingSession | None = None

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        """See the port."""
        ends = time.monotonic() + timeout_s
        answers: dict[int, Answer] = {}
        ready: dict[int, Any] = {}
        for index, posting in enumerate(postings):
            try:
                ready[index] = _properties(posting)
            except ValueError as error:
                answers[index] = Unsent(SendFault.MESSAGE, self._place.clean(str(error)))
        waiting = {index: postings[index] for index in ready}
        is_single = False
        while waiting:
            now = dict([next(iter(waiting.items()))]) if is_single else waiting
            try:
                found, is_single = self._publish(now, ready, ends, is_single=is_single)
            except ReachFailed as failed:
                found = dict.fromkeys(waiting, failed.unsent)
            answers |= found
            waiting = {index: posting for index, posting in waiting.items() if index not in answers}
        return [answers[index] for index in range(len(postings))]

    def test(self, *, timeout_s: float) -> list[str]:
        """See the port. Whether the exchange leads a routing key to a queue is seen when a message comes back."""
        ends = time.monotonic() + timeout_s
        exchange, key = self._options["exchange"], self._options["routing_key"]
        what, name = ("exchange", exchange) if exchange else ("queue", key)
        try:
            session = self._connected(ends)
            found = session.declare(what, name)
            session.run(lambda: bool(found) or session.channel_error is not None, ends=ends)
            if found:
                return []
            raise self._trouble(session)
        except ReachFailed as failed:
            self.close()
            return [failed.unsent.text]

    def close(self) -> None:
        """See the port."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _publish(
        self, waiting: Mapping[int, Posting], ready: Mapping[int, Any], ends: float, *, is_single: bool
    ) -> tuple[dict[int, Answer], bool]:
        """Publish these, and what came of them; those that have no answer are to be sent again, one by one."""
        session = self._connected(ends)
        batch = _Round(session, waiting)
        session.on_confirm, session.on_return = batch.confirm, batch.give_back
        exchange, key = self._options["exchange"], self._options["routing_key"]
        try:
            for index, posting in waiting.items():
                session.channel.basic_publish(exchange, key, posting.body, ready[index], mandatory=True)
                session.tag += 1
        except exceptions.AMQPError as error:  # it has ended while they were written
            session.error = session.error or error
            session.is_over = True
        session.run(lambda: batch.is_done or session.channel_error is not None, ends=ends)
        session.used_at = time.monotonic()
        if batch.is_done:
            if any(isinstance(one, Unsent) and one.fault is SendFault.ASKED for one in batch.answers.values()):
                self.close()  # this channel would be refused for good, also when there is room (RabbitMQ 3.10)
            return batch.answers, is_single
        refused = session.channel_error
        if refused is None or session.is_over:
            self.close()
            text = "the connection was lost before the confirm" if session.is_over else "no confirm came in time"
            if session.is_blocked:
                text += "; RabbitMQ blocks publishers: an alarm of its memory or disk"
            return batch.answers | dict.fromkeys(batch.left, Unsent(SendFault.LATE, text)), is_single
        self.close()
        if refused.reply_code in (_NOT_FOUND, _ACCESS_REFUSED):
            return batch.answers | dict.fromkeys(batch.left, self._refusal(refused)), is_single
        if len(batch.left) == 1 and len(waiting) == 1:
            return batch.answers | {batch.left[0]: Unsent(SendFault.MESSAGE, self._said(refused))}, is_single
        return batch.answers, True

    def _connected(self, ends: float) -> SendingSession:
        """The session, with its channel.

        Raises:
            ReachFailed: there is none.
        """
        session = self._session
        if session is not None:
            session.glance()
        if session is not None and (session.is_over or session.channel is None or self._is_stale(session)):
            self.close()
            session = None
        if session is not None:
            return session
        trust = trust_of(self._options) if self._place.is_tls else None
        hosts = own_order(self._place.hosts)
        failed: list[ReachFailed] = []
        for place, host in enumerate(hosts):
            try:
                return self._connected_to(host, trust, time.monotonic() + left(ends) / (len(hosts) - place))
            except ReachFailed as one:
                failed.append(one)
                if one.unsent.fault is SendFault.REFUSED:  # no other node of a cluster will want us
                    raise
        raise failed[0] if len(failed) == 1 else ReachFailed(unsent_to_all([one.unsent for one in failed]))

    def _connected_to(self, to: tuple[str, int], trust: Any, ends: float) -> SendingSession:
        """The session with one host.

        Raises:
            ReachFailed: there is none.
        """
        self._host = host, port = to
        session: SendingSession | None = None
        addresses = permitted(host, port, self._allowed, lookup=self._lookup, ends=ends)
        for place, one in enumerate(addresses, start=1):
            share_s = left(ends) / (len(addresses) + 1 - place)
            session = self._session = self._new_session(one, trust, share_s)
            until = min(ends, time.monotonic() + share_s)
            if session.run(lambda made=session: made.channel is not None, ends=until):  # type: ignore[misc]
                return session
            if session.error is not None and _is_final(session.error):
                break
        assert session is not None  # noqa: S101 - a host has an address
        trouble = self._trouble(session)
        self.close()
        raise trouble

    def _is_stale(self, session: SendingSession) -> bool:
        return time.monotonic() - session.used_at > IDLE_S

    def _new_session(self, address: str, trust: Any, within_s: float) -> SendingSession:
        host, port = self._host
        try:
            return SendingSession(
                pika.ConnectionParameters(
                    host=address,
                    port=port,
                    virtual_host=self._place.path or "/",
                    credentials=pika.PlainCredentials(*self._place.login("guest")),
                    heartbeat=0,
                    connection_attempts=1,
                    retry_delay=0,
                    socket_timeout=within_s,
                    stack_timeout=within_s,
                    ssl_options=None if trust is None else pika.SSLOptions(trust, host),
                    client_properties={"connection_name": "workq messages"},
                    tcp_options={"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4},
                )
            )
        except OSError as error:  # not even an event loop: no sockets are left to this process
            raise ReachFailed(trouble_of(error, host, port)) from None

    def _trouble(self, session: SendingSession) -> ReachFailed:
        """Why this session is of no use."""
        if session.channel_error is not None:
            return ReachFailed(self._refusal(session.channel_error))
        host, port = self._host
        found = session.error
        if found is None:
            return ReachFailed(trouble_of(TimeoutError("no answer in time"), host, port))
        if isinstance(found, exceptions.ProbableAccessDeniedError) or "(530)" in str(found):
            text = f"RabbitMQ has no vhost {self._place.path or '/'!r}, or this user may not use it"
            return ReachFailed(Unsent(SendFault.REFUSED, self._place.clean(text)))
        if _is_final(found):
            return ReachFailed(Unsent(SendFault.REFUSED, "RabbitMQ refused the login: wrong user or password"))
        unsent = trouble_of(found, host, port)
        return ReachFailed(Unsent(unsent.fault, self._place.clean(unsent.text)))

    def _refusal(self, refused: exceptions.ChannelClosedByBroker) -> Unsent:
        fault = SendFault.NO_TARGET if refused.reply_code == _NOT_FOUND else SendFault.REFUSED
        return Unsent(fault, self._said(refused))

    def _said(self, refused: exceptions.ChannelClosedByBroker) -> str:
        return self._place.clean(f"RabbitMQ says: {refused.reply_text}")


def _is_final(error: BaseException) -> bool:
    """Whether the broker has answered, and does not want us: no other address of it will."""
    waiting, seen = [error], []
    while waiting:
        one = waiting.pop()
        seen.append(one)
        if isinstance(
            one,
            exceptions.AuthenticationError
            | exceptions.ProbableAuthenticationError
            | exceptions.ProbableAccessDeniedError,
        ):
            return True
        inner = [*getattr(one, "exceptions", ()), getattr(one, "exception", None), *one.args]
        waiting += [each for each in inner if isinstance(each, BaseException) and each not in seen]
    return False


def _properties(posting: Posting) -> pika.BasicProperties:
    """What is said of a message.

    Raises:
        ValueError: AMQP cannot carry it.
    """
    for name in _COPIES_TO:
        if name in posting.headers:
            raise ValueError(f"RabbitMQ reads a header {name} as more routing keys; give it another name")
    made = pika.BasicProperties(
        message_id=posting.id,
        content_type=posting.content_type,
        delivery_mode=pika.DeliveryMode.Persistent,
        headers={**posting.headers, "workq-id": posting.id},
    )
    try:
        size = sum(map(len, made.encode()))
    except exceptions.ShortStringTooLong:
        raise ValueError("a header's name, the id or the content type is longer than 255 bytes") from None
    except (exceptions.AMQPError, UnicodeError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"a header cannot be sent: {type(error).__name__} {error}") from None
    if size > HEADERS_MAX_BYTES:
        raise ValueError(f"its headers have {size} bytes, at most {HEADERS_MAX_BYTES} are sent")
    return made
