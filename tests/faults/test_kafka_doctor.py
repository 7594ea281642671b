"""What `workq doctor` finds on a Kafka: each fault is made on a real node, but those that need three of them.

The node has an authorizer, and no group protocol `consumer`, as one before 4.0.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.conftest import Private
from tests.contract.broker import collect, hints
from tests.faults.kafka_topic import AUTHORIZED
from tests.faults.ways_in import LONG_S
from tests.system.fleet import wait_until
from workq import Times, WorkQueue
from workq.broker.kafka.inspection import ClusterFacts, PartitionFacts, TopicFacts
from workq.broker.kafka.members import GroupFacts
from workq.config import Settings
from workq.config.kafka import KafkaUrl
from workq.diagnose.audit import audit, repair
from workq.diagnose.audit.look import Audited
from workq.diagnose.audit.queues import Way
from workq.diagnose.doctor.check import Level
from workq.diagnose.doctor.kafka import judge_protocol, judge_topic, judge_waiting, look
from workq.diagnose.where import Misplacement, Place
from workq.errors import BrokerUnavailable
from workq.lab.servers import Kafka, start_kafka
from workq.lab.servers.jars import find_jars, java
from workq.lab.servers.kafka import DEFAULT_VERSION
from workq.lab.servers.programs import KAFKA_VERSION
from workq.values.incarnation import Incarnation

QUEUE = "mail"
URL = KafkaUrl.parse("kafka://one:9092,two:9092")


@pytest.fixture(scope="module")
def guarded(private: Private) -> Iterator[Kafka]:
    options = (*AUTHORIZED, "group.coordinator.rebalance.protocols=classic")
    with private(start_kafka, options=options) as server:
        yield server


def note(number: int) -> None:
    """Nobody runs it."""


class Looked:
    """A namespace of one test on a Kafka, and what doctor says of it."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.host = kafka.url.removeprefix("kafka://")
        self.name = f"d{secrets.token_hex(4)}"
        self.topic = f"{self.name}.q.{QUEUE}"
        self.admin: Any = AdminClient(kafka.admin_conf)
        self.settings = Settings(
            ledger=f"sqlite:///{folder}/shop.db",
            broker=self.url(),
            namespace=self.name,
            times=replace(Times(), unpublished_grace_s=0.1, lease_s=600.0, confirm_s=LONG_S),
        )

    def url(self, *, user: str = "workq", protocol: str = "classic") -> str:
        return f"kafka://{user}:{user}@{self.host}?partitions=1&protocol={protocol}"

    def found(self, *levels: Level, **given: str) -> str:
        """What doctor says of these levels, a line each; by default its findings. Asked until Kafka answers."""
        wanted = levels or (Level.WARNING, Level.ERROR)
        answers: list[str] = []

        def has_answered() -> bool:
            with suppress(BrokerUnavailable):
                checks = look(replace(self.settings, broker=self.url(**given)), [QUEUE])
                answers.append("\n".join(f"{one.level}: {one.message}" for one in checks if one.level in wanted))
            return bool(answers)

        self.waits(has_answered, "Kafka answers")
        return answers[0]

    def set(self, name: str, value: str | None) -> None:
        """Give the topic a setting, and return when the node has it; None: take it away."""
        how = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=how))
        self.admin.incremental_alter_configs([resource])[resource].result(LONG_S)

    def grant(self, kind: Any, name: str, operation: Any) -> None:
        """Let `ann` do something."""
        binding = AclBinding(
            kind, name, ResourcePatternType.PREFIXED, "User:ann", "*", operation, AclPermissionType.ALLOW
        )
        [asked] = self.admin.create_acls([binding]).values()
        asked.result(LONG_S)

    def waits(self, is_so: Callable[[], bool], what: str) -> None:
        wait_until(is_so, timeout_s=LONG_S, what=what)


@pytest.fixture
def looked(guarded: Kafka, tmp_path: Path) -> Looked:
    return Looked(guarded, tmp_path)


def test_each_setting_of_a_topic_that_loses_or_refuses_hints_is_found_with_what_to_set(looked: Looked) -> None:
    looked.kafka.create_topic(looked.topic)
    assert looked.found() == ""
    faults = {
        "min.insync.replicas": ("2", "error", "Kafka refuses every hint", "min.insync.replicas=1"),
        "unclean.leader.election.enable": ("true", "warning", "is lost", "unclean.leader.election.enable=false"),
        "retention.ms": ("7200000", "warning", "wait longer than 2 h are gone", "retention.ms=604800000"),
        "retention.bytes": ("1000000", "warning", "loses its oldest hints", "retention.bytes=-1"),
        "cleanup.policy": ("compact", "error", "no record without a key", "cleanup.policy=delete"),
    }
    for name, (value, *_) in faults.items():
        looked.set(name, value)

    def wrong() -> list[str]:
        return looked.found().splitlines()

    looked.waits(lambda: len(wrong()) == len(faults), "each is found")

    for name, (value, level, why, cure) in faults.items():
        [line] = [one for one in wrong() if f"{name}={value}" in one]
        assert line.startswith(f"{level}: topic {looked.topic}: ")
        assert why in line
        at = f"kafka-configs.sh --bootstrap-server {looked.host}"
        assert line.endswith(f"{at} --alter --topic {looked.topic} --add-config {cure}")
        looked.set(name, None)
    looked.waits(lambda: looked.found() == "", "nothing is wrong any more")


