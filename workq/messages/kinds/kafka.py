"""kafka: to a topic, by an idempotent producer, acknowledged by every in-sync replica (`acks=all`).

A message is confirmed by its delivery report. Its key chooses the partition, so messages of one key stay in order; the
producer repeats by itself what a broker did not answer for, and Kafka drops the second copy, within one session of it.
The header `workq-id` names the message in every copy.

Addresses: the hosts of the URL are judged, and then each broker that Kafka advertises, which a request of our own asks
for (kafka_look.py): before there is a producer, and again every few seconds before it is used. The limit of this:
librdkafka makes the connections, looks names up once more, and refreshes by itself what it knows of the cluster, so a
broker that is advertised between two looks may be connected to before it is judged. In the clear the first connection
goes to the very addresses that were judged; with TLS a host has to show the certificate of its name.

What happens on each failure:

- no broker answers: `AWAY`; one that wants another login, or cannot be verified: `REFUSED`;
- no report in time: what has not left is `AWAY`, what has is `LATE`; the producer is given up, and so is its copy;
- a report without an error has no offset: `LATE`. Kafka has refused the message as a duplicate, and librdkafka takes
  that for sent. It may be nowhere: in a topic that was just made, the second of two on their way may arrive first;
- the topic is missing: `NO_TARGET`; it is not made;
- a message is larger than the topic permits: those that failed with it are sent again one by one, so that it alone is
  `MESSAGE`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from workq.config.addresses import Allowed
from workq.config.given_options import GivenOptions
from workq.config.kafka import SILENT, kafka_place
from workq.errors import ConfigError, MissingExtra
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
from workq.messages.kinds.kafka_reach import KafkaReach, take_kafka_options
from workq.messages.kinds.reach import Lookup, ReachFailed

try:
    from confluent_kafka import KafkaError, KafkaException, Message, Producer
except ModuleNotFoundError as error:
    raise MissingExtra("a destination of the kind kafka needs a client library: install the extra [kafka]") from error

LOOK_EVERY_S: Final = 5.0
"""What Kafka advertises is judged again after so long."""
SLICE_S: Final = 0.2
"""How long a full buffer waits for reports."""
PURGE_S: Final = 0.2
"""Of the time for a call: what is left undelivered is told apart then."""
DENIED: Final = (
    *("bootstrap.servers", "metadata.broker.list", "security.protocol", "sasl.", "ssl.", "enable.ssl.", "enable.sasl."),
    *("acks", "request.required.acks", "enable.idempotence", "enable.gapless.guarantee", "transactional.id"),
    *("transaction.", "message.timeout.ms", "delivery.timeout.ms", "allow.auto.create.topics", "plugin.", "test."),
    *("https.", "logger", "log_level", "log.", "debug", "enable.sparse.connections", "builtin.features", "opaque"),
    *("group.", "max.in.flight", "retries", "message.send.max.retries", "queue.buffering.backpressure", "oauth"),
)
"""Settings of librdkafka that workq makes itself, or that would load code or files; also what begins so."""
_NO_TARGET: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
_MESSAGE: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)
_AWAY: Final = frozenset(
    {
        KafkaError._PURGE_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.NOT_ENOUGH_REPLICAS,
    }
)
_ASKED: Final = frozenset({KafkaError.THROTTLING_QUOTA_EXCEEDED})


class KafkaKind(Kind):
    """`--topic T`. With a user in the URL the login is SASL."""

    name = "kafka"

    def __init__(self, *, lookup: Lookup = socket.getaddrinfo) -> None:
        """`lookup`: for tests."""
        self._lookup = lookup

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See the port. `url`, `topic`, `mechanism`, `client` (settings of librdkafka), `ca_file` and the like."""
        given = GivenOptions(options)
        take_kafka_options(given)
        client = given.mapping("client", why="they are settings of librdkafka")
        _check_client(client)
        return given.done(kind=self.name)

    def open(self, address: DestinationAddress, *, allowed: Allowed) -> DestinationLink:
        """See the port."""
        return _KafkaLink(address, allowed=allowed, lookup=self._lookup)


