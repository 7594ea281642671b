"""Records on their way to Kafka, confirmed by their delivery reports (`acks=all`).

The producer is not idempotent. To be so spares a record that is sent again its copy, which is harmless here. It makes
the first record of each process wait for half a second, until librdkafka has an id for it; and in a topic that was just
made, Kafka has taken records for duplicates that were nowhere.

Callers wait for their reports with a deadline of their own. One thread polls for reports, and another, which is there
when it is needed, sends what nobody waits for: messages for the quarantine, and those that are put back.

What happens on each failure:

- no broker answers: the callers run into their deadlines; after `confirm_s` librdkafka gives a record up by itself, and
  its producer is given up with it: what it knows of a topic that was made again may be wrong for ever;
- the buffer is full: the caller waits for room, inside of its deadline;
- the topic is gone: it is made again, and the record is sent once more, until the deadline;
- Kafka refuses a topic: ConfigError. What had gone out already may arrive.

A record that was answered False may still arrive. Nothing here decides anything: a duplicate hint is harmless.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from workq.broker.confirms import Confirms
from workq.broker.kafka.topics import Topics, is_refusal
from workq.errors import BrokerUnavailable, ConfigError

POLL_S: Final = 0.2
FULL_S: Final = 0.01
AGAIN_S: Final = 0.1
"""Between two attempts to send to a topic that was just made again."""
AT_ONCE: Final = 500
ANY: Final = -1
PROPAGATION_S: Final = 2.0
"""So long a producer waits for a topic that it does not know: it was made just now, and brokers hear of it later."""
_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)


_STUCK: Final = KafkaError._MSG_TIMED_OUT
_GIVEN_UP: Final = frozenset({_STUCK, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._DESTROY})
"""`_DESTROY`: librdkafka has let go of a partition whose topic was made again."""


class KafkaRecord:
    """One record to publish, and what came of it."""

    __slots__ = ("body", "headers", "is_to_repeat", "refusal", "topic")

    def __init__(self, topic: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.topic = topic
        self.body = body
        self.headers = headers or {}
        self.is_to_repeat = False
        """Its topic was not there, or its producer was given up."""
        self.refusal: KafkaError | None = None
        """Why Kafka does not take it, whenever it comes."""


SentOn = Callable[[bool | ConfigError], None]


class KafkaPublisher:
    """The producer of one process, made for its first record. Any thread may use it."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Topics,
        *,
        confirm_s: float,
        held_back: Callable[[], Collection[tuple[str, int]]],
    ) -> None:
        """`held_back`: partitions whose owner is full; a record goes to another one, if there is one."""
        self._topics = topics
        self._held_back = held_back
        self._confirm_s = confirm_s
        self._settings = {
            **settings,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": max(1000, int(confirm_s * 1000)),
            "topic.metadata.refresh.interval.ms": 30_000,
            "topic.metadata.propagation.max.ms": int(PROPAGATION_S * 1000),
            "error_cb": topics.refusal.heed,
        }
        self._rng = random.Random()
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._poller: threading.Thread | None = None
        self._later: queue.SimpleQueue[tuple[KafkaRecord, SentOn] | None] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None
        self._is_broken = False
        self._stale: set[str] = set()
        """Topics that Kafka has refused: a producer refuses them by itself from then on, until it looks anew."""
        self._is_closed = False

    def send(self, records: Sequence[KafkaRecord], *, deadline_s: float) -> list[bool]:
        """Publish these; for each, whether Kafka has confirmed it by then.

        Raises:
            ConfigError: Kafka refuses a topic. What others have may arrive.
        """
        answers = self._sent(records, deadline_s=deadline_s)
        for record, is_confirmed in zip(records, answers, strict=True):
            if not is_confirmed and record.refusal is not None:
                raise self._topics.failure(record.refusal, record.topic)
        return answers

    def _sent(self, records: Sequence[KafkaRecord], *, deadline_s: float) -> list[bool]:
        """The same, but that a refused record is not confirmed, as others.

        Raises:
            ConfigError: a topic may not be made, or looked at; nothing was sent.
        """
        ends = time.monotonic() + deadline_s
        answers = [False] * len(records)
        left = list(range(len(records)))
        is_again = False
        while left:
            try:
                topics = {records[one].topic for one in left}
                self._topics.ensure(topics, ends=ends)
                if is_again or not topics.isdisjoint(self._stale):
                    self._refresh(topics, ends)
            except BrokerUnavailable:
                break
            confirms = Confirms(len(left))
            if not self._produce([records[one] for one in left], confirms, ends):
                break
            confirms.wait(max(0.0, ends - time.monotonic()))
            confirms.end()
            for place, one in enumerate(left):
                answers[one] = confirms.answers[place] is True
            left = [one for one in left if records[one].is_to_repeat and not answers[one]]
            for one in left:
                records[one].is_to_repeat = False
                self._topics.forget(records[one].topic)
            if time.monotonic() + AGAIN_S >= ends:
                break
            if is_again:  # brokers hear of a topic one after the other
                time.sleep(AGAIN_S)
            is_again = True
        return answers

    def send_later(self, record: KafkaRecord, done: SentOn) -> None:
        """Publish one; nobody waits for it, but `done` is told, on another thread."""
        with self._lock:
            if not self._is_closed:
                self._later.put((record, done))
                if self._sender is None:
                    self._sender = threading.Thread(target=self._send_on, name="workq-kafka-later", daemon=True)
                    self._sender.start()
                return
        done(False)

    def close(self, *, within_s: float) -> None:
        """Give up what is on its way, and end. Repeatable."""
        with self._lock:
            self._is_closed = True
            poller = self._poller
        self._later.put(None)
        if poller is not None:
            poller.join(within_s)
            if not poller.is_alive():
                self._producer = None

    def handles(self) -> list[object]:
        """What belongs to threads of librdkafka: a child of a fork must never free it."""
        return [] if self._producer is None else [self._producer]

    def _produce(self, records: Sequence[KafkaRecord], confirms: Confirms, ends: float) -> bool:
        """Hand these to librdkafka; False: there is no producer."""
        producer = self._ready()
        if producer is None:
            return False
        held_back = self._held_back()
        for index, record in enumerate(records):
            report = partial(self._reported, confirms, index, record)
            while confirms.answers[index] is None:
                try:
                    producer.produce(
                        record.topic,
                        value=record.body,
                        headers=dict(record.headers),
                        partition=self._partition(record.topic, held_back),
                        on_delivery=report,
                    )
                    break
                except BufferError:  # reports make room, on the thread that polls for them
                    if time.monotonic() >= ends or self._is_closed:
                        return True
                    time.sleep(FULL_S)
                except KafkaException as error:
                    if error.args[0].code() == KafkaError._QUEUE_FULL and time.monotonic() < ends:
                        time.sleep(FULL_S)
                        continue
                    self._failed(record, error.args[0])
                    confirms.answer(index, False)
        return True

    def _partition(self, topic: str, held_back: Collection[tuple[str, int]]) -> int:
        """Any, as librdkafka chooses; but where the owner of some is full, one of the others."""
        if not held_back:
            return ANY
        free = [one for one in self._topics.partitions(topic) if (topic, one) not in held_back]
        return self._rng.choice(free) if free else ANY

    def _refresh(self, topics: set[str], ends: float) -> None:
        """Let the producer hear of topics that it takes for gone, or refused."""
        self._stale -= topics
        producer = self._ready()
        for topic in topics:
            with contextlib.suppress(KafkaException):
                if producer is not None:
                    producer.list_topics(topic, timeout=max(0.1, min(PROPAGATION_S, ends - time.monotonic())))

    def _reported(
        self, confirms: Confirms, index: int, record: KafkaRecord, error: KafkaError | None, _message: Message
    ) -> None:
        if error is not None:
            self._failed(record, error)
        confirms.answer(index, error is None)

    def _failed(self, record: KafkaRecord, error: KafkaError) -> None:
        if error.code() in _NO_TOPIC:  # also where nobody waits any more: the next one makes it
            self._topics.forget(record.topic)
        record.is_to_repeat = error.code() in _NO_TOPIC or error.code() in _GIVEN_UP
        self._is_broken = self._is_broken or error.code() == _STUCK
        if is_refusal(error):
            record.refusal = error
            self._stale.add(record.topic)

    def _ready(self) -> Producer | None:
        with self._lock:
            if self._is_closed:
                return None
            if self._producer is None or self._is_broken:
                self._is_broken = False
                self._producer = Producer(self._settings)
                self._poller = threading.Thread(
                    target=self._poll, args=[self._producer], name="workq-kafka-reports", daemon=True
                )
                self._poller.start()
            return self._producer

    def _poll(self, producer: Producer) -> None:
        """Serve the reports of one producer until it is broken, or another is in its place; then let go of it.

        It ends with its last reference, since another thread may be in a call of it: to `close` it under that one has
        hung and crashed the process.
        """
        while not self._is_closed and self._producer is producer and not self._is_broken:
            try:
                producer.poll(POLL_S)
            except KafkaException as error:  # what it cannot mend
                self._topics.refusal.heed(error.args[0])
                self._is_broken = True
        with contextlib.suppress(KafkaException):
            producer.purge(in_queue=True, in_flight=True, blocking=False)
            producer.flush(POLL_S)  # so that who waits is told

    def _send_on(self) -> None:
        while (first := self._later.get()) is not None:
            waiting = [first]
            with contextlib.suppress(queue.Empty):
                while len(waiting) < AT_ONCE and (one := self._later.get_nowait()) is not None:
                    waiting.append(one)
            try:
                answers: Sequence[bool | ConfigError] = self._sent(
                    [record for record, _ in waiting], deadline_s=self._confirm_s
                )
            except ConfigError as error:
                answers = [error] * len(waiting)
            for (_, done), answer in zip(waiting, answers, strict=True):
                done(answer)
            if self._is_closed:
                return
