"""One worker's subscription to Kafka: a member of the namespace's group, and a thread that always polls.

Handlers never run on that thread, so a long task cannot cost the membership. What has arrived waits line by line
(arrivals.py); beyond `WAITING_MAX` Kafka is asked for no more of a line.

A delivery belongs to one life of its partition (tracker.py): from the assignment until the partition goes. Offsets are
committed as a prefix, every `COMMIT_S`, and when a partition is revoked; not when it was lost, as another member has it
by then.

What happens on each failure:

- no broker answers: nothing arrives, and `trouble` tells so; librdkafka connects again by itself;
- a partition is revoked or lost: what has arrived of it and was not fetched is dropped, and comes again, to somebody;
- the topic is deleted: it is made again; made again by others, it has another id, which is looked at every
  `LOOK_EVERY_S`, and it is read from its beginning: by name alone Kafka would go on at the old position;
- a commit fails: it is tried again;
- librdkafka gives the handle up (a fatal error): a new one is opened after `REST_S`;
- Kafka refuses a topic (a right is missing): the others go on, `trouble` says what to grant, and it is asked again
  every `AGAIN_S` (refused_topics.py); so is the group, without which nothing arrives at all.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Consumer as Handle

from workq.broker import Delivery
from workq.broker.kafka.arrivals import Arrivals, ArrivedRecord, Place
from workq.broker.kafka.publisher import KafkaRecord, SentOn
from workq.broker.kafka.records import delivery_of, put_back, to_quarantine
from workq.broker.kafka.refused_topics import AGAIN_S, RefusedTopics
from workq.broker.kafka.topics import MISSING, TopicNames, Topics
from workq.broker.kafka.tracker import PartitionLife
from workq.errors import BrokerUnavailable, ConfigError

POLL_S: Final = 0.1
BATCH: Final = 250
WAITING_MAX: Final = 1000
"""Records of one line that wait here, before its partitions are paused; at half of it they are resumed."""
COMMIT_S: Final = 0.05
COMMIT_REST_S: Final = 0.5
LOOK_EVERY_S: Final = 5.0
LOOK_IN_TROUBLE_S: Final = 1.0
GATHER_S: Final = 0.5
"""Each change of the subscription deals partitions out anew, so changes are gathered for so long."""
UNSUBSCRIBE_S: Final = 30.0
"""Who is paused for so long gives its partitions away."""
REST_S: Final = 1.0
DEAF_S: Final = 2.0
ASK_S: Final = 2.0
"""Questions of the thread that polls: who closes the consumer waits for it."""
CLOSE_S: Final = 5.0
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NO_RIGHT: Final = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)


class KafkaConsumer:
    """A consumer, as the port promises it. `send_on` publishes a record and tells whether it is stored."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        names: TopicNames,
        topics: Topics,
        queues: Sequence[str],
        *,
        name: str,
        prefetch: int,
        protocol: str,
        send_on: Callable[[KafkaRecord, SentOn], None],
    ) -> None:
        self._names = names
        self._topics = topics
        self._send_on = send_on
        self._settings = {
            **group_settings(settings, names.group, protocol),
            "client.id": _NAME.sub("-", f"workq-{name}"),
        }
        self._settings |= {"error_cb": self._on_error, "on_commit": self._committed}
        self._arrivals = Arrivals(queues, prefetch=prefetch)
        self._trouble: str | None = None
        self._refused = RefusedTopics()
        self._is_to_renew = self._is_to_leave = False
        # what follows belongs to the thread that polls
        self._handle: Handle | None = None
        self._queues: dict[str, str] = {}
        """The queue of each topic."""
        self._ids: dict[str, str] = {}
        """The id of each topic, as it was seen last."""
        self._looks: dict[str, Any] = {}
        self._look_at = 0.0
        self._subscribed: frozenset[str] = frozenset()
        self._wished: frozenset[str] = frozenset()
        self._wished_at = 0.0
        self._follow_at = 0.0
        self._owed: dict[Place, int] = {}
        """Where our partitions ended when this consumer was to renew; judged a moment later."""
        self._judge_at = 0.0
        self._commit_at = 0.0
        self._thread = threading.Thread(target=self._run, name="workq-kafka-consumer", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        return self._trouble or self._refused.trouble

    def fetch(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        return self._arrivals.take(ids_max=ids_max, wait_s=wait_s)

    def wake(self) -> None:
        self._arrivals.wake()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._arrivals.ack(deliveries)

    def quarantine(self, delivery: Delivery, *, reason: str) -> None:
        if self._arrivals.set_aside(delivery):
            self._move(delivery, to_quarantine(delivery, self._names.quarantine, reason=reason))

    def put_back(self, delivery: Delivery, *, delay_s: float) -> None:
        self._arrivals.put_back(delivery, delay_s=delay_s)

    def set_prefetch(self, count: int) -> None:
        self._arrivals.set_prefetch(count)

    def serve(self, queues: Collection[str]) -> None:
        self._arrivals.serve(queues)

    def pause(self) -> None:
        self._arrivals.pause()

    def resume(self) -> None:
        self._arrivals.resume()

    def renew(self) -> None:
        """As the port promises, but only if a partition of ours has records that do not arrive.

        What waits elsewhere waits for its owner, and to join anew would deal out all partitions anew.
        """
        self._is_to_renew = True

    def partitions_held_back(self) -> set[Place]:
        """While this consumer is paused: its partitions, where new hints would wait for it."""
        return self._arrivals.places_held_back()

    def close(self) -> None:
        self._arrivals.close()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def handles(self) -> list[object]:
        """What belongs to threads of librdkafka: a child of a fork must never free it."""
        return [] if self._handle is None else [self._handle]

    # On the thread that polls

    def _run(self) -> None:
        while not self._arrivals.is_closed:
            try:
                self._turn()
            except ConfigError as error:
                self._arrivals.fail(error)
                break
            except Exception as error:  # a thread that ended would be a worker that hears nothing for ever
                rest_s = self._tell(error)
                self._leave()
                self._arrivals.wait_closed(rest_s)
        self._leave()

    def _tell(self, error: Exception) -> float:
        """Tell why nothing arrives; answers for how many seconds to leave Kafka alone."""
        if isinstance(error, KafkaException) and error.args[0].code() in _NO_RIGHT:
            group = self._names.group
            self._refused.note(group, str(self._topics.failure(error.args[0], f"group {group}")))
            return AGAIN_S
        self._trouble = self._topics.text(error)
        return REST_S

    def _turn(self) -> None:
        """One look for what has come, and all that is due beside it."""
        handle = self._handle
        if handle is None:
            handle = self._handle = Handle(self._settings)
        if self._is_to_renew:
            self._is_to_renew = False
            self._owed, self._judge_at = self._ends(handle), time.monotonic() + DEAF_S
        if self._owed and time.monotonic() >= self._judge_at:
            self._is_to_leave = self._is_to_leave or self._is_deaf(handle)
            self._owed = {}
        if self._is_to_leave:
            self._is_to_leave = False
            self._leave()
            return
        self._follow(handle)
        first = handle.poll(POLL_S)
        if first is not None:
            self._receive([first, *handle.consume(BATCH, 0.0)])
        self._send_what_is_put_back()
        self._commit(handle)
        self._hold_back(handle)
        self._look(handle)

    def _follow(self, handle: Handle) -> None:
        """Subscribe to what is served, when that has not changed for a moment."""
        now = time.monotonic()
        paused_s = self._arrivals.paused_s
        is_wanted = paused_s is None or (bool(self._subscribed) and paused_s < UNSUBSCRIBE_S)
        wished = frozenset(self._arrivals.served) if is_wanted else frozenset()
        if wished != self._wished:
            self._wished, self._wished_at = wished, now
        queues = {self._names.topic(queue): queue for queue in wished}
        is_again = self._refused.is_due()
        if not is_again and frozenset(self._allowed(queues).values()) == self._subscribed:
            return
        if now < self._follow_at or (self._subscribed and now - self._wished_at < GATHER_S):
            return
        try:
            self._make_missing(queues if is_again else self._allowed(queues), now + ASK_S, is_again=is_again)
        except BrokerUnavailable as error:  # what is subscribed to goes on
            self._trouble = str(error)
            self._follow_at = time.monotonic() + REST_S
            return
        allowed = self._allowed(queues)
        subscribed = frozenset(allowed.values())
        if subscribed != self._subscribed:
            self._queues |= allowed
            if allowed:
                handle.subscribe(list(allowed), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            else:
                handle.unsubscribe()
            self._subscribed = subscribed
        self._look_at = 0.0
        self._trouble = None

    def _allowed(self, queues: Mapping[str, str]) -> dict[str, str]:
        """Of these, by topic, those that Kafka does not refuse."""
        return {topic: queue for topic, queue in queues.items() if topic not in self._refused}

    def _make_missing(self, topics: Collection[str], ends: float, *, is_again: bool) -> None:
        """Make those that are missing. `is_again`: what was refused until now may be granted."""
        refused = self._topics.ensure_each(topics, ends=ends)
        if is_again:
            for delivery in self._refused.renew(refused):
                self._arrivals.moved(delivery, is_stored=False)
        else:
            for topic, why in refused.items():
                self._refused.note(topic, why)

    def _assigned(self, _handle: Handle, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            if one.topic in self._queues:
                self._arrivals.begin(self._queues[one.topic], [(one.topic, one.partition)])
        self._trouble = None

    def _revoked(self, handle: Handle, partitions: list[TopicPartition]) -> None:
        """Let go, and commit what was acked until then."""
        lives = self._arrivals.end(_places(partitions))
        done = [(life, *done) for life in lives if (done := life.to_commit()) is not None]
        if done:
            with contextlib.suppress(KafkaException):
                handle.commit(offsets=[_offset(*one) for one in done], asynchronous=False)

    def _lost(self, _handle: Handle, partitions: list[TopicPartition]) -> None:
        self._arrivals.end(_places(partitions))

    def _receive(self, messages: Sequence[Message]) -> None:
        found: list[ArrivedRecord] = []
        for one in messages:
            error = one.error()
            if error is not None:
                self._heed(error, one.topic())
                continue
            place, offset = (str(one.topic()), one.partition() or 0), one.offset() or 0
            found.append((place, offset, one.leader_epoch(), partial(delivery_of, offset=offset, message=one)))
        if self._arrivals.receive(found):
            self._trouble = None

    def _on_error(self, error: KafkaError) -> None:
        """librdkafka tells of its connections: one that broke is made again, but when there is none left."""
        self._topics.refusal.heed(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._trouble = str(self._topics.refusal.failure())
            self._look_at = 0.0

    def _heed(self, error: KafkaError, topic: str | None) -> None:
        if error.code() in _NO_RIGHT:
            if topic is None or topic not in self._queues:
                raise KafkaException(error)
            self._refused.note(topic, str(self._topics.failure(error, topic)))
        elif error.code() in MISSING:
            self._look_at = 0.0
            if topic is not None:
                self._topics.forget(topic)
        elif error.fatal():
            raise KafkaException(error)
        elif not error.retriable():
            self._trouble = self._topics.text(KafkaException(error))

    def _send_what_is_put_back(self) -> None:
        for delivery in self._arrivals.due_back():
            self._move(delivery, put_back(delivery))

    def _commit(self, handle: Handle) -> None:
        now = time.monotonic()
        if now < self._commit_at:
            return
        offsets = [_offset(*one) for one in self._arrivals.to_commit()]
        if offsets:
            self._commit_at = now + COMMIT_S
            try:
                handle.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self._committed(error.args[0], offsets)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """What came of a commit. Around a rebalance it may be refused; then it is tried again."""
        for one in partitions:
            life = self._arrivals.lives.get((one.topic, one.partition))
            if life is not None and (error is not None or one.error is not None):
                life.commit_refused()
                self._commit_at = time.monotonic() + COMMIT_REST_S

    def _hold_back(self, handle: Handle) -> None:
        """Ask for no more of the lines of which enough waits here."""
        for life in self._arrivals.lives.values():
            waiting = self._arrivals.waiting(life.queue)
            if not life.is_paused and waiting >= WAITING_MAX:
                handle.pause([TopicPartition(*life.place)])
                life.is_paused = True
            elif life.is_paused and waiting < WAITING_MAX // 2:
                handle.resume([TopicPartition(*life.place)])
                life.is_paused = False

    def _look(self, handle: Handle) -> None:
        """Whether each topic is there, and the one that it was. It is asked in one turn, and heard in another."""
        now = time.monotonic()
        for topic, future in list(self._looks.items()):
            if future.done():
                del self._looks[topic]
                self._heard(handle, topic, future)
        if now >= self._look_at and not self._looks:
            self._look_at = now + (LOOK_IN_TROUBLE_S if self._trouble else LOOK_EVERY_S)
            topics = [self._names.topic(queue) for queue in self._subscribed]
            self._looks = self._topics.asked(topics, ends=now + ASK_S)

    def _heard(self, handle: Handle, topic: str, future: Any) -> None:
        try:
            found = future.result(0.0)
        except KafkaException as error:
            if error.args[0].code() in MISSING:
                self._topics.forget(topic)
                self._make(topic)
            return
        self._trouble = None
        topic_id = str(found.topic_id)
        if self._ids.get(topic, topic_id) != topic_id and not self._read_anew(handle, topic):
            return  # once more at the next look
        self._ids[topic] = topic_id

    def _make(self, topic: str) -> None:
        """Make a topic again that is gone."""
        try:
            self._topics.ensure([topic], ends=time.monotonic() + ASK_S)
        except BrokerUnavailable as error:  # what comes of other topics goes on
            self._trouble = str(error)
        except ConfigError as error:
            self._refused.note(topic, str(error))
        else:
            self._look_at = 0.0

    def _read_anew(self, handle: Handle, topic: str) -> bool:
        """The topic was deleted and made again: what stands in it now was never read, whatever our position says."""
        for life in [one for one in self._arrivals.lives.values() if one.place[0] == topic]:
            self._arrivals.begin(life.queue, [life.place])
            try:
                handle.seek(TopicPartition(*life.place, OFFSET_BEGINNING))
            except KafkaException:
                return False
        return True

    def _ends(self, handle: Handle) -> dict[Place, int]:
        """Where each of our partitions ends now, if it holds records that are not committed and that we ask for."""
        places = [TopicPartition(*life.place) for life in self._arrivals.lives.values() if not life.is_paused]
        found: dict[Place, int] = {}
        with contextlib.suppress(KafkaException):  # it does not answer: to join anew would not help
            for one in handle.committed(places, timeout=ASK_S) if places else ():
                told: Any = handle.get_watermark_offsets(one, timeout=ASK_S)
                if told is not None and told[1] > max(told[0], one.offset):
                    found[one.topic, one.partition] = told[1]
        return found

    def _is_deaf(self, handle: Handle) -> bool:
        """Whether records of ours that were there `DEAF_S` ago have not come."""
        owed = {place: end for place, end in self._owed.items() if place in self._arrivals.lives}
        places = [TopicPartition(*place) for place in owed]
        return any(one.offset < owed[one.topic, one.partition] for one in handle.position(places))

    def _leave(self) -> None:
        """Leave the group; what has arrived and was not acked is delivered again."""
        handle, self._handle = self._handle, None
        self._subscribed = frozenset()
        if handle is not None:
            with contextlib.suppress(KafkaException, RuntimeError):
                handle.close()  # which revokes, and commits there
        self._arrivals.end(list(self._arrivals.lives))

    # On any thread

    def _move(self, delivery: Delivery, record: KafkaRecord) -> None:
        self._send_on(record, lambda stored: self._moved(delivery, stored))

    def _moved(self, delivery: Delivery, stored: bool | ConfigError) -> None:
        if isinstance(stored, ConfigError):
            self._refused.note_unsent(delivery, str(stored))
        else:
            self._arrivals.moved(delivery, is_stored=stored)


def group_settings(settings: Mapping[str, Any], group: str, protocol: str) -> dict[str, Any]:
    """What librdkafka is given for a member of the group."""
    classic = {"partition.assignment.strategy": "cooperative-sticky"} if protocol == "classic" else {}
    return {
        **settings,
        **classic,
        "group.id": group,
        "group.protocol": protocol,
        "max.poll.interval.ms": 45_000,  # a partition waits no longer for who does not give it back
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",  # with "latest" the hints of new partitions would be lost
        "isolation.level": "read_uncommitted",  # a transaction that hangs would stop the reading
        "queued.min.messages": WAITING_MAX,
        "queued.max.messages.kbytes": 2048,
        "fetch.queue.backoff.ms": 20,
        "fetch.error.backoff.ms": 100,
        "topic.metadata.refresh.interval.ms": 30_000,
        "socket.timeout.ms": 10_000,
    }


def _places(partitions: Sequence[TopicPartition]) -> list[Place]:
    return [(one.topic, one.partition) for one in partitions]


def _offset(life: PartitionLife, offset: int, leader_epoch: int | None) -> TopicPartition:
    """What is to be committed of a partition."""
    more: dict[str, Any] = {} if leader_epoch is None else {"leader_epoch": leader_epoch}
    return TopicPartition(*life.place, offset, **more)
