"""What exists in Kafka for one namespace, and how it is made: a topic for each line, the quarantine, one group.

    {ns}.q.{queue}    the hints of one line; as many partitions as the URL says
    {ns}.quarantine   messages that are not ours, and hints that could not be taken
    {ns}              the consumer group of all workers

Kafka allows no `~` in the name of a topic, and two names that differ by `.` and `_` alone collide in its metrics. So in
the name of a queue `-` is written `--`, `_` is `-u` and `~` is `-b`.

Who decides: who made it first. A topic that exists is never changed. One that is missing is made, with its settings;
where the cluster has fewer than three brokers, with as many copies as it gives by itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from workq.broker.kafka.refusal import LastRefusal
from workq.config.place import UrlPlace
from workq.errors import BrokerUnavailable, ConfigError

TOPIC_MAX: Final = 249
COPIES: Final = 3
RETENTION_MS: Final = 7 * 86_400_000
QUARANTINE_RETENTION_MS: Final = 30 * 86_400_000
ASK_S: Final = 5.0
LOOK_S: Final = 0.02
POLL_S: Final = 0.2
GIVEN_UP_MAX: Final = 3
_ESCAPES: Final = {"-": "--", "_": "-u", "~": "-b"}
MISSING: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID)
_REFUSED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_CONFIG,
    KafkaError.TOPIC_EXCEPTION,
)
_CURES: Final = {
    KafkaError.INVALID_RECORD: "It is compacted, and a hint has no key: set cleanup.policy=delete",
    KafkaError.MSG_SIZE_TOO_LARGE: "Give it the max.message.bytes that Kafka gives by itself: 1048588",
    KafkaError.RECORD_LIST_TOO_LARGE: "Give it the segment.bytes that Kafka gives by itself: 1073741824",
}
"""Of a topic that takes no hint. For all others a right is missing."""
_NO_ANSWER: Final = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


def is_refusal(error: KafkaError) -> bool:
    """Whether waiting does not mend it."""
    return error.code() in _REFUSED or error.code() in _CURES


class TopicNames:
    """The names of one namespace."""

    def __init__(self, namespace: str) -> None:
        self._prefix = f"{namespace}.q."
        self.group = namespace
        self.quarantine = f"{namespace}.quarantine"
        self.grant = (
            f"Grant this user READ, WRITE, CREATE and DESCRIBE on what begins with {namespace}. and READ on the group "
            f"{namespace}"
        )

    def topic(self, queue: str) -> str:
        """The topic of one line.

        Raises:
            ConfigError: its name would be too long.
        """
        name = self._prefix + "".join(_ESCAPES.get(one, one) for one in queue)
        if len(name) > TOPIC_MAX:
            raise ConfigError(
                f"broker: queue {queue!r} would be a topic of {len(name)} characters, and Kafka allows {TOPIC_MAX}; "
                "use a shorter name, or fewer '-' and '_' in it"
            )
        return name


class Topics:
    """Topics of one namespace, as this process knows them. Any thread may use it."""

    def __init__(self, place: UrlPlace, settings: dict[str, Any], names: TopicNames, *, partitions: int) -> None:
        self._place = place
        self.refusal = LastRefusal(place, ca_file=settings.get("ssl.ca.location"))
        self._settings = {**settings, "error_cb": self.refusal.heed}
        self._names = names
        self._partitions = partitions
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._given_up: deque[AdminClient] = deque(maxlen=GIVEN_UP_MAX)
        self._is_closed = False
        self._known: dict[str, list[int]] = {}
        """Topics that are there, each with its partitions as they were seen."""
        self._making = threading.Lock()

    @property
    def admin(self) -> AdminClient:
        """The one admin client; made when first asked for, and kept: answers to one that is collected never come.

        Raises:
            BrokerUnavailable: this process has closed its broker.
        """
        with self._lock:
            if self._is_closed:
                raise BrokerUnavailable("broker: it is closed")
            if self._admin is None:
                self._admin = AdminClient(self._settings)
            return self._admin

    def close(self) -> None:
        """Let go of the admin client; it ends with its last call. Repeatable."""
        with self._lock:
            self._is_closed, self._admin = True, None
            self._given_up.clear()

    def handles(self) -> list[object]:
        """What belongs to threads of librdkafka: a child of a fork must never free it."""
        return [*self._given_up, *([] if self._admin is None else [self._admin])]

    def ensure(self, topics: Collection[str], *, ends: float) -> None:
        """Make those that are missing, and return when each has leaders.

        Raises:
            BrokerUnavailable: Kafka did not answer in time. ConfigError: it refuses.
        """
        if all(one in self._known for one in topics):
            return
        with self._making:
            new = [one for one in dict.fromkeys(topics) if one not in self._known]
            missing = [one for one in new if not self._has_leaders(one, ends)]
            if missing:
                self._make(missing, ends)
                for one in missing:
                    while not self._has_leaders(one, ends):
                        if time.monotonic() > ends:
                            raise BrokerUnavailable(f"broker: topic {one} has no leaders yet")
                        time.sleep(LOOK_S)

    def ensure_each(self, topics: Collection[str], *, ends: float) -> dict[str, str]:
        """As `ensure`, but that one which is refused keeps no other waiting: answers those, each with why.

        Raises:
            BrokerUnavailable: Kafka did not answer in time.
        """
        with contextlib.suppress(ConfigError):
            self.ensure(topics, ends=ends)
            return {}
        refused = {}
        for one in topics:
            try:
                self.ensure([one], ends=ends)
            except ConfigError as error:
                refused[one] = str(error)
        return refused

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic that `ensure` has seen."""
        return self._known.get(topic, [])

    def forget(self, topic: str) -> None:
        """It may be gone: look for it before it is used again."""
        self._known.pop(topic, None)

    def look_at(self, topics: Collection[str], *, ends: float) -> dict[str, tuple[str, list[int]]]:
        """The id of each of these topics, and its partitions; those that are not there are left out.

        Raises:
            BrokerUnavailable: Kafka did not answer. ConfigError: it refuses.
        """
        found = {}
        for topic, future in self.asked(topics, ends=ends).items():
            try:
                told = self.result(future, ends)
            except KafkaException as error:
                if error.args[0].code() in MISSING:
                    continue
                raise self.failure(error.args[0], topic) from None
            found[topic] = str(told.topic_id), [one.id for one in told.partitions]
        return found

    def asked(self, topics: Collection[str], *, ends: float) -> dict[str, Any]:
        """The questions for some topics, on their way: a future for each."""
        within_s = max(0.1, ends - time.monotonic())
        return self.admin.describe_topics(TopicCollection(list(topics)), request_timeout=within_s) if topics else {}

    def result(self, future: Any, ends: float) -> Any:
        """What an answer holds.

        Raises:
            BrokerUnavailable: it did not come. KafkaException: it is an error.
        """
        try:
            answer = self._awaited(future, max(ends, time.monotonic() + 0.1))
        except TimeoutError:
            self._renew()
            raise self.refusal.failure() from None
        except KafkaException as error:
            if error.args[0].code() in _NO_ANSWER:
                self._renew()
                raise self.refusal.failure() from None
            self.refusal.forget()
            raise
        self.refusal.forget()
        return answer

    def ask(self, question: Callable[[AdminClient], Any], *, ends: float, what: str) -> Any:
        """The answer to a question of one future.

        Raises:
            BrokerUnavailable: Kafka did not answer. ConfigError: it refuses.
        """
        try:
            return self.result(question(self.admin), ends)
        except KafkaException as error:
            raise self.failure(error.args[0], what) from None

    def failure(self, error: KafkaError, what: str) -> ConfigError | BrokerUnavailable:
        """An error of Kafka's, in our words."""
        text = self._place.clean(f"broker: {what}: Kafka says: {error.str()}")
        if is_refusal(error):
            return ConfigError(f"{text.rstrip('.')}. {_CURES.get(error.code(), self._names.grant)}")
        return BrokerUnavailable(text)

    def text(self, error: Exception) -> str:
        """An error for people, in one line."""
        said = error.args[0].str() if isinstance(error, KafkaException) else f"{type(error).__name__}: {error}"
        return self._place.clean(said)

    def _renew(self) -> None:
        """Ask by another client from now on: this one goes on to ask the leaders that it knows, and they may be dead.

        It is kept for a while, as answers to one that is collected never come.
        """
        with self._lock:
            if self._admin is not None:
                self._given_up.append(self._admin)
                self._admin = None

    def _awaited(self, future: Any, ends: float) -> Any:
        """The answer, when it comes; TimeoutError: it has not come, or will not, as no broker lets us in."""
        self.refusal.is_final = False  # it may have been mended
        while True:
            try:
                return future.result(max(0.0, min(POLL_S, ends - time.monotonic())))
            except TimeoutError:
                self.admin.poll(0.0)  # what it is told of its connections comes here alone
                if time.monotonic() >= ends or self.refusal.is_final:
                    raise

    def _has_leaders(self, topic: str, ends: float) -> bool:
        try:
            found = self.result(self.asked([topic], ends=ends)[topic], ends)
        except KafkaException as error:
            if error.args[0].code() in MISSING:
                return False
            raise self.failure(error.args[0], topic) from None
        if not found.partitions or any(one.leader is None for one in found.partitions):
            return False
        self._known[topic] = [one.id for one in found.partitions]
        return True

    def _make(self, topics: list[str], ends: float) -> None:
        within_s = max(0.1, ends - time.monotonic())
        nodes = self.ask(lambda admin: admin.describe_cluster(request_timeout=within_s), ends=ends, what="cluster")
        copies = COPIES if len(nodes.nodes) >= COPIES else -1
        asked = self.admin.create_topics(
            [self._new(one, copies) for one in topics], operation_timeout=within_s, request_timeout=within_s
        )
        for topic, future in asked.items():
            try:
                self.result(future, ends)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self.failure(error.args[0], topic) from None

    def _new(self, topic: str, copies: int) -> NewTopic:
        is_quarantine = topic == self._names.quarantine
        config = {
            "cleanup.policy": "delete",
            "retention.ms": str(QUARANTINE_RETENTION_MS if is_quarantine else RETENTION_MS),
            "unclean.leader.election.enable": "false",
        }
        if copies == COPIES:
            config["min.insync.replicas"] = "2"
        return NewTopic(topic, 1 if is_quarantine else self._partitions, copies, config=config)
