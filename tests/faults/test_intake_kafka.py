"""A Kafka topic as a way in, on a real Kafka: what only its groups and topics can do. The rest: tests/contract."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
import pytest

from tests.faults.kafka_raw import produce_raw
from tests.faults.kafka_topic import Topic
from tests.faults.ways_in import LONG_S, WayIn, children_of, end
from tests.system.fleet import wait_until
from workq import WorkQueue
from workq.config.addresses import Allowed
from workq.lab.servers import Kafka, PostgreSQL, start_kafka
from workq.ledger.engine.migrate import migrate
from workq.messages.intake import kafka_membership
from workq.messages.intake.kafka import KafkaIntake
from workq.messages.intake.values import Position
from workq.messages.kinds import DestinationAddress


@pytest.fixture
def topic(kafka_server: Kafka) -> Callable[..., Topic]:
    return lambda partitions=1: Topic(kafka_server, partitions=partitions)


def add(way_in: WayIn, topic: Topic, **given: Any) -> None:
    options = {"to": "orders", "group": topic.name, **given}
    way_in.add(kind="kafka", url=topic.kafka.url, topic=topic.name, **options)


def test_members_that_come_go_and_die_record_each_record_once(way_in: WayIn, topic: Callable[..., Topic]) -> None:
    records = topic(4)
    add(way_in, records)
    produced = 0

    def produce() -> None:
        nonlocal produced
        for part in range(4):
            records.produce(*[(b"x", {}) for _ in range(500)], part=part)
        produced += 2000

    with way_in.running(processes=2) as first:
        produce()
        way_in.wait_for(500)
        produce()
        children_of(first)[0].kill()
        with way_in.running() as second:
            wait_until(lambda: len(children_of(second)) == 1, timeout_s=LONG_S, what="a third member")
            produce()
            way_in.wait_for(produced - 1000, timeout_s=2 * LONG_S)
            children_of(second)[0].kill()
            produce()
            assert end(second) in (0, 1)
        wait_until(lambda: way_in.offsets() == records.ends(), timeout_s=2 * LONG_S, what="all passed")

    assert sum(records.ends().values()) == produced
    assert (way_in.intake().recorded, len(way_in.messages()), way_in.intake().repeated) == (produced, produced, 0)


def test_a_header_that_cannot_be_read_puts_its_record_aside_and_stops_none_behind_it(
    way_in: WayIn, topic: Callable[..., Topic]
) -> None:
    records = topic()
    records.produce(
        *[(b"many", {"workq-id": f"m{number}"}) for number in range(50)]
    )  # Python checks less of many calls
    produce_raw(records.kafka, records.name, b"strange", {b"fine": b"x", b"n\xff\xfeme": b"y"})
    records.produce((b"behind", {"workq-id": "behind"}))
    add(way_in, records)

    with way_in.running():
        wait_until(lambda: way_in.offsets() == records.ends(), timeout_s=2 * LONG_S, what="all passed")

    [aside] = records.quarantined(1)
    assert aside["body"] == b"strange"
    assert "no text in UTF-8" in aside["workq-reason"]
    assert ("behind" in way_in.messages(), way_in.intake().recorded, way_in.intake().quarantined) == (True, 51, 1)


def test_a_partition_that_is_added_is_read_from_its_beginning(way_in: WayIn, topic: Callable[..., Topic]) -> None:
    records = topic()
    records.produce(*[(b"x", {}) for _ in range(100)])
    add(way_in, records)

    with way_in.running(processes=2):
        way_in.wait_for(100)
        records.grow(to=3)
        for part in range(3):
            records.produce(*[(b"y", {}) for _ in range(100)], part=part)
        wait_until(lambda: way_in.offsets() == {0: 200, 1: 100, 2: 100}, timeout_s=4 * LONG_S, what="all passed")

    assert (way_in.intake().recorded, way_in.intake().repeated, len(way_in.messages())) == (400, 0, 400)


def test_a_member_that_stood_still_and_goes_on_records_nothing_that_its_successor_has(
    postgres_server: PostgreSQL, tmp_path: Path, topic: Callable[..., Topic]
) -> None:
    """Not on SQLite: whoever is stopped amid a write, that of its beat too, keeps the file from all others."""
    url = postgres_server.create_database()
    app = WorkQueue(ledger=url)
    with contextlib.closing(app.database()) as database:
        migrate(database)
    way_in = WayIn(tmp_path, environ={"WORKQ_LEDGER_URL": url}, app=app)
    records = topic()
    records.produce(*[(b"x", {}) for _ in range(100)])
    add(way_in, records)

    with way_in.running(WORKQ_FAILPOINT="intake.before_record:pause@1") as stopped:

        def paused() -> list[psutil.Process]:
            return [one for one in children_of(stopped) if one.status() == psutil.STATUS_STOPPED]

        wait_until(lambda: bool(paused()), timeout_s=LONG_S, what="a batch in the hands of one that stands still")
        with way_in.running():
            way_in.wait_for(100, timeout_s=2 * LONG_S)
            for one in paused():
                one.resume()
            records.produce(*[(b"y", {}) for _ in range(100)])
            wait_until(lambda: way_in.offsets() == {0: 200}, timeout_s=2 * LONG_S, what="all passed")

    assert (way_in.intake().recorded, way_in.intake().repeated, len(way_in.messages())) == (200, 0, 200)
    app.close()


@pytest.mark.parametrize("count", [20, 120])
def test_a_topic_that_is_made_anew_under_its_reader_loses_no_record(
    count: int, way_in: WayIn, topic: Callable[..., Topic]
) -> None:
    records = topic()
    records.produce(*[(b"old", {"workq-id": f"old-{n}"}) for n in range(50)])
    add(way_in, records)

    with way_in.running():
        way_in.wait_for(50)
        records.make_anew()
        records.produce(*[(b"new", {"workq-id": f"new-{n}"}) for n in range(count)])
        way_in.wait_for(50 + count, timeout_s=2 * LONG_S)
        wait_until(lambda: way_in.offsets() == {0: count}, timeout_s=2 * LONG_S, what="all passed")

    ids = {f"old-{n}" for n in range(50)} | {f"new-{n}" for n in range(count)}
    assert (set(way_in.messages()), way_in.intake().recorded) == (ids, 50 + count)


def test_a_topic_that_is_made_anew_is_read_from_its_beginning(way_in: WayIn, topic: Callable[..., Topic]) -> None:
    records = topic()
    records.produce(*[(b"old", {}) for _ in range(50)])
    add(way_in, records)
    with way_in.running() as supervisor:
        way_in.wait_for(50)
        end(supervisor)
    records.make_anew()
    records.produce(*[(b"new", {}) for _ in range(120)])

    with way_in.running():
        way_in.wait_for(170)
        wait_until(lambda: way_in.offsets() == {0: 120}, timeout_s=LONG_S, what="all passed")

    assert (way_in.intake().recorded, way_in.intake().repeated) == (170, 0)


def test_a_kafka_that_is_away_is_noted_and_not_any_more_when_it_is_back(way_in: WayIn, tmp_path: Path) -> None:
    with start_kafka(tmp_path / "kafka") as kafka:
        records = Topic(kafka, partitions=1)
        add(way_in, records)
        kafka.kill()
        with way_in.running():
            wait_until(lambda: way_in.intake().failing_since is not None, timeout_s=LONG_S, what="noted")
            assert "127.0.0.1" in (way_in.intake().error or "")
            kafka.restart()
            records.produce((b"x", {"workq-id": "x"}))
            way_in.wait_for(1, timeout_s=2 * LONG_S)
            wait_until(lambda: way_in.intake().failing_since is None, timeout_s=LONG_S, what="well again")


def test_what_a_membership_is_told_late_leaves_the_partitions_of_its_successor(
    topic: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is closed while Kafka's coordinator is away may be told only then that its partitions are gone."""
    told: list[Callable[..., None]] = []

    class Remembering(confluent_kafka.Consumer):
        def subscribe(self, topics: list[str], *rest: Any, **given: Any) -> None:
            told.append(given["on_revoke"])
            super().subscribe(topics, *rest, **given)

    monkeypatch.setattr(kafka_membership, "Consumer", Remembering)
    records = topic()
    offsets: dict[int, int] = {}
    url = records.kafka.url
    link = KafkaIntake().open(
        DestinationAddress("in", KafkaIntake().check({"url": url, "topic": records.name}), url),
        allowed=Allowed.of("loopback"),
        take=lambda _topic, part, _id: Position(offsets.get(part), epoch=1),
    )

    def is_fetched(body: bytes) -> bool:
        batch = link.fetch(limit=10, timeout_s=0.3)
        offsets.update({one.part: one.next_offset for one in batch.moves})
        return [one.body for one in batch.records] == [body]

    try:
        for body in (b"first", b"second"):
            records.produce((body, {}))
            wait_until(lambda body=body: is_fetched(body), timeout_s=2 * LONG_S, what=f"{body!r}")  # type: ignore[misc]
            if body == b"first":
                link.close()
        told[0](confluent_kafka.Consumer({"group.id": "nobody"}), [confluent_kafka.TopicPartition(records.name, 0)])
        records.produce((b"third", {}))
        wait_until(lambda: is_fetched(b"third"), timeout_s=LONG_S, what="the third")
    finally:
        link.close()
