"""kafka: the records of a topic, by a consumer group that says who reads which partition; the ledger says from where.

At each assignment the partition is taken in the ledger, and read from the offset that stands there. Kafka's own
committed offsets are written for people and their tools, and never read.

What happens on each failure:

- this process dies, or stands still: Kafka gives its partitions to another one, which takes them in the ledger; what
  the former one still has is refused there (`Overtaken`);
- the topic is deleted and made anew: it has another id, which is looked at every few seconds, and is read from its
  beginning; what was recorded of it before that was seen may be recorded once more;
- the offset is out of Kafka's range (retention has removed records, or a log was cut off): it is read from what there
  is, and what was recorded before is known by its id; how many records are gone is told;
- any error of the consumer: the link is closed, and the next one begins where the ledger stands.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from workq.config.addresses import Allowed
from workq.config.given_options import GivenOptions
from workq.config.kafka import kafka_place
from workq.errors import ConfigError
from workq.messages.intake import IntakeInspector, IntakeKind, IntakeLink, TakePartition
from workq.messages.intake.aside import RecordsAside
from workq.messages.intake.kafka_inspector import KafkaInspector
from workq.messages.intake.kafka_membership import GroupMembership
from workq.messages.intake.kafka_records import group_of, id_of_topic, record_of
from workq.messages.intake.values import BrokerRecord, IntakeBatch, OffsetMove
from workq.messages.kinds import DestinationAddress, SendFault, Unsent
from workq.messages.kinds.kafka import KafkaKind
from workq.messages.kinds.kafka_reach import TOPIC_MAX, KafkaReach, check_topic, take_kafka_options
from workq.messages.kinds.reach import Lookup, ReachFailed

LOOK_EVERY_S: Final = 5.0
"""The brokers that Kafka advertises are judged again, and the topic's id compared, after so long."""
CONNECT_S: Final = 10.0
WATERMARK_S: Final = 5.0
MARKS_MAX: Final = 1
"""Offsets without a record that are passed without a question: the mark at the end of a transaction."""


