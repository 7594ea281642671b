"""One worker's subscription to Kafka: a member of the namespace's group, and a thread that always polls.

Handlers never run on that thread, so a long task cannot cost the membership. What has arrived waits here, line by line,
and as many of each line as the prefetch allows are given out. Beyond `STASH_MAX` Kafka is asked for no more of a line.

A delivery belongs to one life of its partition (tracker.py): from the assignment until the partition goes. Acks of an
older life are dropped, because the record is delivered again anyway. Offsets are committed as a prefix, every
`COMMIT_S`, and when a partition is revoked; not when it was lost, as another member has it by then.

What happens on each failure:

- no broker answers: nothing arrives, and `trouble` tells so; librdkafka connects again by itself;
- a partition is revoked or lost: what has arrived of it and was not fetched is dropped, and comes again, to somebody;
- the topic is deleted: it is made again; made again by others, it has another id, which is looked at every
  `LOOK_EVERY_S`, and it is read from its beginning: by name alone Kafka would go on at the old position;
- a commit fails: it is tried again;
- librdkafka gives the handle up (a fatal error): a new one is opened after `REST_S`;
- Kafka refuses a topic or the group: `fetch` raises ConfigError, for good.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Consumer as Handle

from workq.broker import QUARANTINE_BODY_MAX, Delivery
from workq.broker.fair_turns import FairBuffer
from workq.broker.kafka.publisher import KafkaRecord, SentOn
from workq.broker.kafka.topics import MISSING, TopicNames, Topics
from workq.broker.kafka.tracker import PartitionLife
from workq.errors import BrokerUnavailable, ConfigError
from workq.values.codec import HINT_MAX_BYTES, decode_hint

RETURNS_HEADER: Final = "workq-returns"
POLL_S: Final = 0.1
BATCH: Final = 250
STASH_MAX: Final = 1000
"""Records of one line that wait here, before its partitions are paused; at half of it they are resumed."""
COMMIT_S: Final = 0.05
COMMIT_REST_S: Final = 0.5
LOOK_EVERY_S: Final = 5.0
LOOK_IN_TROUBLE_S: Final = 1.0
GATHER_S: Final = 0.5
"""Each change of the subscription deals partitions out anew, so changes are gathered for so long."""
UNSUBSCRIBE_S: Final = 30.0
"""Who is paused for so long gives its partitions away."""
PUT_BACK_MAX_S: Final = 60.0
"""A record that is put back holds back the offset of its partition meanwhile."""
REST_S: Final = 1.0
DEAF_S: Final = 2.0
ASK_S: Final = 2.0
"""Questions of the thread that polls: who closes the consumer waits for it."""
CLOSE_S: Final = 5.0
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NO_RIGHT: Final = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)


@dataclass(slots=True)
class RecordTag:
    """Which record a delivery was, in which life of its partition, and its body for the quarantine."""

    life: PartitionLife
    offset: int
    body: bytes
    size: int
    sha256: str
    is_aside: bool = False
    """It is on its way to another place, and counts no more against the prefetch."""


class _Line:
    """One queue of a consumer: what has arrived and was not given out, and how many are out."""

    __slots__ = ("out", "queue", "waiting")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.waiting: deque[Delivery] = deque()
        self.out = 0


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
        self._prefetch = prefetch
        self._arrived = threading.Condition()
        self._buffer = FairBuffer()
        self._lines: dict[str, _Line] = {}
        self._served = tuple(dict.fromkeys(queues))
        self._error: ConfigError | None = None
        self._trouble: str | None = None
        self._is_wanted = True
        self._paused_at = 0.0
        self._is_closed = False
        self._is_woken = False
        self._is_to_renew = self._is_to_leave = False
        self._aside: list[tuple[float, int, Delivery]] = []
        """A heap of what is put back: when."""
        self._numbers = itertools.count()
        # what follows belongs to the thread that polls
        self._handle: Handle | None = None
        self._lives: dict[tuple[str, int], PartitionLife] = {}
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
        self._owed: dict[tuple[str, int], int] = {}
        """Where our partitions ended when this consumer was to renew; judged a moment later."""
        self._judge_at = 0.0
        self._commit_at = 0.0
        self._thread = threading.Thread(target=self._run, name="workq-kafka-consumer", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        return self._trouble

    def fetch(self, *, ids_max: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        with self._arrived:
            while True:
                if self._error is not None:
                    raise self._error
                if self._buffer:
                    found = [one for one in self._buffer.take(ids_max) if not one.tag.life.is_over]
                    if found:
                        self._is_woken = False
                        return found
                    continue
                left_s = deadline - time.monotonic()
                if self._is_closed or self._is_woken or left_s <= 0:
                    self._is_woken = False
                    return []
                self._arrived.wait(left_s)

    def wake(self) -> None:
        with self._arrived:
            self._is_woken = True
            self._arrived.notify_all()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        with self._arrived:
            for one in deliveries:
                self._close(one.tag)

    def quarantine(self, delivery: Delivery, *, reason: str) -> None:
        tag: RecordTag = delivery.tag
        sha256 = tag.sha256 or hashlib.sha256(tag.body).hexdigest()
        headers = {
            "workq-reason": reason,
            "workq-queue": delivery.queue,
            "workq-bytes": str(tag.size),
            "workq-sha256": sha256,
        }
        with self._arrived:
            is_ours = self._set_aside(tag)
        if is_ours:
            self._move(delivery, KafkaRecord(self._names.quarantine, tag.body, headers))

    def put_back(self, delivery: Delivery, *, delay_s: float) -> None:
        when = time.monotonic() + min(delay_s, PUT_BACK_MAX_S)
        with self._arrived:
            if self._set_aside(delivery.tag):
                heapq.heappush(self._aside, (when, next(self._numbers), delivery))

    def set_prefetch(self, count: int) -> None:
        if count != self._prefetch:
            with self._arrived:
                self._prefetch = count
                self._fill()

    def serve(self, queues: Collection[str]) -> None:
        served = tuple(dict.fromkeys(queues))
        if served != self._served:
            with self._arrived:
                self._served = served
                self._fill()

    def pause(self) -> None:
        if self._is_wanted:
            with self._arrived:
                self._is_wanted = False
                self._paused_at = time.monotonic()

    def resume(self) -> None:
        if not self._is_wanted:
            with self._arrived:
                self._is_wanted = True
                self._fill()

    def renew(self) -> None:
        """As the port promises, but only if a partition of ours has records that do not arrive.

        What waits elsewhere waits for its owner, and to join anew would deal out all partitions anew.
        """
        self._is_to_renew = True

    def partitions_held_back(self) -> set[tuple[str, int]]:
        """While this consumer is paused: its partitions, where new hints would wait for it."""
        if self._is_wanted:
            return set()
        with self._arrived:
            return set(self._lives)

    def close(self) -> None:
        with self._arrived:
            self._is_closed = True
            self._buffer.clear()
            self._arrived.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def handles(self) -> list[object]:
        """What belongs to threads of librdkafka: a child of a fork must never free it."""
        return [] if self._handle is None else [self._handle]

    # Under the lock

    def _close(self, tag: RecordTag) -> bool:
        """A record is done with; False if its life is over, or it was done with before."""
        life = tag.life
        if life.is_over or not life.close(tag.offset):
            return False
        if not tag.is_aside:
            self._free(life)
        return True

    def _set_aside(self, tag: RecordTag) -> bool:
        if tag.life.is_over or tag.is_aside:
            return False
        tag.is_aside = True
        self._free(tag.life)
        return True

    def _free(self, life: PartitionLife) -> None:
        life.out -= 1
        line = self._lines[life.queue]
        line.out -= 1
        self._fill_line(line)

    def _fill(self) -> None:
        for line in self._lines.values():
            self._fill_line(line)

    def _fill_line(self, line: _Line) -> None:
        """Give out of a line what the prefetch allows."""
        if not self._is_wanted or self._is_closed or line.queue not in self._served:
            return
        was_empty = not self._buffer
        while line.waiting and line.out < self._prefetch:
            delivery = line.waiting.popleft()
            life: PartitionLife = delivery.tag.life
            if not life.is_over:
                life.out += 1
                line.out += 1
                self._buffer.append(delivery)
        if was_empty and self._buffer:
            self._arrived.notify_all()

    def _end(self, life: PartitionLife) -> None:
        """A life is over: nothing of it is given out or acked any more."""
        life.is_over = True
        line = self._lines[life.queue]
        line.out -= life.out
        line.waiting = deque(one for one in line.waiting if one.tag.life is not life)
        self._fill_line(line)

    def _begin(self, topic: str, partition: int) -> None:
        queue = self._queues[topic]
        if queue not in self._lines:
            self._lines[queue] = _Line(queue)
        self._lives[topic, partition] = PartitionLife(queue, (topic, partition))

    # On the thread that polls

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._turn()
            except ConfigError as error:
                self._fail(error)
                break
            except Exception as error:  # a thread that ended would be a worker that hears nothing for ever
                self._trouble = self._topics.text(error)
                self._leave()
                self._rest()
        self._leave()

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
        is_wanted = self._is_wanted or (bool(self._subscribed) and now - self._paused_at < UNSUBSCRIBE_S)
        wished = frozenset(self._served) if is_wanted else frozenset()
        if wished != self._wished:
            self._wished, self._wished_at = wished, now
        if wished == self._subscribed or (self._subscribed and now - self._wished_at < GATHER_S):
            return
        if now < self._follow_at:
            return
        queues = {self._names.topic(queue): queue for queue in wished}
        try:
            self._topics.ensure(queues, ends=now + ASK_S)
        except BrokerUnavailable as error:  # what is subscribed to goes on
            self._trouble = str(error)
            self._follow_at = time.monotonic() + REST_S
            return
        self._queues |= queues
        if queues:
            handle.subscribe(list(queues), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        else:
            handle.unsubscribe()
        self._subscribed = wished
        self._look_at = 0.0
        self._trouble = None

    def _assigned(self, _handle: Handle, partitions: list[TopicPartition]) -> None:
        with self._arrived:
            for one in partitions:
                if one.topic in self._queues:
                    self._begin(one.topic, one.partition)
        self._trouble = None

    def _revoked(self, handle: Handle, partitions: list[TopicPartition]) -> None:
        """Commit, then let go. What is acked after that is not heard any more."""
        with self._arrived:
            lives = [life for one in partitions if (life := self._lives.pop((one.topic, one.partition), None))]
            for life in lives:
                self._end(life)
        offsets = [offset for life in lives if (offset := _offset_of(life)) is not None]
        if offsets:
            with contextlib.suppress(KafkaException):
                handle.commit(offsets=offsets, asynchronous=False)

    def _lost(self, _handle: Handle, partitions: list[TopicPartition]) -> None:
        with self._arrived:
            for one in partitions:
                if (life := self._lives.pop((one.topic, one.partition), None)) is not None:
                    self._end(life)

    def _receive(self, messages: Sequence[Message]) -> None:
        with self._arrived:
            lines: set[str] = set()
            for one in messages:
                error = one.error()
                if error is not None:
                    self._heed(error, one.topic())
                    continue
                place = str(one.topic()), one.partition() or 0
                life, offset = self._lives.get(place), one.offset() or 0
                if life is None:
                    continue
                if life.begins_anew(offset):
                    self._end(life)
                    self._begin(*place)
                    life = self._lives[place]
                life.arrive(offset, one.leader_epoch())
                self._lines[life.queue].waiting.append(_delivery(life, offset, one))
                lines.add(life.queue)
            for queue in lines:
                self._fill_line(self._lines[queue])
            if lines:
                self._trouble = None

    def _on_error(self, error: KafkaError) -> None:
        """librdkafka tells of its connections: one that broke is made again, but when there is none left."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._trouble = self._topics.text(KafkaException(error))
            self._look_at = 0.0

    def _heed(self, error: KafkaError, topic: str | None) -> None:
        if error.code() in _NO_RIGHT:
            self._fail(ConfigError(str(self._topics.failure(error, topic or "the group"))))
        elif error.code() in MISSING:
            self._look_at = 0.0
            if topic is not None:
                self._topics.forget(topic)
        elif error.fatal():
            raise KafkaException(error)
        elif not error.retriable():
            self._trouble = self._topics.text(KafkaException(error))

    def _send_what_is_put_back(self) -> None:
        now = time.monotonic()
        while self._aside and self._aside[0][0] <= now:
            with self._arrived:
                delivery = heapq.heappop(self._aside)[2]
            if delivery.tag.life.is_over:
                continue  # it comes again as it was
            topic = delivery.tag.life.place[0]
            headers = {RETURNS_HEADER: str(delivery.returns + 1)}
            self._move(delivery, KafkaRecord(topic, delivery.tag.body, headers))

    def _commit(self, handle: Handle) -> None:
        now = time.monotonic()
        if now < self._commit_at:
            return
        with self._arrived:
            offsets = [offset for life in self._lives.values() if (offset := _offset_of(life)) is not None]
            for one in offsets:
                self._lives[one.topic, one.partition].committed(one.offset)
        if offsets:
            self._commit_at = now + COMMIT_S
            try:
                handle.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:
                self._committed(error.args[0], offsets)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """What came of a commit. Around a rebalance it may be refused; then it is tried again."""
        for one in partitions:
            life = self._lives.get((one.topic, one.partition))
            if life is not None and (error is not None or one.error is not None):
                life.not_committed()
                self._commit_at = time.monotonic() + COMMIT_REST_S

    def _hold_back(self, handle: Handle) -> None:
        """Ask for no more of the lines of which enough waits here."""
        for life in self._lives.values():
            waiting = len(self._lines[life.queue].waiting)
            if not life.is_paused and waiting >= STASH_MAX:
                handle.pause([TopicPartition(*life.place)])
                life.is_paused = True
            elif life.is_paused and waiting < STASH_MAX // 2:
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
        else:
            self._look_at = 0.0

    def _read_anew(self, handle: Handle, topic: str) -> bool:
        """The topic was deleted and made again: what stands in it now was never read, whatever our position says."""
        for life in [one for one in self._lives.values() if one.place[0] == topic]:
            with self._arrived:
                self._end(life)
                self._begin(*life.place)
            try:
                handle.seek(TopicPartition(*life.place, OFFSET_BEGINNING))
            except KafkaException:
                return False
        return True

    def _ends(self, handle: Handle) -> dict[tuple[str, int], int]:
        """Where each of our partitions ends now, if it holds records that are not committed and that we ask for."""
        places = [TopicPartition(*life.place) for life in self._lives.values() if not life.is_paused]
        found: dict[tuple[str, int], int] = {}
        with contextlib.suppress(KafkaException):  # it does not answer: to join anew would not help
            for one in handle.committed(places, timeout=ASK_S) if places else ():
                told: Any = handle.get_watermark_offsets(one, timeout=ASK_S)
                if told is not None and told[1] > max(told[0], one.offset):
                    found[one.topic, one.partition] = told[1]
        return found

    def _is_deaf(self, handle: Handle) -> bool:
        """Whether records of ours that were there `DEAF_S` ago have not come."""
        owed = {place: end for place, end in self._owed.items() if place in self._lives}
        places = [TopicPartition(*place) for place in owed]
        return any(one.offset < owed[one.topic, one.partition] for one in handle.position(places))

    def _leave(self) -> None:
        """Leave the group; what has arrived and was not acked is delivered again."""
        handle, self._handle = self._handle, None
        self._subscribed = frozenset()
        if handle is not None:
            with contextlib.suppress(KafkaException, RuntimeError):
                handle.close()  # which revokes, and commits there
        with self._arrived:
            for life in self._lives.values():
                self._end(life)
            self._lives.clear()

    def _rest(self) -> None:
        with self._arrived:
            self._arrived.wait_for(lambda: self._is_closed, REST_S)

    # On any thread

    def _move(self, delivery: Delivery, record: KafkaRecord) -> None:
        self._send_on(record, lambda stored: self._moved(delivery, stored))

    def _moved(self, delivery: Delivery, stored: bool | ConfigError) -> None:
        tag: RecordTag = delivery.tag
        with self._arrived:
            if stored is True:
                self._close(tag)
            elif isinstance(stored, ConfigError):
                self._fail(stored)
            elif not tag.life.is_over:
                tag.is_aside = False
                self._lines[tag.life.queue].waiting.appendleft(delivery)
                self._fill_line(self._lines[tag.life.queue])

    def _fail(self, error: ConfigError) -> None:
        with self._arrived:
            self._error = error
            self._arrived.notify_all()