def test_hints_that_nobody_reads_too_few_partitions_and_a_topic_that_is_gone_are_found(looked: Looked) -> None:
    one = looked.settings
    with WorkQueue(ledger=one.ledger, broker=one.broker, namespace=one.namespace, times=one.times) as app:
        work = app.task(name="shop.note", queue=QUEUE)(note)
        ledger = app.stores.ledger
        work.enqueue_many({"number": number} for number in range(3))
        assert app.producer.relay.flush(timeout_s=LONG_S)
        alone = looked.found()
        assert "1 hint waits in 1 partition of queue 'mail', and nobody is in the group" in alone
        assert "workq worker --queues mail" in alone
        consumer = app.stores.broker.consumer([QUEUE], name="one", prefetch=10)
        collect(consumer, 1, ack=False)
        looked.waits(lambda: looked.found() == "", "it has an owner")
        assert app.stores.broker.depths([QUEUE], with_consumers=True)[QUEUE].consumers == 1
        for name in ("one", "two"):
            ledger.workers.join(Incarnation(name, "host", 1), queues=[QUEUE], threads=1)

        few = looked.found()
        consumer.close()
        looked.waits(lambda: "nobody is in the group" in looked.found(), "it has left")
        served = looked.found()
        looked.admin.delete_topics([looked.topic], operation_timeout=LONG_S)[looked.topic].result(LONG_S)

        looked.waits(lambda: "the topic is missing of mail" in looked.found(), "it is gone")
    assert "has 1 partition for 2 processes: the others get no hint, and poll the ledger; add some: " in few
    at = f"kafka-topics.sh --bootstrap-server {looked.host}"
    assert f"{at} --alter --topic {looked.topic} --partitions 2" in few
    assert "though workers serve it: see consumer trouble in their log" in served


def test_each_right_that_is_missing_is_named_and_nothing_is_made(looked: Looked) -> None:
    looked.kafka.create_topic(looked.topic)
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    grant = f"Grant this user READ, WRITE, CREATE and DESCRIBE on what begins with {looked.name}. and READ on the group"
    nothing = looked.found(user="ann")
    assert nothing.startswith("error: broker: group ")
    assert grant in nothing
    looked.grant(group, looked.name, AclOperation.DESCRIBE)
    looked.waits(lambda: f"broker: {looked.topic}: Kafka says" in looked.found(user="ann"), "the topic is refused")
    assert grant in looked.found(user="ann")
    looked.grant(topic, looked.name, AclOperation.DESCRIBE)
    looked.waits(lambda: "READ and WRITE" in looked.found(user="ann"), "it is described")

    each = looked.found(user="ann").splitlines()
    unread = looked.found(Level.UNCHECKED, user="ann")
    for kind, operation in ((group, "READ"), (topic, "READ"), (topic, "WRITE"), (topic, "CREATE")):
        looked.grant(kind, looked.name, AclOperation[operation])
    looked.waits(lambda: looked.found(user="ann") == "", "all is granted")

    assert [one.partition(". Grant")[0] for one in each] == [
        f"error: this user may not READ the group {looked.name}",
        each[1].partition(". Grant")[0],
        f"error: this user may not READ and WRITE the topic {looked.topic}",
    ]
    assert each[1].startswith("error: topics that are missing cannot be made: ")
    assert "retention, cleanup.policy, min.insync.replicas and unclean elections were not looked at" in unread
    assert f"{looked.name}.quarantine" not in looked.admin.list_topics(timeout=LONG_S).topics


def test_a_kafka_without_the_new_protocol_of_groups_is_an_error_that_says_what_to_use(looked: Looked) -> None:
    found = looked.found(protocol="consumer")

    assert found.startswith("error: Kafka has no group protocol `consumer` (KIP-848): it is older than 4.0")
    assert found.endswith("add ?protocol=classic to the URL")


