"""A user of Kafka who lacks a right: what is refused is told with what to grant, and all else goes on."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.cli.conftest import Cli
from tests.conftest import Private
from tests.contract.broker import collect_ids, hints, ids
from tests.faults.kafka_raw import produce_raw
from tests.faults.kafka_topic import AUTHORIZED, Topic
from tests.faults.ways_in import LONG_S
from tests.system.fleet import wait_until
from workq.broker.kafka import KafkaBroker, refused_topics
from workq.broker.kafka.topics import TopicNames
from workq.errors import ConfigError
from workq.lab.servers import Kafka, start_kafka
from workq.lab.topics import ScratchTopics

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


@pytest.fixture(scope="module")
def guarded(private: Private) -> Iterator[Kafka]:
    with private(start_kafka, options=AUTHORIZED) as server:
        yield server


class Narrow:
    """A namespace of one test, and what `ann` may do in it."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.name = f"n{secrets.token_hex(4)}"
        self.names = TopicNames(self.name)
        self.admin: Any = AdminClient(kafka.admin_conf)
        self.brokers: list[KafkaBroker] = []

    def url(self, user: str) -> str:
        return f"kafka://{user}:{user}@{self.kafka.url.removeprefix('kafka://')}?partitions=1"

    def open(self, user: str) -> KafkaBroker:
        self.brokers.append(KafkaBroker(self.url(user), namespace=self.name))
        return self.brokers[-1]

    def publish(self, queue: str, count: int = 1) -> list[str]:
        """As somebody who may do everything."""
        sent = hints(queue, count)
        broker = self.open("workq")
        wait_until(lambda: all(broker.publish(sent, deadline_s=LONG_S)), timeout_s=LONG_S, what="they are confirmed")
        return ids(sent)

    def topic(self, queue: str) -> str:
        return self.names.topic(queue)

    def grant(self, kind: Any, name: str, *operations: str, pattern: Any = LITERAL) -> None:
        for one in operations:
            allowed = AclPermissionType.ALLOW
            binding = AclBinding(kind, name, pattern, "User:ann", "*", AclOperation[one], allowed)
            [asked] = self.admin.create_acls([binding]).values()
            asked.result(LONG_S)

    def close(self) -> None:
        for one in self.brokers:
            one.close()


@pytest.fixture
def narrow(guarded: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Narrow]:
    monkeypatch.setattr("workq.broker.kafka.consumer.AGAIN_S", 0.5)
    monkeypatch.setattr(refused_topics, "AGAIN_S", 0.5)
    made = Narrow(guarded)
    yield made
    made.close()


def waits(is_so: Callable[[], bool], what: str) -> None:
    wait_until(is_so, timeout_s=LONG_S, what=what)


def test_a_topic_that_may_not_be_made_holds_up_no_other_and_is_read_once_it_is_there(narrow: Narrow) -> None:
    narrow.grant(GROUP, narrow.name, "READ")
    for queue in ("mail", "bill"):
        narrow.grant(TOPIC, narrow.topic(queue), "READ", "WRITE")
    first = narrow.publish("mail", 3)

    consumer = narrow.open("ann").consumer(["mail", "bill"], name="one", prefetch=10)
    found = collect_ids(consumer, 3)
    waits(lambda: consumer.trouble is not None, "it is told")
    told = consumer.trouble or ""
    narrow.grant(TOPIC, narrow.topic("bill"), "CREATE")
    waits(lambda: consumer.trouble is None, "it may make it")

    sent = narrow.publish("bill")

    assert sorted(found) == sorted(first)
    assert told.startswith(f"broker: {narrow.topic('bill')}: Kafka says")
    assert "Grant this user READ, WRITE, CREATE and DESCRIBE" in told
    assert collect_ids(consumer, 1) == sent


def test_a_topic_that_is_deleted_and_may_not_be_made_again_is_told_and_the_others_go_on(narrow: Narrow) -> None:
    narrow.grant(GROUP, narrow.name, "READ")
    narrow.grant(TOPIC, f"{narrow.name}.", "READ", "WRITE", pattern=PREFIXED)
    sent = [*narrow.publish("mail"), *narrow.publish("bill")]
    consumer = narrow.open("ann").consumer(["mail", "bill"], name="one", prefetch=10)
    assert sorted(collect_ids(consumer, 2)) == sorted(sent)

    Topic(narrow.kafka, name=narrow.topic("bill")).delete()
    waits(lambda: "Grant this user" in (consumer.trouble or ""), "it is told")

    for queue in ("mail", "bill"):
        sent = narrow.publish(queue)
        assert collect_ids(consumer, 1) == sent
    waits(lambda: consumer.trouble is None, "somebody else has made it")


def test_a_topic_that_may_not_be_read_holds_up_no_other_and_neither_does_one_that_may_not_be_seen(
    narrow: Narrow,
) -> None:
    narrow.grant(GROUP, narrow.name, "READ")
    narrow.grant(TOPIC, narrow.topic("mail"), "READ", "WRITE")
    narrow.grant(TOPIC, narrow.topic("bill"), "WRITE")
    sent = {queue: narrow.publish(queue) for queue in ("mail", "bill", "other")}

    consumer = narrow.open("ann").consumer(list(sent), name="one", prefetch=10)
    found = collect_ids(consumer, 1)
    waits(lambda: consumer.trouble is not None, "it is told")
    told = consumer.trouble or ""
    for queue in ("bill", "other"):
        narrow.grant(TOPIC, narrow.topic(queue), "READ", "WRITE")

    assert found == sent["mail"]
    assert "Grant this user" in told
    assert sorted(collect_ids(consumer, 2)) == sorted([*sent["bill"], *sent["other"]])
    waits(lambda: consumer.trouble is None, "nothing is refused any more")