def group_settings(settings: Mapping[str, Any], group: str, protocol: str) -> dict[str, Any]:
    """What librdkafka is given for a member of the group."""
    classic = {"partition.assignment.strategy": "cooperative-sticky"} if protocol == "classic" else {}
    return {
        **settings,
        **classic,
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",  # with "latest" the hints of new partitions would be lost
        "isolation.level": "read_uncommitted",  # a transaction that hangs would stop the reading
        "queued.min.messages": STASH_MAX,
        "queued.max.messages.kbytes": 2048,
        "fetch.queue.backoff.ms": 20,
        "fetch.error.backoff.ms": 100,
        "topic.metadata.refresh.interval.ms": 30_000,
        "socket.timeout.ms": 10_000,
    }


def _offset_of(life: PartitionLife) -> TopicPartition | None:
    """What is to be committed of a partition."""
    found = life.to_commit()
    if found is None:
        return None
    offset, leader_epoch = found
    more: dict[str, Any] = {} if leader_epoch is None else {"leader_epoch": leader_epoch}
    return TopicPartition(*life.place, offset, **more)


def _delivery(life: PartitionLife, offset: int, message: Message) -> Delivery:
    body = message.value() or b""
    hint = decode_hint(body)
    size, sha256 = len(body), ""
    if size > HINT_MAX_BYTES:  # keep no more of it than the quarantine does
        sha256, body = hashlib.sha256(body).hexdigest(), body[:QUARANTINE_BODY_MAX]
    tag = RecordTag(life, offset, body, size, sha256)
    if isinstance(hint, str):
        return Delivery(tag, life.queue, (), 0, fault=hint, returns=_returns(message))
    return Delivery(
        tag,
        life.queue,
        hint.task_ids,
        hint.looks,
        returns=_returns(message),
        marker=hint.marker,
        waits_s=tuple(one / 1000 for one in hint.waits_ms),
    )


def _returns(message: Message) -> int:
    """How often this record was put back. Anybody may have written anything there."""
    headers: Any = message.headers() or ()
    told = dict(headers).get(RETURNS_HEADER) or b""
    return int(told) if told.isdigit() and len(told) <= 6 else 0