def _check_client(client: Mapping[str, Any]) -> None:
    """Settings of librdkafka that a person may make.

    Raises:
        ConfigError: one is workq's to make, or librdkafka knows no such one, or not this value.
    """
    for name, value in client.items():
        if name.startswith((*DENIED, "on_")) or name.endswith("_cb"):
            raise ConfigError(f"client: {name} is not to be set here")
        if not isinstance(value, str | int | float):
            raise ConfigError(f"client: {name} is text, a number, true or false, not {value!r:.60}")
    try:
        Producer({**client, "log_level": 0, "logger": SILENT})  # without brokers it contacts nothing
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"client: librdkafka refuses a setting: {_text(error)}") from None


def _text(error: BaseException) -> str:
    said = error.args[0] if error.args else error
    return str(said.str()) if isinstance(said, KafkaError) else str(said)


class _KafkaLink(DestinationLink):
    def __init__(self, address: DestinationAddress, *, allowed: Allowed, lookup: Lookup) -> None:
        self._options = address.options
        self._place = kafka_place(address.url)
        self._reach = KafkaReach(self._place, address.options, allowed=allowed, lookup=lookup)
        self._producer: Producer | None = None
        self._is_broken = False
        """The producer has met what it cannot go on after. It is given up outside of its own callbacks."""
        self._end: KafkaError | None = None
        """What that was, where no report comes any more."""
        self._looked_at = 0.0
        self._told: list[KafkaError] = []
        """What librdkafka has told of its connections since the producer was made."""

    def send(self, postings: Sequence[Posting], *, timeout_s: float) -> list[Answer]:
        """See the port."""
        ends = time.monotonic() + timeout_s
        try:
            producer = self._ready(ends, timeout_s)
        except ReachFailed as failed:
            self._give_up()
            return [failed.unsent for _ in postings]
        answers = self._produce(producer, dict(enumerate(postings)), ends)
        too_large = [index for index, answer in answers.items() if _is_of_message(answer)]
        if len(too_large) > 1 or (too_large and len(postings) > 1):
            for index in too_large:
                if time.monotonic() < ends and self._producer is not None:
                    answers |= self._produce(producer, {index: postings[index]}, ends)
                else:
                    answers[index] = Unsent(SendFault.AWAY, "no time was left to send it alone")
        return [answers[index] for index in range(len(postings))]

    def test(self, *, timeout_s: float) -> list[str]:
        """See the port. Whether the user may write to the topic is seen when it does."""
        ends = time.monotonic() + timeout_s
        try:
            self._reach.look(ends)
        except ReachFailed as failed:
            return [failed.unsent.text]
        return []

    def close(self) -> None:
        """See the port."""
        self._give_up()

    def _produce(self, producer: Producer, postings: Mapping[int, Posting], ends: float) -> dict[int, Answer]:
        """Send these and wait for their reports."""
        answers: dict[int, Answer] = {}
        last = ends - PURGE_S
        for index, posting in postings.items():
            headers: list[tuple[str, str | bytes | None]] = [
                *posting.headers.items(),
                ("content-type", posting.content_type),
                ("workq-id", posting.id),
            ]
            while index not in answers:
                try:
                    producer.produce(
                        self._options["topic"],
                        value=posting.body,
                        key=posting.key,
                        headers=headers,
                        on_delivery=partial(self._reported, answers, index),
                    )
                    break
                except BufferError:  # it is full: reports make room
                    self._serve(producer, SLICE_S)
                    if self._end is not None:
                        answers[index] = self._unsent(self._end)
                    elif time.monotonic() > last:
                        answers[index] = Unsent(SendFault.AWAY, "the producer's buffer stayed full")
                except KafkaException as error:
                    answers[index] = self._unsent(error.args[0])
                except (TypeError, ValueError, UnicodeError) as error:
                    answers[index] = Unsent(SendFault.MESSAGE, self._place.clean(f"it cannot be sent: {error}"))
        while len(answers) < len(postings) and time.monotonic() < last and self._end is None:
            self._serve(producer, max(0.0, min(1.0, last - time.monotonic())))
        if len(answers) < len(postings) and self._end is None:
            producer.purge(in_queue=True, in_flight=True, blocking=False)
            while len(answers) < len(postings) and time.monotonic() < ends and self._end is None:
                self._serve(producer, 0.02)
            self._give_up()
        late = (
            Unsent(SendFault.LATE, "no delivery report came in time") if self._end is None else self._unsent(self._end)
        )
        return {index: answers.get(index, late) for index in postings}

    def _serve(self, producer: Producer, within_s: float) -> None:
        """Let reports come. What a producer cannot go on after is raised here, and none comes any more."""
        try:
            producer.poll(within_s)
        except KafkaException as error:
            self._is_broken, self._end = True, error.args[0]

    def _reported(self, answers: dict[int, Answer], index: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            answers[index] = self._unsent(error)
        elif message.offset() is None:
            self._is_broken = True
            answers[index] = Unsent(SendFault.LATE, "Kafka refused it as a duplicate, and may be wrong")
        else:
            answers[index] = Confirmed(f"{message.topic()}[{message.partition()}]@{message.offset()}")

    def _unsent(self, error: KafkaError) -> Unsent:
        code = error.code()
        text = self._place.clean(f"Kafka: {error.str()}")
        if code == KafkaError._PURGE_QUEUE:
            reasons = [one.str() for one in self._told if one.code() != KafkaError._ALL_BROKERS_DOWN]
            text = self._place.clean(
                f"no broker took it in time: {reasons[-1]}" if reasons else "no broker took it in time"
            )
        self._is_broken = self._is_broken or error.fatal()
        for codes, fault in (
            (_NO_TARGET, SendFault.NO_TARGET),
            (_REFUSED, SendFault.REFUSED),
            (_MESSAGE, SendFault.MESSAGE),
            (_AWAY, SendFault.AWAY),
            (_ASKED, SendFault.ASKED),
        ):
            if code in codes:
                return Unsent(fault, text)
        return Unsent(SendFault.LATE, text)

    def _ready(self, ends: float, timeout_s: float) -> Producer:
        """The producer, after its brokers were judged.

        Raises:
            ReachFailed: no broker answers, or one may not be reached, or the topic is not there.
        """
        if self._is_broken:
            self._give_up()
        producer = self._producer
        if producer is not None:
            if time.monotonic() - self._looked_at > LOOK_EVERY_S:
                self._look(ends - PURGE_S)
            return producer
        self._look(ends - PURGE_S)
        self._told.clear()
        self._is_broken, self._end = False, None
        self._producer = Producer(self._conf(timeout_s))
        return self._producer

    def _look(self, ends: float) -> None:
        """Judge the hosts of the URL, then those that they advertise; and whether the topic is there.

        Raises:
            ReachFailed: as `_ready`.
        """
        self._reach.look(ends)
        self._looked_at = time.monotonic()

    def _conf(self, timeout_s: float) -> dict[str, Any]:
        return {
            "linger.ms": 0,
            **self._options.get("client", {}),
            **self._reach.conf(),
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": max(1000, int(timeout_s * 1000)),
            "error_cb": self._tell,
        }

    def _tell(self, error: KafkaError) -> None:
        self._told[:] = [*self._told[-9:], error]

    def _give_up(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            _drop(producer)


def _is_of_message(answer: Answer) -> bool:
    return isinstance(answer, Unsent) and answer.fault is SendFault.MESSAGE


def _drop(producer: Producer) -> None:
    """End a producer with all that it has, on a thread of its own, as librdkafka joins its threads there.

    Before 2.13 confluent-kafka has no `close`: it does so when the last one lets go of the producer.
    """
    producer.purge(in_queue=True, in_flight=True, blocking=False)
    close = getattr(producer, "close", None)
    if close is not None:
        threading.Thread(target=close, name="workq-kafka-end", daemon=True).start()