class KafkaIntake(IntakeKind):
    """`--topic T`. With a user in the URL the login is SASL."""

    name = "kafka"

    def __init__(self, *, lookup: Lookup = socket.getaddrinfo) -> None:
        """`lookup`: for tests."""
        self._lookup = lookup

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See the port. `url`, `topic`, `group` (workq.NAME), `protocol` (consumer, or classic for Kafka before 4.0),
        `quarantine` (a topic), `mechanism`, `ca_file` and the like."""
        given = GivenOptions(options)
        take_kafka_options(given)
        topic = given.stored["topic"]
        given.choice("protocol", ("consumer", "classic"), default="consumer")
        given.text("group", why="the name of a consumer group", default=None)
        aside = given.text("quarantine", why="a topic", default=f"{topic}.quarantine")
        if len(check_topic(aside)) > TOPIC_MAX or aside == topic:
            raise ConfigError(f"quarantine: need another topic, of at most {TOPIC_MAX} characters")
        return given.done(kind=self.name)

    def open(self, address: DestinationAddress, *, allowed: Allowed, take: TakePartition) -> IntakeLink:
        """See the port."""
        return _KafkaIntakeLink(address, allowed=allowed, take=take, lookup=self._lookup)

    def inspector(self, address: DestinationAddress, *, allowed: Allowed) -> IntakeInspector:
        """See the port."""
        return KafkaInspector(address, allowed=allowed, lookup=self._lookup)


class _KafkaIntakeLink(IntakeLink):
    def __init__(self, address: DestinationAddress, *, allowed: Allowed, take: TakePartition, lookup: Lookup) -> None:
        self._options = address.options
        self._place = kafka_place(address.url)
        self._reach = KafkaReach(self._place, address.options, allowed=allowed, lookup=lookup)
        self._take = take
        self._group = group_of(address.name, address.options)
        self._topic: str = address.options["topic"]
        self._topic_id: str | None = None
        self._member: GroupMembership | None = None
        self._admin: AdminClient | None = None
        self._looked_at = 0.0
        place = DestinationAddress(
            address.name, {**address.options, "topic": address.options["quarantine"]}, address.url
        )
        self._aside = RecordsAside(KafkaKind(lookup=lookup).open(place, allowed=allowed), make=self._make_quarantine)

    def fetch(self, *, limit: int, timeout_s: float) -> IntakeBatch:
        """See the port."""
        try:
            member = self._ready()
            messages = member.consumer.consume(limit, timeout_s)
            if member.failure is not None:
                raise member.failure
            for one in messages:
                if (error := one.error()) is not None:
                    raise ReachFailed(self._unsent(error))
        except KafkaException as error:
            self.close()
            raise ReachFailed(self._unsent(error.args[0])) from None
        except BaseException:
            self.close()
            raise
        return self._batch(member, messages)

    def quarantine(self, unreadable: Sequence[tuple[BrokerRecord, str]], *, timeout_s: float) -> None:
        """See the port."""
        self._aside.keep(unreadable, timeout_s=timeout_s)

    def passed(self, batch: IntakeBatch) -> None:
        """See the port."""
        self._aside.passed()
        if self._member is not None and batch.moves:
            offsets = [TopicPartition(one.topic, one.part, one.next_offset) for one in batch.moves]
            with contextlib.suppress(KafkaException):
                self._member.consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        """See the port."""
        member, self._member = self._member, None
        self._admin = None
        self._aside.close()
        if member is not None:
            member.close()

    def _ready(self) -> GroupMembership:
        """The membership, after its brokers were judged.

        Raises:
            ReachFailed: no broker answers, or one may not be reached, or the topic is not there.
        """
        if self._member is not None and time.monotonic() - self._looked_at <= LOOK_EVERY_S:
            return self._member
        ends = time.monotonic() + CONNECT_S
        self._reach.look(ends)
        if self._admin is None:
            self._admin = AdminClient(self._reach.conf())
        topic_id = id_of_topic(self._admin, self._topic, ends)
        if self._member is not None and topic_id != self._topic_id and topic_id is not None:
            self.close()  # another topic of this name: its partitions are taken anew
            self._admin = AdminClient(self._reach.conf())
        self._topic_id = topic_id or self._topic_id
        self._looked_at = time.monotonic()
        if self._member is None:
            self._member = GroupMembership(self._conf(), self._topic, self._topic_id, self._take)
        return self._member

    def _conf(self) -> dict[str, Any]:
        protocol = self._options["protocol"]
        classic = {"partition.assignment.strategy": "cooperative-sticky"} if protocol == "classic" else {}
        return {
            **self._reach.conf(),
            **classic,
            "group.protocol": protocol,
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "queued.min.messages": 1000,
            "queued.max.messages.kbytes": 8192,
            "topic.metadata.refresh.interval.ms": 30_000,
            "error_cb": lambda _: None,  # what lasts is seen by the looks, in our own words
        }

    def _batch(self, member: GroupMembership, messages: Sequence[Message]) -> IntakeBatch:
        """What is ours of these. What came before a partition went, or comes twice after it came back, is left out."""
        records, before = [], {part: one.next_offset for part, one in member.owned.items()}
        gaps: dict[int, tuple[int, int]] = {}
        for one in messages:
            part, offset = one.partition(), one.offset()
            owned = None if part is None else member.owned.get(part)
            if owned is None or part is None or offset is None or offset < owned.next_offset:
                continue
            if 0 < owned.next_offset < offset - MARKS_MAX:
                gaps.setdefault(part, (owned.next_offset, offset))
            owned.next_offset = offset + 1
            records.append(record_of(one, topic_id=self._topic_id, group=self._group))
        moves = [
            OffsetMove(self._topic, part, one.epoch, one.next_offset)
            for part, one in member.owned.items()
            if one.next_offset != before[part]
        ]
        lost = sum(self._lost(member.consumer, part, *gap) for part, gap in gaps.items())
        return IntakeBatch(records, moves, lost=lost)

    def _lost(self, consumer: Consumer, part: int, wanted: int, first: int) -> int:
        """How many of the records between both offsets are below the log's start; where Kafka does not tell, 0.

        The others are marks of transactions, or were aborted, or compacted.
        """
        try:
            found: Any = consumer.get_watermark_offsets(TopicPartition(self._topic, part), timeout=WATERMARK_S)
        except KafkaException:
            return 0
        return 0 if found is None else max(0, min(found[0], first) - wanted)

    def _make_quarantine(self, timeout_s: float) -> None:
        name = self._options["quarantine"]
        admin = AdminClient(self._reach.conf())
        try:
            admin.create_topics([NewTopic(name, 1)], operation_timeout=timeout_s)[name].result(timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise ReachFailed(self._unsent(error.args[0], f"topic {name} could not be made: ")) from None
        except TimeoutError:
            raise ReachFailed(Unsent(SendFault.AWAY, f"topic {name} was not made in time")) from None

    def _unsent(self, error: KafkaError, before: str = "") -> Unsent:
        return Unsent(SendFault.AWAY, self._place.clean(f"Kafka: {before}{error.str()}"))