def test_who_may_not_be_in_the_group_is_told_what_to_grant_and_goes_on_when_he_may(narrow: Narrow) -> None:
    narrow.grant(TOPIC, f"{narrow.name}.", "READ", "WRITE", pattern=PREFIXED)
    sent = narrow.publish("mail")

    consumer = narrow.open("ann").consumer(["mail"], name="one", prefetch=10)
    waits(lambda: f"and READ on the group {narrow.name}" in (consumer.trouble or ""), "it is told")
    narrow.grant(GROUP, narrow.name, "READ")

    assert collect_ids(consumer, 1) == sent
    waits(lambda: consumer.trouble is None, "nothing is refused any more")


def test_a_message_that_cannot_be_put_into_the_quarantine_holds_up_no_hint_and_goes_there_later(
    narrow: Narrow,
) -> None:
    narrow.grant(GROUP, narrow.name, "READ")
    narrow.grant(TOPIC, f"{narrow.name}.", "READ", "WRITE", pattern=PREFIXED)
    narrow.publish("mail")
    broker = narrow.open("ann")
    consumer = broker.consumer(["mail"], name="one", prefetch=10)
    collect_ids(consumer, 1)
    produce_raw(narrow.kafka, narrow.topic("mail"), b"no hint", {})
    set_aside = 0

    def is_there(*wanted: str) -> bool:
        """Fetch as a worker does, until these have come."""
        nonlocal set_aside
        for one in consumer.fetch(ids_max=100, wait_s=0.1):
            if one.fault is None:
                consumer.ack([one])
                found.update(one.task_ids)
            else:
                set_aside += 1
                consumer.quarantine(one, reason=one.fault)
        return found.issuperset(wanted)

    found: set[str] = set()
    waits(lambda: is_there() and narrow.names.quarantine in (consumer.trouble or ""), "it is told")
    sent = narrow.publish("mail", 2)
    waits(lambda: is_there(*sent), "hints go on")
    narrow.grant(TOPIC, narrow.names.quarantine, "CREATE")
    waits(lambda: is_there() and consumer.trouble is None, "it is mended")

    assert set_aside >= 2
    waits(lambda: _count(narrow, narrow.names.quarantine) == 1, "it is in the quarantine")


def _count(narrow: Narrow, topic: str) -> int:
    return sum(Topic(narrow.kafka, name=topic).ends().values())


def test_a_worker_whose_user_may_make_no_topic_runs_its_tasks_from_the_ledger(narrow: Narrow, tmp_path: Path) -> None:
    narrow.grant(GROUP, narrow.name, "READ")
    narrow.grant(TOPIC, f"{narrow.name}.", "READ", "WRITE", pattern=PREFIXED)
    cli = Cli(tmp_path)
    cli.env |= {"WORKQ_BROKER_URL": narrow.url("ann"), "WORKQ_NAMESPACE": narrow.name}
    assert cli("db", "migrate").status == 0
    task_id = cli("enqueue", "shop.add", "a=1", "b=2", "-o", "json", app=True).json()["id"]

    drained = cli("worker", "--drain", "--processes", "1", app=True)

    assert cli("task", "show", task_id, "-o", "json").json()["state"] == "succeeded"
    assert drained.status == 0
    assert "worker.cannot_serve" not in drained.err


@pytest.mark.parametrize(
    ("kind", "operations", "missing"),
    [
        (TOPIC, (), "_0a1b2c3d: Kafka says: Authorization failed. Grant"),
        (TOPIC, ("CREATE", "READ", "WRITE"), "may not DELETE the topic"),
        (GROUP, (), "roup authorization failed"),
        (GROUP, ("READ",), "roup authorization failed"),
    ],
)
def test_who_certifies_with_too_few_rights_is_told_which_to_grant(
    narrow: Narrow, kind: Any, operations: Sequence[str], missing: str
) -> None:
    namespace = f"{narrow.name}_0a1b2c3d"
    every = {TOPIC: ("READ", "WRITE", "CREATE", "DELETE"), GROUP: ("READ", "DELETE")}
    for one, all_of_it in every.items():
        narrow.grant(one, f"{narrow.name}_", *(operations if one is kind else all_of_it), pattern=PREFIXED)
    scratch = ScratchTopics(narrow.url("ann"), namespace)

    with pytest.raises(ConfigError) as refused:
        scratch.try_rights()
    narrow.grant(kind, f"{narrow.name}_", *every[kind], pattern=PREFIXED)
    ScratchTopics(narrow.url("workq"), namespace).remove()
    scratch.try_rights()

    assert missing in str(refused.value)
    assert "Grant this user READ, WRITE, CREATE and DELETE on topics, and READ and DELETE on groups" in str(
        refused.value
    )
    assert f"that begin with {narrow.name}_ (" in str(refused.value)
    waits(
        lambda: not any(one.startswith(namespace) for one in narrow.admin.list_topics(timeout=LONG_S).topics),
        "nothing is left",
    )
