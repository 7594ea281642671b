"""Kafka as the broker: hints in topics, confirmed by all replicas in sync, and done with by a prefix of offsets.

    topics.py      what exists in Kafka for a namespace, and how it is made
    publisher.py   records on their way, and what happens when they do not get there
    consumer.py    a member of the group: deliveries, and what happens when a partition goes to another
    tracker.py     one partition: which records are open, and how far it is done
    positions.py   how far a topic reaches and the group is done: depths, and the proof of loss
    browser.py     what waits in a topic
    refusal.py     why no broker lets us in: TLS, a login
    refused_topics.py  topics, and the group, for which this user lacks a right: until it is granted
    members.py     who is in the group, and has which partitions
    inspection.py  what else Kafka tells somebody who looks after it

A partition belongs to one process: what waits behind a busy or a dead one waits, until others take it from the ledger
(`has_owners`). There is no order over the partitions of a topic, no count of deliveries, and nothing can be removed
from the middle of a topic. Delays are rows of the ledger (broker/later): a hint itself waits for `HORIZON_S` at most.

Who decides: the ledger. Works with Kafka 4.0 and later (KIP-848); `?protocol=classic` in the URL is for older ones.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workq.errors import BrokerUnavailable, ConfigError, MissingExtra

try:
    from confluent_kafka import KafkaException, Producer
except ModuleNotFoundError as missing:
    raise MissingExtra(
        "broker: kafka:// needs the client library confluent-kafka; install the extra [kafka]"
    ) from missing

from workq.broker import Browsed, Depth, Hint, See
from workq.broker.kafka.browser import browse_topic
from workq.broker.kafka.consumer import KafkaConsumer, group_settings
from workq.broker.kafka.inspection import KafkaInspection
from workq.broker.kafka.members import look_at_group
from workq.broker.kafka.positions import Positions
from workq.broker.kafka.publisher import KafkaPublisher, KafkaRecord, SentOn
from workq.broker.kafka.topics import TopicNames, Topics
from workq.config.kafka import FILES, KafkaUrl
from workq.values.codec import Envelope, encode_hint
from workq.values.hint import HintRow

HORIZON_S: Final = 0.1
"""A longer delay is a row of the ledger; for a shorter one the consumer waits."""
ASK_S: Final = 5.0
CHECK_S: Final = 3.0
CLOSE_S: Final = 1.0

_everyone: weakref.WeakSet[KafkaBroker] = weakref.WeakSet()


class KafkaBroker:
    """The port of the broker, on Kafka. Connects when first used, and anew when first used after a fork."""

    is_transactional = False
    rows_from_s = math.inf
    horizon_s = HORIZON_S
    unit_s = 0.0
    is_late = False
    is_listable = True
    has_owners = True
    tells_position = True

    def __init__(self, url: str, *, namespace: str = "workq", confirm_s: float = 10.0) -> None:
        """`confirm_s`: how long a record may be on its way.

        Raises:
            ConfigError: the URL is wrong, or librdkafka refuses what is in it. Nothing was contacted.
        """
        try:
            self._url = KafkaUrl.parse(url)
        except ConfigError as error:
            raise ConfigError(f"broker: {error}") from None
        self._names = TopicNames(namespace)
        self._settings = self._url.settings()
        _check_library(self._settings)
        self._confirm_s = confirm_s
        self._lock = threading.Lock()
        self._is_closed = False
        self._begin()
        _everyone.add(self)

    def publish(self, hints: Sequence[Hint], *, deadline_s: float) -> list[bool]:
        """As the port promises.

        Raises:
            ValueError: a delay is negative or above `horizon_s`; nothing was sent.
            ConfigError: Kafka refuses a topic, or this user. What others have may arrive.
        """
        records = [self._record(one) for one in hints]
        return self._open_publisher().send(records, deadline_s=deadline_s) if records else []

    def waits_s(self, delay_s: float) -> float:
        if not 0 <= delay_s <= HORIZON_S:
            raise ValueError(f"a hint can wait from 0 to {HORIZON_S:g} s in Kafka, not {delay_s} s")
        return delay_s

    def rows(self, hints: Sequence[Hint]) -> list[HintRow]:
        raise NotImplementedError("Kafka has no part in the ledger's transactions: publish after the commit")

    def wake(self) -> None:
        """Nothing to do: it delivers by itself."""

    def consumer(self, queues: Sequence[str], *, name: str, prefetch: int) -> KafkaConsumer:
        consumer = KafkaConsumer(
            self._settings,
            self._names,
            self._topics,
            queues,
            name=name,
            prefetch=prefetch,
            protocol=self._url.protocol,
            send_on=self._send_on,
        )
        with self._lock:
            self._consumers.append(consumer)
        return consumer

    def forget_consumer(self, name: str) -> None:
        """Nothing to do: Kafka gives the partitions of a dead member away when its session ends."""

    def depths(self, queues: Sequence[str], *, with_consumers: bool = False) -> Mapping[str, Depth]:
        """As the port promises. What is delivered and not committed counts as ready: Kafka does not tell it apart.

        A consumer is a member of the group that has a partition of the queue.
        """
        ends = time.monotonic() + ASK_S
        found = self._positions.spans_of(list(dict.fromkeys(queues)), ends=ends)
        consumers = self._consuming(ends) if with_consumers else None
        return {
            queue: Depth(
                sum(one.end - one.next for one in spans.values()),
                None,
                None if consumers is None else consumers.get(self._names.topic(queue), 0),
            )
            for queue, (_, spans) in found.items()
        }

    def browse(self, queue: str, see: See, *, deadline_s: float) -> Browsed:
        """As the port promises, but that nothing is removed: what shall not stay stays."""
        return browse_topic(
            queue,
            see,
            settings=group_settings(self._settings, self._names.group, "classic"),
            names=self._names,
            topics=self._topics,
            positions=self._positions,
            deadline_s=deadline_s,
        )

    def position(self, queue: str) -> str | None:
        """Where the queue ends now: all that was confirmed before stands before it. See positions.py.

        Raises:
            BrokerUnavailable: Kafka did not answer.
        """
        return self._positions.position(queue, ends=time.monotonic() + ASK_S)

    def has_passed(self, queue: str, position: str) -> bool:
        """Whether all that stood before a position is acked, or gone.

        Raises:
            BrokerUnavailable: Kafka did not answer.
        """
        return self._positions.has_passed(queue, position, ends=time.monotonic() + ASK_S)

    def inspection(self) -> KafkaInspection:
        """What can be asked of this Kafka beside the port: of its nodes, settings, topics, and of the group."""
        return KafkaInspection(self._topics, self._positions, self._names)

    def check(self) -> str:
        """As the port promises. Kafka tells no version; it tells its nodes and its name."""
        found = self._topics.ask(
            lambda admin: admin.describe_cluster(request_timeout=CHECK_S),
            ends=time.monotonic() + CHECK_S,
            what=str(self._url.place),
        )
        return f"Kafka of {len(found.nodes)} broker{'s' * (len(found.nodes) != 1)}, cluster {found.cluster_id}"

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            publisher, consumers = self._publisher, list(self._consumers)
            self._consumers.clear()
        for consumer in consumers:
            consumer.close()
        if publisher is not None:
            publisher.close(within_s=CLOSE_S)
        self._positions.close()
        self._topics.close()

    def forked(self) -> None:
        """In the child of a fork. The threads of librdkafka stayed in the parent; to free what is theirs would hang."""
        parts = (self._topics, self._positions, *self._parts())
        for handle in (one for part in parts for one in part.handles()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._topics = Topics(self._url.place, self._settings, self._names, partitions=self._url.partitions)
        asking = group_settings(self._settings, self._names.group, "classic")
        self._positions = Positions(self._topics, self._names, asking)
        self._publisher: KafkaPublisher | None = None
        self._consumers: list[KafkaConsumer] = []

    def _parts(self) -> list[Topics | Positions | KafkaPublisher | KafkaConsumer]:
        publisher = [] if self._publisher is None else [self._publisher]
        return [self._topics, self._positions, *self._consumers, *publisher]

    def _consuming(self, ends: float) -> Mapping[str, int] | None:
        """How many members of the group have a partition of a topic. None: the group cannot be asked just now."""
        try:
            return look_at_group(self._topics, self._names.group, ends=ends).consumers
        except (BrokerUnavailable, ConfigError):
            return None

    def _record(self, hint: Hint) -> KafkaRecord:
        wait_s = self.waits_s(hint.delay_s)
        waits = [wait_s + one for one in hint.waits_s] or [wait_s] * len(hint.task_ids)
        waits_ms = tuple(math.ceil(round(one * 1000, 3)) for one in waits) if any(waits) else ()
        body = encode_hint(Envelope(hint.queue, hint.task_ids, hint.looks, hint.marker, waits_ms))
        return KafkaRecord(self._names.topic(hint.queue), body)

    def _open_publisher(self) -> KafkaPublisher:
        with self._lock:
            if self._publisher is None:
                self._publisher = KafkaPublisher(
                    self._settings, self._topics, confirm_s=self._confirm_s, held_back=self._held_back
                )
                if self._is_closed:
                    self._publisher.close(within_s=0.0)
            return self._publisher

    def _held_back(self) -> set[tuple[str, int]]:
        """What a full process gives back as new hints must not wait for it again."""
        return {place for one in list(self._consumers) for place in one.partitions_held_back()}

    def _send_on(self, record: KafkaRecord, done: SentOn) -> None:
        self._open_publisher().send_later(record, done)


def _check_library(settings: Mapping[str, Any]) -> None:
    """Whether librdkafka takes the settings: it reads the files of TLS here. Without servers it contacts nothing.

    Raises:
        ConfigError: it does not, or a file cannot be read.
    """
    for setting, name in FILES.items():
        try:
            if setting in settings:
                Path(settings[setting]).open("rb").close()
        except OSError as error:
            raise ConfigError(f"broker: {name} in the URL: {settings[setting]}: {error.strerror}") from None
    try:
        Producer({name: value for name, value in settings.items() if name != "bootstrap.servers"})
    except KafkaException as error:
        raise ConfigError(f"broker: librdkafka refuses what the URL says: {error.args[0].str()}") from None


def _after_fork() -> None:
    gc.freeze()  # what is garbage by now may hold handles, too: the collector would crash by freeing them
    for one in list(_everyone):
        one.forked()


os.register_at_fork(after_in_child=_after_fork)
