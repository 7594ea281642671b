"""What is asked of ways in beside their readers: what waits, what comes next, what is wrong; on real servers.

The Kafka has an authorizer: `workq` may do everything, `ann` what a test gives her.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.conftest import Private
from tests.faults.kafka_topic import AUTHORIZED, Topic
from tests.faults.rabbitmq import ask
from tests.faults.ways_in import LONG_S, WayIn, end
from tests.system.fleet import wait_until
from workq.diagnose.doctor import intakes
from workq.diagnose.doctor.check import Level
from workq.errors import BrokerUnavailable, Refused
from workq.lab.servers import Kafka, RabbitMQ, start_kafka
from workq.messages import intake_inspection
from workq.messages.intake.values import IntakeBacklog, OffsetMove
from workq.messages.intake_inspection import IntakeInspection


@pytest.fixture(scope="module")
def authorized(private: Private) -> Iterator[Kafka]:
    with private(start_kafka, options=AUTHORIZED) as server:
        yield server


@pytest.fixture
def topic(authorized: Kafka) -> Callable[..., Topic]:
    return lambda partitions=1: Topic(authorized, partitions=partitions)


def add(way_in: WayIn, source: Topic, *, user: str = "workq", **given: Any) -> None:
    host = source.kafka.url.removeprefix("kafka://")
    url = f"kafka://{user}:{user}@{host}"
    way_in.add(kind="kafka", url=url, **{"topic": source.name, "to": "orders", "group": source.name, **given})


def inspection(way_in: WayIn) -> IntakeInspection:
    return IntakeInspection(replace(way_in.app.settings, message_allow="loopback"), way_in.ledger)


def backlog(way_in: WayIn) -> IntakeBacklog:
    return inspection(way_in).backlogs([way_in.ledger.intakes.required("in")])["in"]


def told(way_in: WayIn, level: Level) -> str:
    """What the doctor says of this level."""
    settings = replace(way_in.app.settings, message_allow="loopback")
    found = intakes.look(way_in.app.stores.ledger, settings, set())
    return "\n".join(one.message for one in found if one.level is level)


def taken(way_in: WayIn, topic: Topic, *, up_to: int) -> None:
    """As if a reader had recorded the first so many of partition 0."""
    position = way_in.ledger.taken.take_partition("in", topic.name, 0, owner="reader")
    way_in.ledger.taken.record("in", [], owner="reader", moves=[OffsetMove(topic.name, 0, position.epoch, up_to)])


def test_what_waits_and_what_comes_next_is_told_and_nothing_moves(way_in: WayIn, topic: Callable[..., Topic]) -> None:
    records = topic(2)
    records.produce(
        (b"1", {"workq-id": "a"}),
        (b"2", {}),
        (b"3", {"workq-id": "b", "workq-at": str(int(time.time() + 3600) * 1000)}),
        part=0,
    )
    records.produce((b"4", {"workq-at": "?"}), (b"5", {"workq-to": "nowhere"}), (None, {"workq-cancel": "b"}), part=1)
    add(way_in, records)
    before = backlog(way_in)
    taken(way_in, records, up_to=2)
    offsets = way_in.offsets()

    found = inspection(way_in).peek(way_in.ledger.intakes.required("in"), limit=10)

    assert (before.records, backlog(way_in)) == (6, IntakeBacklog(4))
    assert [(one.where[-4:], one.id, one.destination, one.is_cancel) for one in found] == [
        ("0]@2", "b", "orders", False),
        ("1]@0", None, None, False),
        ("1]@1", None, None, False),
        ("1]@2", "b", None, True),
    ]
    assert [one.reason is not None and one.reason[:20] for one in found] == [
        False,
        "workq-at: need epoch",
        "no destination 'nowh",
        False,
    ]
    assert found[0].at is not None
    assert (way_in.offsets(), way_in.messages(), backlog(way_in)) == (offsets, {}, IntakeBacklog(4))
    groups: Any = AdminClient(records.kafka.admin_conf).list_consumer_groups().result(LONG_S)
    assert records.name not in {one.group_id for one in groups.valid}
    assert "in (4 records wait)" in told(way_in, Level.WARNING)
    assert told(way_in, Level.ERROR) == ""


def test_records_that_retention_has_removed_are_an_error_that_says_how_many(
    way_in: WayIn, topic: Callable[..., Topic]
) -> None:
    records = topic()
    records.produce(*[(b"x", {}) for _ in range(10)])
    add(way_in, records)
    taken(way_in, records, up_to=3)
    admin: Any = AdminClient(records.kafka.admin_conf)
    part = TopicPartition(records.name, 0, 7)
    admin.delete_records([part])[part].result(LONG_S)

    assert backlog(way_in) == IntakeBacklog(3, lost=4)
    assert "intake 'in' has lost 4 records" in told(way_in, Level.ERROR)
    with way_in.running() as supervisor:
        way_in.wait_for(3)
        end(supervisor)
    logged = (way_in.folder / "intake-1.log").read_text()
    assert ("intake.lost" in logged, "n=4" in logged) == (True, True), logged


def test_a_topic_that_is_missing_is_an_error_and_what_waits_is_unknown(
    way_in: WayIn, topic: Callable[..., Topic]
) -> None:
    add(way_in, topic(), topic="missing")

    assert (backlog(way_in).records, backlog(way_in).unknown) == (None, "Kafka has no topic 'missing'")
    assert "Kafka has no topic 'missing'" in told(way_in, Level.ERROR)
    with pytest.raises(Refused, match="no topic"):
        inspection(way_in).peek(way_in.ledger.intakes.required("in"), limit=1)


def test_rights_that_are_missing_are_errors_in_words(way_in: WayIn, topic: Callable[..., Topic]) -> None:
    records = topic()
    add(way_in, records, user="ann")
    admin: Any = AdminClient(records.kafka.admin_conf)

    def give(kind: ResourceType, operation: AclOperation) -> None:
        pattern = ResourcePatternType.LITERAL
        rule = AclBinding(kind, records.name, pattern, "User:ann", "*", operation, AclPermissionType.ALLOW)
        admin.create_acls([rule])[rule].result(LONG_S)

    def says(*words: str) -> bool:
        """A node learns what its controller has decided a moment later."""
        return all(one in told(way_in, Level.ERROR) for one in words)

    assert "this user has no right to the topic" in told(way_in, Level.ERROR)
    give(ResourceType.TOPIC, AclOperation.DESCRIBE)
    expected = ("may not read the topic", "no right to the group", f"quarantine '{records.name}.quarantine'")
    wait_until(lambda: says(*expected), timeout_s=LONG_S, what="each right that is missing")
    give(ResourceType.TOPIC, AclOperation.READ)
    give(ResourceType.GROUP, AclOperation.READ)
    wait_until(lambda: "may not read" not in told(way_in, Level.ERROR), timeout_s=LONG_S, what="the rights")

    assert "group" not in told(way_in, Level.ERROR)
    assert "quarantine" in told(way_in, Level.ERROR)


def test_a_broker_that_is_away_or_silent_is_unknown_with_its_reason(
    way_in: WayIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_inspection, "LOOK_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        closed.close()
        for name, listener in (("silent", silent.getsockname()[1]), ("closed", 9)):
            way_in.add(f"k-{name}", kind="kafka", url=f"kafka://127.0.0.1:{listener}", topic="t")
            way_in.add(f"a-{name}", kind="amqp", url=f"amqp://127.0.0.1:{listener}", queue="q")

        found = inspection(way_in).backlogs(way_in.ledger.intakes.all())

        assert {name: one.records for name, one in found.items()} == dict.fromkeys(found)
        assert {name for name, one in found.items() if "nothing listens" in (one.unknown or "")} == {
            "a-closed",
            "k-closed",
        }
        assert all("127.0.0.1" in (one.unknown or "") or "no answer" in (one.unknown or "") for one in found.values())
        with pytest.raises(BrokerUnavailable, match="nothing listens"):
            inspection(way_in).peek(way_in.ledger.intakes.required("k-closed"), limit=1)


def test_a_queue_of_rabbitmq_tells_its_depth_and_a_look_at_its_messages_is_refused(
    way_in: WayIn, rabbitmq_server: RabbitMQ
) -> None:
    name = f"in-{secrets.token_hex(6)}"
    way_in.add(kind="amqp", url=rabbitmq_server.url, queue=name)
    missing = told(way_in, Level.ERROR)
    ask(rabbitmq_server, lambda channel: channel.queue_declare(name, durable=True))

    def publish(channel: Any) -> None:
        for _ in range(5):
            channel.basic_publish("", name, b"x", mandatory=True)

    ask(rabbitmq_server, publish)

    wait_until(lambda: backlog(way_in) == IntakeBacklog(5), timeout_s=LONG_S, what="5 wait")
    assert f"no queue '{name}'" in missing
    assert "in (5 records wait)" in told(way_in, Level.WARNING)
    assert told(way_in, Level.ERROR) == ""
    with pytest.raises(Refused, match="is a delivery"):
        inspection(way_in).peek(way_in.ledger.intakes.required("in"), limit=1)