def test_who_may_not_read_the_settings_of_nodes_is_told_how_to_see_them() -> None:
    [found] = judge_protocol(ClusterFacts(3, None), URL)

    assert found.level is Level.UNCHECKED
    assert "DESCRIBE_CONFIGS on the cluster" in found.message
    assert found.message.endswith("kafka-configs.sh --bootstrap-server one:9092 --describe --entity-type brokers --all")


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment with Kafka's programs, each with a login, as the page says that a person gives it."""
    jars = find_jars(f"kafka-{os.environ.get(KAFKA_VERSION) or DEFAULT_VERSION}")
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required username=workq password=workq;"
    client = tmp_path / "client.properties"
    client.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    [tools] = jars.glob("kafka-tools-[0-9]*.jar")
    with zipfile.ZipFile(tools) as archive:
        is_there = "org/apache/kafka/tools/ConfigCommand.class" in archive.namelist()
    mains = {
        "kafka-configs.sh": "org.apache.kafka.tools.ConfigCommand" if is_there else "kafka.admin.ConfigCommand",
        "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, main in mains.items():
        program = shlex.join([*java(64, jars), "-cp", f"{jars}/*", main])
        (folder / name).write_text(f'#!/bin/bash\nexec {program} "$@" --command-config {shlex.quote(str(client))}\n')
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_the_commands_that_doctor_names_can_be_pasted(looked: Looked, programs: dict[str, str]) -> None:
    looked.kafka.create_topic(looked.topic)
    looked.set("retention.ms", "7200000")
    looked.waits(lambda: "retention.ms=7200000" in looked.found(), "it is found")
    [kept] = looked.found().splitlines()
    topic = TopicFacts(looked.topic, (PartitionFacts(0, has_leader=True, copies=1, in_sync=1),), None)
    place = KafkaUrl.parse(looked.url()).place
    found = [one.message for one in judge_topic(topic, place, nodes=1, processes=2)]
    found += [one.message for one in judge_protocol(ClusterFacts(1, None), KafkaUrl(place, {}, 1, "consumer"))]

    said = [
        subprocess.run(
            ["bash", "-ec", f"kafka-{one.partition('kafka-')[2]}"],
            env=programs,
            capture_output=True,
            timeout=300,
            check=True,
        ).stdout.decode()
        for one in (kept, *found)
    ]

    assert len(said) == 4
    assert "retention.ms=604800000" in said[2]
    assert "group.coordinator.rebalance.protocols" in said[3]
    looked.waits(lambda: looked.found() == "", "retention is as it was")
    assert len(looked.admin.list_topics(looked.topic, timeout=LONG_S).topics[looked.topic].partitions) == 2


def test_an_audit_reads_what_waits_in_the_topic_and_proves_what_is_gone(looked: Looked) -> None:
    """Nothing in the topic is moved or removed, and no group is joined."""
    looked.kafka.create_topic(looked.topic)
    times = replace(Times().divided_by(20.0), confirm_s=LONG_S)
    settings = replace(looked.settings, times=times)
    with WorkQueue(ledger=settings.ledger, broker=settings.broker, namespace=looked.name, times=times) as app:
        work, stores = app.task(name="shop.note", queue=QUEUE)(note), app.stores
        work.enqueue_many({"number": number} for number in range(3))
        assert app.producer.relay.flush(timeout_s=LONG_S)
        assert stores.broker.publish(hints(QUEUE, 1), deadline_s=LONG_S) == [True]

        def found(of: Misplacement, count: int) -> Audited:
            answers: list[Audited] = []

            def is_so() -> bool:
                answers.append(audit(stores, settings, queues=[QUEUE]))
                return answers[-1].count(of) == count

            looked.waits(is_so, f"{count} {of}")
            return answers[-1]

        ghost = found(Misplacement.GHOST, 1)
        repaired = repair(stores, settings, ghost, by="somebody@here")
        [asked] = looked.admin.delete_records([TopicPartition(looked.topic, 0, 2)]).values()
        asked.result(LONG_S)
        lost = found(Misplacement.LOST, 3)
    assert (ghost.tasks, ghost.places[Place.BROKER], ghost.count(Misplacement.LOST)) == (3, 3, 0)
    assert set(ghost.ways.values()) == {Way.LISTED}
    assert (sum(repaired.done.values()), repaired.left) == (0, 1), "nothing can be taken out of the middle of a topic"
    assert "none of the 0 hints in queue mail is its own" in lost.findings[0].proof


@pytest.mark.parametrize(
    ("copies", "in_sync", "needed", "said"),
    [
        (3, 3, 2, ""),
        (2, 2, 1, ""),
        (1, 1, 1, "has one copy, though there are 3 nodes"),
        (3, 3, 3, "while one node is away, no hint is confirmed"),
        (3, 3, 1, "may be confirmed by a node that has the only copy"),
        (3, 1, 2, "partition 0, 1 has fewer copies in sync than 2"),
    ],
)
def test_copies_are_judged_by_the_nodes_and_by_what_a_confirm_needs(
    copies: int, in_sync: int, needed: int, said: str
) -> None:
    parts = tuple(PartitionFacts(number, True, copies, in_sync) for number in range(2))
    topic = TopicFacts("shop.q.mail", parts, {"min.insync.replicas": str(needed), "retention.ms": "-1"})

    found = [one.message for one in judge_topic(topic, URL.place, nodes=3, processes=2)]

    assert len(found) == bool(said)
    assert said in "".join(found)


def test_a_partition_without_a_leader_is_an_error_and_while_partitions_move_none_is_called_unread() -> None:
    topic = TopicFacts("shop.q.mail", (PartitionFacts(0, False, 3, 0, waiting=7),), {"min.insync.replicas": "2"})

    found = [one for one in judge_topic(topic, URL.place, nodes=3, processes=1) if one.level is Level.ERROR]

    assert ["has no leader" in one.message for one in found] == [True]
    assert list(judge_waiting("mail", topic, GroupFacts(2, is_moving=True), processes=1)) == []
    [unread] = judge_waiting("mail", topic, GroupFacts(2, is_moving=False), processes=1)
    assert "none of its 2 members has these partitions of the group" in unread.message
