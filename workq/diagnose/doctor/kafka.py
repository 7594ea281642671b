"""Kafka as the broker: who answers, what its topics are made of, who reads them, and what this user may do there.

Nothing is made, changed or joined (broker/kafka/inspection.py). What Kafka loses is proved by positions and sent again,
so that is a warning; what keeps hints from arriving at all is an error. Who serves a queue is told by the ledger, where
it can be asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from workq.config import Settings, masked
from workq.config.kafka import KafkaUrl
from workq.config.place import UrlPlace
from workq.config.server_commands import kafka_command
from workq.diagnose.doctor.check import Check, Level, line
from workq.diagnose.doctor.host import require
from workq.diagnose.doctor.naming import named
from workq.diagnose.doctor.work import opened_ledger
from workq.errors import ConfigError, WorkqError
from workq.recovery.lost_hints import slack_s
from workq.values.lane import all_of, queue_of
from workq.values.plural import counted

if TYPE_CHECKING:
    from workq.broker.kafka.inspection import ClusterFacts, KafkaInspection, TopicFacts
    from workq.broker.kafka.members import GroupFacts

RETENTION_MIN_MS: Final = 86_400_000
"""A queue may wait for a day: a topic that keeps less loses hints of a backlog that nobody has to worry about."""
NODES: Final = 3
"""With so many, one may be away, and what was confirmed is there all the same."""


@dataclass(frozen=True, slots=True)
class KafkaFleet:
    """What the ledger says. Without one nothing is known."""

    processes: Mapping[str, int] = field(default_factory=dict)
    """How many live processes serve a queue."""
    hinted: frozenset[str] = frozenset()
    """Lines with tasks that are due, and whose hint was confirmed."""
    lines: frozenset[str] = frozenset()
    """All that the ledger knows of."""


def look(settings: Settings, queues: Sequence[str]) -> Iterator[Check]:
    """Everything about it. `queues` are those of the application.

    Raises:
        BrokerUnavailable, ConfigError: it cannot be looked at.
    """
    url = settings.broker or ""
    require("kafka", url)
    from workq.broker.kafka import KafkaBroker

    broker = KafkaBroker(url, namespace=settings.namespace, confirm_s=settings.times.confirm_s)
    try:
        yield Check("broker", Level.OK, f"{masked(url)}: {broker.check()}")
        yield from _looked_at(broker.inspection(), KafkaUrl.parse(url), queues, _fleet(settings))
    finally:
        broker.close()


def _looked_at(asked: KafkaInspection, url: KafkaUrl, queues: Sequence[str], fleet: KafkaFleet) -> Iterator[Check]:
    cluster = asked.cluster()
    yield from judge_protocol(cluster, url)
    lines = sorted({band for queue in queues for band in all_of(queue)} | fleet.lines)
    try:
        group = asked.group()
        topics = asked.topics(lines, group)
    except ConfigError as error:  # it refuses to tell, and says what to grant
        yield Check("broker", Level.ERROR, line(error))
        return
    if group.lacks:
        may_not = f"this user may not {' and '.join(group.lacks)} the group {asked.names.group}"
        yield Check("broker", Level.ERROR, f"{may_not}. {asked.names.grant}")
    if (refusal := asked.may_not_make()) is not None:
        yield Check("broker", Level.ERROR, f"topics that are missing cannot be made: {refusal}")
    if missing := sorted(fleet.hinted - set(topics)):
        yield Check(
            "broker",
            Level.WARNING,
            f"the topic is missing of {named(missing)}, where tasks wait whose hints Kafka had confirmed: whoever "
            "deleted it has deleted them; workers find these tasks in the ledger, and make it again; start one, and "
            "see who deletes topics",
        )
    for queue, topic in topics.items():
        if topic.lacks:
            may_not = f"this user may not {' and '.join(topic.lacks)} the topic {topic.name}"
            yield Check("broker", Level.ERROR, f"{may_not}. {asked.names.grant}")
        processes = fleet.processes.get(queue_of(queue), 0)
        yield from judge_topic(topic, url.place, nodes=cluster.nodes, processes=processes)
        yield from judge_waiting(queue, topic, group, processes=processes)


def judge_protocol(cluster: ClusterFacts, url: KafkaUrl) -> Iterator[Check]:
    """Whether Kafka has the protocol of the group, and how long a dead process keeps its partitions."""
    if url.protocol != "consumer":
        return
    if cluster.has_consumer_protocol is None:
        see = kafka_command(url.place, "kafka-configs.sh", "--describe", "--entity-type", "brokers", "--all")
        yield Check(
            "broker",
            Level.UNCHECKED,
            "this user may not read the settings of the nodes (DESCRIBE_CONFIGS on the cluster): whether Kafka is 4.0 "
            f"or newer was not looked at; see group.coordinator.rebalance.protocols, which has to name consumer: {see}",
        )
    elif not cluster.has_consumer_protocol:
        yield Check(
            "broker",
            Level.ERROR,
            "Kafka has no group protocol `consumer` (KIP-848): it is older than 4.0, or "
            "group.coordinator.rebalance.protocols leaves it out; use 4.0 or newer, or add ?protocol=classic to the "
            "URL",
        )
    elif cluster.session_s is not None:
        yield Check(
            "broker",
            Level.OK,
            f"the partitions of a process that died wait {cluster.session_s:g} s for another "
            "(group.consumer.session.timeout.ms); its tasks are found in the ledger meanwhile",
        )


def judge_topic(topic: TopicFacts, place: UrlPlace, *, nodes: int, processes: int) -> Iterator[Check]:
    """What is wrong with one topic as it is made. `place`: where Kafka is, for what is to be done about it."""
    if away := [str(one.number) for one in topic.partitions if not one.has_leader]:
        yield _found(
            topic,
            Level.ERROR,
            f"partition {named(away)} has no leader: nothing can be sent there or read; bring its nodes back",
        )
    if topic.copies == 1 and nodes >= NODES:
        yield _found(
            topic,
            Level.WARNING,
            f"has one copy, though there are {nodes} nodes: with one of them its hints are gone, and sent again as "
            f"they are proved lost; give it {NODES}, in a file as run-on-kafka.md shows it: "
            + kafka_command(
                place, "kafka-reassign-partitions.sh", "--execute", "--reassignment-json-file", "copies.json"
            ),
        )
    if len(topic.partitions) < processes:
        yield _found(
            topic,
            Level.WARNING,
            f"has {counted(len(topic.partitions), 'partition')} for {counted(processes, 'process', 'processes')}: "
            "the others get no hint, and poll the ledger; add some: "
            + kafka_command(place, "kafka-topics.sh", "--alter", "--topic", topic.name, "--partitions", processes),
        )
    if topic.settings is None:
        yield _found(
            topic,
            Level.UNCHECKED,
            "this user may not read its settings (DESCRIBE_CONFIGS): retention, cleanup.policy, min.insync.replicas "
            "and unclean elections were not looked at; see: "
            + kafka_command(place, "kafka-configs.sh", "--describe", "--topic", topic.name, "--all"),
        )
        return
    yield from _copies(topic, place)
    yield from _kept(topic, place)


def _copies(topic: TopicFacts, place: UrlPlace) -> Iterator[Check]:
    """Whether what was confirmed stays when a node goes, and whether anything is confirmed then."""
    needed, copies = int(topic.setting("min.insync.replicas", "1")), topic.copies
    if needed > copies:
        yield _found(
            topic,
            Level.ERROR,
            f"min.insync.replicas={needed}, with {counted(copies, 'copy', 'copies')}: Kafka refuses every hint; "
            + _set(topic, place, "min.insync.replicas", max(1, copies - 1)),
        )
    elif needed == copies > 1:
        yield _found(
            topic,
            Level.WARNING,
            f"min.insync.replicas={needed} is the number of its copies: while one node is away, no hint is confirmed; "
            + _set(topic, place, "min.insync.replicas", copies - 1),
        )
    elif needed == 1 < copies - 1:
        yield _found(
            topic,
            Level.WARNING,
            "min.insync.replicas=1: a hint may be confirmed by a node that has the only copy, and go with it; "
            + _set(topic, place, "min.insync.replicas", copies - 1),
        )
    late = [one for one in topic.partitions if one.has_leader and one.in_sync < min(needed, one.copies)]
    if late and needed <= copies:
        yield _found(
            topic,
            Level.WARNING,
            f"partition {named(str(one.number) for one in late)} has fewer copies in sync than {needed}: Kafka "
            "refuses its hints until its nodes are back",
        )
    if topic.setting("unclean.leader.election.enable") == "true":
        yield _found(
            topic,
            Level.WARNING,
            "unclean.leader.election.enable=true: a node that was behind may take over, and what it lacks is lost, and "
            "sent again as it is proved lost; " + _set(topic, place, "unclean.leader.election.enable", "false"),
        )


def _kept(topic: TopicFacts, place: UrlPlace) -> Iterator[Check]:
    """Whether a hint that waits is kept."""
    if "compact" in topic.setting("cleanup.policy"):
        yield _found(
            topic,
            Level.ERROR,
            f"cleanup.policy={topic.setting('cleanup.policy')}: Kafka takes no record without a key there, and hints "
            "have none; " + _set(topic, place, "cleanup.policy", "delete"),
        )
    kept_ms = int(topic.setting("retention.ms", "-1"))
    if 0 <= kept_ms < RETENTION_MIN_MS:
        yield _found(
            topic,
            Level.WARNING,
            f"retention.ms={kept_ms}: hints that wait longer than {kept_ms / 3_600_000:.3g} h are gone, and sent again "
            "as they are proved lost; " + _set(topic, place, "retention.ms", 7 * RETENTION_MIN_MS),
        )
    if int(topic.setting("retention.bytes", "-1")) >= 0:
        yield _found(
            topic,
            Level.WARNING,
            f"retention.bytes={topic.setting('retention.bytes')}: a backlog beyond that loses its oldest hints, which "
            "are sent again as they are proved lost; " + _set(topic, place, "retention.bytes", -1),
        )


def judge_waiting(queue: str, topic: TopicFacts, group: GroupFacts, *, processes: int) -> Iterator[Check]:
    """Hints in partitions that no member of the group has."""
    alone = [one for one in topic.partitions if one.waiting and not one.is_owned]
    if not alone or group.is_moving:
        return
    waiting = counted(sum(one.waiting for one in alone), "hint waits", "hints wait")
    where = "nobody is" if group.members == 0 else f"none of its {group.members} members has these partitions"
    if processes:
        what = "though workers serve it: see consumer trouble in their log (worker.polls)"
    else:
        what = f"start a worker: workq worker --queues {queue_of(queue)}"
    in_group = "in the group" if group.members == 0 else "of the group"
    text = f"{waiting} in {counted(len(alone), 'partition')} of queue {queue!r}, and {where} {in_group}: {what}"
    yield Check("broker", Level.WARNING, text)


def _found(topic: TopicFacts, level: Level, text: str) -> Check:
    return Check("broker", level, f"topic {topic.name}: {text}")


def _set(topic: TopicFacts, place: UrlPlace, name: str, value: object) -> str:
    return kafka_command(place, "kafka-configs.sh", "--alter", "--topic", topic.name, "--add-config", f"{name}={value}")


def _fleet(settings: Settings) -> KafkaFleet:
    """What the ledger says; nothing, where it cannot be asked: its own checks tell why."""
    processes: dict[str, int] = {}
    with suppress(WorkqError), opened_ledger(settings) as ledger:
        if ledger is None:
            return KafkaFleet()
        for row in ledger.questions.workers():
            if row.beat_age_s <= settings.times.lease_s:
                for queue in row.queues:
                    processes[queue] = processes.get(queue, 0) + 1
        served = {band for queue in processes for band in all_of(queue)}
        lines = {*ledger.questions.counts().queues, *ledger.lanes.bands(), *served}
        return KafkaFleet(processes, frozenset(ledger.hints.lines(slack_s=slack_s(settings.times))), frozenset(lines))
    return KafkaFleet()
